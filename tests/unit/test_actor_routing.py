"""Who gets a message, who gets the outcome, and what a fault costs the others."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from ontologia.actors import (
    Actor,
    ActorLoop,
    Capability,
    ErrorEvent,
    Message,
    MessageEvent,
    TimerActor,
)
from ontologia.actors.timer import TIMER
from tests.unit.actor_world import (
    MEMORY,
    Desk,
    EarTwo,
    MemoryActor,
    MemoryChanged,
    MemoryGet,
    MemorySet,
    calm,
    ear,
    get,
    of,
    run,
    set_,
    until,
)


def _with(capabilities, story, adapters=()):
    """Tell `story(loop)` beside a running loop."""

    async def told():
        async with ActorLoop(capabilities, adapters=adapters) as loop:
            return await story(loop)

    return run(told())


async def _never(self, message):
    await asyncio.Event().wait()


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

    request = _with([MEMORY, first, second], story, [desk])
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

    answer = _with([MEMORY, listening], story, [desk])
    assert (answer.kind, answer.type, answer.data["code"]) == ("error", "Nobody.Knows", 404)
    assert answer.metadata.correlation == "corr-1"
    [signal] = listener.heard
    assert signal.data["messageType"] == "Nobody.Knows"
    assert signal.metadata.causation == answer.metadata.causation


@pytest.mark.req("CQR-032")
def test_the_kind_is_part_of_the_address():
    async def story(loop):
        return await loop.request(Message.command("Memory.Get", {"key": "a"}))

    assert _with([MEMORY], story).data["code"] == 404


@pytest.mark.req("CQR-051")
def test_data_that_does_not_fit_is_refused_and_the_actor_never_sees_it():
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

    answer = _with([memory], story)
    assert answer.data["code"] == 400
    assert "data.value" in answer.data["message"]
    assert seen == []


def test_messages_reach_the_actor_as_the_classes_it_declared():
    seen = []

    async def handle(self, message):
        seen.append(message)
        self.reply(message)

    capability = of(handle)

    _with([capability], lambda loop: loop.request(Message.command("Do.It", {"x": 1})))

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

    metrics = _with([of(_never), MEMORY], story, [desk])
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
def test_no_handler_runs_inside_the_turn():
    inside, found = [], []

    async def handle(self, message):
        found.append(bool(inside))

    several = [of(handle, kind="event", subscribes=["Do.It"], id=f"doer{n}") for n in range(5)]
    loop = ActorLoop(several)
    route = loop._dispatch.route

    def watched(packet):
        inside.append(1)
        route(packet)
        inside.clear()

    loop._dispatch.route = watched
    loop.enqueue(Message.event("Do.It"))
    run(loop.run())

    assert found == [False] * 5


@pytest.mark.req("CQR-017", "CQR-090")
@pytest.mark.parametrize(
    "raised", [ValueError("no"), SystemExit(1), asyncio.CancelledError()], ids=repr
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

    bad, good = _with([of(handle), listening], story)
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

    answer, signals = _with([of(handle)], story)
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

    _with([of(handle), listening], story)
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

    _with([MEMORY, listening], story)
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

    metrics = _with([of(_silent)], story)
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

    _with([of(handle), listening], story, [desk])
    assert [each.data for each in desk.got["c1"]] == [{"n": 1}]
    assert [each.data["kind"] for each in listener.heard] == ["reply", "error"]


@pytest.mark.req("CQR-037", "CQR-042", "CQR-083")
def test_correlation_does_not_bring_a_reply_to_anybody():
    async def handle(self, message):
        stray = Message.command("Do.It", correlation=message.metadata.correlation).reply({"n": 1})
        self._send(stray)

    desk = Desk()
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop):
        desk.send(Message.command("Do.It", correlation="corr-1"))
        await listener.wait_for()
        return loop.metrics()["pending"]["adapters"], dict(desk.got)

    assert _with([of(handle), listening], story, [desk]) == (1, {})


@pytest.mark.req("CQR-038")
def test_an_error_that_answers_nobody_goes_to_the_signals(caplog):
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop):
        loop.enqueue(set_().error(500, "of nobody's"))
        await listener.wait_for()

    _with([listening], story)
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

    found, missing, signals = _with([MEMORY, of(handle)], story)
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

    assert _with([MEMORY, teller], story) == {}
    assert told == [(True, {"stored": True})]


def test_an_actor_that_gets_no_outcome_gets_a_timeout():
    async def handle(self, message):
        answer = await self.request(Message.command("Do.Nothing"), timeout=0)
        self.reply(message, answer.data)

    silent = of(_silent, type="Do.Nothing", id="silent")

    answer = _with([silent, of(handle)], lambda loop: loop.request(Message.command("Do.It")))

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

    answer, metrics = _with([of(handle)], story)
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

    answer = _with([of(handle, outbound=MemoryChanged), first, second, third], story)
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

    good, bad, signals = _with([of(handle, outbound=Reply)], story)
    assert good.data == {"n": 1}
    assert (bad.kind, bad.data["code"]) == ("error", 500)
    assert signals == {"Sys.ActorFault": 1}


@pytest.mark.parametrize("data", [{"key": 5}, {"key": object()}], ids=["misfit", "not json"])
def test_a_request_that_an_actor_must_not_make_is_answered_to_it(data):
    async def handle(self, message):
        answer = await self.request(Message.query("Memory.Get", data))
        self.reply(message, answer.data)

    capabilities = [MEMORY, of(handle, outbound=MemoryGet)]

    answer = _with(capabilities, lambda loop: loop.request(Message.command("Do.It")))

    assert answer.data["code"] == 500


# -- the surface ----------------------------------------------------------------------------------


class OnlyOnmessage:
    onmessage = None

    def postMessage(self, message):
        self.onmessage(MessageEvent(message.reply({"by": "onmessage"})))


class OnlyListeners:
    def __init__(self):
        self.listeners = {}

    def addEventListener(self, type, listener):
        self.listeners[type] = listener

    def postMessage(self, message):
        if message.data.get("bad"):
            self.listeners["messageerror"](ErrorEvent("cannot read this"))
        plain = message.reply({"by": "listener"}).model_dump()
        self.listeners["message"](type("Event", (), {"type": "message", "data": plain}))


class Refuses:
    on_message = None

    def post_message(self, message):
        raise OSError("full")


@pytest.mark.req("CQR-011", "CQR-012")
@pytest.mark.parametrize(("cls", "by"), [(OnlyOnmessage, "onmessage"), (OnlyListeners, "listener")])
def test_anything_shaped_like_a_worker_is_an_actor(cls, by):
    foreign = Capability(
        "foreign", "", inbound=of(None).inbound, outbound=Message, subscribes=[], spawn=cls
    )

    answer = _with([foreign], lambda loop: loop.request(Message.command("Do.It")))

    assert answer.data == {"by": by}


@pytest.mark.req("CQR-013")
def test_error_events_of_an_actor_are_its_faults():
    listener, listening = ear("Sys.ActorFault")
    foreign = Capability(
        "foreign", "", inbound=of(None).inbound, outbound=Message, subscribes=[],
        spawn=OnlyListeners,
    )  # fmt: skip

    async def story(loop):
        await loop.request(Message.command("Do.It", {"bad": True}))
        await listener.wait_for()

    _with([foreign, listening], story)
    assert listener.heard[0].data == {"capability": "foreign", "error": "cannot read this"}


def test_an_actor_that_takes_no_messages_costs_its_requesters_an_error_500():
    foreign = Capability(
        "foreign", "", inbound=of(None).inbound, outbound=Message, subscribes=[], spawn=Refuses
    )

    async def story(loop):
        answer = await loop.request(Message.command("Do.It"))
        return answer, loop.metrics()["signals"]

    answer, signals = _with([foreign], story)
    assert answer.data["code"] == 500
    assert signals == {"Sys.ActorFault": 1}


@pytest.mark.req("CQR-011", "CQR-012")
def test_an_actor_has_both_spellings_of_the_surface():
    async def story():
        actor, events = MemoryActor(), []
        actor.onmessage = events.append
        actor.addEventListener("message", events.append)
        actor.postMessage(MemorySet.new({"key": "a", "value": 1}))
        await until(lambda: not actor.pending)
        actor.remove_event_listener("message", events.append)
        await actor.stop()
        return actor, events

    actor, events = run(story())
    assert actor.on_message is actor.onmessage
    assert [each.type for each in events] == ["message"] * 4
    assert [each.data.kind for each in events] == ["event", "event", "reply", "reply"]


# -- boot and end ---------------------------------------------------------------------------------


@pytest.mark.req("CQR-089")
def test_a_loop_with_nothing_to_be_alive_for_ends():
    loop = ActorLoop([MEMORY])
    loop.enqueue(set_())

    run(loop.run())

    assert not loop.alive
    assert loop.metrics()["signals"] == {}


@pytest.mark.req("CQR-089")
@pytest.mark.parametrize("reason", ["adapter", "request", "timer", "frames", "actor"])
def test_a_loop_stays_alive_for(reason):
    desk, go = Desk(), asyncio.Event()
    desk.active = reason == "adapter"

    async def handle(self, message):
        await go.wait()
        if message.kind == "command":
            self.reply(message)

    doer = of(handle, kind="event" if reason == "actor" else "command", subscribes=["Do.It"])
    timer = TimerActor()
    own = Capability(
        "timer", "", inbound=TIMER.inbound, outbound=Message, subscribes=[], spawn=lambda: timer
    )
    loop = ActorLoop([doer, own], adapters=[desk])

    async def story():
        if reason == "request":
            loop.enqueue(Message.command("Do.It"))
        elif reason == "timer":
            template = {"kind": "event", "type": "A.B", "data": {}}
            loop.enqueue(Message.command("Timer.Set", {"delayMs": 3600_000, "message": template}))
        elif reason == "actor":
            loop.enqueue(Message.event("Do.It"))
        elif reason == "frames":
            desk.buffered = 1
        running = asyncio.create_task(loop.run())
        await loop.ready()
        for _ in range(50):
            await asyncio.sleep(0)
        assert loop.alive
        assert not running.done()
        go.set()
        desk.active, desk.buffered = False, 0
        for timer_id in tuple(timer._timers):
            timer.cancel(timer_id)
        loop.wake()
        await running

    run(story())
    assert not loop.alive


@pytest.mark.req("CQR-087", "CQR-088")
def test_adapters_start_when_actors_listen_and_not_at_all_if_one_cannot_be_made():
    order = []

    class Late(Desk):
        async def start(self, loop):
            order.append("adapter")
            await super().start(loop)

    class Slow(MemoryActor):
        async def start(self):
            await asyncio.sleep(0)
            order.append("actor")

    slow = Capability(
        "memory", "", inbound=MemorySet | MemoryGet, outbound=MemoryChanged, subscribes=[],
        spawn=Slow,
    )  # fmt: skip
    loop = ActorLoop([slow], adapters=[Late()])

    async def story():
        running = asyncio.create_task(loop.run())
        await loop.ready()
        loop.stop()
        await running

    run(story())
    assert order == ["actor", "adapter"]


def test_what_is_pending_when_the_loop_stops_is_answered():
    desk = Desk()

    async def story(loop):
        asked = asyncio.create_task(loop.request(Message.command("Do.It")))
        desk.send(Message.command("Do.It"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.stop()
        return await asked

    answer = _with([of(_never)], story, [desk])
    assert answer.data["code"] == 503
    assert [each.data["code"] for each in desk.got["c1"]] == [503]
    assert desk.stopped


def test_a_loop_that_ended_takes_nothing_more():
    loop = ActorLoop([MEMORY])
    run(loop.run())

    with pytest.raises(RuntimeError, match="has ended"):
        loop.enqueue(set_())
    with pytest.raises(RuntimeError, match="runs once"):
        run(loop.run())


def test_an_adapter_that_fails_to_deliver_stops_nobody():
    class Broken(Desk):
        def deliver(self, connection_id, message):
            if connection_id == "bad":
                raise OSError("gone")
            super().deliver(connection_id, message)

    desk = Broken()

    async def story(loop):
        desk.send(set_(), "bad")
        answer = await desk.ask(set_())
        return answer, loop.metrics()["signals"]

    answer, signals = _with([MEMORY], story, [desk])
    assert answer.data == {"stored": True}
    assert signals == {"Sys.AdapterFault": 1}


def test_metrics_are_json_and_show_where_things_wait():
    loop = ActorLoop([MEMORY])
    loop.enqueue(set_())
    loop.enqueue(Message.event("Sys.Alarm"))

    metrics = loop.metrics()

    assert metrics["lanes"] == {"system": 1, "user": 1, "microtasks": 0}
    assert metrics["pending"] == {"adapters": 0, "actors": 0, "loop": 1}
    assert Message.event("A.B", metrics).to_json()


def test_interrupts_are_not_swallowed():
    async def handle(self, message):
        raise KeyboardInterrupt

    loop = ActorLoop([of(handle)])
    loop.enqueue(Message.command("Do.It"))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(loop.run())
    assert sys.exc_info() == (None, None, None)


@pytest.mark.req("CQR-040", "CQR-041")
def test_whatever_an_actor_sends_is_a_consequence_of_the_message_at_hand():
    sent = []

    async def handle(self, message):
        sent.append(self.emit(Message.event("Thing.Done")))
        sent.append(self.emit("Thing.Done"))
        sent.append(self.emit(get()))
        other = Message.event("Other.Thing", correlation="corr-2")
        sent.append(self.emit(Message.event("Thing.Done", cause=other)))
        self.reply(message)

    async def story(loop):
        request = Message.command("Do.It", correlation="corr-1")
        await loop.request(request)
        return request

    request = _with([MEMORY, of(handle)], story)
    *mine, others = [(each.metadata.causation, each.metadata.correlation) for each in sent]
    assert mine == [(request.metadata.id, "corr-1")] * 3
    assert others[1] == "corr-2"
