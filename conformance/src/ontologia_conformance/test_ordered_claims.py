"""Claims in order: the oldest first, and by one session at a time."""

from __future__ import annotations

import pytest

from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.store.events.claims import ALL_TYPES
from ontologia_conformance.event_world import LEASE, POST, post

pytestmark = pytest.mark.req("NEW-121")

_POLICY = RetryPolicy(1, 1_000, Backoff(0, 0, 0))


class Relay:
    """One session that claims for the relay."""

    def __init__(self, store, session):
        self.store, self.session = store, session
        self.row = store.consumers.register(POST, "relay:somewhere", [ALL_TYPES])

    def claim(self, limit=100, types=(ALL_TYPES,)):
        peek = self.store.claims.peek([self.row.id])
        return self.store.claims.claim(
            self.row,
            list(types),
            session_id=self.session,
            limit=limit,
            lease_ms=LEASE,
            policy=_POLICY,
            peek=peek,
            start=limit,
            in_order=True,
        )


def ids(claims):
    return [claim.event.id for claim in claims]


@pytest.fixture
def relay(event_store):
    return Relay(event_store, "s1")


@pytest.fixture
def other(open_events):
    return Relay(open_events(), "s2")


def test_the_oldest_is_first_whatever_its_priority(event_store, relay):
    events = [post(event_store, n, priority=p)[0] for n, p in enumerate((5, 100, 7, 100, 5, 200))]

    first, second = relay.claim(limit=4), relay.claim(limit=4)

    assert ids(first) + ids(second) == events
    assert [claim.started for claim in first] == [True] * 4


def test_while_one_session_has_claims_no_other_gets_any(event_store, relay, other):
    events = post(event_store, 1, 2, 3)
    [first] = relay.claim(limit=1)

    assert other.claim() == []
    assert ids(relay.claim(limit=1)) == events[1:2]  # it goes on itself

    event_store.claims.settle([relay_done(first)])
    assert other.claim() == []  # the second is still claimed


def relay_done(claim):
    from ontologia.store.events.leases import Done

    return Done(claim)


def test_another_session_goes_on_when_all_has_ended(event_store, relay, other):
    events = post(event_store, 1, 2, 3)
    claims = relay.claim(limit=2)

    event_store.claims.settle([relay_done(each) for each in claims])

    assert ids(other.claim()) == events[2:]


def test_what_a_dead_session_had_comes_first(event_store, relay, other, clock):
    events = post(event_store, 1, 2, 3)
    relay.claim(limit=2)
    assert other.claim() == []

    clock.advance(seconds=LEASE / 1000 + 1)

    assert ids(other.claim()) == events


def test_what_is_given_back_comes_first(event_store, relay, other):
    events = post(event_store, 1, 2, 3)
    claims = relay.claim(limit=2)

    event_store.claims.abandon(claims)

    assert ids(other.claim()) == events


def test_types_count_for_the_order_too(event_store, relay):
    post(event_store, 1, priority=300)

    assert relay.claim(types=["barrel.unknown"]) == []
