"""The life of a claim: one event, one consumer, and what may happen next.

Unclaimed ──claim──▶ Claimed ──ack──▶ Acked
                        ├──release──▶ Backoff ──time──▶ Reclaimable ──claim──▶ Claimed
                        ├──lease runs out────────────▶ Reclaimable
                        └──release or crash at the limit──▶ Dead-lettered

Times are fixed-width UTC text, as they are stored; the order of the text is the order of time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ClaimState(StrEnum):
    """Where an (event, consumer) pair stands; it is in exactly one state at any instant."""

    UNCLAIMED = "unclaimed"
    CLAIMED = "claimed"
    BACKOFF = "backoff"
    RECLAIMABLE = "reclaimable"
    ACKED = "acked"
    DEAD_LETTERED = "dead_lettered"


class ClaimTimes(NamedTuple):
    """The columns of a claim that decide its state."""

    lease_until: str
    available_at: str
    ack_at: str | None = None
    dead_lettered_at: str | None = None


NEXT: dict[ClaimState, frozenset[ClaimState]] = {
    ClaimState.UNCLAIMED: frozenset({ClaimState.CLAIMED}),
    ClaimState.CLAIMED: frozenset(
        {
            ClaimState.CLAIMED,  # renewed
            ClaimState.ACKED,
            ClaimState.BACKOFF,
            ClaimState.RECLAIMABLE,
            ClaimState.DEAD_LETTERED,
        }
    ),
    ClaimState.BACKOFF: frozenset({ClaimState.RECLAIMABLE}),
    ClaimState.RECLAIMABLE: frozenset({ClaimState.CLAIMED, ClaimState.DEAD_LETTERED}),
    ClaimState.ACKED: frozenset(),
    ClaimState.DEAD_LETTERED: frozenset(),
}
"""Which state may follow which. Acked and dead-lettered are the end, unless an operator retries."""


def lease_is_valid(lease_until: str, now: str) -> bool:
    """A lease is valid only before its end; at that very instant it is another's to take."""
    return now < lease_until


def state_of(claim: ClaimTimes | None, now: str) -> ClaimState:
    """The state of a claim row, or of a pair that has none."""
    if claim is None:
        return ClaimState.UNCLAIMED
    if claim.ack_at is not None:
        return ClaimState.ACKED
    if claim.dead_lettered_at is not None:
        return ClaimState.DEAD_LETTERED
    if lease_is_valid(claim.lease_until, now):
        return ClaimState.CLAIMED
    return ClaimState.RECLAIMABLE if claim.available_at <= now else ClaimState.BACKOFF


def lease_ran_out(lease_until: str, available_at: str) -> bool:
    """Whether a claim that is due again was leased, rather than waiting for its next attempt.

    A claim is available from the moment it was claimed, so its lease ends later than that; a
    release ends the lease at once and moves the availability on.
    """
    return available_at < lease_until


UNSUBSCRIBED = "unsubscribed"
EVENT_STATUSES = ("pending", UNSUBSCRIBED, "claimed", "acked", "dead_lettered")


def event_status(claims: list[ClaimTimes], now: str, *, subscribed: bool = True) -> str:
    """One word on an event with several consumers: the gravest of what its claims say.

    An event without a subscription waits for nobody, unless its namespace has no consumers yet.
    """
    states = {state_of(claim, now) for claim in claims}
    for state in (ClaimState.DEAD_LETTERED, ClaimState.ACKED, ClaimState.CLAIMED):
        if state in states:
            return state.value
    return "pending" if subscribed else UNSUBSCRIBED
