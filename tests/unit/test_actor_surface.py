"""What an actor and a loop are from outside: the surface of a Worker, the boot and the end."""

from __future__ import annotations

import asyncio
import sys

import pytest

from ontologia.actors import (
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
    MemoryActor,
    MemoryChanged,
    MemoryGet,
    MemorySet,
    beside,
    ear,
    get,
    never,
    of,
    run,
    set_,
    until,
)


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


class Plainly(OnlyOnmessage):
    """Starts and stops without `async`."""

    steps: list[str]

    def start(self):
        self.steps = ["start"]

    def stop(self):
        self.steps.append("stop")


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

    answer = beside([foreign], lambda loop: loop.request(Message.command("Do.It")))

    assert answer.data == {"by": by}


def test_what_is_shaped_like_a_worker_may_start_and_stop_without_async():
    actor, desk = Plainly(), Desk()
    foreign = Capability(
        "foreign", "", inbound=of(None).inbound, outbound=Message, spawn=lambda: actor
    )

    beside([foreign], lambda loop: loop.request(Message.command("Do.It")), [desk])

    assert actor.steps == ["start", "stop"]
    assert desk.stopped


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

    beside([foreign, listening], story)
    assert listener.heard[0].data == {"capability": "foreign", "error": "cannot read this"}


def test_an_actor_that_takes_no_messages_costs_its_requesters_an_error_500():
    foreign = Capability(
        "foreign", "", inbound=of(None).inbound, outbound=Message, subscribes=[], spawn=Refuses
    )

    async def story(loop):
        answer = await loop.request(Message.command("Do.It"))
        return answer, loop.metrics()["signals"]

    answer, signals = beside([foreign], story)
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


class Crowded(MemoryActor):
    """Has names of its own for whatever an actor might have inside."""

    def __init__(self):
        super().__init__()
        for name in (
            "mailbox", "asked", "worker", "work", "asleep", "in_hand", "answered", "stopped",
            "listeners", "send", "say", "fault", "guard", "forget", "messages", "give_up",
        ):  # fmt: skip
            setattr(self, name, None)
            setattr(self, f"_{name}", None)
            setattr(self, f"_{type(self).__name__}__{name}", None)


def test_an_actor_may_call_its_own_attributes_whatever_it_likes():
    crowded = Capability(
        "memory", "", inbound=MemorySet | MemoryGet, outbound=MemoryChanged, spawn=Crowded
    )

    async def story(loop):
        return await loop.request(set_()), await loop.request(get("b"))

    stored, missing = beside([crowded], story)
    assert stored.data == {"stored": True}
    assert missing.data["code"] == 404


class Unhurried(MemoryActor):
    """Has nothing to wait for."""

    def handle(self, message):
        self.reply(message, {"plainly": message.type})


def test_an_actor_that_waits_for_nothing_may_handle_with_a_plain_def():
    plain = Capability(
        "memory", "", inbound=MemorySet | MemoryGet, outbound=MemoryChanged, spawn=Unhurried
    )
    faults = []

    async def story(loop):
        answers = [await loop.request(get("a")), await loop.request(get("b"))]
        faults.append(loop.metrics()["signals"].get("Sys.ActorFault", 0))
        return answers

    assert [each.data for each in beside([plain], story)] == [{"plainly": "Memory.Get"}] * 2
    assert faults == [0]


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

    class Known(TimerActor):
        def schedule(self, message):
            self.known = super().schedule(message)
            return self.known

    timer = Known()
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
        if reason == "timer":
            timer.cancel(timer.known)
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

    answer = beside([of(never)], story, [desk])
    assert answer.data["code"] == 503
    assert [each.data["code"] for each in desk.got["c1"]] == [503]
    assert desk.stopped


@pytest.mark.parametrize("message", [Message.event("Do.It"), Message.command("Sys.RequestTimeout")])
def test_nobody_waits_for_what_has_no_outcome(message):
    async def handle(self, request):
        await self.request(message)

    async def story(loop):
        with pytest.raises(ValueError, match=f"{message.type} has no outcome to wait for"):
            await loop.request(message)
        return await loop.request(Message.command("Do.It"))

    answer = beside([of(handle)], story)

    assert "has no outcome to wait for" in answer.data["message"]


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

    answer, signals = beside([MEMORY], story, [desk])
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
