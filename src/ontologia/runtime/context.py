"""`HandlerContext`: the unit of work of one attempt of one handler at one event; and the attempt."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Generic, TypeVar

from ontologia.clock import from_text, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.delivery.retry import Discard, Retry
from ontologia.engine.coroutines import Coroutines
from ontologia.errors import (
    DatabaseError,
    InvalidTypeError,
    InvalidValueError,
    LeaseExpiredError,
    LockContentionError,
    SessionClosedError,
    StateConflictError,
    UncommittedChangesError,
)
from ontologia.runtime.commits import WriteRequest
from ontologia.runtime.handlers import Handler
from ontologia.runtime.intents import Intents, Queue
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.unit import Later, Reads, UnitOfWork, active, checked_reads
from ontologia.schema.event import Event
from ontologia.store.events.leases import Done
from ontologia.store.rows import Announcement, Claim, EventRow

E_co = TypeVar("E_co", bound=Event, covariant=True)
_LONGEST_LEASE = 365 * 24 * 3600
_OWN_METADATA = ("namespace", "session_id", "event_id", "handler_id", "attempt")


@dataclass(slots=True)
class AttemptState:
    """What a handler's context shares with the code that runs the handler."""

    claim: Claim
    intents: Intents
    emitted: list[Announcement] = field(default_factory=list[Announcement])
    """To be stored with the ack."""
    failure: BaseException | None = None
    """Why the last commit failed; None once another one succeeded."""
    unsynced: bool = False
    """Whether a commit is only written, and is on disk with the ack."""
    closed: bool = False
    """Whether the handler has returned: its context takes nothing more."""


class HandlerContext(UnitOfWork, Generic[E_co]):
    """One attempt of one handler at one event: its unit of work, fenced by its claim.

    What `ensure`, `update`, `create` and `delete` queue is written by `commit`, and only by it. What
    `emit` buffers is stored together with the acknowledgement, when the handler has returned; if
    it raises, nothing of it ever was.

    After a StateConflictError the handler runs again at once on fresh state, and no attempt is
    counted. It may also read again and commit again itself; what it emitted stays buffered.
    """

    def __init__(self, session: Session, claim: Claim, event: E_co, reads: Reads = None) -> None:
        core = core_of(session)
        super().__init__(core, core.new_intents(checked=checked_reads(reads)))
        self._session = session
        self._claim = claim
        self._event = event
        self._state = AttemptState(claim, self._intents)
        self._added_metadata: dict[str, str] = {}
        self._commit_id: int | None = None

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
        """Emit an event if, and when, this handler succeeds: it is stored with the ack.

        `delay` (seconds or a timedelta) or `at` defers it from now on. With a `dedup_key` that a
        retained event of its type has, it is not stored again. EventLoopLimitError if the chain
        would be longer than `max_event_chain_depth`.
        """
        self._open()
        if isinstance(event, Later):
            raise InvalidTypeError(
                "emit takes an event, got later(...)",
                hint="Say it here: ctx.emit(event, delay=..., at=..., dedup_key=...).",
            )
        announcement = self._announcement(Later(event, delay, at, dedup_key))
        if dedup_key is not None:
            event.id = self._first_with_key(announcement.row)
        self._state.emitted.append(announcement)

    def _first_with_key(self, row: EventRow) -> str:
        """The id of the event that has this one's dedup_key, which may be its own."""
        for earlier, _ in self._state.emitted:
            if (earlier.type, earlier.dedup_key) == (row.type, row.dedup_key):
                return earlier.id
        return self._core.store.events.holder_of(row) or row.id

    def _fence(self) -> Claim:
        return self._claim

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
        if self._state.closed:
            raise SessionClosedError(
                f"{self._claim.handler_id} has returned; its context writes nothing any more"
            )
        return self

    def _prepare(self, request: WriteRequest) -> None:
        # What is written is fenced in its own transaction; a commit of nothing is checked, too.
        if not (request.queue or request.reads or request.announcements) and not lease_is_valid(
            self._claim.lease_until, to_text(self._core.clock.now())
        ):
            raise LeaseExpiredError(self._claim.handler_id, self._claim.event.id)

        # An ack that is kept outside the database makes nothing durable there.
        soft = self._core.config.handler_durability == "ack" and not self._claim.outside
        request.durable = not soft
        self._state.unsynced = self._state.unsynced or not request.durable

    def _metadata(self) -> dict[str, Any]:
        return {**self._added_metadata, **super()._metadata()}

    def _refused(self, queue: Queue, error: BaseException) -> None:
        super()._refused(queue, error)
        self._state.failure = error

    def _committed(self, commit_id: int | None) -> None:
        self._state.failure = None
        if commit_id is not None:
            self._commit_id = commit_id
            self._added_metadata = {}

    def _discard(self) -> int:
        # It is unknown whether a commit was written whose connection was lost.
        if not isinstance(
            self._state.failure, DatabaseError | LeaseExpiredError | LockContentionError
        ):
            self._state.failure = None
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
        self._claim.asked_ms = lease_ms
        if self._core.deliveries.claims.renew([self._claim], lease_ms):
            raise LeaseExpiredError(self._claim.handler_id, self._claim.event.id)


attempt_of: Callable[[HandlerContext[Any]], AttemptState] = attrgetter("_state")
"""The state of a context, for the package's own code."""


class HandlerCall:
    """Calls a handler, `def` or `async def`, with a context for each event."""

    def __init__(self, session: Session, handler: Handler, coroutines: Coroutines) -> None:
        self._session = session
        self._handler = handler
        self._coroutines = coroutines

    def __call__(self, claim: Claim) -> Done | StateConflictError | None:
        """One attempt: its ack, with what the handler emitted; the conflict, if it had one.

        None if the event cannot be decoded: then it is dead-lettered. Raises why it failed.
        """
        core = core_of(self._session)
        event = core.deliveries.decoded(claim, self._handler.event_cls)
        if event is None:
            return None
        if (claim.read_commit or 0) < core.commits.last:
            claim.read_commit, claim.moved = core.commits.last, True
        context = HandlerContext(self._session, claim, event, self._handler.reads)
        state = attempt_of(context)
        try:
            failure = self._failure(context, state)
        finally:
            state.closed = True
        if failure is None and len(state.intents):
            failure = UncommittedChangesError(self._handler.id, state.intents.labels())
        if isinstance(failure, StateConflictError):
            return failure
        if failure is not None:
            raise failure
        return Done(claim, state.emitted, durable=state.unsynced)

    def _failure(self, context: HandlerContext[Any], state: AttemptState) -> BaseException | None:
        """Call the handler; why the attempt failed, whatever the handler made of it."""
        try:
            self._run(context)
        except (Retry, Discard) as error:
            return error
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return state.failure or error
        rests_on_reads = state.emitted and state.intents.reads and not len(state.intents)
        if state.failure is None and rests_on_reads:
            try:
                context.commit()  # checks once more, before the ack, what was read
            except Exception as error:  # noqa: BLE001 - ends the attempt as any other
                return error
        return state.failure

    def _run(self, context: HandlerContext[Any]) -> None:
        token = active.set(context)
        try:
            result = self._handler.function(context)
        finally:
            active.reset(token)
        if result is not None and inspect.isawaitable(result):
            # The task has a copy of the variables to itself.
            self._coroutines.run(result, lambda: active.set(context))
