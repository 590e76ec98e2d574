"""Events of the store for actors, and timers that survive a restart."""

from __future__ import annotations

import asyncio
import time

import pytest

from ontologia import Session
from ontologia.actors import ActorLoop, Message
from ontologia.actors.bridge import bridged
from ontologia.actors.mirror import MirrorActor, mirrored_type
from ontologia.commands import Env
from ontologia.queues import DomainEvent, open_queue
from tests.integration import actor_store
from tests.integration.actor_world import echoing, eventually, listening


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ("order.placed", "Order.Placed"),
        ("order.line.added", "Order.LineAdded"),
        ("event.dead_letter", "Event.DeadLetter"),
        ("noticed", "Event.Noticed"),
        ("Order.Placed", "Order.Placed"),
        ("userCreated.v2", "UserCreated.V2"),
        ("sys.actorFault", None),
        ("Sys.ActorFault", None),
        ("7.dwarfs", None),
        ("…", None),
        ("größe.neu", None),
    ],
)
def test_stored_types_have_a_name_among_actors(stored, seen):
    assert mirrored_type(stored) == seen


def published(session, name, payload=None, **more):
    event = DomainEvent.build(name=name, payload=payload or {}, **more)
    open_queue("store", session=session).enqueue(event)
    return event.event_id


def claims(session, event_id):
    found = session.event_store.inspect_event(event_id)["claims"]
    return {each["handler_id"]: each["ack_at"] is not None for each in found}


@pytest.mark.req("CQR-036", "CQR-048")
def test_events_of_the_store_reach_the_actors_that_subscribed(uri):
    async def main():
        one, first = listening("Buoy.Laid")
        other, second = listening("Buoy.Laid", "Buoy.Lost")
        with Session(uri) as session, Env(session, modules=[actor_store]) as env:
            async with ActorLoop(bridged(env, [first, second])) as loop:
                data = {"name": "bridge.lay", "payload": {"color": "red"}}
                await loop.request(Message.command("Command.Dispatch", data))
                lost = published(session, "buoy.lost", {"n": 1}, correlation_id="c-1")
                unheard = published(session, "buoy.found")
                await eventually(lambda: len(other.heard) == 2 and one.heard)
                await eventually(
                    lambda: all(claims(session, each) == {"actors:default": True}
                                for each in (lost, unheard))
                )  # fmt: skip
            return one.heard, other.heard, lost

    one, other, lost = asyncio.run(main())

    assert [each.data for each in one] == [{"color": "red"}]
    assert [each.type for each in other] == ["Buoy.Laid", "Buoy.Lost"]
    metadata = other[1].metadata
    assert (metadata.id, metadata.correlation) == (lost, "c-1")
    assert metadata.wire()["eventType"] == "buoy.lost"


def test_loops_of_a_name_are_told_once_and_each_name_is_told(uri):
    async def heard(session, name, count):
        listener, ears = listening("Buoy.Lost")
        async with ActorLoop(bridged(session, [ears], name=name)):
            await eventually(lambda: len(listener.heard) >= count)
            mark = published(session, "buoy.lost", {"n": "mark"})
            await eventually(lambda: listener.heard[-1:] and listener.heard[-1].metadata.id == mark)
        return [each.data["n"] for each in listener.heard]

    async def main():
        with Session(uri) as session:
            published(session, "buoy.lost", {"n": 1})
            first = await heard(session, "one", 1)
            again = await heard(session, "one", 0)
            return first, again, await heard(session, "two", 3)

    first, again, other = asyncio.run(main())

    assert first == [1, "mark"]
    assert again == ["mark"]
    assert other == [1, "mark", "mark", "mark"]


def test_an_event_is_acknowledged_after_it_was_routed_and_not_before(uri, monkeypatch):
    listener, ears = listening("Buoy.Lost")
    routed, handle = [], MirrorActor.handle

    async def watched(self, message):
        routed.append(len(listener.heard) + listener.pending)
        await handle(self, message)

    async def main():
        with Session(uri) as session:
            async with ActorLoop(bridged(session, [ears])):
                event_id = published(session, "buoy.lost")
                await eventually(lambda: claims(session, event_id).get("actors:default"))

    monkeypatch.setattr(MirrorActor, "handle", watched)
    asyncio.run(main())

    assert routed == [1]


def test_an_event_that_was_not_routed_when_the_loop_stopped_comes_again(uri):
    async def main():
        first, ears = listening("Buoy.Lost")
        second, other_ears = listening("Buoy.Lost")
        with Session(uri) as session:
            loop = ActorLoop(bridged(session, [ears]))
            async with loop:
                mirror = loop._actors["mirror"]
                mirror.emit = lambda *_: None  # nothing is routed any more
                event_id = published(session, "buoy.lost")
                await eventually(lambda: mirror._routing)
            before = claims(session, event_id)
            async with ActorLoop(bridged(session, [other_ears])):
                await eventually(lambda: second.heard)
            return first.heard, before, second.heard

    never, before, heard = asyncio.run(main())

    assert never == []
    assert before.get("actors:default") is not True
    assert len(heard) == 1


def durable(delay=0, type="Buoy.Rang", data=None, **metadata):
    template = {"kind": "event", "type": type, "data": data or {}, "metadata": metadata}
    return {"delayMs": delay, "durable": True, "message": template}


@pytest.mark.req("CQR-053", "CQR-056", "CQR-058", "CQR-060")
def test_a_durable_timer_fires_as_others_do(uri):
    async def main():
        listener, ears = listening("Buoy.Rang", "Timer.Fired")
        with Session(uri) as session:
            async with ActorLoop(bridged(session, [ears])) as loop:
                command = Message.command("Timer.Set", durable(1, data={"n": 1}), correlation="c")
                answer = await loop.request(command)
                await eventually(lambda: len(listener.heard) == 2)
                late = Message.command("Timer.Cancel", answer.data)
                cancelled = (await loop.request(late)).data
            return command, answer, listener.heard, cancelled

    command, answer, [fired, rang], cancelled = asyncio.run(main())

    assert fired.type == "Timer.Fired"
    assert fired.data == answer.data
    assert (rang.type, rang.data) == ("Buoy.Rang", {"n": 1})
    for each in (fired, rang):
        assert each.metadata.causation == command.metadata.id
        assert each.metadata.correlation == "c"
    assert cancelled == {"cancelled": False}


@pytest.mark.req("CQR-055")
def test_a_durable_timer_of_before_can_be_cancelled_and_others_fire(uri):
    async def main():
        listener, ears = listening("Buoy.Rang")
        with Session(uri) as session:
            async with ActorLoop(bridged(session)) as loop:
                due = int(time.time() * 1000) + 1_000
                first, _ = [
                    (await loop.request(Message.command("Timer.Set", at(due, n)))).data
                    for n in (1, 2)
                ]
            async with ActorLoop(bridged(session, [ears])) as loop:
                cancelled = (await loop.request(Message.command("Timer.Cancel", first))).data
                again = (await loop.request(Message.command("Timer.Cancel", first))).data
                await eventually(lambda: listener.heard)
            return cancelled, again, [each.data for each in listener.heard]

    cancelled, again, heard = asyncio.run(main())

    assert (cancelled, again) == ({"cancelled": True}, {"cancelled": False})
    assert heard == [{"n": 2}]


def at(due, n):
    message = {"kind": "event", "type": "Buoy.Rang", "data": {"n": n}}
    return {"dueAt": due, "durable": True, "message": message}


def test_a_durable_timer_is_that_of_the_loops_of_its_name(uri):
    async def main():
        wrong, ears = listening("Buoy.Rang", "Buoy.Lost")
        right, other_ears = listening("Buoy.Rang")
        with Session(uri) as session:
            async with (
                ActorLoop(bridged(session, [other_ears], name="one")) as loop,
                ActorLoop(bridged(session, [ears], name="two")),
            ):
                await loop.request(Message.command("Timer.Set", durable(1)))
                await eventually(lambda: right.heard)
                published(session, "buoy.lost")  # behind the timer, for both
                await eventually(lambda: wrong.heard)
            return [each.type for each in wrong.heard], len(right.heard)

    assert asyncio.run(main()) == (["Buoy.Lost"], 1)


@pytest.mark.req("CQR-054")
def test_a_durable_timer_that_cannot_be_set_is_said(uri):
    async def main():
        with Session(uri) as session:
            async with ActorLoop(bridged(session)) as loop:
                both = {**durable(1), "dueAt": 5}
                far = {k: v for k, v in durable().items() if k != "delayMs"} | {"dueAt": 1e300}
                long = durable(1, data={"text": "x" * 2_000_000})
                uncounted = durable(1, "Timer.Set", {**durable(1), "durable": False})
                uncounted["message"]["kind"] = "command"
                return [
                    (await loop.request(Message.command("Timer.Set", each))).data["code"]
                    for each in (both, far, long, uncounted)
                ]

    assert asyncio.run(main()) == [400, 422, 422, 422]


def test_timers_in_memory_are_as_before(uri):
    async def main():
        listener, ears = listening("Buoy.Rang", "Timer.Fired")
        with Session(uri) as session:
            async with ActorLoop(bridged(session, [ears, echoing()[1]])) as loop:
                data = {**durable(1), "durable": False}
                await loop.request(Message.command("Timer.Set", data))
                await eventually(lambda: len(listener.heard) == 2)
            stored = session.event_store.list_events(session.namespace)
            return [each.type for each in listener.heard], stored

    heard, stored = asyncio.run(main())

    assert heard == ["Timer.Fired", "Buoy.Rang"]
    assert stored == []
