"""A bus for extensions: events by topic, on the store's own log and claims."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

import pytest

from ontologia.clock import from_text
from ontologia.errors import HandlerError, InvalidValueError
from ontologia.extensions.bus import EventBus
from tests.integration.buses import NEVER, Ear, ended, until

COLUMNS = "id, topic, source, payload, correlation_id, status, created_at, processed_at, error"


@pytest.fixture
def bus(uri):
    """One that is woken, or never looks."""
    return EventBus(uri, poll_interval=NEVER)


# -- the journal ----------------------------------------------------------------------------------


@pytest.mark.req("BUS-001", "BUS-007", "BUS-009", "BUS-010", "BUS-012", "BUS-013")
def test_what_is_published_is_in_the_journal_at_once(bus, sql):
    async def story():
        before = time.time()
        first = await bus.publish("tea.ready", "kitchen", {"cups": 2}, "c-1")
        second = await bus.publish("tea.ready", "kitchen", {})
        await bus.close()
        return before, first, second

    before, first, second = asyncio.run(story())

    assert first < second
    [one, two] = sql(f"SELECT {COLUMNS} FROM event_journal ORDER BY id")
    assert one[:6] == [first, "tea.ready", "kitchen", '{"cups":2}', "c-1", "pending"]
    assert before - 1 < one[6] <= two[6] < time.time() + 1
    assert one[7:] == [None, None]
    assert two[3:6] == ["{}", None, "pending"]


@pytest.mark.req("BUS-010", "BUS-011", "BUS-042", "BUS-063")
def test_an_event_goes_from_pending_through_processing_to_done(bus, sql):
    async def story():
        seen = []

        async def look(event):
            seen.append((event.status, await bus.journal.get(event.id)))

        bus.subscribe("tea.ready", look)
        number = await bus.publish("tea.ready", "kitchen", {})
        pending = await bus.journal.get(number)
        async with bus:
            [done] = await ended(bus, number)
        return pending, seen, done

    pending, [(status, during)], done = asyncio.run(story())

    assert (pending["status"], status, during["status"]) == ("pending", "processing", "processing")
    assert (pending["processed_at"], during["processed_at"]) == (None, None)
    assert (done["status"], done["error"]) == ("done", None)
    assert done["processed_at"] >= done["created_at"]
    [[stamp]] = sql("SELECT ack_at FROM event_claims WHERE handler_id = 'bus:default'")
    [[seconds]] = sql("SELECT processed_at FROM event_journal")
    assert seconds == pytest.approx(from_text(stamp).timestamp(), abs=1e-5)


@pytest.mark.req("BUS-006", "BUS-069")
def test_the_journal_is_asked_by_topic_status_and_correlation(bus):
    async def story():
        bus.subscribe("tea.cold", Ear(lambda event: ValueError("cold")))
        numbers = [
            await bus.publish("tea.ready", "kitchen", {"n": 1}, "c-1"),
            await bus.publish("tea.cold", "kitchen", {"n": 2}, "c-1"),
            await bus.publish("tea.ready", "kitchen", {"n": 3}, "c-2"),
        ]
        async with bus:
            await ended(bus, *numbers)
            asked = [
                await bus.journal.list(topic="tea.ready"),
                await bus.journal.list(correlation_id="c-1", status="failed"),
                await bus.journal.list(topic="tea.ready", limit=1),
                await bus.journal.list(status="pending"),
            ]
            with pytest.raises(InvalidValueError, match="pending, processing, done, failed"):
                await bus.journal.list(status="lost")
            assert await bus.journal.get(numbers[-1] + 1_000) is None
        return [[entry["payload"]["n"] for entry in each] for each in asked]

    assert asyncio.run(story()) == [[1, 3], [2], [3], []]


@pytest.mark.req("BUS-009")
def test_what_several_buses_did_with_an_event_is_one_status(uri, sql):
    async def story():
        one, other = EventBus(uri, name="one"), EventBus(uri, name="other")
        fails, hears = Ear(lambda event: ValueError("no")), Ear()
        one.subscribe("tea.ready", fails)
        other.subscribe("tea.ready", hears)
        number = await one.publish("tea.ready", "kitchen", {})
        async with other:
            [alone] = await ended(other, number)
        async with one:
            [both] = await until(lambda: one.journal.list(status="failed"))
        return alone, both, len(fails.events), len(hears.events)

    alone, both, *calls = asyncio.run(story())

    assert calls == [1, 1]
    assert (alone["status"], both["status"]) == ("done", "failed")


# -- subscribers ----------------------------------------------------------------------------------


@pytest.mark.req("BUS-004", "BUS-031", "BUS-048")
def test_all_subscribers_of_a_topic_are_called_one_after_the_other(bus):
    async def story():
        steps, other = [], Ear()

        def named(name):
            async def handler(event):
                steps.append(f"{name} begins")
                await asyncio.sleep(0)
                steps.append(f"{name} ends")

            return handler

        for name in ("c", "a", "b"):
            bus.subscribe("tea.ready", named(name))
        bus.subscribe("tea", other)
        async with bus:
            await ended(bus, await bus.publish("tea.ready", "kitchen", {}))
        return steps, other.events

    steps, others = asyncio.run(story())

    assert steps == ["c begins", "c ends", "a begins", "a ends", "b begins", "b ends"]
    assert others == []


@pytest.mark.req("BUS-040", "BUS-041", "BUS-042")
def test_an_event_can_be_read_by_attribute_and_like_a_dict_and_not_be_changed(bus):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", ear)
        async with bus:
            await ended(bus, await bus.publish("tea.ready", "kitchen", {"cups": 2}, "c-1"))
        return ear.events

    [event] = asyncio.run(story())

    assert isinstance(event.id, int)
    assert isinstance(event.created_at, float)
    assert (event.topic, event.source, event.correlation_id) == ("tea.ready", "kitchen", "c-1")
    assert event["topic"] == event.topic
    assert event.get("payload") == {"cups": 2} == dict(event)["payload"]
    assert event.get("colour", "none") == "none"
    with pytest.raises(KeyError):
        event["colour"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.topic = "coffee.ready"


@pytest.mark.req("BUS-043")
def test_what_a_handler_does_to_its_payload_nobody_else_sees(bus):
    async def story():
        async def spoil(event):
            event.payload["list"].append(2)
            event.payload.clear()

        ear = Ear()
        bus.subscribe("tea.ready", spoil)
        bus.subscribe("tea.ready", ear)
        async with bus:
            [entry] = await ended(bus, await bus.publish("tea.ready", "x", {"list": [1]}))
        return ear.events[0].payload, entry["payload"]

    assert asyncio.run(story()) == ({"list": [1]}, {"list": [1]})


@pytest.mark.req("BUS-011", "BUS-049", "BUS-050", "BUS-052", "BUS-070")
def test_one_that_raises_stops_neither_the_others_nor_later_events(bus, caplog):
    async def story():
        ear = Ear()
        bus.subscribe("tea.ready", Ear(lambda e: ValueError("too hot")), subscriber_id="first")
        bus.subscribe("tea.ready", Ear(lambda e: SystemExit(3)), subscriber_id="second")
        bus.subscribe("tea.ready", Ear(lambda e: asyncio.CancelledError()), subscriber_id="third")
        bus.subscribe("tea.ready", ear, subscriber_id="last")
        bus.subscribe("tea.gone", ear)
        async with bus:
            failed = await bus.publish("tea.ready", "kitchen", {"n": 1})
            later = await bus.publish("tea.gone", "kitchen", {"n": 2})
            return failed, ear, await ended(bus, failed, later)

    with caplog.at_level(logging.ERROR):
        number, ear, [failed, later] = asyncio.run(story())

    assert ear.heard() == [1, 2]
    assert (failed["status"], later["status"]) == ("failed", "done")
    assert (
        failed["error"]
        == "first: ValueError: too hot; second: SystemExit: 3; third: CancelledError"
    )
    assert failed["processed_at"] >= failed["created_at"]
    told = [each for each in caplog.records if getattr(each, "subscriber_id", None) == "first"]
    assert [each.event_id for each in told] == [number]
    assert "subscriber first failed" in told[0].getMessage()


@pytest.mark.req("BUS-051")
def test_an_event_that_nobody_subscribed_to_is_done(bus):
    async def story():
        async with bus:
            [entry] = await ended(bus, await bus.publish("tea.ready", "kitchen", {}))
        return entry["status"]

    assert asyncio.run(story()) == "done"


@pytest.mark.req("BUS-008")
def test_a_subscription_that_was_ended_hears_no_more(bus):
    async def story():
        ear, other = Ear(), Ear()
        end = bus.subscribe("tea.ready", ear)
        bus.subscribe("tea.ready", other)
        async with bus:
            await ended(bus, await bus.publish("tea.ready", "kitchen", {"n": 1}))
            end()
            end()
            await ended(bus, await bus.publish("tea.ready", "kitchen", {"n": 2}))
        return ear.heard(), other.heard()

    assert asyncio.run(story()) == ([1], [1, 2])


def test_what_cannot_be_a_handler_is_refused_when_it_subscribes(bus):
    for handler in (lambda event: None, print, "name", None):
        with pytest.raises(HandlerError, match="async def"):
            bus.subscribe("tea.ready", handler)
    with pytest.raises(InvalidValueError, match="max_attempts"):
        bus.subscribe("tea.ready", Ear(), max_attempts=0)
    for topic in ("", "*", 5):
        with pytest.raises(InvalidValueError):
            bus.subscribe(topic, Ear())
    asyncio.run(bus.close())


@pytest.mark.req("BUS-023")
@pytest.mark.parametrize(
    "payload", [[1], "text", None, {"at": object()}, {1: 2}, {"x": float("nan")}, {"s": "\0"}]
)
def test_a_payload_that_is_no_json_object_stores_nothing(bus, sql, payload):
    async def story():
        with pytest.raises(InvalidValueError):
            await bus.publish("tea.ready", "kitchen", payload)
        with pytest.raises(InvalidValueError):
            await bus.schedule_at(1, "tea.ready", "kitchen", payload)
        await bus.close()

    asyncio.run(story())

    assert sql("SELECT COUNT(*) FROM event_journal") == [[0]]
    assert sql("SELECT COUNT(*) FROM deferred_events") == [[0]]
