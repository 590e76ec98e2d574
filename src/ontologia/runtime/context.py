"""`HandlerContext`: the unit of work of one attempt of one handler at one event."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ontologia.clock import from_text, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.delivery.lineage import Lineage, child_of
from ontologia.errors import (
    DatabaseError,
    InvalidTypeError,
    InvalidValueError,
    LeaseExpiredError,
    LockContentionError,
    SessionClosedError,
)
from ontologia.runtime.acks import Acks
from ontologia.runtime.commits import WriteRequest, Written
from ontologia.runtime.intents import Queue
from ontologia.runtime.unit import Later, Reads, UnitOfWork, checked_reads
from ontologia.schema.event import Event
from ontologia.store.rows import Announcement, Claim, EventRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

E_co = TypeVar("E_co", bound=Event, covariant=True)
_LONGEST_LEASE = 365 * 24 * 3600
_OWN_METADATA = ("namespace", "session_id", "event_id", "handler_id", "attempt")

active: ContextVar[HandlerContext[Any] | None] = ContextVar("ontologia_handler", default=None)
"""The context of the handler that is running here, so that its session's own methods know it."""


class HandlerContext(UnitOfWork, Generic[E_co]):
    """One attempt of one handler at one event: its unit of work, fenced by its claim.

    What `ensure`, `update`, `create` and `delete` queue is written by `commit`, and only by it. What
    `emit` buffers is stored together with the acknowledgement, when the handler has returned; if
    it raises, nothing of it ever was.

    After a StateConflictError the handler runs again at once on fresh state, and no attempt is
    counted. It may also read again and commit again itself; what it emitted stays buffered.
    """

    def __init__(
        self, session: Session, acks: Acks, claim: Claim, event: E_co, reads: Reads = None
    ) -> None:
        self._session = session
        self._acks = acks
        self._claim = claim
        self._event = event
        self._intents = session._new_intents(checked=checked_reads(reads))
        self._emitted: list[Announcement] = []
        self._added_metadata: dict[str, str] = {}
        self._commit_id: int | None = None
        self._failure: BaseException | None = None
        """Why the last commit failed; None once another one succeeded."""
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
        self._open()
        announcement = self._announcement(Later(event, delay, at, dedup_key))
        if dedup_key is not None:
            event.id = self._first_with_key(announcement.row)
        self._emitted.append(announcement)

    def _first_with_key(self, row: EventRow) -> str:
        """The id of the event that has this one's dedup_key, which may be its own."""
        for earlier, _ in self._emitted:
            if (earlier.type, earlier.dedup_key) == (row.type, row.dedup_key):
                return earlier.id
        return self._session._store.events.holder_of(row) or row.id

    def _fence(self) -> Claim:
        return self._claim

    def _lineage(self) -> Lineage:
        """Where an event comes from that this handler announces."""
        row = self._claim.event
        return child_of(
            row.id, row.root_event_id, row.chain_depth, row.correlation_id, self._claim.handler_id
        )

    # -- commit -----------------------------------------------------------------------------

    def add_commit_meta(self, key: str, value: str) -> None:
        """Attach a text to the next commit that changes something."""
        self._open()
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidTypeError(f"commit metadata is text, got {key!r}: {value!r}")
        if key in _OWN_METADATA:
            raise InvalidValueError(f"commit metadata {key!r} is written by the session itself")
        self._added_metadata[key] = value

    def _open(self) -> HandlerContext[E_co]:
        if self._closed:
            raise SessionClosedError(
                f"{self._claim.handler_id} has returned; its context writes nothing any more"
            )
        return self

    def _send(self, request: WriteRequest) -> Written:
        # What is written is fenced in its own transaction; a commit of nothing is checked, too.
        if not (request.queue or request.reads or request.announcements) and not lease_is_valid(
            self._claim.lease_until, to_text(self._session._clock.now())
        ):
            raise LeaseExpiredError(self._claim.handler_id, self._claim.event.id)

        def write(along: Any) -> Written:
            request.along = along
            return self._session._commits.write(request)

        return self._acks.ride(write)

    def _metadata(self) -> dict[str, Any]:
        return {
            **self._added_metadata,
            **self._session._metadata(),
            "event_id": self._claim.event.id,
            "handler_id": self._claim.handler_id,
            "attempt": self.attempt,
        }

    def _refused(self, queue: Queue, error: BaseException) -> None:
        super()._refused(queue, error)
        self._failure = error

    def _committed(self, commit_id: int | None) -> None:
        self._failure = None
        if commit_id is not None:
            self._commit_id = commit_id
            self._added_metadata = {}

    def _discard(self) -> int:
        # Nobody knows whether a commit was written whose connection was lost.
        if not isinstance(self._failure, DatabaseError | LeaseExpiredError | LockContentionError):
            self._failure = None
        return super()._discard()

    def renew(self, seconds: float | None = None) -> None:
        """Have the event for longer: the handler's lease from now on, or these seconds.

        LeaseExpiredError if it is too late. Costs one soft transaction.
        """
        self._open()
        lease_ms = self._claim.lease_ms
        if seconds is not None:
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise InvalidTypeError(f"renew takes seconds, got {seconds!r}")
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
