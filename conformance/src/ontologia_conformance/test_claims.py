"""Who gets which event, in which order, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from ontologia.clock import to_text
from ontologia.delivery.lifecycle import ClaimState, ClaimTimes, state_of
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    EVERY_EVENT_STORE,
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    claim,
    claim_of,
    numbers,
    post,
)


def state(store: EventStore, event_id: str, clock: ManualClock, handler: str = "ship") -> str:
    row = claim_of(store, event_id, handler)
    columns = ("lease_until", "available_at", "ack_at", "dead_lettered_at")
    times = ClaimTimes(*(row[name] for name in columns)) if row else None
    return state_of(times, to_text(clock.now()))


def transactions(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which write transactions are begun from now on."""
    begun: list[str] = []
    database: Any = store._database
    name = "_begin" if database.one_writer else "_transaction"
    real = getattr(database, name)

    def counted(*given: Any, **options: Any) -> Any:
        durable = options.get("durable", given[0])
        begun.append("hard" if durable else "soft")
        return real(*given, **options)

    monkeypatch.setattr(database, name, counted)
    return begun


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-131", "SQL-126")
def test_the_urgent_come_first_then_the_old_then_the_smaller_id(
    event_store: EventStore,
) -> None:
    for number, priority, created_at, event_id in (
        (1, 100, "2026-01-01T00:00:02Z", "a"),
        (2, 100, "2026-01-01T00:00:01Z", "d"),
        (3, 100, "2026-01-01T00:00:01Z", "c"),
        (4, 200, "2026-01-01T00:00:03Z", "b"),
        (5, -5, "2025-01-01T00:00:00Z", "e"),
        (6, 100, "2026-01-01T00:00:01Z", "B"),  # byte order: capitals first
    ):
        event = ParcelPosted(number=number, priority=priority)
        event.id, event.created_at = event_id, created_at
        event_store.enqueue(event, POST)

    assert numbers(claim(event_store, limit=4)) == [4, 6, 3, 2]
    assert numbers(claim(event_store)) == [1, 5]


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-131")
def test_events_of_two_types_come_in_one_order(event_store: EventStore) -> None:
    for number in range(4):
        cls = ParcelLost if number % 2 else ParcelPosted
        event_store.enqueue(cls(number=number), POST)

    assert numbers(claim(event_store, types=[LOST, POSTED])) == [0, 1, 2, 3]


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-116", "ONT-130")
def test_a_claim_gives_at_most_so_many_of_the_types_asked_for(event_store: EventStore) -> None:
    post(event_store, 1, 2, 3)
    event_store.enqueue(ParcelLost(number=4), POST)
    post(event_store, 5, namespace=OTHER)

    assert numbers(claim(event_store, limit=2)) == [1, 2]
    assert numbers(claim(event_store, limit=2)) == [3]
    assert claim(event_store, limit=2) == []
    # The same handler may ask for a part of its types.
    assert numbers(claim(event_store, types=[LOST])) == [4]
    post(event_store, 6)
    assert claim(event_store, types=[LOST]) == []
    assert numbers(claim(event_store, types=[POSTED])) == [6]


@pytest.mark.req("ONT-117")
@pytest.mark.parametrize("asked", [{"types": []}, {"limit": 0}, {"limit": -1}])
def test_asking_for_nothing_gives_nothing_and_writes_nothing(
    event_store: EventStore, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    post(event_store, 1)
    begun = transactions(event_store, monkeypatch)

    assert claim(event_store, **asked) == []

    assert begun == []
    assert event_store.list_consumers(POST) == []


@pytest.mark.req("NEW-002")
def test_a_claim_with_nothing_to_do_takes_no_write_transaction(
    event_store: EventStore, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    post(event_store, 1, 2)
    [done, failed] = claim(event_store)
    event_store.ack("ship", done.id)
    event_store.release("ship", failed.id)
    event_store.defer(ParcelPosted(number=3), POST, delay=60)
    begun = transactions(event_store, monkeypatch)

    assert claim(event_store) == []
    assert begun == []

    clock.advance(seconds=1)  # the backoff has ended: now there is something to do
    assert numbers(claim(event_store)) == [2]
    assert set(begun) == {"soft"}


@EVERY_EVENT_STORE
@pytest.mark.req("SQL-129", "ONT-132", "SQL-119")
def test_a_claim_is_a_row_with_session_time_and_lease(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)

    claim(event_store, session="s7", lease_ms=1500)

    row = claim_of(event_store, event_id)
    now, until = clock.now(), clock.now() + timedelta(milliseconds=1500)
    assert (row["session_id"], row["claimed_at"]) == ("s7", to_text(now))
    assert (row["attempts"], row["available_at"]) == (0, to_text(now))
    assert (row["lease_until"], row["ack_at"], row["last_error"]) == (to_text(until), None, None)


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-133")
def test_a_leased_event_is_nobody_elses_but_other_handlers(
    event_store: EventStore, open_events: Callable[..., EventStore]
) -> None:
    another = open_events()
    post(event_store, 1)
    assert numbers(claim(event_store)) == [1]

    assert claim(event_store) == []
    assert claim(event_store, session="s2") == []
    assert claim(another, session="s3") == []
    assert numbers(claim(another, "bill", session="s3")) == [1]


@EVERY_EVENT_STORE
@pytest.mark.req("SQL-127", "ONT-139", "ONT-134", "ONT-135")
def test_at_the_very_end_of_its_lease_an_event_is_free_again(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store, lease_ms=1000)

    clock.advance(seconds=0.999999)
    assert state(event_store, event_id, clock) == ClaimState.CLAIMED
    assert claim(event_store, session="s2") == []

    clock.advance(seconds=0.000001)
    assert state(event_store, event_id, clock) == ClaimState.RECLAIMABLE
    assert numbers(claim(event_store, session="s2")) == [1]  # without any backoff
    row = claim_of(event_store, event_id)
    assert (row["session_id"], row["attempts"]) == ("s2", 0)  # it was never started


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-118", "SQL-130", "ONT-136")
def test_an_ack_ends_one_claim_for_ever(event_store: EventStore, clock: ManualClock) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)
    claim(event_store, "bill")

    event_store.ack("ship", event_id)

    assert claim_of(event_store, event_id)["ack_at"] == to_text(clock.now())
    assert state(event_store, event_id, clock, "bill") == ClaimState.CLAIMED
    clock.advance(seconds=400 * 24 * 3600)
    assert claim(event_store) == []
    assert numbers(claim(event_store, "bill")) == [1]


@EVERY_EVENT_STORE
@pytest.mark.req("SQL-128", "ONT-133")
def test_claimers_at_the_same_time_never_get_the_same_event(
    open_events: Callable[..., EventStore],
) -> None:
    stores = [open_events() for _ in range(4)]
    post(stores[0], *range(60))

    def work(which: int) -> list[int]:
        got: list[int] = []
        while found := claim(stores[which], session=f"s{which}", limit=3):
            got += numbers(found)
        return got

    with ThreadPoolExecutor(4) as threads:
        taken = [number for got in threads.map(work, range(4)) for number in got]

    assert sorted(taken) == list(range(60))
