"""What simulations have found, each as the few steps that show it."""

from __future__ import annotations

import pytest

from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import LEASE, POST, ParcelLost, claim, claim_of, post


@pytest.mark.req("NEW-030")
def test_a_cleanup_spares_a_lease_that_is_valid_again_because_the_clock_was_set_back(
    event_store: EventStore, clock: ManualClock
) -> None:
    event_store.enqueue(ParcelLost(number=1), POST)
    [event_id] = post(event_store, 1)
    claim(event_store)
    clock.advance(seconds=LEASE / 1000 + 1)

    def step_back(_: int) -> None:
        clock.advance(seconds=-2)

    event_store.retention.cleanup(POST, clock.now(), step_back)

    assert claim_of(event_store, event_id)["ack_at"] is None
    event_store.ack("ship", event_id)
    assert claim_of(event_store, event_id)["ack_at"] is not None
