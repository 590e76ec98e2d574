"""What a session may do with an event that it has, or had."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ontologia.clock import to_text
from ontologia.store.events.leases import Done
from ontologia.store.events.store import EventStore
from ontologia.store.rows import Announcement, Claim
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    EVERY_EVENT_STORE,
    LEASE,
    LOST,
    POST,
    POSTED,
    ParcelLost,
    claim,
    claim_of,
    numbers,
    post,
)


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-121")
def test_a_session_that_lost_its_lease_changes_nothing(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store, session="s1")
    token = claim_of(event_store, event_id)["lease_token"]
    clock.advance(seconds=LEASE / 1000)
    claim(event_store, session="s2")
    before = claim_of(event_store, event_id)

    for whose in ({"session_id": "s1"}, {"lease_token": token}):
        event_store.ack("ship", event_id, **whose)
        event_store.release("ship", event_id, error="too late", **whose)
        event_store.abandon("ship", event_id, **whose)
        assert not event_store.renew("ship", event_id, lease_ms=LEASE, **whose)
        assert not event_store.start("ship", event_id, lease_ms=LEASE, **whose)

    assert claim_of(event_store, event_id) == before
    event_store.ack("ship", event_id, session_id="s2")
    assert claim_of(event_store, event_id)["ack_at"] == to_text(clock.now())


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-121")
def test_a_lease_that_ran_out_fences_even_when_nobody_took_over(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)
    clock.advance(seconds=LEASE / 1000)
    before = claim_of(event_store, event_id)

    event_store.ack("ship", event_id)
    event_store.release("ship", event_id)

    assert not event_store.renew("ship", event_id, lease_ms=LEASE)
    assert claim_of(event_store, event_id) == before


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-132")
def test_renewing_and_starting_set_the_lease_from_now(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store, lease_ms=1000)
    clock.advance(seconds=0.5)

    assert event_store.start("ship", event_id, lease_ms=2000)
    clock.advance(seconds=1.9)
    assert event_store.renew("ship", event_id, lease_ms=500)
    clock.advance(seconds=0.4)

    assert claim(event_store, session="s2") == []
    row = claim_of(event_store, event_id)
    assert row["lease_until"] == to_text(clock.now() + timedelta(milliseconds=100))
    assert row["read_commit"] == 0


@EVERY_EVENT_STORE
def test_an_abandoned_event_is_free_at_once_and_unmarked(event_store: EventStore) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)
    event_store.start("ship", event_id, lease_ms=LEASE)

    event_store.abandon("ship", event_id)

    assert numbers(claim(event_store, session="s2")) == [1]
    row = claim_of(event_store, event_id)
    assert (row["attempts"], row["read_commit"], row["started_at"]) == (0, None, None)


def claims_of(store: EventStore, limit: int = 9, start: int = 0) -> list[Claim]:
    consumer = store.consumers.register(POST, "ship", [POSTED])
    return store.claims.claim(
        consumer,
        [POSTED],
        session_id="s1",
        limit=limit,
        lease_ms=LEASE,
        policy=store.policy,
        start=start,
    )


def announcement(store: EventStore, number: int) -> Announcement:
    return Announcement(store.log.given_row(ParcelLost(number=number), POST))


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-121", "ONT-118")
def test_what_a_handler_announced_is_stored_with_its_ack_or_not_at_all(
    event_store: EventStore, clock: ManualClock
) -> None:
    post(event_store, 1, 2)
    lost, kept = claims_of(event_store)
    clock.advance(seconds=LEASE / 2000)
    assert event_store.claims.renew([kept], LEASE) == []
    clock.advance(seconds=LEASE / 2000)  # and nobody renewed the other

    gone, announced = event_store.claims.settle(
        [Done(lost, [announcement(event_store, 1)]), Done(kept, [announcement(event_store, 2)])]
    )

    assert (gone, announced) == ([lost], True)
    assert numbers(claim(event_store, "tell", types=[LOST])) == [2]
    assert claim_of(event_store, kept.event.id)["ack_at"] == to_text(clock.now())
    assert claim_of(event_store, lost.event.id)["ack_at"] is None


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-139")
def test_a_claim_starts_first_attempts_up_to_one_that_was_tried_before(
    event_store: EventStore, clock: ManualClock
) -> None:
    """One that kills its process must not have another counted beside it."""
    _, tried, _ = post(event_store, 1, 2, 3)
    claim(event_store)
    event_store.release("ship", tried, error="OSError: no van")
    for event_id in (post_id for post_id in _ids(event_store) if post_id != tried):
        event_store.abandon("ship", event_id)
    clock.advance(seconds=31)
    post(event_store, 4)

    claims = claims_of(event_store, start=9)

    assert [(each.attempts, each.started) for each in claims] == [
        (0, True),
        (1, False),
        (0, False),
        (0, False),
    ]
    started = [claim_of(event_store, each.event.id)["started_at"] for each in claims]
    assert started == [to_text(clock.now()), None, None, None]


def _ids(store: EventStore) -> list[str]:
    return [row["id"] for row in store.list_events(POST)]


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-139")
def test_a_claim_starts_as_many_as_it_is_told_to(event_store: EventStore) -> None:
    post(event_store, 1, 2, 3)

    claims = claims_of(event_store, start=2)

    assert [each.started for each in claims] == [True, True, False]
    assert [each.read_commit for each in claims] == [0, 0, None]


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-139")
def test_settling_starts_what_is_next_in_the_same_transaction(event_store: EventStore) -> None:
    post(event_store, 1, 2)
    first, second = claims_of(event_store)

    event_store.claims.settle([Done(first)], [second], LEASE)

    assert second.started
    assert claim_of(event_store, second.event.id)["read_commit"] == 0
    assert claim_of(event_store, first.event.id)["ack_at"] is not None


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-132")
def test_a_claim_knows_its_lease_after_a_start_a_renewal_and_a_conflict(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    [claimed] = claims_of(event_store)

    for extend in (
        lambda: event_store.claims.settle([], [claimed], LEASE),
        lambda: event_store.claims.renew([claimed]),
        lambda: event_store.claims.run_again(claimed),
    ):
        clock.advance(seconds=LEASE / 2000)
        extend()
        until = to_text(clock.now() + timedelta(milliseconds=LEASE))
        assert claimed.lease_until == claim_of(event_store, event_id)["lease_until"] == until


@pytest.mark.req("ONT-121")
def test_a_clock_that_steps_back_gives_nobody_back_what_they_ended(
    event_store: EventStore, clock: ManualClock
) -> None:
    """A lease that was ended would be valid again, were its time all that counts."""
    post(event_store, 1, 2, 3, 4)
    _, abandoned, released, ran_out = claims_of(event_store)
    event_store.claims.abandon([abandoned])
    event_store.release("ship", released.event.id, error="x")
    clock.advance(seconds=LEASE / 1000)
    assert numbers(claim(event_store, session="s2", limit=1)) == [1]  # and makes the others ready
    clock.advance(seconds=-LEASE / 1000 - 10)  # to before any of it

    for claimed in (abandoned, released, ran_out):
        before = claim_of(event_store, claimed.event.id)
        assert event_store.claims.settle([Done(claimed)]) == ([claimed], False)
        assert event_store.claims.renew([claimed], LEASE) == [claimed]
        event_store.release("ship", claimed.event.id, lease_token=claimed.token)
        event_store.ack("ship", claimed.event.id, session_id="s1")
        assert claim_of(event_store, claimed.event.id) == before


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-132")
def test_a_lease_renewed_after_the_clock_stepped_back_still_runs_out(
    event_store: EventStore, clock: ManualClock
) -> None:
    post(event_store, 1)
    [claimed] = claims_of(event_store)
    event_store.claims.settle([], [claimed], LEASE)
    clock.advance(seconds=-3600)

    assert event_store.claims.renew([claimed], LEASE) == []

    clock.advance(seconds=LEASE / 1000)
    assert numbers(claim(event_store, session="s2")) == [1]
    assert claim_of(event_store, claimed.event.id)["attempts"] == 1


@pytest.mark.req("ONT-121", "SQL-127")
def test_the_fence_is_closed_at_the_very_end_of_the_lease(
    event_store: EventStore, clock: ManualClock
) -> None:
    post(event_store, 1)
    [claimed] = claims_of(event_store)

    clock.advance(seconds=LEASE / 1000 - 0.000001)
    with event_store.transaction() as tx:
        assert event_store.claims.check(tx, claimed)
    clock.advance(seconds=0.000001)
    with event_store.transaction() as tx:
        assert not event_store.claims.check(tx, claimed)


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-121")
def test_a_released_event_in_its_backoff_is_nobodys_though_the_clock_steps_back(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    [claimed] = claims_of(event_store)
    event_store.release("ship", event_id, error="x")
    clock.advance(seconds=-1)

    assert event_store.claims.settle([Done(claimed)]) == ([claimed], False)
    event_store.ack("ship", event_id)

    assert claim_of(event_store, event_id)["ack_at"] is None
