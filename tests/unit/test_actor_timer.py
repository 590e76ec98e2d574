"""The Timer: messages that are sent later."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ontologia.actors import ActorLoop, Capability, Message, TimerActor
from ontologia.actors.timer import TIMER, TimerSet
from ontologia.clock import now_ms
from tests.unit.actor_world import MEMORY, Desk, calm, ear, get, run, until

TEMPLATE = {"kind": "event", "type": "Tea.Ready", "data": {"cups": [1, 2]}}


def _set(template=None, **when):
    return Message.command(
        "Timer.Set", {**(when or {"delayMs": 0}), "message": template or TEMPLATE}, correlation="c1"
    )


def _story(story, *types, more=()):
    listener, listening = ear(*types)

    async def told():
        async with ActorLoop([listening, *more]) as loop:
            return await story(loop, listener)

    return run(told())


@pytest.mark.req("CQR-052", "CQR-053", "CQR-056", "CQR-058", "CQR-059", "CQR-063", "CQR-090")
@pytest.mark.parametrize("when", [{"delayMs": 0}, {"delayMs": 1.5}, {"dueAt": 5}, {"dueAt": None}])
def test_a_timer_fires_and_then_sends_its_message(when):
    when = {"dueAt": now_ms() + 2} if when == {"dueAt": None} else when

    async def story(loop, listener):
        request = _set(**when)
        answer = await loop.request(request)
        before = list(listener.types)
        await listener.wait_for(3)
        return request, answer, before, listener.heard

    request, answer, before, heard = _story(story, "Timer.Fired", "Tea.Ready", "Sys.TimerFired")
    timer_id = answer.data["timerId"]
    assert answer.kind == "reply"
    assert before == []
    by_type = {each.type: each for each in heard}
    order = [each.type for each in heard if not each.type.startswith("Sys.")]
    assert order == ["Timer.Fired", "Tea.Ready"]
    assert by_type["Timer.Fired"].data == by_type["Sys.TimerFired"].data == {"timerId": timer_id}
    assert by_type["Tea.Ready"].data == {"cups": [1, 2]}
    for each in heard:
        assert each.metadata.causation == request.metadata.id
        assert each.metadata.correlation == "c1"
    assert len({each.metadata.id for each in heard} | {request.metadata.id}) == 4
    assert by_type["Tea.Ready"].metadata.timestamp >= request.metadata.timestamp


@pytest.mark.req("CQR-054")
@pytest.mark.parametrize(
    "data",
    [
        {"message": TEMPLATE},
        {"delayMs": 1, "dueAt": 1, "message": TEMPLATE},
        {"delayMs": -1, "message": TEMPLATE},
        {"delayMs": "1", "message": TEMPLATE},
        {"delayMs": True, "message": TEMPLATE},
        {"delayMs": 1},
        {"delayMs": 1, "message": {"type": "A.B", "data": {}}},
        {"delayMs": 1, "message": {"kind": "event", "data": {}}},
        {"delayMs": 1, "message": {"kind": "event", "type": "A.B"}},
        {"delayMs": 1, "message": {**TEMPLATE, "kind": "wish"}},
        {"delayMs": 1, "message": {**TEMPLATE, "kind": "reply"}},
        {"delayMs": 1, "message": {**TEMPLATE, "kind": "error"}},
        {"delayMs": 1, "message": {**TEMPLATE, "type": "ab"}},
        {"delayMs": 1, "message": {**TEMPLATE, "metadata": {"correlation": 5}}},
        {"delayMs": 1, "message": TEMPLATE, "repeat": True},
        [],
    ],
)
def test_a_timer_that_cannot_be_is_refused(data):
    async def story(loop, listener):
        answer = await loop.request(Message.command("Timer.Set", data))
        return answer, loop.metrics()["timers"]

    answer, timers = _story(story, "Tea.Ready")
    assert (answer.kind, answer.data["code"]) == ("error", 400)
    assert timers == 0


@pytest.mark.req("CQR-055", "CQR-007", "CQR-090")
def test_a_cancelled_timer_never_fires_and_is_cancelled_once():
    async def story(loop, listener):
        set_ = await loop.request(_set(delayMs=20))
        cancel = Message.command("Timer.Cancel", {"timerId": set_.data["timerId"]})
        first = await loop.request(cancel)
        again = await loop.request(Message.command("Timer.Cancel", cancel.data))
        other = await loop.request(_set(delayMs=30))  # would come after the first
        await listener.wait_for(2)
        fired = await loop.request(Message.command("Timer.Cancel", other.data))
        return [each.data for each in (first, again, fired)], listener.types

    answers, types = _story(story, "Tea.Ready", "Sys.TimerCancelled")
    assert answers == [{"cancelled": True}, {"cancelled": False}, {"cancelled": False}]
    assert types == ["Sys.TimerCancelled", "Tea.Ready"]


def test_the_id_of_a_timer_tells_nothing_of_another():
    async def story(loop, listener):
        return [(await loop.request(_set(delayMs=1_000))).data["timerId"] for _ in range(20)]

    ids = _story(story)
    assert len({each[:8] for each in ids}) == len({each[-8:] for each in ids}) == 20


@pytest.mark.req("CQR-057", "CQR-059", "CQR-060", "CQR-064")
def test_what_a_template_says_of_its_lineage_is_kept_but_for_id_time_and_cause():
    metadata = {"id": "x", "timestamp": 1, "causation": "y", "traceparent": "00-ab"}

    async def story(loop, listener):
        first = _set({**TEMPLATE, "metadata": {**metadata, "correlation": "corr-1"}})
        second = _set({**TEMPLATE, "metadata": metadata})
        await loop.request(first)
        await listener.wait_for(1)
        await loop.request(second)
        return first, second, await listener.wait_for(2)

    first, second, [one, two] = _story(story, "Tea.Ready")
    assert one.metadata.wire() | {"id": "", "timestamp": 0} == {
        "id": "",
        "timestamp": 0,
        "causation": first.metadata.id,
        "correlation": "corr-1",
        "traceparent": "00-ab",
    }
    assert one.metadata.id != "x"
    assert two.metadata.correlation == "c1"
    assert two.metadata.causation == second.metadata.id


@pytest.mark.req("CQR-061", "CQR-086")
def test_a_scheduled_command_is_routed_like_any_other_and_its_reply_is_no_orphan():
    template = {"kind": "command", "type": "Memory.Set", "data": {"key": "a", "value": 9}}

    async def story(loop, listener):
        await loop.request(_set(template))
        await listener.wait_for()
        await calm(loop)
        return (await loop.request(get())).data, loop.metrics()["signals"]

    value, signals = _story(story, "Memory.Changed", more=[MEMORY])
    assert value == {"value": 9}
    assert "Sys.OrphanOutcome" not in signals


@pytest.mark.req("CQR-061")
def test_a_scheduled_system_message_is_in_the_system_lane():
    lanes = []

    class Watching(TimerActor):
        def fire(self, timer_id, message):
            super().fire(timer_id, message)
            lanes.append(loop.metrics()["lanes"])
            done.set()

    timer = Capability(
        "timer", "", inbound=TIMER.inbound, outbound=Message, subscribes=[], spawn=Watching
    )
    listener, listening = ear("Sys.Alarm")
    done = asyncio.Event()

    async def told():
        async with loop:
            await loop.request(_set({"kind": "event", "type": "Sys.Alarm", "data": {}}))
            await done.wait()
            await listener.wait_for()

    loop = ActorLoop([listening, timer])
    run(told())
    assert lanes == [{"system": 1, "user": 0, "microtasks": 0}]


@pytest.mark.req("CQR-062")
def test_the_commands_of_the_timer_are_in_the_user_lane():
    desk = Desk()

    async def told():
        async with ActorLoop([MEMORY], adapters=[desk]) as loop:
            loop.enqueue(_set(delayMs=1))
            loop.enqueue(Message.command("Timer.Cancel", {"timerId": "x"}))
            return loop.metrics()["lanes"]

    assert run(told())["user"] == 2


@pytest.mark.req("CQR-089")
def test_a_loop_lives_until_its_last_timer_has_fired():
    listener, listening = ear("Tea.Ready")
    loop = ActorLoop([listening])
    loop.enqueue(_set(delayMs=5))
    loop.enqueue(_set({"kind": "event", "type": "Nobody.Cares", "data": {}}, delayMs=10))

    run(loop.run())

    assert listener.types == ["Tea.Ready"]
    assert loop.metrics()["timers"] == 0
    assert loop.metrics()["signals"]["Sys.TimerFired"] == 2


class Held(TimerActor):
    """Holds the first `Timer.Set`, or the first that a timer sent, until it may go on."""

    def __init__(self, chained):
        super().__init__()
        self.chained, self.reached, self.go = chained, asyncio.Event(), asyncio.Event()

    async def handle(self, message):
        if message.type == "Timer.Set" and bool(message.metadata.causation) == self.chained:
            self.reached.set()
            await self.go.wait()
        await super().handle(message)


@pytest.mark.parametrize("chained", [False, True], ids=["of a client", "of its timer"])
def test_a_timer_that_is_set_after_its_client_disconnected_is_cancelled(chained):
    inner = {"delayMs": 3_600_000, "message": TEMPLATE}
    chain = {"kind": "command", "type": "Timer.Set", "data": inner}

    async def told():
        desk, timer = Desk(), Held(chained)
        held = Capability(
            "timer", "", inbound=TIMER.inbound, outbound=Message, subscribes=[], spawn=lambda: timer
        )
        async with ActorLoop([held], adapters=[desk]) as loop:
            desk.send(_set(chain) if chained else _set(delayMs=3_600_000))
            await timer.reached.wait()
            desk.close()
            timer.go.set()
            await until(lambda: "Sys.TimerCancelled" in loop.metrics()["signals"])
            return loop.metrics()

    metrics = run(told())
    assert metrics["timers"] == 0
    assert metrics["signals"]["Sys.TimerCancelled"] == 1


def test_the_timers_of_the_program_stay_when_a_client_disconnects():
    async def told():
        desk = Desk()
        async with ActorLoop([], adapters=[desk]) as loop:
            await loop.request(_set(delayMs=3_600_000))
            await desk.ask(_set(delayMs=3_600_000))
            desk.close()
            await until(lambda: "Sys.TimerCancelled" in loop.metrics()["signals"])
            return loop.metrics()["timers"]

    assert run(told()) == 1


def test_a_timer_keeps_its_message_as_bytes():
    """Lists and dicts would take many times the memory of the JSON that is counted."""

    async def story(loop, listener):
        await loop.request(_set({**TEMPLATE, "type": "Tea.Kept"}, delayMs=3_600_000))
        other = Message.command(
            "Timer.Cancel", {"timerId": "x"}
        )  # a mailbox keeps its last message
        await loop.request(other)
        gc.collect()
        found = [each for each in gc.get_objects() if type(each) is TimerSet]
        return loop.metrics()["timers"], [each.data.message.type for each in found]

    timers, kept = _story(story)
    assert timers == 1
    assert "Tea.Kept" not in kept
