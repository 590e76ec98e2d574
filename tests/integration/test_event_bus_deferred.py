"""Events of a bus for later: stored, cancelled, promoted when their time comes."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from datetime import timedelta

import pytest

from ontologia import Session
from ontologia.errors import InvalidValueError
from ontologia.extensions.bus import EventBus
from ontologia.extensions.contract import Event
from ontologia.runtime.session import core_of
from ontologia_conformance.tiers import samples
from tests.integration.buses import NEVER, Ear, ended, until

COLUMNS = "id, topic, source, payload, correlation_id, fire_at, status, created_at, fired_at"


@pytest.fixture
def bus(session):
    """One that goes by the test's clock."""
    return EventBus(session, poll_interval=NEVER)


@pytest.mark.req("BUS-007", "BUS-014", "BUS-018", "BUS-024", "BUS-027")
def test_a_scheduled_event_waits_in_a_table_of_its_own(bus, clock, sql):
    async def story():
        delays = (5.0, timedelta(hours=2), 8)
        numbers = [
            await bus.schedule_at(delay, "tea.ready", "kitchen", {"cups": 2}, "c-1")
            for delay in delays
        ]
        await bus.start()
        pending = await bus.journal.list()
        await bus.close()
        return numbers, pending

    now = clock.now().timestamp()
    numbers, pending = asyncio.run(story())

    rows = sql(f"SELECT {COLUMNS} FROM deferred_events ORDER BY id")
    assert [row[0] for row in rows] == numbers
    assert rows[0][1:5] == ["tea.ready", "kitchen", '{"cups":2}', "c-1"]
    assert [row[5] - now for row in rows] == pytest.approx([5, 7200, 8])
    assert [row[6:] for row in rows] == [["scheduled", pytest.approx(now), None]] * 3
    assert pending == []


@pytest.mark.req("BUS-003", "BUS-005", "BUS-016", "BUS-064")
def test_when_its_time_comes_it_is_announced_and_delivered_by_a_later_process_too(
    open_session, clock, sql
):
    async def before():
        bus = EventBus(open_session())
        await bus.schedule_at(60, "tea.ready", "kitchen", {"cups": 2}, "c-1")
        await bus.close()

    async def after():
        bus, ear = EventBus(open_session(), poll_interval=NEVER), Ear()
        bus.subscribe("tea.ready", ear)
        async with bus:
            clock.advance(seconds=59)
            early = await bus.journal.list()
            clock.advance(seconds=1)
            await until(lambda: ear.events)
            await ended(bus, ear.events[0].id)
        return early, ear.events

    asyncio.run(before())
    early, [event] = asyncio.run(after())

    assert early == []
    assert (event.topic, event.source, event.payload) == ("tea.ready", "kitchen", {"cups": 2})
    assert event.correlation_id == "c-1"
    [[fire_at, status, fired_at]] = sql("SELECT fire_at, status, fired_at FROM deferred_events")
    assert status == "fired"
    assert fired_at >= fire_at
    assert sql("SELECT topic, status FROM event_journal") == [["tea.ready", "done"]]


@pytest.mark.req("BUS-028")
def test_a_delay_that_is_over_is_none(bus):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", ear)
        async with bus:
            for n, delay in enumerate((0, -5, -0.5, timedelta(days=-1))):
                await bus.schedule_at(delay, "tea.ready", "kitchen", {"n": n})
            await until(lambda: len(ear.events) == 4)
        return ear.heard()

    assert sorted(asyncio.run(story())) == [0, 1, 2, 3]


def test_an_instant_can_be_given_instead_and_nonsense_is_refused(bus, clock, sql):
    async def story():
        at = clock.now() + timedelta(seconds=30)
        await bus.schedule_at(None, "tea.ready", "kitchen", {}, at=at)
        for delay in (None, "5", True, float("nan"), float("inf")):
            with pytest.raises(InvalidValueError):
                await bus.schedule_at(delay, "tea.ready", "kitchen", {})
        await bus.close()

    asyncio.run(story())

    [[fire_at]] = sql("SELECT fire_at FROM deferred_events")
    assert fire_at == pytest.approx(clock.now().timestamp() + 30)


@pytest.mark.req("BUS-015", "BUS-019")
def test_one_that_is_cancelled_never_fires_and_one_that_fired_cannot_be(bus, clock, sql):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", ear)
        fires, cancelled, others = [
            await bus.schedule_at(10, "tea.ready", source, {"n": source})
            for source in ("a", "b", "c")
        ]
        async with bus:
            answers = [
                await bus.cancel_deferred(cancelled),
                await bus.cancel_deferred(cancelled),
                await bus.cancel_deferred(others, source="a"),
                await bus.cancel_deferred(10**9),
            ]
            clock.advance(seconds=10)
            await until(lambda: len(ear.events) == 2)
            answers += [await bus.cancel_deferred(fires), await bus.cancel_deferred(cancelled)]
        return answers, ear.heard()

    answers, heard = asyncio.run(story())

    assert answers == [True, False, False, False, False, False]
    assert heard == ["a", "c"]
    statuses = sql("SELECT status FROM deferred_events ORDER BY id")
    assert statuses == [["fired"], ["cancelled"], ["fired"]]


@pytest.mark.req("BUS-055", "BUS-057", "BUS-058")
def test_recovering_announces_what_is_overdue_and_touches_nothing_else(bus, clock, sql):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", ear)
        for n, delay in enumerate((3, 1, 2, 100)):
            await bus.schedule_at(delay, "tea.ready", "kitchen", {"n": n})
        await bus.cancel_deferred(3)
        clock.advance(seconds=10)
        recovered = await bus.recover(), await bus.recover()
        pending = [(each["payload"]["n"], each["status"]) for each in await bus.journal.list()]
        await bus.start()
        await until(lambda: len(ear.events) == 2)
        await bus.close()
        return recovered, pending, ear.heard()

    assert asyncio.run(story()) == ((2, 0), [(1, "pending"), (0, "pending")], [1, 0])
    statuses = sql("SELECT status FROM deferred_events ORDER BY id")
    assert statuses == [["fired"], ["fired"], ["cancelled"], ["scheduled"]]


@pytest.mark.req("BUS-069")
def test_deferred_events_are_asked_by_time_and_status(bus, clock):
    async def story():
        for n, delay in enumerate((30, 10, 20)):
            await bus.schedule_at(delay, "tea.ready", "kitchen", {"n": n})
        await bus.cancel_deferred(2)
        asked = [
            await bus.journal.deferred(),
            await bus.journal.deferred(status="scheduled"),
            await bus.journal.deferred(until=clock.now().timestamp() + 20),
            await bus.journal.deferred(limit=1),
        ]
        await bus.close()
        return [[each["payload"]["n"] for each in answer] for answer in asked]

    assert asyncio.run(story()) == [[1, 2, 0], [2, 0], [1, 2], [1]]


def fill(session, count):
    """Many events of a kilobyte that are due at once, in one transaction."""
    log = core_of(session).store.events.log
    with core_of(session).store.events.transaction() as tx:
        now = core_of(session).clock.now().timestamp()
        for n in range(count):
            payload = f'{{"n":{n},"pad":"{n:01000}"}}'
            row = log.untyped_row("tea.ready", payload, session.namespace, source="x")
            log._defer(tx, row, now - 1)


def events_alive():
    gc.collect()
    return sum(isinstance(each, Event) for each in gc.get_objects())


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("BUS-013", "BUS-047")
def test_ten_thousand_that_are_due_at_once_come_in_order_and_few_at_a_time(uri):
    """PostgreSQL is given fewer: there the point is the order, and a portion has a thousand."""
    count = samples(10_000 if uri.startswith("sqlite") else 2_500)
    alive, heard = [], []
    before = events_alive()  # of other tests

    async def listen(event):
        heard.append(event.payload["n"])
        if len(heard) % (count // 5) == 0:
            alive.append(events_alive())

    async def story(session):
        bus = EventBus(session, poll_interval=NEVER)
        bus.subscribe("tea.ready", listen)
        async with bus:
            await until(lambda: len(heard) == count)

    with Session(uri) as session:
        fill(session, count)
        tracemalloc.start(1)
        try:
            asyncio.run(story(session))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert heard == list(range(count))
    assert max(alive) - before <= 3
    assert peak < 8_000_000  # all of them would be more, on SQLite
