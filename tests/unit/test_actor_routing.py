"""Who gets a message, who gets the outcome, and what a fault costs the others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ontologia.actors import (
    Actor,
    ActorLoop,
    Capability,
    Message,
    MessageEvent,
)
from tests.unit.actor_world import (
    MEMORY,
    Desk,
    EarTwo,
    MemoryActor,
    MemoryChanged,
    MemoryGet,
    MemorySet,
    beside,
    calm,
    ear,
    get,
    never,
    of,
    run,
    set_,
)


async def _silent(self, message):
    pass


@pytest.mark.req("CQR-008", "CQR-032", "CQR-033", "CQR-036", "CQR-037", "CQR-092")
def test_a_command_gives_an_event_to_subscribers_and_one_reply_to_the_client():
    desk = Desk()
    one, first = ear("Memory.Changed", id="one")
    two, second = ear("Other.Changed", id="two", inbound=EarTwo)

    async def story(loop):
        request = set_("a", 7, correlation="corr-1")
        desk.send(request, "c1")
        await desk.wait_for(1, "c1")
        await one.wait_for()
        await calm(loop)
        return request

    request = beside([MEMORY, first, second], story, [desk])
    [answer] = desk.got["c1"]
    assert (answer.kind, answer.type, answer.data) == ("reply", "Memory.Set", {"stored": True})
    assert answer.metadata.causation == request.metadata.id
    assert answer.metadata.correlation == "corr-1"
    [event] = one.heard
    assert event.data == {"key": "a", "value": 7}
    assert event.metadata.causation == request.metadata.id
    assert event.metadata.correlation == "corr-1"
    assert two.heard == []
    assert list(desk.got) == ["c1"]


@pytest.mark.req("CQR-036")
def test_an_event_without_subscribers_is_dropped_without_a_word(caplog):
    loop = ActorLoop([MEMORY])
    loop.enqueue(Message.event("Nobody.Cares"))

    run(loop.run())

    assert loop.metrics()["signals"] == {}
    assert caplog.text == ""


@pytest.mark.req("CQR-039", "CQR-090")
def test_a_request_without_a_handler_is_answered_and_signalled():
    desk = Desk()
    listener, listening = ear("Sys.RoutingError")

    async def story(loop):
        answer = await desk.ask(Message.query("Nobody.Knows", correlation="corr-1"))
        await listener.wait_for()
        return answer

    answer = beside([MEMORY, listening], story, [desk])
    assert (answer.kind, answer.type, answer.data["code"]) == ("error", "Nobody.Knows", 404)
    assert answer.metadata.correlation == "corr-1"
    [signal] = listener.heard
    assert signal.data["messageType"] == "Nobody.Knows"
    assert signal.metadata.causation == answer.metadata.causation


@pytest.mark.req("CQR-032")
def test_the_kind_is_part_of_the_address():
    async def story(loop):
        return await loop.request(Message.command("Memory.Get", {"key": "a"}))

    assert beside([MEMORY], story).data["code"] == 404


@pytest.mark.req("CQR-051")
def test_data_that_does_not_fit_is_refused_and_the_actornever_sees_it():
    seen = []

    class Watched(MemoryActor):
        async def handle(self, message):
            seen.append(message)
            await super().handle(message)

    memory = Capability(
        "memory",
        "",
        inbound=MemorySet | MemoryGet,
        outbound=MemoryChanged,
        subscribes=[],
        spawn=Watched,
    )

    async def story(loop):
        return await loop.request(Message.command("Memory.Set", {"key": "a", "value": "x"}))

    answer = beside([memory], story)
    assert answer.data["code"] == 400
    assert "data.value" in answer.data["message"]
    assert seen == []


def test_messages_reach_the_actor_as_the_classes_it_declared():
    seen = []

    async def handle(self, message):
        seen.append(message)
        self.reply(message)

    capability = of(handle)

    beside([capability], lambda loop: loop.request(Message.command("Do.It", {"x": 1})))

    assert type(seen[0]) is capability.inbound


@pytest.mark.req("CQR-009", "CQR-014", "CQR-015")
def test_a_stuck_actor_holds_up_nobody_else():
    desk = Desk()

    async def story(loop):
        for n in range(1000):
            desk.send(Message.command("Do.It"), f"stuck{n}")
        assert (await desk.ask(set_())).data == {"stored": True}
        assert (await desk.ask(get())).data == {"value": 1}
        await asyncio.sleep(0)
        return loop.metrics()

    metrics = beside([of(never), MEMORY], story, [desk])
    assert metrics["mailboxes"]["doer"] == 1000
    assert metrics["pending"]["adapters"] == 1000


@pytest.mark.req("CQR-016")
def test_an_actor_handles_one_message_at_a_time_in_order():
    steps = []

    async def handle(self, message):
        steps.append(("begin", message.data["n"]))
        for _ in range(3):
            await asyncio.sleep(0)
        steps.append(("end", message.data["n"]))

    loop = ActorLoop([of(handle, kind="event", subscribes=["Do.It"])])
    for n in range(5):
        loop.enqueue(Message.event("Do.It", {"n": n}))
    run(loop.run())

    assert steps == [(what, n) for n in range(5) for what in ("begin", "end")]


@pytest.mark.req("CQR-030")
def test_all_who_are_told_of_an_event_have_it_before_the_first_of_them_handles_it():
    found = []

    async def handle(self, message):
        found.append(sum(loop.metrics()["mailboxes"].values()))

    several = [of(handle, kind="event", subscribes=["Do.It"], id=f"doer{n}") for n in range(5)]
    loop = ActorLoop(several)
    loop.enqueue(Message.event("Do.It"))
    run(loop.run())

    assert found == [5, 4, 3, 2, 1]


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("it cannot be asked")


@pytest.mark.req("CQR-017", "CQR-090")
@pytest.mark.parametrize(
    "raised",
    [
        ValueError("no"),
        SystemExit(1),
        asyncio.CancelledError(),
        OSError("no such file: caf\udce9"),
        Mute(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_fault_is_answered_and_signalled_and_the_next_message_is_handled(raised):
    async def handle(self, message):
        if message.data.get("bad"):
            raise raised
        self.reply(message, {"fine": True})

    listener, listening = ear("Sys.ActorFault")

    async def story(loop):
        bad = await loop.request(Message.command("Do.It", {"bad": True}))
        good = await loop.request(Message.command("Do.It"))
        await listener.wait_for()
        return bad, good

    bad, good = beside([of(handle), listening], story)
    assert bad.data["code"] == 500
    assert type(raised).__name__ in bad.data["message"]
    assert good.data == {"fine": True}
    [signal] = listener.heard
    assert signal.data["capability"] == "doer"
    assert signal.data["messageType"] == "Do.It"
    assert "Traceback" in signal.data["traceback"]


def test_a_fault_after_the_answer_gives_no_second_one():
    async def handle(self, message):
        self.reply(message, {"fine": True})
        raise ValueError("too late")

    async def story(loop):
        answer = await loop.request(Message.command("Do.It"))
        await calm(loop)
        return answer, loop.metrics()["signals"]

    answer, signals = beside([of(handle)], story)
    assert answer.data == {"fine": True}
    assert signals == {"Sys.ActorFault": 1}


@pytest.mark.req("CQR-091")
def test_a_fault_about_a_signal_is_not_signalled_again(caplog):
    class Broken(type(ear()[0])):
        async def handle(self, message):
            await super().handle(message)
            raise ValueError("and again")

    async def handle(self, message):
        raise ValueError("first")

    listener, listening = ear("Sys.ActorFault", actor=Broken())

    async def story(loop):
        await loop.request(Message.command("Do.It"))
        await listener.wait_for()
        await calm(loop)

    beside([of(handle), listening], story)
    assert len(listener.heard) == 1
    assert "and again" in caplog.text


@pytest.mark.req("CQR-090", "CQR-091")
def test_routing_decisions_are_signalled_but_not_those_about_signals(caplog):
    caplog.set_level(logging.DEBUG, "ontologia.actors")
    listener, listening = ear("Sys.Routed", "Sys.ActorFault")

    async def story(loop):
        await loop.request(set_())
        await listener.wait_for()
        await calm(loop)

    beside([MEMORY, listening], story)
    [signal] = listener.heard
    assert signal.data["capability"] == "memory"
    assert signal.data["kind"] == "command"
    [record] = [each for each in caplog.records if each.signal == "Sys.Routed"]
    assert record.data["capability"] == "memory"


@pytest.mark.req("CQR-034")
def test_a_missing_outcome_is_no_fault():
    async def story(loop):
        asked = asyncio.create_task(loop.request(Message.command("Do.It")))
        await asyncio.sleep(0)
        await calm(loop)
        asked.cancel()
        return loop.metrics()

    metrics = beside([of(_silent)], story)
    assert metrics["signals"] == {}
    assert metrics["pending"]["loop"] == 1


@pytest.mark.req("CQR-035", "CQR-083")
def test_a_second_outcome_is_an_orphan():
    async def handle(self, message):
        self.reply(message, {"n": 1})
        self.reply(message, {"n": 2})
        self.fail(message, 500, "three")

    desk = Desk()
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop):
        desk.send(Message.command("Do.It"))
        await listener.wait_for(2)

    beside([of(handle), listening], story, [desk])
    assert [each.data for each in desk.got["c1"]] == [{"n": 1}]
    assert [each.data["kind"] for each in listener.heard] == ["reply", "error"]


@pytest.mark.req("CQR-037", "CQR-042", "CQR-083")
def test_correlation_does_not_bring_a_reply_to_anybody():
    async def handle(self, message):
        stray = Message.command("Do.It", correlation=message.metadata.correlation).reply({"n": 1})
        self.emit(stray)

    desk = Desk()
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop):
        desk.send(Message.command("Do.It", correlation="corr-1"))
        await listener.wait_for()
        return loop.metrics()["pending"]["adapters"], dict(desk.got)

    assert beside([of(handle), listening], story, [desk]) == (1, {})


@pytest.mark.req("CQR-038")
def test_an_error_that_answers_nobody_goes_to_the_signals(caplog):
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop):
        loop.enqueue(set_().error(500, "of nobody's"))
        await listener.wait_for()

    beside([listening], story)
    assert listener.heard[0].data["error"] == {"code": 500, "message": "of nobody's"}
    assert "of nobody's" in caplog.text


@pytest.mark.req("CQR-086")
def test_an_actor_gets_the_outcome_of_what_it_asked_while_it_handles_a_message():
    async def handle(self, message):
        answer = await self.request(get(message.data["key"]))
        self.reply(message, {"kind": answer.kind, **answer.data})

    async def story(loop):
        await loop.request(set_("a", 5))
        found = await loop.request(Message.command("Do.It", {"key": "a"}))
        missing = await loop.request(Message.command("Do.It", {"key": "b"}))
        return found, missing, loop.metrics()["signals"]

    found, missing, signals = beside([MEMORY, of(handle)], story)
    assert found.data == {"kind": "reply", "value": 5}
    assert missing.data["code"] == 404
    assert signals == {}


@pytest.mark.req("CQR-086", "CQR-040")
def test_outcomes_of_commands_sent_without_waiting_are_told_in_order():
    told = []

    class Teller(Actor):
        async def handle(self, message):
            self.sent = self.emit(set_("a", 1))
            self.reply(message)

        async def outcome(self, message):
            told.append((message.metadata.causation == self.sent.metadata.id, message.data))

    capability = of(None)
    teller = Capability(
        "teller",
        "",
        inbound=capability.inbound,
        outbound=Message,
        subscribes=[],
        spawn=Teller,
    )

    async def story(loop):
        request = Message.command("Do.It")
        await loop.request(request)
        await calm(loop)
        return loop.metrics()["signals"]

    assert beside([MEMORY, teller], story) == {}
    assert told == [(True, {"stored": True})]


def test_an_actor_that_gets_no_outcome_gets_a_timeout():
    async def handle(self, message):
        answer = await self.request(Message.command("Do.Nothing"), timeout=0)
        self.reply(message, answer.data)

    silent = of(_silent, type="Do.Nothing", id="silent")

    answer = beside([silent, of(handle)], lambda loop: loop.request(Message.command("Do.It")))

    assert answer.data["code"] == 504


def test_a_request_of_the_program_ends_after_its_time_and_a_late_outcome_is_an_orphan():
    go = asyncio.Event()

    async def handle(self, message):
        await go.wait()
        self.reply(message)

    async def story(loop):
        answer = await loop.request(Message.command("Do.It"), timeout=0)
        go.set()
        await calm(loop)
        return answer, loop.metrics()

    answer, metrics = beside([of(handle)], story)
    assert answer.data["code"] == 504
    assert metrics["signals"] == {"Sys.OrphanOutcome": 1}
    assert metrics["pending"] == {"adapters": 0, "actors": 0, "loop": 0}


@pytest.mark.parametrize("bad", ["undeclared", "misfit", "not json", "not a message"])
def test_what_an_actor_must_not_say_is_dropped_as_its_fault(bad):
    async def handle(self, message):
        if bad == "undeclared":
            self.emit("Memory.Forgotten")
        elif bad == "misfit":
            self.emit("Memory.Changed", {"key": 5})
        elif bad == "not json":
            self.emit("Memory.Changed", {"key": object()})
        else:
            self.dispatch(MessageEvent("hello"))
        self.reply(message)

    one, first = ear("Memory.Changed", "Memory.Forgotten", id="one", inbound=MemoryChanged)
    two, second = ear("Memory.Changed", id="two", inbound=EarTwo)
    three, third = ear("Sys.ActorFault", id="three")

    async def story(loop):
        answer = await loop.request(Message.command("Do.It"))
        await three.wait_for()
        await calm(loop)
        return answer

    answer = beside([of(handle, outbound=MemoryChanged), first, second, third], story)
    assert answer.kind == "reply"
    assert one.heard == two.heard == []
    assert [each.data["capability"] for each in three.heard] == ["doer"]


def test_a_reply_that_does_not_fit_becomes_error_500():
    reply = of(None, kind="reply").inbound

    class Reply(reply):
        data: dict[str, int]

    async def handle(self, message):
        self.reply(message, {"n": message.data["n"]})

    async def story(loop):
        good = await loop.request(Message.command("Do.It", {"n": 1}))
        bad = await loop.request(Message.command("Do.It", {"n": "x"}))
        return good, bad, loop.metrics()["signals"]

    good, bad, signals = beside([of(handle, outbound=Reply)], story)
    assert good.data == {"n": 1}
    assert (bad.kind, bad.data["code"]) == ("error", 500)
    assert signals == {"Sys.ActorFault": 1}


@pytest.mark.parametrize("depth", [220, 2_000], ids=["for a reader", "for a writer, too"])
def test_a_reply_that_is_nested_too_deep_becomes_error_500(depth):
    async def handle(self, message):
        found = []
        for _ in range(depth):
            found = [found]
        self.reply(message, found)

    async def story(loop):
        answer = await loop.request(Message.command("Do.It"))
        return answer, loop.metrics()

    answer, metrics = beside([of(handle)], story)
    assert (answer.kind, answer.data["code"]) == ("error", 500)
    assert metrics["signals"] == {"Sys.ActorFault": 1}
    assert metrics["pending"]["loop"] == 0


@pytest.mark.parametrize("data", [{"key": 5}, {"key": object()}], ids=["misfit", "not json"])
def test_a_request_that_an_actor_must_not_make_is_answered_to_it(data):
    async def handle(self, message):
        answer = await self.request(Message.query("Memory.Get", data))
        self.reply(message, answer.data)

    capabilities = [MEMORY, of(handle, outbound=MemoryGet)]

    answer = beside(capabilities, lambda loop: loop.request(Message.command("Do.It")))

    assert answer.data["code"] == 500


@pytest.mark.req("CQR-040", "CQR-041")
def test_whatever_an_actor_sends_is_a_consequence_of_the_message_at_hand():
    listener, listening = ear("Thing.Done")
    asked = []

    async def handle(self, message):
        self.emit(Message.event("Thing.Done"))
        self.emit("Thing.Done")
        other = Message.event("Other.Thing", correlation="corr-2")
        self.emit(Message.event("Thing.Done", cause=other))
        asked.append(self.emit(get()))
        self.reply(message)

    async def story(loop):
        request = Message.command("Do.It", correlation="corr-1")
        answer = await loop.request(request)
        await listener.wait_for(3)
        return request, answer

    request, answer = beside([MEMORY, of(handle), listening], story)
    first, second, third = listener.heard
    for each in (first, second, *asked, answer):
        assert each.metadata.causation == request.metadata.id
        assert each.metadata.correlation == "corr-1"
    assert third.metadata.correlation == "corr-2"
