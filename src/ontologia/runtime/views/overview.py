"""What waits and what failed: the first page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ontologia.runtime.session import core_of
from ontologia.runtime.views.dead_letters import DeadLetterRow, dead_letters
from ontologia.runtime.views.handlers import HandlerRow, handlers
from ontologia.runtime.views.paging import BOUND, Count, bounded
from ontologia.runtime.views.sessions import SessionRow, live_sessions

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_NEWEST = 10


@dataclass(frozen=True, slots=True)
class Overview:
    """A namespace at one moment."""

    namespace: str
    at: datetime
    """When it was looked at, by the clock of the session."""
    head: int
    """The number of the last commit."""
    handlers: tuple[HandlerRow, ...]
    dead_letters: Count
    newest_dead_letters: tuple[DeadLetterRow, ...]
    sessions: tuple[SessionRow, ...]
    """Those that are alive."""

    @property
    def paused(self) -> tuple[HandlerRow, ...]:
        """The handlers that are paused."""
        return tuple(each for each in self.handlers if each.paused_at is not None)


def overview(session: Session) -> Overview:
    """What waits, who works and what failed last in the session's namespace.

    Several reads. Counts end at 10,000 of each kind and handler, and cost that; finished events,
    history and log cost nothing.
    """
    listings = session.event_store.listings
    return Overview(
        session.namespace,
        core_of(session).clock.now(),
        session.head,
        tuple(handlers(session)),
        bounded(listings.count_dead_letters(session.namespace, BOUND + 1), BOUND),
        dead_letters(session, limit=_NEWEST).rows,
        tuple(live_sessions(session)),
    )
