"""The end of a bus: asked for, by its own handlers, by a session that closes."""

from __future__ import annotations

import asyncio

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.errors import SessionClosedError
from ontologia.extensions.bus import EventBus
from tests.integration.buses import NEVER, Ear, ended, until


@pytest.fixture
def bus(uri):
    """One that is woken, or never looks."""
    return EventBus(uri, poll_interval=NEVER)


@pytest.mark.req("BUS-054")
def test_after_a_stop_nothing_is_handled_and_a_start_goes_on(bus, caplog):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", ear)
        await bus.start()
        await bus.start()
        first = await bus.publish("tea.ready", "kitchen", {"n": 1})
        await ended(bus, first)
        await bus.stop()
        await bus.stop()
        second = await bus.publish("tea.ready", "kitchen", {"n": 2})
        between = (await bus.journal.get(second))["status"], ear.heard()
        await bus.start()
        await ended(bus, second)
        await bus.close()
        return between, ear.heard()

    assert asyncio.run(story()) == (("pending", [1]), [1, 2])
    assert "does not end" not in caplog.text  # it was woken


@pytest.mark.req("BUS-054")
def test_a_stop_lets_the_event_at_hand_come_to_its_end(bus):
    async def story():
        inside, ended_well = asyncio.Event(), []

        async def slow(event):
            inside.set()
            await asyncio.sleep(0.05)
            ended_well.append(event.payload["n"])

        bus.subscribe("tea.ready", slow)
        await bus.start()
        numbers = [await bus.publish("tea.ready", "kitchen", {"n": n}) for n in range(3)]
        await inside.wait()
        await bus.stop()
        statuses = [(await bus.journal.get(number))["status"] for number in numbers]
        await bus.close()
        return ended_well, statuses

    assert asyncio.run(story()) == ([0], ["done", "pending", "pending"])


def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_event_given_back(uri, sql):
    async def story(session):
        bus, inside, cancelled = EventBus(session), asyncio.Event(), []

        async def stuck(event):
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)  # a stop waits for what it still has to clean up
                cancelled.append(event.id)

        bus.subscribe("tea.ready", stuck)
        await bus.start()
        number = await bus.publish("tea.ready", "kitchen", {})
        await inside.wait()
        await bus.stop()
        cleaned = list(cancelled)
        await bus.close()
        return number, cleaned

    with Session(uri, config=OntologiaConfig(shutdown_grace_ms=0)) as session:
        number, cleaned = asyncio.run(story(session))

    assert cleaned == [number]
    assert sql("SELECT status FROM event_journal") == [["pending"]]
    assert sql("SELECT attempts FROM event_claims") == [[0]]


def test_a_handler_may_stop_its_own_bus(bus):
    async def story():
        async def last(event):
            await bus.stop()

        bus.subscribe("tea.ready", last)
        await bus.start()
        numbers = [await bus.publish("tea.ready", "kitchen", {}) for _ in range(2)]
        await ended(bus, numbers[0])
        await until(lambda: not bus.health()["running"])
        statuses = [(await bus.journal.get(number))["status"] for number in numbers]
        await bus.start()
        await ended(bus, *numbers)
        await bus.close()
        return statuses

    assert asyncio.run(story()) == ["done", "pending"]


def test_a_handler_that_cancels_all_tasks_does_not_end_the_bus(bus):
    async def story():
        ear = Ear()

        async def cancel_all(event):
            await ear(event)
            if len(ear.events) == 1:
                asyncio.current_task().cancel()
                await asyncio.sleep(0)

        bus.subscribe("tea.ready", cancel_all)
        async with bus:
            [entry] = await ended(bus, await bus.publish("tea.ready", "kitchen", {}))
        return entry["status"], len(ear.events)

    assert asyncio.run(story()) == ("done", 2)


def test_a_bus_that_is_closed_takes_nothing_more(bus, sql):
    async def story():
        await bus.start()
        await bus.close()
        await bus.close()
        for step in (bus.publish("t", "x", {}), bus.recover(), bus.journal.list()):
            with pytest.raises(SessionClosedError, match="bus is closed"):
                await step
        with pytest.raises(SessionClosedError):
            await bus.start()

    asyncio.run(story())

    assert sql("SELECT COUNT(*) FROM events") == [[0]]


def test_closing_the_session_ends_the_bus_and_leaves_its_events(uri, sql):
    async def story():
        session = Session(uri)
        bus, inside = EventBus(session), asyncio.Event()

        async def wait(event):
            inside.set()
            await asyncio.sleep(0.05)

        bus.subscribe("tea.ready", wait)
        await bus.start()
        await bus.publish("tea.ready", "kitchen", {})
        await inside.wait()
        await asyncio.to_thread(session.close)
        await bus.close()

    asyncio.run(story())

    assert sql("SELECT status FROM event_journal") == [["pending"]]


@pytest.mark.thorough
def test_an_event_loop_that_ends_without_a_stop_leaves_its_events_to_the_next(uri):
    session = Session(uri)
    bus = EventBus(session)
    ear = Ear()
    bus.subscribe("tea.ready", ear)
    asyncio.run(bus.start())
    number = asyncio.run(bus.publish("tea.ready", "kitchen", {"n": 1}))
    thread = bus._dispatch._thread._thread
    thread.join(60)
    assert not thread.is_alive()

    async def story():
        other = EventBus(session)
        other.subscribe("tea.ready", ear)
        async with other:
            return await ended(other, number)

    [entry] = asyncio.run(story())

    assert (entry["status"], ear.heard()) == ("done", [1])
    asyncio.run(bus.close())
    session.close()
