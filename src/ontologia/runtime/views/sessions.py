"""Processes that use the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from ontologia.clock import from_text, to_text
from ontologia.runtime.session import core_of
from ontologia.runtime.views.paging import BOUND, PAGE, Page, cursor, page_of, place

if TYPE_CHECKING:
    from ontologia.runtime.session import Session


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session on record."""

    session_id: str
    hostname: str | None
    pid: int | None
    started_at: datetime
    last_heartbeat: datetime
    stopped_at: datetime | None
    state: Literal["alive", "stopped", "dead"]
    """Dead: not heard of for longer than `session_ttl_ms`, and it did not say that it ended."""
    consumers: tuple[str, ...]
    """What it runs."""
    claims: int
    """How many claims it holds; of those that wait for a time the first 10,000 are counted."""
    metadata: dict[str, Any]


def live_sessions(session: Session, *, limit: int = 1_000) -> list[SessionRow]:
    """Sessions of the namespace that are alive, the one that was heard of last first.

    Costs the sessions that were heard of within `session_ttl_ms`, of all namespaces.
    """
    ttl = timedelta(milliseconds=session.config.session_ttl_ms)
    since = core_of(session).clock.now() - ttl
    listings = session.event_store.listings
    rows = listings.sessions_heard(session.namespace, limit, since=since)
    claims = listings.held_claims(session.namespace, BOUND)
    found = [_session(row, claims) for row in rows]
    return [each for each in found if each.state == "alive"]


def sessions(session: Session, *, before: str | None = None, limit: int = PAGE) -> Page[SessionRow]:
    """A page of the sessions on record, the one that was heard of last first.

    Costs the page, and sessions of other namespaces in between.
    """
    at: tuple[str, str] | None = None if before is None else place(before, str, str)
    listings = session.event_store.listings
    rows = listings.sessions_heard(session.namespace, limit + 1, before=at)
    claims = listings.held_claims(session.namespace, BOUND)
    return page_of(
        [_session(row, claims) for row in rows],
        limit,
        lambda row: cursor(to_text(row.last_heartbeat), row.session_id),
    )


def _session(row: dict[str, Any], claims: dict[str, int]) -> SessionRow:
    stopped = row["stopped_at"]
    return SessionRow(
        row["session_id"],
        row["hostname"],
        row["pid"],
        from_text(row["started_at"]),
        from_text(row["last_heartbeat"]),
        None if stopped is None else from_text(stopped),
        "stopped" if stopped is not None else "dead" if row["is_dead"] else "alive",
        tuple(row["metadata"].get("consumers", ())),
        claims.get(row["session_id"], 0),
        row["metadata"],
    )
