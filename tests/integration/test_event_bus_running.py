"""A bus at work: woken, blocked, stopped, beside others."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading

import pytest

from ontologia import Event, Field, OntologiaConfig, Session, on_event
from ontologia.errors import InvalidValueError
from ontologia.extensions.bus import EventBus
from ontologia.extensions.dispatch import BATCH
from ontologia.queues import DomainEvent, StoreEventQueue, get_current_tenant_id
from tests.integration.buses import NEVER, Ear, ended, until
from tests.integration.running import running
from tests.integration.running import until as soon_true


class KettleBoiled(Event):
    __event_type__ = "kettle.boiled"

    litres: Field[float]


@pytest.fixture
def bus(uri):
    """One that is woken, or never looks."""
    return EventBus(uri, poll_interval=NEVER)


@pytest.mark.req("BUS-021", "BUS-044", "BUS-045", "BUS-046")
def test_what_is_published_and_what_comes_due_does_not_wait_for_the_poll(uri):
    async def story(session):
        bus, ear = EventBus(session, poll_interval=NEVER), Ear()
        bus.subscribe("tea.ready", ear)
        async with bus:
            await bus.schedule_at(0.2, "tea.ready", "kitchen", {"n": "due"})
            await bus.publish("tea.ready", "kitchen", {"n": "now"})
            await until(lambda: len(ear.events) == 2)
        return ear.heard()

    silent = OntologiaConfig(session_heartbeat_interval_ms=3_600_000, session_ttl_ms=7_200_000)
    with Session(uri, config=silent) as session:  # a heartbeat would wake it, too
        assert asyncio.run(story(session)) == ["now", "due"]


@pytest.mark.req("BUS-013", "BUS-047")
def test_more_than_a_batch_is_delivered_in_order_without_a_pause(bus):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", ear)
        count = 3 * BATCH + 1
        published = [bus.publish("tea.ready", "kitchen", {"n": n}) for n in range(count)]
        numbers = await asyncio.gather(*published)
        async with bus:
            await until(lambda: len(ear.events) == count)
        return numbers, ear

    numbers, ear = asyncio.run(story())

    assert numbers == sorted(numbers) == [event.id for event in ear.events]
    assert ear.heard() == list(range(len(numbers)))


@pytest.mark.req("BUS-044", "BUS-047")
def test_a_batch_is_claimed_at_a_time_and_of_it_one_is_begun(bus, sql):
    async def story():
        counted = []

        async def count(event):
            claims = "SELECT COUNT(*), COUNT(read_commit) FROM event_claims WHERE ack_at IS NULL"
            counted.append(await asyncio.to_thread(sql, claims))

        bus.subscribe("tea.ready", count)
        numbers = [await bus.publish("tea.ready", "kitchen", {}) for _ in range(4)]
        async with bus:
            await ended(bus, *numbers)
        return counted

    assert asyncio.run(story())[::3] == [[[3, 1]], [[1, 1]]]


@pytest.mark.req("BUS-068")
def test_the_batch_is_three_and_the_poll_interval_five_seconds():
    assert BATCH == 3
    assert inspect.signature(EventBus).parameters["poll_interval"].default == 5.0
    for interval in (0, -1, True, "5", float("nan")):
        with pytest.raises(InvalidValueError, match="poll_interval"):
            EventBus(":memory:", poll_interval=interval)


def test_a_handler_that_waits_keeps_nobody_from_publishing(bus):
    async def story():
        inside, go, ear = asyncio.Event(), asyncio.Event(), Ear()

        async def wait(event):
            inside.set()
            await go.wait()

        bus.subscribe("tea.brewing", wait)
        bus.subscribe("tea.ready", ear)
        async with bus:
            await bus.publish("tea.brewing", "kitchen", {})
            await inside.wait()
            numbers = [await bus.publish("tea.ready", "kitchen", {"n": n}) for n in range(20)]
            waiting = [(await bus.journal.get(number))["status"] for number in numbers]
            go.set()
            await ended(bus, *numbers)
        return waiting, ear.heard()

    assert asyncio.run(story()) == (["pending"] * 20, list(range(20)))


def test_a_handler_that_blocks_its_event_loop_keeps_no_other_loop_from_publishing(bus):
    inside, go, ear = threading.Event(), threading.Event(), Ear()

    async def story():
        async def block(event):
            inside.set()
            go.wait()  # as a careless extension does

        bus.subscribe("tea.brewing", block)
        bus.subscribe("tea.ready", ear)
        async with bus:
            await bus.publish("tea.brewing", "kitchen", {})
            await until(lambda: ear.events)

    running = threading.Thread(target=asyncio.run, args=(story(),))
    running.start()
    inside.wait()
    number = asyncio.run(bus.publish("tea.ready", "elsewhere", {"n": 1}))
    heard = ear.heard()
    go.set()
    running.join()

    assert number > 0
    assert heard == []
    assert ear.heard() == [1]


# -- several --------------------------------------------------------------------------------------


@pytest.mark.req("BUS-071")
def test_two_buses_of_one_name_share_the_events_and_none_is_handled_twice(uri):
    async def story():
        buses, ears = [EventBus(uri) for _ in range(2)], [Ear(), Ear()]
        for bus, ear in zip(buses, ears, strict=True):
            bus.subscribe("tea.ready", ear)
        async with buses[0], buses[1]:
            numbers = [await buses[n % 2].publish("tea.ready", "x", {"n": n}) for n in range(100)]
            await ended(buses[0], *numbers)
        return [ear.heard() for ear in ears]

    one, other = asyncio.run(story())

    assert sorted(one + other) == list(range(100))
    assert one == sorted(one)
    assert other == sorted(other)


def test_a_bus_has_the_events_of_its_namespace_alone(open_session):
    async def story():
        kitchen, cellar = (EventBus(open_session(namespace=name)) for name in ("kitchen", "cellar"))
        ears = [Ear(), Ear()]
        for bus, ear in zip((kitchen, cellar), ears, strict=True):
            bus.subscribe("tea.ready", ear)
        async with kitchen, cellar:
            number = await kitchen.publish("tea.ready", "x", {"n": 1})
            deferred = await kitchen.schedule_at(60, "tea.ready", "x", {})
            await ended(kitchen, number)
            await ended(cellar, await cellar.publish("tea.ready", "x", {"n": 2}))
            hidden = (
                await cellar.journal.get(number),
                await cellar.retry(number),
                await cellar.cancel_deferred(deferred),
                await cellar.journal.deferred(),
            )
            listed = [len(await bus.journal.list()) for bus in (kitchen, cellar)]
        return [ear.heard() for ear in ears], hidden, listed

    assert asyncio.run(story()) == ([[1], [2]], (None, False, False, []), [1, 1])


def test_what_follows_from_an_event_of_a_tenant_is_the_tenants_too(uri, sql):
    async def story(session):
        bus, tenants = EventBus(session), []

        async def pour(event):
            tenants.append(get_current_tenant_id())
            await bus.publish("tea.poured", "x", {})

        bus.subscribe("tea.ready", pour)
        async with bus:
            event = DomainEvent.build(name="tea.ready", payload={}, tenant_id="t1")
            await asyncio.to_thread(StoreEventQueue(session).enqueue, event)
            await until(lambda: bus.journal.list(topic="tea.poured", status="done"))
        return tenants

    with Session(uri) as session:
        assert asyncio.run(story(session)) == ["t1"]
    assert sql("SELECT DISTINCT tenant_id FROM events") == [["t1"]]


def test_a_bus_and_typed_handlers_have_the_same_events(uri):
    typed = []

    @on_event(KettleBoiled)
    def boiled(ctx):
        typed.append(ctx.event.litres)

    async def story():
        bus, ear = EventBus(uri), Ear()
        bus.subscribe("kettle.boiled", ear)
        async with bus:
            await bus.publish("kettle.boiled", "kitchen", {"litres": 1.5})
            await asyncio.to_thread(soon_true, lambda: typed)
            session.commit(event=KettleBoiled(litres=2.5))
            await until(lambda: len(ear.events) == 2)
        return ear.heard("litres")

    with Session(uri) as session, running(session, [boiled]):
        assert asyncio.run(story()) == [1.5, 2.5]
        soon_true(lambda: len(typed) == 2)
    assert typed == [1.5, 2.5]


# -- places ---------------------------------------------------------------------------------------


@pytest.mark.req("BUS-067")
def test_without_a_place_it_is_in_the_sandbox_and_directories_are_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def story():
        bus = EventBus()
        number = await bus.publish("tea.ready", "kitchen", {})
        await bus.close()
        other = EventBus(f"sqlite:///{tmp_path}/deep/down/bus.db")
        await other.close()
        return number

    assert asyncio.run(story()) == 1
    assert (tmp_path / "sandbox/data/event_journal.db").exists()
    assert (tmp_path / "deep/down/bus.db").exists()


@pytest.mark.req("BUS-056")
def test_a_bus_that_recovers_says_how_many(bus, caplog):
    async def story():
        recovered = await bus.recover()
        await bus.close()
        return recovered

    with caplog.at_level(logging.INFO, logger="ontologia.extensions.bus"):
        assert asyncio.run(story()) == 0

    assert [each.getMessage() for each in caplog.records] == ["EventBus: recovered 0 events"]
