"""What is deleted, what is kept, and who is waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ontologia.clock import to_text
from ontologia.errors import InvalidValueError
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    EVERY_EVENT_STORE_AT_LENGTH,
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelPosted,
    bury,
    claim,
    claim_of,
    numbers,
    post,
)

WEEK = 7 * 24 * 3600
Ask = Callable[[str], list[Any]]


def retained(store: EventStore, namespace: str = POST) -> list[str]:
    return [each["id"] for each in store.list_events(namespace)]


def see(store: EventStore, *names: str) -> None:
    """Write down that these consumers are being run."""
    ids = [store.consumers.register(POST, name, [POSTED]).id for name in names]
    store.heartbeat("s1", ids)


@pytest.mark.req("SQL-141", "ONT-150")
def test_cleanup_deletes_what_is_older_with_its_claims_in_one_namespace(
    event_store: EventStore, clock: ManualClock, ask: Ask
) -> None:
    finished, unfinished = post(event_store, 1, 2)
    post(event_store, 3, namespace=OTHER)
    claim(event_store, limit=1)
    event_store.ack("ship", finished)
    claim(event_store, "bill", limit=1)
    event_store.release("bill", finished)
    event_store.register_session("s1", POST, {})
    clock.advance(seconds=10)
    limit = clock.now()
    [younger] = post(event_store, 4)

    assert event_store.cleanup_events(POST, limit) == 2

    assert retained(event_store) == [younger]
    assert len(retained(event_store, OTHER)) == 1
    for table in ("event_claims", "attempts"):
        assert ask(f"SELECT COUNT(*) FROM {table}") == [(0,)]
    assert len(event_store.list_sessions(POST)) == 1
    assert event_store.inspect_event(unfinished) is None
    assert numbers(claim(event_store)) == [4]  # nothing waits that is not there


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-141")
def test_cleanup_takes_an_age_or_an_instant_and_nothing_else(
    event_store: EventStore, clock: ManualClock
) -> None:
    post(event_store, 1)
    clock.advance(seconds=60)

    assert event_store.cleanup_events(POST, timedelta(seconds=60)) == 0  # not older than that
    assert event_store.cleanup_events(POST, timedelta(seconds=59)) == 1
    for before in (clock.now().replace(tzinfo=None), "2026-01-01", 60):
        with pytest.raises(InvalidValueError):
            event_store.cleanup_events(POST, before)  # type: ignore[arg-type]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-150")
def test_what_a_session_works_on_is_not_cleaned_up(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store, lease_ms=60_000)
    clock.advance(seconds=59)
    assert event_store.cleanup_events(POST, clock.now()) == 0
    event_store.ack("ship", event_id)

    assert event_store.cleanup_events(POST, clock.now()) == 1


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-152", "SQL-141")
def test_a_dead_letter_survives_its_event(event_store: EventStore, clock: ManualClock) -> None:
    [event_id] = post(event_store, 1)
    bury(event_store, event_id, clock)
    before = event_store.list_dead_letters(POST)
    clock.advance(seconds=1)

    assert event_store.cleanup_events(POST, clock.now()) == 2  # and the event that told of it

    assert event_store.list_dead_letters(POST) == before
    assert before[0]["event_id"] == event_id


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-150")
def test_collection_waits_for_every_consumer_and_for_the_retention(
    event_store: EventStore, clock: ManualClock
) -> None:
    claim(event_store)
    claim(event_store, "bill")
    [event_id] = post(event_store, 1)
    for handler in ("ship", "bill"):
        claim(event_store, handler)
    event_store.ack("ship", event_id)
    clock.advance(seconds=WEEK + 60)
    see(event_store, "ship", "bill")

    assert event_store.collect_events(POST) == 0  # bill has not finished

    bury(event_store, event_id, clock, "bill")
    assert event_store.collect_events(OTHER) == 0
    assert event_store.collect_events(POST) == 1
    assert event_store.inspect_event(event_id) is None


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-150")
def test_finished_events_are_kept_for_the_retention(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)
    event_store.ack("ship", event_id)
    clock.advance(seconds=WEEK)
    see(event_store, "ship")

    assert event_store.collect_events(POST) == 0
    clock.advance(seconds=0.001)
    assert event_store.collect_events(POST) == 1


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-150")
def test_a_consumer_unseen_for_so_long_is_named_and_not_waited_for(
    event_store: EventStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    claim(event_store, "gone")
    [event_id] = post(event_store, 1)
    claim(event_store)
    event_store.ack("ship", event_id)
    event_store.register_session("another", POST, {})
    clock.advance(seconds=WEEK + 1)
    event_store.heartbeat("another")  # somebody was alive all the time
    see(event_store, "ship")

    with caplog.at_level(logging.WARNING):
        assert event_store.collect_events(POST) == 1

    assert "consumer gone of parcel.posted" in caplog.text
    assert "consumer ship" not in caplog.text
    assert claim(event_store, "gone") == []


@pytest.mark.req("ONT-150")
@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_events_without_a_subscription_are_collected_after_the_retention(
    event_store: EventStore, clock: ManualClock, dispatched: bool, others: bool
) -> None:
    post(event_store, 1)
    if others:
        event_store.consumers.register(POST, "search", [LOST])
    if dispatched:  # by a claim in any namespace
        post(event_store, 2, namespace=OTHER)
        claim(event_store, namespace=OTHER)
    clock.advance(seconds=WEEK - 1)
    assert event_store.collect_events(POST) == 0

    clock.advance(seconds=2)

    assert event_store.collect_events(POST) == 1
    assert event_store.list_events(POST) == []
    assert event_store.check() == []
    assert claim(event_store) == []


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-150")
def test_a_consumer_that_comes_before_the_collection_gets_old_events(
    event_store: EventStore, clock: ManualClock
) -> None:
    post(event_store, 1)
    clock.advance(seconds=10 * WEEK)
    event_store.consumers.register(POST, "ship", [POSTED])

    assert event_store.collect_events(POST) == 0
    assert numbers(claim(event_store)) == [1]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-150")
def test_what_was_not_handed_out_yet_is_not_finished(
    event_store: EventStore, clock: ManualClock
) -> None:
    claim(event_store)
    post(event_store, 1)
    clock.advance(seconds=WEEK + 1)  # ship is unseen for as long, and the event is incoming

    assert event_store.collect_events(POST) == 0
    assert numbers(claim(event_store)) == [1]


@pytest.mark.req("ONT-140", "ONT-150")
def test_many_events_of_many_priorities_are_collected_in_portions(
    event_store: EventStore, clock: ManualClock
) -> None:
    log = event_store.log
    rows = [
        log.given_row(ParcelPosted(number=number, priority=number % 3), POST)
        for number in range(2_500)
    ]
    with event_store.transaction() as tx:
        log.add(tx, rows)
    open_one = claim(event_store, limit=1)
    clock.advance(seconds=5)

    assert event_store.cleanup_events(POST, clock.now()) == 2_499

    assert retained(event_store) == [open_one[0].id]
    assert claim(event_store, "later") != []


@pytest.mark.req("ONT-150")
def test_fired_and_cancelled_events_leave_no_rows_behind_for_ever(
    event_store: EventStore, clock: ManualClock, ask: Ask
) -> None:
    claim(event_store)
    cancelled = event_store.defer(ParcelPosted(number=1), POST, delay=1)
    event_store.defer(ParcelPosted(number=2), POST, delay=1)
    event_store.defer(ParcelPosted(number=3), POST, delay=10 * WEEK)
    assert cancelled is not None
    event_store.cancel_deferred(POST, cancelled)
    clock.advance(seconds=2)
    [event] = claim(event_store)
    event_store.ack("ship", event.id)
    assert claim_of(event_store, event.id)["ack_at"]
    clock.advance(seconds=WEEK + 60)

    event_store.collect_events(POST)

    assert ask("SELECT status FROM deferred_events") == [("scheduled",)]


@pytest.mark.parametrize("kind", ["schedule_fires", "sessions", "deferred_events", "replies"])
def test_records_of_every_kind_are_deleted_when_they_are_old_and_not_before(
    event_store: EventStore, clock: ManualClock, ask: Ask, kind: str
) -> None:
    """Each alone: a look tells whether there is anything to delete."""
    with event_store.transaction() as tx:
        if kind == "schedule_fires":
            row = event_store.log.given_row(ParcelPosted(number=1), POST)
            assert event_store.log.fire(tx, row, "every hour", to_text(clock.now()))
        elif kind == "replies":
            event_store.retention._replies.add(tx, POST, "k", "h", "{}")
    if kind == "sessions":
        event_store.register_session("s1", POST, {})
    elif kind == "deferred_events":
        number = event_store.defer(ParcelPosted(number=1), POST, delay=60)
        assert number is not None
        event_store.cancel_deferred(POST, number)
    counted = f"SELECT COUNT(*) FROM {kind}"

    clock.advance(seconds=WEEK - 60)
    event_store.collect_events(OTHER)
    event_store.collect_events(POST)
    assert ask(counted) == [(1,)]
    clock.advance(seconds=120)
    event_store.collect_events(OTHER)
    assert ask(counted) == [(1,)]
    event_store.collect_events(POST)

    assert ask(counted) == [(0,)]


def test_a_collection_that_finds_nothing_old_takes_no_lock(
    event_store: EventStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every session that starts collects, and as a rule there is nothing."""
    [event] = post(event_store, 1)
    claim(event_store)
    event_store.ack("ship", event)
    see(event_store, "ship")
    event_store.register_session("s1", POST, {})
    clock.advance(seconds=60)

    def refuse(**_: object) -> None:
        raise AssertionError("a write transaction")

    monkeypatch.setattr(event_store.retention._database, "write", refuse)

    assert event_store.collect_events(POST) == 0
