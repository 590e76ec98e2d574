"""`HandlerContext`: what a handler has in its hands while it handles one event."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ontologia.clock import from_text, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.delivery.lineage import Lineage, child_of
from ontologia.errors import InvalidValueError, LeaseExpiredError, SessionClosedError
from ontologia.query.builder import QueryBuilder
from ontologia.runtime.acks import Acks
from ontologia.runtime.commits import UnitOfWork, check_event_options, events_of, identify
from ontologia.runtime.intents import Intents
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.relation import Relation
from ontologia.store.rows import Announcement, Claim, EventRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

E_co = TypeVar("E_co", bound=Event, covariant=True)
_LONGEST_LEASE = 365 * 24 * 3600
_OWN_METADATA = ("namespace", "session_id", "event_id", "handler_id", "attempt")

active: ContextVar[HandlerContext[Any] | None] = ContextVar("ontologia_handler", default=None)
"""The context of the handler that is running here, so that its session's own methods know it."""


class HandlerContext(Generic[E_co]):
    """One attempt of one handler at one event.

    What `ensure` and `delete` queue is written by `commit`, and only by it. What `emit` buffers
    is stored together with the acknowledgement, when the handler has returned; if it raises,
    nothing of it ever was.
    """

    def __init__(self, session: Session, acks: Acks, claim: Claim, event: E_co) -> None:
        self._session = session
        self._acks = acks
        self._claim = claim
        self._event = event
        self._intents = Intents(session._registry)
        self._emitted: list[Announcement] = []
        self._metadata: dict[str, str] = {}
        self._commit_id: int | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<HandlerContext {self._claim.handler_id} {self._event!r} attempt={self.attempt}>"

    @property
    def event(self) -> E_co:
        """The event, of the class that the handler subscribed to."""
        return self._event

    @property
    def event_id(self) -> str:
        """The event's id, which one that was stored always has."""
        return self._claim.event.id

    @property
    def session(self) -> Session:
        """The session that runs the handler; its `ensure` and `commit` mean this context's."""
        return self._session

    @property
    def commit_id(self) -> int | None:
        """The last commit of this attempt that changed something; None before there is one."""
        return self._commit_id

    @property
    def attempt(self) -> int:
        """1 at the first try."""
        return self._claim.attempts + 1

    @property
    def lease_until(self) -> datetime:
        """Until when the event is this handler's alone; after that it can write nothing."""
        return from_text(self._claim.lease_until)

    # -- intents ----------------------------------------------------------------------------

    def ensure(self, obj: Entity | Relation[Any, Any] | Iterable[Any]) -> None:
        """Queue one object or several: the next `commit` makes them true."""
        self._check_open()
        self._intents.add(obj)

    def delete(self, obj: Entity | Relation[Any, Any] | Iterable[Any]) -> None:
        """Queue the deletion of one object or several."""
        self._check_open()
        self._intents.add(obj, delete=True)

    def discard(self) -> int:
        """Drop what is queued; how many objects that was."""
        self._check_open()
        return self._intents.clear()

    def query(self) -> QueryBuilder:
        """Ask for entities or relations."""
        return self._session.query()

    # -- events -----------------------------------------------------------------------------

    def emit(
        self,
        event: Event,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> None:
        """Announce an event if, and when, this handler succeeds: stored with the acknowledgement.

        `delay` (seconds or a timedelta) or `at` defers it from now on. With a `dedup_key` that a
        retained event of its type has, it is not stored again. EventLoopLimitError if the chain
        would be longer than `max_event_chain_depth`.
        """
        self._check_open()
        announcement = self._session._commits.announcement(
            event,
            self._session.namespace,
            self._lineage(),
            delay=delay,
            at=at,
            dedup_key=dedup_key,
        )
        if dedup_key is not None:
            event.id = self._first_with_key(announcement.row)
        self._emitted.append(announcement)

    def _first_with_key(self, row: EventRow) -> str:
        """The id of the event that has this one's dedup_key, which may be its own."""
        for earlier, _ in self._emitted:
            if (earlier.type, earlier.dedup_key) == (row.type, row.dedup_key):
                return earlier.id
        return self._session._store.events.holder_of(row) or row.id

    def _lineage(self) -> Lineage:
        """Where an event comes from that this handler announces."""
        row = self._claim.event
        return child_of(
            row.id, row.root_event_id, row.chain_depth, row.correlation_id, self._claim.handler_id
        )

    # -- commit -----------------------------------------------------------------------------

    def add_commit_meta(self, key: str, value: str) -> None:
        """Attach a word to the next commit that changes something."""
        self._check_open()
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidValueError(f"commit metadata is text, got {key!r}: {value!r}")
        if key in _OWN_METADATA:
            raise InvalidValueError(f"commit metadata {key!r} is written by the session itself")
        self._metadata[key] = value

    def commit(
        self,
        *,
        event: Event | Iterable[Event] | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        expected_head: int | None = None,
    ) -> int | None:
        """Write what is queued, in one durable transaction; its number, None if nothing differs.

        With `event`, one or several, that event is stored in the same transaction, changes or not,
        and stays stored even if the handler fails later; an event that should vanish with a failed
        attempt is announced by `emit`. LeaseExpiredError, and nothing is written, once the lease is over.

        A commit that failed means that the attempt has: whatever the handler does next, the
        event is delivered again.
        """
        self._check_open()
        check_event_options(event, delay, at, dedup_key)
        if self._failure is not None:
            raise self._failure
        try:
            events = events_of(event, dedup_key)
            announcements = [
                self._session._commits.announcement(
                    each,
                    self._session.namespace,
                    self._lineage(),
                    delay=delay,
                    at=at,
                    dedup_key=dedup_key,
                )
                for each in events
            ]
            commit_id = self._write(announcements, events, expected_head)
        except BaseException as error:
            self._failure = error
            raise
        return commit_id

    def _write(
        self, announcements: list[Announcement], events: list[Event], expected_head: int | None
    ) -> int | None:
        batch = self._intents.snapshot()
        # What is written is fenced in its own transaction; a commit of nothing is checked, too.
        if not (batch or announcements) and not lease_is_valid(
            self._claim.lease_until, to_text(self._session._clock.now())
        ):
            raise LeaseExpiredError(self._claim.handler_id, self._claim.event.id)
        metadata, claim = self._commit_metadata(), self._claim
        commit_id, stored, _ = self._acks.ride(
            lambda along: self._session._commits.write(
                UnitOfWork(batch, metadata, announcements, claim, expected_head, along=along)
            )
        )
        self._intents.settle(batch)
        identify(events, stored)
        if commit_id is not None:
            self._commit_id = commit_id
            self._metadata = {}
        return commit_id

    def _commit_metadata(self) -> dict[str, Any]:
        return {
            **self._metadata,
            **self._session._metadata(),
            "event_id": self._claim.event.id,
            "handler_id": self._claim.handler_id,
            "attempt": self.attempt,
        }

    def renew(self, seconds: float | None = None) -> None:
        """Have the event for longer: `event_claim_lease_ms` from now on, or these seconds.

        LeaseExpiredError if it is too late. Costs one soft transaction.
        """
        self._check_open()
        lease_ms: float = self._session.config.event_claim_lease_ms
        if seconds is not None:
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise InvalidValueError(f"renew takes seconds, got {seconds!r}")
            if not 0 < seconds <= _LONGEST_LEASE:
                raise InvalidValueError(f"a lease is more than 0 s and at most a year: {seconds!r}")
            lease_ms = seconds * 1000
        if self._session._store.events.claims.renew([self._claim], lease_ms):
            raise LeaseExpiredError(self._claim.handler_id, self._claim.event.id)

    # -- the end ----------------------------------------------------------------------------

    def _close(self) -> list[Announcement]:
        """The handler has returned: nothing more is taken; what it emitted."""
        self._closed = True
        return self._emitted

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError(
                f"{self._claim.handler_id} has returned; its context writes nothing any more"
            )
