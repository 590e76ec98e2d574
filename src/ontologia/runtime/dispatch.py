"""One attempt: call a handler with one event, and end the claim by what came of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ontologia.delivery.retry import Discard, Retry, describe_error, storable_text
from ontologia.errors import (
    EventLoopLimitError,
    SchemaOutdatedError,
    StateConflictError,
    UncommittedChangesError,
)
from ontologia.runtime.acks import Acks
from ontologia.runtime.context import HandlerContext, active
from ontologia.runtime.coroutines import Coroutines
from ontologia.runtime.handlers import Handler
from ontologia.runtime.outage import PASSING
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_AGAIN = (0.002, 0.020)  # seconds between a conflict and the next run


class Dispatcher:
    """Calls handlers. Any thread may use it."""

    def __init__(
        self,
        session: Session,
        acks: Acks,
        coroutines: Coroutines,
        stopping: Callable[[], bool],
        *,
        raise_at_limit: bool = True,
    ) -> None:
        self._session = session
        self._events = session._store.events
        self._acks = acks
        self._coroutines = coroutines
        self._stopping = stopping
        self._raise_at_limit = raise_at_limit

    def attempt(self, handler: Handler, claim: Claim) -> None:
        """One attempt, run again after each conflict. Raises only what must end the run."""
        conflicts = 0
        while (conflict := self._run(handler, claim)) is not None:
            conflicts += 1
            if not self._again(handler, claim, conflict, conflicts):
                return

    def _run(self, handler: Handler, claim: Claim) -> StateConflictError | None:
        """Call the handler and end the claim, unless there was a conflict, which is returned."""
        event = self._events.decoded(claim, handler.event_cls)
        if event is None:
            return None
        if (claim.read_commit or 0) < self._session._commits.last:
            claim.read_commit, claim.moved = self._session._commits.last, True
        context = HandlerContext(self._session, self._acks, claim, event, handler.reads)
        failure: BaseException | None = None
        try:
            self._call(handler, context)
        except (Retry, Discard) as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            failure = context._failure or error
        except BaseException as error:  # noqa: BLE001 - ends the claim, then raises it
            context._close()
            self._interrupted(handler, claim, error)
            return None
        else:
            failure = context._failure or _checked(context)  # whatever the handler made of it
        emitted = context._close()
        if failure is None and len(context._intents):
            failure = UncommittedChangesError(handler.id, context._intents.labels())
        if isinstance(failure, StateConflictError):
            return failure
        if failure is None:
            self._acks.add(Done(claim, emitted))
        else:
            self._failed(handler, claim, failure)
        return None

    def _again(
        self, handler: Handler, claim: Claim, conflict: StateConflictError, conflicts: int
    ) -> bool:
        """After a conflict: whether to run the handler again, on fresh state and at once.

        No attempt is counted. `event_max_conflicts` in a row are a failure like any other.
        """
        what = f"event {claim.event.id} ({claim.event.type}): {claim.handler_id}"
        if self._stopping():
            self._events.claims.abandon([claim])
            return False
        session = self._session
        if not self._events.claims.run_again(claim):
            log.warning("%s lost its lease after a conflict; another session has the event", what)
            return False
        if conflicts >= session.config.event_max_conflicts:
            self._failed(handler, claim, conflict)
            return False
        log.debug("%s had conflict %d and runs again: %s", what, conflicts, conflict.args[0])
        session._clock.sleep(session._random.uniform(*_AGAIN))
        return True

    def _call(self, handler: Handler, context: HandlerContext[Any]) -> None:
        token = active.set(context)
        try:
            result = handler.function(context)
        finally:
            active.reset(token)
        if result is not None and inspect.isawaitable(result):
            self._coroutines.run(_with_context(context, result))

    def _failed(self, handler: Handler, claim: Claim, error: BaseException) -> None:
        """The attempt did not succeed: again later, or buried."""
        what = f"event {claim.event.id} ({claim.event.type}): {claim.handler_id}"
        if isinstance(error, SchemaOutdatedError) and is_outdated(self._session):
            # No fault of the event, and no attempt will be better: the program is of another time.
            self._events.claims.abandon([claim])
            error.add_note(f"{what} was interrupted; it is handed back, and no attempt was counted")
            raise error
        after_ms = error.after_ms if isinstance(error, Retry) else None
        outcome = (
            "retry"
            if isinstance(error, Retry)
            else "discarded"
            if isinstance(error, Discard)
            else "failed"
        )
        final = isinstance(error, Discard | EventLoopLimitError)
        own_word = isinstance(error, Retry | Discard)
        text = storable_text(error) if own_word else describe_error(error)
        try:
            verdict = self._events.claims.release(
                claim.handler_id,
                claim.event.id,
                error=text,
                policy=handler.delivery(self._session.config).policy,
                token=claim.token,
                after_ms=after_ms,
                outcome=outcome,
                final=final,
                claim=claim,
                traceback=self._events.traceback_of(error),
            )
        except PASSING:
            log.warning("%s failed, and is tried again when its lease is over: %s", what, text)
            raise
        if verdict is None:
            log.warning("%s lost its lease before it failed: %s", what, text)
        elif verdict.buried:
            self._events.wake()  # somebody may be waiting for dead letters
            log.error(
                "%s failed for good, a dead letter now: %s",
                *(what, text),
                exc_info=_traceback(error),
            )
        else:
            log.log(
                logging.INFO if outcome == "retry" else logging.WARNING,
                "%s failed at attempt %d, again in %.1f s: %s",
                *(what, verdict.attempts, verdict.delay_ms / 1000, text),
                exc_info=_traceback(error),
            )
        if isinstance(error, EventLoopLimitError) and self._raise_at_limit:
            raise error

    def _interrupted(self, handler: Handler, claim: Claim, error: BaseException) -> None:
        """Not the handler's own end: by a signal or a shutdown it is handed back unpunished."""
        import asyncio

        if isinstance(error, asyncio.CancelledError):
            if not self._stopping():
                self._failed(handler, claim, error)
                return
            self._events.claims.abandon([claim])
            return
        if isinstance(error, KeyboardInterrupt):
            self._events.claims.abandon([claim])
        else:
            self._failed(handler, claim, error)  # one that always exits must not do so forever
        raise error


def _checked(context: HandlerContext[Any]) -> Exception | None:
    """What is emitted rests on what was read, too: check that once more before the ack."""
    if context._emitted and context._intents.reads and not len(context._intents):
        try:
            context.commit()
        except Exception as error:  # noqa: BLE001 - ends the attempt as any other
            return error
    return None


def is_outdated(session: Session) -> bool:
    """Whether a type that the session uses is not, or no longer, the store's.

    A SchemaOutdatedError may also be of another store, or of the past of a type that was dropped.
    """
    try:
        session.validate()
    except SchemaOutdatedError:
        return True
    return False


async def _with_context(context: HandlerContext[Any], result: Awaitable[Any]) -> None:
    active.set(context)  # the task has a copy of the variables to itself
    await result


def _traceback(error: BaseException) -> BaseException | None:
    return None if isinstance(error, Retry | Discard) else error
