"""Consumers, with what waits for each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ontologia.clock import from_text
from ontologia.runtime.views.paging import BOUND, Count
from ontologia.runtime.views.sessions import live_sessions
from ontologia.store.events.activity import UNLIMITED, Load

if TYPE_CHECKING:
    from ontologia.runtime.session import Session


@dataclass(frozen=True, slots=True)
class HandlerRow:
    """One consumer, and how busy it is."""

    name: str
    types: tuple[str, ...]
    """What it subscribes to; `*` is every type."""
    last_seen_at: datetime
    paused_at: datetime | None
    waiting: Count
    """What can be claimed now."""
    oldest_waiting: datetime | None
    claimed: Count
    overdue: Count
    """Of `waiting`: begun, and not ended before the lease did."""
    backoff: Count
    failing: Count
    """Of what is claimed, in backoff or to be tried again: what has failed before."""
    sessions: tuple[str, ...]
    """The live sessions that run it."""


def handlers(session: Session, *, most: int | None = BOUND) -> list[HandlerRow]:
    """Every consumer of the namespace, by name.

    Counts `most` of each kind at most, and costs that for each consumer: what is ready, what waits
    for a time, and what is not dispatched yet. Without a bound it costs all that waits.
    """
    running: dict[str, list[str]] = {}
    for each in live_sessions(session):
        for name in each.consumers:
            running.setdefault(name, []).append(each.session_id)
    bound = UNLIMITED if most is None else most + 1
    loads = session.event_store.activity.loads(session.namespace, bound)
    return [_row(load, tuple(running.get(load.name, ())), most) for load in loads]


def _row(load: Load, sessions: tuple[str, ...], most: int | None) -> HandlerRow:
    def count(number: int, more: bool) -> Count:
        return Count(min(number, most), exact=False) if more and most is not None else Count(number)

    return HandlerRow(
        load.name,
        load.types,
        from_text(load.last_seen_at),
        None if load.paused_at is None else from_text(load.paused_at),
        count(load.waiting, load.more_waiting),
        None if load.oldest_waiting is None else from_text(load.oldest_waiting),
        count(load.claimed, load.more_claims),
        count(load.overdue, load.more_claims),
        count(load.backoff, load.more_claims),
        count(load.failing, load.more_claims),
        sessions,
    )
