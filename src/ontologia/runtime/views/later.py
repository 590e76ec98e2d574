"""What happens later: deferred events, and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.clock import from_text
from ontologia.delivery.schedule import next_ticks
from ontologia.errors import ConfigError, NotFoundError
from ontologia.runtime.session import core_of
from ontologia.runtime.views.paging import PAGE, Page, cursor, page_of, place
from ontologia.store.events import checks

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

TIMES = 5
"""How many ticks of a schedule are shown."""


@dataclass(frozen=True, slots=True)
class DeferredRow:
    """An event that waits for its time."""

    number: int
    event_id: str
    type: str
    due_at: datetime
    dedup_key: str | None
    payload: Any
    source: str | None
    deferred_at: datetime


@dataclass(frozen=True, slots=True)
class Fire:
    """A tick of a schedule that came."""

    tick: datetime
    event_id: str


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule that a session runs, or ran."""

    key: str
    """What makes two schedules the same one to all sessions."""
    type: str
    payload: dict[str, Any]
    priority: int
    cron: str
    tz: str
    next: tuple[datetime, ...]
    """The next five times, in UTC; empty if this machine does not know the zone."""
    last: tuple[Fire, ...]
    """The last five ticks, the newest first."""
    sessions: tuple[str, ...]
    """The live sessions that run it; nothing fires without one."""


def deferred_events(
    session: Session,
    *,
    type: str | None = None,
    after: str | None = None,
    first: int | None = None,
    limit: int = PAGE,
) -> Page[DeferredRow]:
    """A page of the deferred events that wait, the earliest first.

    `first` is the number of one to begin with; NotFoundError if it does not wait. Costs the page;
    with a type, those of other types in between.
    """
    if type is not None:
        checks.name("an event's type", type)
    at: tuple[float, int] | None = None if after is None else place(after, float, int)
    if at is None and first is not None:
        due = session.event_store.listings.due_of(session.namespace, first)
        if due is None:
            raise NotFoundError(
                f"no deferred event {first} waits in namespace {session.namespace!r}",
                hint="It was emitted at its time, or cancelled.",
            )
        at = due, first - 1
    found = list(
        session.event_store.listings.waiting_deferred(
            session.namespace, limit + 1, event_type=type, after=at
        )
    )
    page = page_of(found, limit, lambda row: cursor(float(row.fire_at), row.number))
    rows = tuple(
        DeferredRow(
            row.number,
            row.id,
            row.type,
            row.due_at,
            row.dedup_key,
            row.payload,
            row.source,
            row.deferred_at,
        )
        for row in page.rows
    )
    return Page(rows, page.next)


def schedules(session: Session) -> list[ScheduleRow]:
    """The schedules that the sessions on record run or ran, by type, each with its times.

    A session's row says which it runs since its run began. Costs the 1,000 sessions that were heard
    of last, and a read for each schedule.
    """
    now = core_of(session).clock.now()
    listings = session.event_store.listings
    return [
        ScheduleRow(
            found["key"],
            found["type"],
            codec.decode_stored(found["payload"]),
            found["priority"],
            found["cron"],
            found["tz"] or "UTC",
            tuple(_next(found, now)),
            tuple(
                Fire(from_text(tick), event_id)
                for tick, event_id in listings.last_ticks(session.namespace, found["key"], TIMES)
            ),
            tuple(found["sessions"]),
        )
        for found in listings.schedules(session.namespace)
    ]


def _next(schedule: dict[str, Any], now: datetime) -> list[datetime]:
    try:
        return next_ticks(schedule["cron"], schedule["tz"], now, TIMES)
    except ConfigError:
        return []
