"""Events for later, and events that must not be stored twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ontologia.clock import to_text
from ontologia.errors import IntegrityError, InvalidValueError
from ontologia.store.events.store import EventStore
from ontologia.store.rows import Announcement
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    LOST,
    OTHER,
    POST,
    ParcelLost,
    ParcelPosted,
    claim,
    numbers,
    post,
)


def defer(store: EventStore, number: int, **options: Any) -> int | None:
    return store.defer(ParcelPosted(number=number), options.pop("namespace", POST), **options)


@pytest.mark.req("NEW-022")
def test_a_deferred_event_is_claimable_from_its_time_on(
    event_store: EventStore, clock: ManualClock
) -> None:
    claim(event_store)
    defer(event_store, 1, delay=10)
    defer(event_store, 2, delay=timedelta(seconds=5))
    defer(event_store, 3, at=clock.now() + timedelta(seconds=10, microseconds=1))

    assert claim(event_store) == []
    assert event_store.list_events(POST) == []
    clock.advance(seconds=4.999999)
    assert claim(event_store) == []
    clock.advance(seconds=0.000001)
    assert numbers(claim(event_store)) == [2]
    clock.advance(seconds=5)
    assert numbers(claim(event_store)) == [1]
    clock.advance(seconds=0.000001)
    assert numbers(claim(event_store)) == [3]
    assert claim(event_store) == []


@pytest.mark.req("NEW-022")
def test_deferred_events_are_told_to_all_consumers_once_and_keep_what_they_are(
    open_events: Callable[..., EventStore], clock: ManualClock
) -> None:
    store, another = open_events(), open_events()
    event = ParcelLost(number=1, remark="late", priority=9)
    store.defer(event, POST, delay=1)
    clock.advance(seconds=2)

    [first] = claim(store, types=[LOST])
    [second] = claim(another, "bill", types=[LOST])

    assert first.id == second.id == event.id
    assert (first.remark, first.priority, first.chain_depth) == ("late", 9, 0)
    assert claim(another, types=[LOST]) == claim(store, "bill", types=[LOST]) == []


@pytest.mark.req("NEW-022")
def test_events_deferred_to_one_moment_come_in_the_order_of_their_time(
    event_store: EventStore, clock: ManualClock
) -> None:
    for number in (3, 1, 2):
        defer(event_store, number, delay=number)
    clock.advance(seconds=60)

    assert numbers(claim(event_store)) == [1, 2, 3]


@pytest.mark.req("NEW-022")
def test_more_deferred_events_than_one_step_announces_all_come(
    event_store: EventStore, clock: ManualClock
) -> None:
    log, soon = event_store.log, clock.now().timestamp() + 1
    rows = [log.given_row(ParcelPosted(number=number), POST) for number in range(1_001)]
    with event_store.transaction() as tx:
        log.announce(tx, [Announcement(row, soon) for row in rows])
    clock.advance(seconds=1)

    assert numbers(claim(event_store, limit=2_000)) == list(range(1_001))


@pytest.mark.req("NEW-022")
def test_a_cancelled_event_never_comes(event_store: EventStore, clock: ManualClock) -> None:
    claim(event_store)
    number = defer(event_store, 1, delay=1)
    assert number is not None

    assert event_store.cancel_deferred(OTHER, number) is False  # not theirs
    assert event_store.cancel_deferred(POST, number) is True
    assert event_store.cancel_deferred(POST, number) is False

    clock.advance(seconds=2)
    assert claim(event_store) == []


@pytest.mark.req("NEW-022")
def test_what_fired_or_never_was_cannot_be_cancelled(
    event_store: EventStore, clock: ManualClock
) -> None:
    number = defer(event_store, 1, delay=1)
    assert number is not None
    clock.advance(seconds=1)
    assert numbers(claim(event_store)) == [1]

    assert event_store.cancel_deferred(POST, number) is False
    assert event_store.cancel_deferred(POST, 999_999) is False
    with pytest.raises(InvalidValueError):
        event_store.cancel_deferred(POST, "1")  # type: ignore[arg-type]


@pytest.mark.req("NEW-022")
@pytest.mark.parametrize(
    "when", [{}, {"delay": -1}, {"delay": float("nan")}, {"delay": "1"}, {"delay": 1e300}]
)
def test_a_time_that_is_none_is_refused(
    event_store: EventStore, when: dict[str, Any], clock: ManualClock
) -> None:
    with pytest.raises(InvalidValueError):
        defer(event_store, 1, **when)
    with pytest.raises(InvalidValueError):
        defer(event_store, 1, at=clock.now().replace(tzinfo=None))
    with pytest.raises(InvalidValueError):
        defer(event_store, 1, at=clock.now(), delay=1)

    clock.advance(seconds=3600)
    assert claim(event_store) == []


@pytest.mark.req("NEW-022")
@pytest.mark.parametrize("claimed_before", [True, False])
def test_one_instance_deferred_and_enqueued_is_two_events(
    event_store: EventStore, clock: ManualClock, claimed_before: bool
) -> None:
    event = ParcelPosted(number=1, priority=7)
    event_store.defer(event, POST, delay=60)
    event_store.enqueue(event, POST)
    delivered = claim(event_store) if claimed_before else []
    for each in delivered:
        event_store.ack("ship", each.id)
    defer(event_store, 2, delay=60, namespace=OTHER)
    clock.advance(seconds=61)

    assert numbers(claim(event_store, namespace=OTHER)) == [2]  # nobody else is held up
    delivered += claim(event_store)

    assert numbers(delivered) == [1, 1]
    first, second = delivered
    assert first.id == event.id
    assert second.id != event.id
    assert second.root_event_id == second.id
    assert (second.priority, second.chain_depth) == (7, 0)
    assert claim(event_store) == []


@pytest.mark.req("ONT-100")
def test_an_id_that_is_taken_is_refused_by_name(event_store: EventStore) -> None:
    event = ParcelPosted(number=1)
    event_store.enqueue(event, POST)

    with pytest.raises(IntegrityError, match=str(event.id)):
        event_store.enqueue(event, POST)
    with pytest.raises(IntegrityError, match=str(event.id)):
        event_store.enqueue(event, OTHER)

    assert numbers(claim(event_store)) == [1]
    assert event_store.list_events(OTHER) == []


@pytest.mark.req("NEW-023")
def test_a_second_event_with_the_key_is_not_stored_and_has_the_firsts_id(
    event_store: EventStore, clock: ManualClock
) -> None:
    first, second = ParcelPosted(number=1), ParcelPosted(number=2)

    assert event_store.defer(first, POST, delay=1, dedup_key="k") is not None
    assert event_store.defer(second, POST, delay=1, dedup_key="k") is None

    assert second.id == first.id
    clock.advance(seconds=5)
    assert numbers(claim(event_store)) == [1]
    # Also after it fired, as long as it is retained.
    assert defer(event_store, 3, delay=1, dedup_key="k") is None


@pytest.mark.req("NEW-023")
def test_a_key_belongs_to_a_namespace_and_a_type(event_store: EventStore) -> None:
    assert defer(event_store, 1, delay=1, dedup_key="k") is not None

    assert defer(event_store, 1, delay=1, dedup_key="k", namespace=OTHER) is not None
    assert event_store.defer(ParcelLost(number=1), POST, delay=1, dedup_key="k") is not None
    assert defer(event_store, 1, delay=1, dedup_key="K") is not None
    with pytest.raises(InvalidValueError):
        defer(event_store, 1, delay=1, dedup_key="")


@pytest.mark.req("NEW-023")
def test_a_key_is_free_again_when_its_event_is_cancelled_or_deleted(
    event_store: EventStore, clock: ManualClock
) -> None:
    number = defer(event_store, 1, delay=1, dedup_key="k")
    assert number is not None
    event_store.cancel_deferred(POST, number)
    assert defer(event_store, 2, delay=1, dedup_key="k") is not None

    clock.advance(seconds=2)
    [event] = claim(event_store)
    event_store.ack("ship", event.id)
    clock.advance(seconds=1)
    assert event_store.cleanup_events(POST, clock.now()) == 1

    assert defer(event_store, 3, delay=1, dedup_key="k") is not None


@pytest.mark.req("NEW-023")
def test_the_key_of_a_replayed_event_stays_with_the_first(
    event_store: EventStore, clock: ManualClock
) -> None:
    event = ParcelPosted(number=1)
    event_store.defer(event, POST, delay=0, dedup_key="k")
    claim(event_store)

    again = event_store.inspect_event(str(event_store.replay_event(POST, str(event.id))))

    assert again is not None
    assert again["dedup_key"] is None
    assert defer(event_store, 2, delay=1, dedup_key="k") is None
    post(event_store, 3)  # an event without a key is never a second one
    assert numbers(claim(event_store)) == [1, 3]


def test_a_tick_is_announced_once_among_any_number_of_sessions(
    open_events: Callable[..., EventStore], clock: ManualClock
) -> None:
    stores = [open_events(), open_events()]
    ticks = [to_text(clock.now() + timedelta(minutes=each)) for each in range(2)]

    fired = []
    for tick in ticks:
        for store in stores:
            row = store.log.given_row(ParcelPosted(number=1), POST)
            with store.transaction() as tx:
                fired.append(store.log.fire(tx, row, "every minute", tick))

    assert fired == [True, False, True, False]
    assert len(claim(stores[0])) == 2
    clock.advance(seconds=30 * 24 * 3600)
    stores[0].collect_events(POST)  # long past ticks leave no row behind
    with stores[0].transaction() as tx:
        assert stores[0].log.fire(tx, row._replace(id="another"), "every minute", ticks[0])
