"""Lanes and turns: what is next, and what is in between."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia.actors import ActorLoop, Message
from ontologia.actors.lanes import Lanes, lane_of
from tests.unit.actor_world import MEMORY, Desk, are_empty, ear, get, run, set_


def _told(*messages, types=("Work.Done", "Sys.Alarm"), before=lambda loop: None):
    """The order in which an actor hears these; each is a message, or a message and a lane."""
    listener, listening = ear(*types)
    loop = ActorLoop([listening])
    for each in messages:
        loop.enqueue(*(each if isinstance(each, tuple) else (each,)))
    before(loop)
    run(loop.run())
    return [message.data.get("n", message.type) for message in listener.heard]


def _done(n):
    return Message.event("Work.Done", {"n": n})


def _alarm(n):
    return Message.event("Sys.Alarm", {"n": n})


@pytest.mark.req("CQR-018", "CQR-022", "CQR-024", "CQR-010")
def test_system_messages_come_first_and_each_lane_keeps_its_order():
    assert _told(_done(1), _alarm(2), _done(3), _alarm(4)) == [2, 4, 1, 3]


@pytest.mark.req("CQR-020", "CQR-023")
def test_an_explicit_lane_wins():
    assert _told(_alarm(1), (_done(2), "system"), (_alarm(3), "user"), _done(4)) == [1, 2, 3, 4]
    assert _told(_done(1), (_done(2), "system"), (_alarm(3), "user")) == [2, 1, 3]


@pytest.mark.req("CQR-019")
def test_a_message_is_in_one_lane():
    loop = ActorLoop([MEMORY])

    loop.enqueue(_done(1))
    loop.enqueue(_alarm(1))

    assert loop.metrics()["lanes"] == {"system": 1, "user": 1, "microtasks": 0}


@pytest.mark.req("CQR-025")
def test_a_system_message_is_routed_next_however_many_others_wait():
    listener, listening = ear("Work.Done", "Sys.Alarm")
    loop = ActorLoop([listening])
    for n in range(100_000):
        loop.enqueue(_done(n))

    async def story():
        running = asyncio.create_task(loop.run())
        await listener.wait_for(10)
        turns, heard = loop.metrics()["turns"], len(listener.heard)
        loop.enqueue(_alarm(-1))
        await listener.wait_for(heard + 2)
        place = listener.types.index("Sys.Alarm")
        loop.stop()
        await running
        return turns, place

    turns, place = run(story())
    assert place == turns  # what was routed before, and then this


@pytest.mark.req("CQR-021")
def test_what_adapters_bring_is_in_the_user_lane_whatever_its_type():
    desk = Desk()
    listener, listening = ear("Work.Done")
    loop = ActorLoop([listening], adapters=[desk])

    async def story():
        async with loop:
            desk.send(_done(1))
            desk.send(Message.command("Sys.RequestTimeout", {"requestId": "none"}))
            assert loop.metrics()["lanes"] == {"system": 0, "user": 2, "microtasks": 0}
            await listener.wait_for(1)

    run(story())
    assert [each.data["n"] for each in listener.heard] == [1]


@pytest.mark.req("CQR-026", "CQR-031")
def test_other_tasks_run_between_turns():
    loop = ActorLoop([MEMORY])
    for n in range(20):
        loop.enqueue(_done(n))
    seen = []

    async def other():
        while not are_empty(loop):
            seen.append(loop.metrics()["turns"])
            await asyncio.sleep(0)

    async def story():
        running = asyncio.create_task(loop.run())
        await loop.ready()
        await asyncio.gather(running, other())

    run(story())
    assert len(seen) >= 18
    assert all(later - former <= 1 for former, later in pairwise(seen))


@pytest.mark.req("CQR-026", "CQR-027", "CQR-018")
def test_microtasks_run_after_the_message_and_before_the_next():
    order = []

    class Posted:
        """What is posted to it runs in the turn."""

        on_message = None

        def post_message(self, message):
            loop.queue_microtask(lambda: order.append("first"))
            loop.queue_microtask(lambda: loop.queue_microtask(lambda: order.append("third")))
            loop.queue_microtask(lambda: order.append("second"))
            order.append(message.data["n"])

    loop = ActorLoop([ear("Work.Done", actor=Posted())[1]])
    loop.enqueue(_done(1))
    loop.enqueue(_done(2))
    run(loop.run())

    assert order == [1, "first", "second", "third", 2, "first", "second", "third"]


@pytest.mark.req("CQR-029")
def test_a_microtask_that_always_adds_another_cannot_hold_the_loop(caplog):
    ran = []

    def again():
        ran.append(1)
        if len(ran) < 2500:
            loop.queue_microtask(again)

    listener, listening = ear("Work.Done", "Sys.LoopFault")
    loop = ActorLoop([listening])
    loop.queue_microtask(again)
    loop.enqueue(_done(1))
    loop.enqueue(_done(2))
    run(loop.run())

    assert len(ran) == 2500
    assert loop.metrics()["signals"]["Sys.LoopFault"] == 2
    assert listener.types == ["Work.Done", "Sys.LoopFault", "Sys.LoopFault", "Work.Done"]
    assert "microtasks" in caplog.text


def test_a_microtask_that_fails_stops_nothing():
    listener, listening = ear("Work.Done")
    loop = ActorLoop([listening])
    loop.queue_microtask(lambda: 1 / 0)
    loop.enqueue(_done(1))
    run(loop.run())

    assert listener.types == ["Work.Done"]
    assert loop.metrics()["signals"]["Sys.LoopFault"] == 1


@pytest.mark.req("CQR-028")
def test_an_idle_loop_does_not_spin_and_wakes_for_a_message(monkeypatch):
    desk, looked, look = Desk(), [], Lanes.next
    monkeypatch.setattr(Lanes, "next", lambda lanes: looked.append(1) or look(lanes))
    loop = ActorLoop([MEMORY], adapters=[desk])

    async def story():
        async with loop:
            await desk.ask(set_())
            await calm_of(loop)
            looked.clear()
            for _ in range(1000):
                await asyncio.sleep(0)
            idle = len(looked)
            answer = await desk.ask(get())
            return idle, answer

    async def calm_of(loop):
        for _ in range(20):
            await asyncio.sleep(0)

    idle, answer = run(story())
    assert idle == 0
    assert answer.data == {"value": 1}


def test_a_microtask_wakes_an_idle_loop():
    async def story():
        async with ActorLoop([MEMORY]) as loop:
            await asyncio.sleep(0)
            ran = asyncio.Event()
            loop.queue_microtask(ran.set)
            await ran.wait()

    run(story())


@given(st.lists(st.sampled_from(["system", "user", "micro", "next", "drain"]), max_size=60))
def test_lanes_behave_as_two_plain_queues(steps):
    lanes, system, user, ran, due = Lanes(), deque(), deque(), [], 0
    for n, step in enumerate(steps):
        if step == "micro":
            lanes.queue_microtask(lambda n=n: ran.append(n))
            due += 1
        elif step == "drain":
            assert lanes.drain(lambda error: None)
            assert len(ran) == due
        elif step == "next":
            wanted = system.popleft() if system else user.popleft() if user else None
            assert lanes.next() == wanted
        else:
            lanes.put(n, step)
            (system if step == "system" else user).append(n)
        assert bool(lanes) == bool(system or user or len(ran) < due)
    assert ran == sorted(ran)


@pytest.mark.req("CQR-022")
@pytest.mark.parametrize(
    ("type", "lane"),
    [("Sys.Alarm", "system"), ("System.Describe", "user"), ("My.Sys", "user")],
)
def test_the_lane_by_type(type, lane):
    assert lane_of(type) == lane
