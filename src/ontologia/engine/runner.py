"""Running one event: call its consumer, and write how the attempt ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from ontologia.delivery.retry import Discard, Retry, Verdict, describe_error, storable_text
from ontologia.engine.consumer import Consumer
from ontologia.engine.outage import PASSING
from ontologia.engine.source import Failure, Source
from ontologia.engine.watchdog import Watchdog
from ontologia.errors import (
    EventLoopLimitError,
    LockContentionError,
    SchemaOutdatedError,
    StateConflictError,
)
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim
from ontologia.store.turn import Turns

log = logging.getLogger(__name__)
_AGAIN = (0.002, 0.020)  # seconds between a conflict and the next run
_TAKE_TURNS_MS = 1000.0  # that a run after a conflict waits for another one
_MOST_HELD_UP = 10_000  # events that are counted: of some, other sessions write the end

R = TypeVar("R")
Outcome: TypeAlias = Literal["done", "retried", "dead-lettered", "released"]
Observer: TypeAlias = Callable[[Claim, Outcome, BaseException | None], None]


class GivenUp(Discard):
    """Raised by a call: dead-letter the event, and count no attempt."""


def _unobserved(claim: Claim, outcome: Outcome, error: BaseException | None) -> None:
    """An engine whose outcomes nothing counts."""


class Runner:
    """Runs events. Any thread may use it."""

    def __init__(
        self,
        source: Source,
        stopped: Callable[[], bool],
        pause: Callable[[float, float], None],
        *,
        max_conflicts: int,
        raise_at_limit: bool = False,
        observe: Observer = _unobserved,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`pause(least, most)` sleeps for a random time in between, in seconds."""
        self._source = source
        self._watchdog = watchdog
        self._stopped = stopped
        self._pause = pause
        self._max_conflicts = max_conflicts
        self._raise_at_limit = raise_at_limit
        self._observe = observe
        self._reruns = Turns()
        self._held_up: dict[tuple[str, str], int] = {}
        """How often in a row a busy database ended a run of an event, by consumer and event."""

    def attempt(self, consumer: Consumer, claim: Claim) -> None:
        """One attempt, run again after each conflict. Raises only what must end the run."""
        refused = None if self._watchdog is None else self._watchdog.refuse(claim)
        if refused is not None:
            self._end_failed(consumer, claim, refused)
            return
        conflict, conflicts = self._run(consumer, claim), 0
        while conflict is not None:
            conflicts += 1
            if not self._runs_again(consumer, claim, conflict, conflicts):
                return
            conflict = self._run_after_conflict(consumer, claim, conflict)

    def _run(self, consumer: Consumer, claim: Claim) -> StateConflictError | None:
        """Call the consumer and end the claim, unless there was a conflict, which is returned."""
        raised: BaseException | None = None
        ended: Done | StateConflictError | None = None
        call = None if self._watchdog is None else self._watchdog.begin(consumer, claim)
        try:
            ended = consumer.call(claim)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the claim is ended
            raised = error
        if call is not None and not call.end():
            return None  # the attempt has ended as timed out
        if raised is not None:
            if isinstance(raised, Exception):
                self._fail(consumer, claim, raised)
            else:
                self._interrupted(consumer, claim, raised)
        elif isinstance(ended, StateConflictError):
            return ended
        elif ended is not None:
            self._held_up.pop((claim.handler_id, claim.event.id), None)
            self._observe(claim, "done", None)
            self._insist(claim, "succeeded", lambda: self._source.ack(ended))
        return None

    def _run_after_conflict(
        self, consumer: Consumer, claim: Claim, conflict: StateConflictError
    ) -> StateConflictError | None:
        """Run it again; for one object one after the other, unless one takes long.

        Commits that wait together are written together: of several that change one object all but
        the first would conflict again.
        """
        key = (conflict.type_name, conflict.key)
        with self._reruns.preferred(key, min(_TAKE_TURNS_MS, claim.lease_ms / 10)):
            return self._run(consumer, claim)

    def _runs_again(
        self, consumer: Consumer, claim: Claim, conflict: StateConflictError, conflicts: int
    ) -> bool:
        """After a conflict: whether to run the event again, on fresh state and at once.

        No attempt is counted. `event_max_conflicts` in a row are a failure like any other.
        """
        if self._stopped():
            self._release(claim)
            return False
        if not self._source.run_again(claim):
            log.warning(
                "%s lost its lease after a conflict; another session has the event", _what(claim)
            )
            return False
        if conflicts >= self._max_conflicts:
            text = f"{conflicts} conflicts in a row, the last: {describe_error(conflict)}"
            self._end_failed(consumer, claim, Failure(text, conflict))
            return False
        log.debug(
            "%s had conflict %d and runs again: %s", _what(claim), conflicts, conflict.args[0]
        )
        self._pause(*_AGAIN)
        return True

    # -- when it went wrong -----------------------------------------------------------------------

    def time_out(self, consumer: Consumer, claim: Claim, failure: Failure) -> None:
        """End an attempt that still runs. If the database is away, the end of its lease does."""
        self._note_failed(claim, failure, self._source.fail(consumer, claim, failure))

    def _interrupted(self, consumer: Consumer, claim: Claim, error: BaseException) -> None:
        """Not the consumer's own end: by a signal or a shutdown the event is released untried."""
        import asyncio

        if isinstance(error, asyncio.CancelledError):
            if self._stopped():
                self._release(claim)
            else:
                self._fail(consumer, claim, error)
            return
        if isinstance(error, KeyboardInterrupt):
            self._release(claim)
        else:
            self._fail(consumer, claim, error)  # one that always exits must not do so forever
        raise error

    def _release(self, claim: Claim) -> None:
        self._observe(claim, "released", None)
        self._insist(claim, "is released", lambda: self._source.release([claim]))

    def _fail(self, consumer: Consumer, claim: Claim, error: BaseException) -> None:
        """The attempt failed: retry later, or dead-letter."""
        if isinstance(error, SchemaOutdatedError) and consumer.is_outdated():
            # No fault of the event, and no attempt would be better.
            self._release(claim)
            error.add_note(
                f"{_what(claim)} was interrupted; it is released, and no attempt was counted"
            )
            raise error
        if isinstance(error, LockContentionError):
            # No fault of the event, either: others wrote for too long, and that passes. It does not
            # where the consumer itself holds what it waits for.
            times = self._count_held_up(claim)
            if times >= self._max_conflicts:
                text = f"held up {times} times in a row, the last: {describe_error(error)}"
                self._end_failed(consumer, claim, Failure(text, error))
                return
            log.warning("%s runs again later, no attempt counted: %s", _what(claim), error.args[0])
            busy = Failure(describe_error(error), error, tried=False)
            self._observe(claim, "released", None)
            self._pause(*_AGAIN)  # a queue provider delivers it at once
            self._insist(claim, "runs again", lambda: self._source.fail(consumer, claim, busy))
            return
        self._end_failed(consumer, claim, _failure(consumer, claim, error))
        if isinstance(error, EventLoopLimitError) and self._raise_at_limit:
            raise error

    def _count_held_up(self, claim: Claim) -> int:
        """A busy database ended a run once more; how often in a row that was so."""
        event = claim.handler_id, claim.event.id
        times = self._held_up.pop(event, 0) + 1
        if len(self._held_up) >= _MOST_HELD_UP:
            self._held_up.pop(next(iter(self._held_up)), None)
        self._held_up[event] = times
        return times

    def _end_failed(self, consumer: Consumer, claim: Claim, failure: Failure) -> None:
        """Write a failure, and log and count it."""
        self._held_up.pop((claim.handler_id, claim.event.id), None)
        written = self._insist(
            claim,
            f"failed ({failure.text})",
            lambda: (self._source.fail(consumer, claim, failure),),
        )
        if written is not None:
            self._note_failed(claim, failure, written[0])

    def _note_failed(self, claim: Claim, failure: Failure, verdict: Verdict | None) -> None:
        """Log and count a failure that was written; without a verdict the lease was lost."""
        if verdict is None:
            log.warning("%s lost its lease before it failed: %s", _what(claim), failure.text)
            return
        _report(claim, failure, verdict)
        outcome: Outcome = "dead-lettered" if verdict.buried else "retried"
        self._observe(claim, outcome, failure.error)

    def _insist(self, claim: Claim, what: str, write: Callable[[], R]) -> R | None:
        """Have it written, however long the database is away.

        A run that stops tries once more, and then leaves it to the lease: None.
        """
        while True:
            stopping = self._stopped()
            try:
                return write()
            except (LockContentionError, *PASSING) as error:
                if isinstance(error, PASSING):
                    self._source.outage.wait(error, self._stopped)
                else:
                    log.warning("the database is busy, and is tried again: %s", error.args[0])
                if not stopping:
                    continue
                log.error(
                    "%s %s, which was not written; it is delivered again when its lease is over",
                    *(_what(claim), what),
                )
                return None


def _failure(consumer: Consumer, claim: Claim, error: BaseException) -> Failure:
    if isinstance(error, Retry):
        return Failure(storable_text(error), error=error, outcome="retry", after_ms=error.after_ms)
    if isinstance(error, Discard):
        tried = not isinstance(error, GivenUp)
        return Failure(storable_text(error), error, "discarded", final=True, tried=tried)
    final = isinstance(error, EventLoopLimitError)
    last = final or claim.attempts + 1 >= consumer.policy.max_failures
    describe = consumer.reason if last and consumer.reason is not None else describe_error
    return Failure(describe(error), error=error, final=final)


def _report(claim: Claim, failure: Failure, verdict: Verdict) -> None:
    on_purpose = isinstance(failure.error, Retry | Discard)
    trace = None if on_purpose else failure.error
    if verdict.buried:
        log.error(
            "%s failed for good, a dead letter now: %s",
            *(_what(claim), failure.text),
            exc_info=trace,
        )
    else:
        log.log(
            logging.INFO if isinstance(failure.error, Retry) else logging.WARNING,
            "%s failed at attempt %d, again in %.1f s: %s",
            *(_what(claim), verdict.attempts, verdict.delay_ms / 1000, failure.text),
            exc_info=trace,
        )


def _what(claim: Claim) -> str:
    return f"event {claim.event.id} ({claim.event.type}): {claim.handler_id}"
