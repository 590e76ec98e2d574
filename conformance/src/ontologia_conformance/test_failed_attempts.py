"""What becomes of an event whose handler fails, crashes, or cannot read it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ontologia.clock import from_text, to_text
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    DEAD,
    EVERY_EVENT_STORE_AT_LENGTH,
    LEASE,
    OTHER,
    POST,
    bury,
    claim,
    claim_of,
    numbers,
    post,
)

Open = Callable[..., EventStore]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-119", "ONT-141", "ONT-142", "SQL-131", "SQL-132")
def test_each_failure_waits_longer_until_the_cap(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)

    for failure, delay_ms in enumerate(
        (500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000), start=1
    ):
        assert numbers(claim(event_store)) == [1]
        event_store.release("ship", event_id, error=f"OSError: {failure}")

        row, now = claim_of(event_store, event_id), clock.now()
        waited = from_text(row["available_at"]) - now
        assert timedelta(0) <= waited - timedelta(milliseconds=delay_ms) <= timedelta(seconds=0.1)
        assert (row["attempts"], row["last_error"]) == (failure, f"OSError: {failure}")
        assert row["lease_until"] == to_text(now)
        clock.advance(seconds=waited.total_seconds() - 0.000001)
        assert claim(event_store) == []
        clock.advance(seconds=0.000001)

    claim(event_store)
    event_store.release("ship", event_id)
    assert claim_of(event_store, event_id)["dead_lettered_at"] == to_text(clock.now())


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-131")
def test_a_failure_without_words_is_a_handler_failure(event_store: EventStore) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)

    event_store.release("ship", event_id)

    assert claim_of(event_store, event_id)["last_error"] == "handler failure"


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-119")
def test_an_error_no_database_could_keep_is_kept_in_part(event_store: EventStore) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)

    event_store.release("ship", event_id, error="a\0b \ud800 " + "x" * 20_000)

    kept = claim_of(event_store, event_id)["last_error"]
    assert kept.startswith("a\\0b \\ud800 xxx")
    assert len(kept) < 11_000


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-143", "ONT-149", "ONT-136")
def test_an_event_is_delivered_ten_times_and_then_never_again(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)

    assert bury(event_store, event_id, clock) == 10

    row = claim_of(event_store, event_id)
    assert (row["attempts"], row["last_error"]) == (10, "OSError: no van")
    clock.advance(seconds=400 * 24 * 3600)
    assert claim(event_store) == []
    event_store.release("ship", event_id)  # nobody holds it any more
    assert len(event_store.list_dead_letters(POST)) == 1


@pytest.mark.req("SQL-133", "ONT-144", "SQL-121")
def test_a_dead_letter_is_a_copy_of_the_event_with_its_failure(
    open_events: Open, clock: ManualClock, ask: Callable[[str], list[Any]]
) -> None:
    store = open_events(event_max_attempts=1)
    [event_id] = post(store, 5)
    claim(store)

    store.release("ship", event_id, error="OSError: no van")

    now = to_text(clock.now())
    row = claim_of(store, event_id)
    assert (row["dead_lettered_at"], row["lease_until"], row["available_at"]) == (now, now, now)
    assert ask(
        "SELECT event_id, handler_id, namespace, failed_at, attempts, last_error, event_type, "
        "event_payload, root_event_id, chain_depth FROM dead_letters"
    ) == [
        (
            *(event_id, "ship", POST, now, 1, "OSError: no van"),
            *("parcel.posted", '{"number":5}', event_id, 0),
        )
    ]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-145", "SQL-133", "SQL-134")
def test_burying_announces_one_event_in_the_chain_of_the_buried(open_events: Open) -> None:
    store = open_events(event_max_attempts=1)
    [event_id] = post(store, 5)
    claim(store)
    store.release("ship", event_id, error="OSError: no van")

    [told] = claim(store, "tell", types=[DEAD])

    assert type(told) is EventDeadLetter
    assert told.model_dump() == {
        "event_id": event_id,
        "handler_id": "ship",
        "attempts": 1,
        "last_error": "OSError: no van",
    }
    assert (told.root_event_id, told.chain_depth) == (event_id, 1)
    assert claim(store, "tell", types=[DEAD], namespace=OTHER) == []


@pytest.mark.req("ONT-146")
def test_burying_what_announces_a_burial_announces_nothing(
    open_events: Open, ask: Callable[[str], list[Any]]
) -> None:
    store = open_events(event_max_attempts=1)
    [event_id] = post(store, 5)
    claim(store)
    store.release("ship", event_id)
    [told] = claim(store, "tell", types=[DEAD])

    store.release("tell", told.id)

    assert ask("SELECT COUNT(*) FROM events") == [(2,)]
    assert len(store.list_dead_letters(POST)) == 2


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-137", "ONT-138")
def test_one_handlers_failures_are_not_the_others(open_events: Open, clock: ManualClock) -> None:
    store = open_events(event_max_attempts=2)
    [event_id] = post(store, 1)
    claim(store)
    store.release("ship", event_id)  # in backoff

    assert numbers(claim(store, "bill")) == [1]

    clock.advance(seconds=1)
    claim(store)
    store.release("ship", event_id)  # buried
    assert numbers(claim(store, "count")) == [1]
    store.ack("bill", event_id)
    assert claim_of(store, event_id, "bill")["ack_at"]
    assert claim_of(store, event_id)["dead_lettered_at"]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-139")
def test_a_started_attempt_whose_lease_ran_out_counts(
    event_store: EventStore, clock: ManualClock
) -> None:
    started, waiting = post(event_store, 1, 2)
    claim(event_store)
    event_store.start("ship", started, lease_ms=LEASE)
    clock.advance(seconds=LEASE / 1000)

    assert numbers(claim(event_store, session="s2")) == [1, 2]

    row = claim_of(event_store, started)
    assert (row["attempts"], row["last_error"]) == (1, "lease expired")
    assert claim_of(event_store, waiting)["attempts"] == 0
    shown = event_store.inspect_event(started)
    assert shown is not None
    [attempt] = shown["attempts"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "lease expired")


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-139")
def test_a_crash_at_the_limit_is_buried_by_the_claim(open_events: Open, clock: ManualClock) -> None:
    store = open_events(event_max_attempts=2)
    [event_id] = post(store, 1)

    for _ in range(2):
        assert numbers(claim(store)) == [1]
        store.start("ship", event_id, lease_ms=LEASE)
        clock.advance(seconds=LEASE / 1000)

    assert claim(store) == []
    row = claim_of(store, event_id)
    assert (row["attempts"], row["last_error"]) == (2, "lease expired")
    assert row["dead_lettered_at"] == to_text(clock.now())
    assert [each.event_id for each in claim(store, "tell", types=[DEAD])] == [event_id]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-132")
def test_a_claim_after_failures_keeps_their_number(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)
    event_store.release("ship", event_id)
    clock.advance(seconds=1)

    claim(event_store, session="s2")

    row = claim_of(event_store, event_id)
    assert (row["attempts"], row["session_id"], row["last_error"]) == (1, "s2", "handler failure")


@pytest.mark.req("ONT-129", "ONT-147", "NEW-064")
@pytest.mark.parametrize("payload", ['{"number":"many"}', "{}", "[]", "not json"])
def test_what_cannot_be_read_is_buried_and_holds_nobody_up(
    event_store: EventStore, change: Callable[[str], int], payload: str
) -> None:
    broken, _ = post(event_store, 1, 2)
    assert change(f"UPDATE events SET payload = '{payload}' WHERE id = '{broken}'") == 1

    assert numbers(claim(event_store)) == [2]

    [letter] = event_store.list_dead_letters(POST)
    assert (letter["event_id"], letter["handler"]) == (broken, "ship")
    assert letter["last_error"].startswith("InvalidValueError: ")
    shown = event_store.inspect_event(broken)
    assert shown is not None
    assert [each["outcome"] for each in shown["attempts"]] == ["undecodable"]
