"""`EventJournal`: the stored events of a bus."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeAlias

from ontologia.delivery.lineage import check_depth, deferred
from ontologia.errors import InvalidValueError
from ontologia.extensions import handling
from ontologia.extensions.threads import Threads
from ontologia.queues.protocol import checked_name, encoded_payload
from ontologia.runtime.commits import WriteRequest
from ontologia.runtime.session import Session, core_of
from ontologia.store.events import checks
from ontologia.store.events.log import fire_time
from ontologia.store.rows import Announcement, Claim, EventRow

_STATUSES = ("pending", "processing", "done", "failed")
_DEFERRED = ("scheduled", "fired", "cancelled")
_MOST = 100
Entries: TypeAlias = list[dict[str, Any]]


class EventJournal:
    """Stores events, and lists them with their status.

    Events are in the log of the store; the view `event_journal` shows it with the status of the
    bus. That status follows from the claims of the bus, so nothing here sets it.
    """

    def __init__(self, session: Session, threads: Threads) -> None:
        self._session = session
        self._core = core_of(session)
        self._threads = threads
        self._events = self._core.store.events

    # -- writing ----------------------------------------------------------------------------------

    async def insert(
        self,
        topic: str,
        source: str,
        payload: dict[str, Any],
        correlation_id: str | None = None,
    ) -> int:
        """Store an event; returns its number. One durable transaction."""
        row = self.row(topic, source, payload, correlation_id)
        return await self._threads.in_order(self._insert, row, handling.fence(self._session))

    def _insert(self, row: EventRow, claim: Claim | None) -> int:
        request = WriteRequest(announcements=[Announcement(row)], claim=claim, numbered=True)
        [stored] = self._core.commits.write(request).stored
        assert stored.number is not None  # noqa: S101 - it was asked for
        return stored.number

    async def schedule_deferred(
        self,
        delay: float | timedelta | None,
        topic: str,
        source: str,
        payload: dict[str, Any],
        correlation_id: str | None = None,
        *,
        at: datetime | None = None,
    ) -> int:
        """Store a deferred event; returns its number among them. One durable transaction."""
        now = self._core.clock.now()
        fire_at = fire_time(now, delay=_not_negative(delay), at=at)
        if fire_at is None:
            raise InvalidValueError("an event for later needs a delay or at=")
        row = self.row(topic, source, payload, correlation_id, later=(now, fire_at))
        unit = WriteRequest(
            announcements=[Announcement(row, fire_at)], claim=handling.fence(self._session)
        )
        [stored] = (await self._threads.in_order(self._core.commits.write, unit)).stored
        assert stored.deferred is not None  # noqa: S101 - without a dedup_key there is a number
        return stored.deferred

    def row(
        self,
        topic: str,
        source: str,
        payload: dict[str, Any],
        correlation_id: str | None = None,
        *,
        later: tuple[datetime, float] | None = None,
    ) -> EventRow:
        """The row to store; InvalidValueError or EventLoopLimitError if it cannot be.

        An event that is being handled here is its cause. `later` is the current time and the Unix
        time to which the event is deferred.
        """
        checked_name(topic)
        checks.name("source", source)
        if correlation_id is not None:
            checks.name("correlation_id", correlation_id)
        lineage = handling.lineage()
        if later is not None:
            lineage = deferred(lineage, later[1], later[0])
        check_depth(topic, lineage, self._core.config.max_event_chain_depth)
        row = self._events.log.untyped_row(
            topic, encoded_payload(topic, payload), self._core.namespace, source=source
        )
        cause = handling.current.get()
        return row._replace(
            root_event_id=lineage.root_event_id or row.id,
            chain_depth=lineage.chain_depth,
            correlation_id=correlation_id or lineage.correlation_id,
            causation_id=lineage.causation_id,
            tenant_id=None if cause is None else cause.event.tenant_id,
        )

    # -- reading ----------------------------------------------------------------------------------

    async def list(
        self,
        *,
        topic: str | None = None,
        status: str | None = None,
        correlation_id: str | None = None,
        limit: int = _MOST,
    ) -> Entries:
        """The last `limit` events that match, in the order of their numbers.

        Each is a dict: `id`, `topic`, `source`, `payload`, `correlation_id`, `status`,
        `created_at`, `processed_at`, `error`, `event_id`. Reads back from the newest.
        """
        return await self._threads.run(
            self._events.journal.entries,
            self._core.namespace,
            topic=topic,
            status=_one_of(_STATUSES, status),
            correlation_id=correlation_id,
            limit=checks.limit(limit),
        )

    async def get(self, id: int) -> dict[str, Any] | None:
        """One event by its number; None if there is none. Read by key."""
        number = checks.whole("an event's number", id, -(2**63), 2**63 - 1)
        return await self._threads.run(self._events.journal.entry, self._core.namespace, number)

    async def deferred(
        self,
        *,
        status: str | None = None,
        until: float | None = None,
        limit: int = _MOST,
    ) -> Entries:
        """Deferred events, the earliest first; with `until`, those that fire by that Unix time.

        Each is a dict: `id`, `topic`, `source`, `payload`, `correlation_id`, `fire_at`, `status`
        (scheduled, fired, cancelled), `created_at`, `fired_at`.
        """
        return await self._threads.run(
            self._events.journal.deferred,
            self._core.namespace,
            status=_one_of(_DEFERRED, status),
            until=until,
            limit=checks.limit(limit),
        )


def _not_negative(delay: Any) -> Any:
    """A negative delay is 0."""
    if isinstance(delay, timedelta):
        return max(delay, timedelta())
    if isinstance(delay, int | float) and not isinstance(delay, bool) and delay < 0:
        return 0
    return delay


def _one_of(statuses: tuple[str, ...], status: str | None) -> str | None:
    if status is not None and status not in statuses:
        raise checks.error_for(status, str)(
            f"a status is one of {', '.join(statuses)}, got {status!r:.200}"
        )
    return status
