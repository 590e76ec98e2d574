"""Cleaning up, cancelling and deduplicating while others are at the same rows: PostgreSQL only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ontologia.delivery.lineage import Lineage
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import LEASE, POST, POSTED, ParcelPosted, claim, post
from tests.conformance.test_postgres_claims import held, take, until_it_waits

Open = Callable[..., EventStore]
Ask = Callable[[str], list[Any]]


@pytest.mark.req("ONT-150")
@pytest.mark.parametrize("before", [True, False])
def test_cleanup_leaves_alone_what_is_being_claimed(
    open_events: Open, clock: ManualClock, before: bool
) -> None:
    store, another = open_events(), open_events(lock_timeout_ms=1000)
    [event_id] = post(store, 1)
    store.consumers.register(POST, "ship", [POSTED])
    if before:
        claim(store)
        store.abandon("ship", event_id)
    else:
        claim(store, "bill")  # hands it out to both
        store.ack("bill", event_id)
    clock.advance(seconds=1)

    with store.transaction() as tx:
        assert take(store, tx, 1) == [event_id]
        assert another.cleanup_events(POST, clock.now()) == 0

    assert store.renew("ship", event_id, lease_ms=LEASE)
    store.ack("ship", event_id)
    assert another.cleanup_events(POST, clock.now()) == 1


@pytest.mark.req("ONT-150")
def test_cleanup_leaves_alone_what_is_just_becoming_ready(
    open_events: Open, clock: ManualClock
) -> None:
    store, another = open_events(), open_events(lock_timeout_ms=1000)
    post(store, 1)
    [mine] = held(store)
    consumer = store.consumers.register(POST, "ship", [POSTED])
    clock.advance(seconds=LEASE / 1000 + 1)

    with store.transaction() as tx:
        store.claims.return_due(tx, consumer, store.policy)
        assert another.cleanup_events(POST, clock.now()) == 0

    assert mine.event.id == claim(store)[0].id


@pytest.mark.req("NEW-022")
def test_an_event_that_is_being_cancelled_does_not_come(
    open_events: Open, clock: ManualClock
) -> None:
    store, another = open_events(), open_events()
    claim(another)
    number = store.defer(ParcelPosted(number=1), POST, delay=1)
    assert number is not None
    clock.advance(seconds=2)

    with store.transaction() as tx:
        assert store.log.cancel(tx, POST, number)
        assert claim(another) == []

    assert claim(another) == []


@pytest.mark.req("NEW-023")
@pytest.mark.parametrize("kept", [True, False])
def test_of_two_with_one_key_at_a_time_the_second_waits_for_the_first(
    open_events: Open, ask: Ask, kept: bool
) -> None:
    store, another = open_events(), open_events()
    first = store.log.row(ParcelPosted(number=1), POST, Lineage(), dedup_key="k")
    second = ParcelPosted(number=2)

    with ThreadPoolExecutor(1) as threads:
        try:
            with store.transaction() as tx:
                assert store.log._earlier(tx, first) is None
                stored = threads.submit(another.defer, second, POST, delay=1, dedup_key="k")
                until_it_waits(stored, ask)
                assert not stored.done()
                if not kept:
                    raise _TakenBack
        except _TakenBack:
            pass
        number = stored.result()

    assert (number is None, second.id == first.id) == (kept, kept)


class _TakenBack(Exception):
    pass
