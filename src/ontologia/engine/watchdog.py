"""Timeouts: a consumer that does not return within its time must not stop the others.

Python cannot end a thread. So a coroutine is cancelled, and the thread of a function is abandoned:
another thread goes on in its place, and it ends when it comes back. A thread looks only at calls
that are overdue; a call that returns in time costs an entry in a dictionary.

A call is overdue by the clock of the session and by the machine's: where the former is a manual
clock, a test that moves it does not time out what is about to return.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary, format_list

from ontologia.clock import Clock, SystemClock, from_text
from ontologia.delivery.retry import describe_error
from ontologia.engine.consumer import Consumer
from ontologia.engine.coroutines import Coroutines, Running, stack_of
from ontologia.engine.inbox import Inbox
from ontologia.engine.source import Failure
from ontologia.forking import in_forked_child
from ontologia.store.rows import Claim

log = logging.getLogger(__name__)
_CLEANING_UP = 1.0  # seconds that a cancelled coroutine has
_MARGIN = 0.1  # of a lease: the end of an attempt is written before the event is free
_LONGEST_MARGIN_MS = 1_000.0
_OWN = str(Path(__file__).parents[1])
_CALLS = {"runner.py": "_run", "coroutines.py": "to_its_end"}
"""The functions that call a consumer, by file: deeper in the stack it is the consumer's."""
_abandoned: set[Call] = set()
"""Calls of this process whose threads were abandoned, and that have not returned."""

in_forked_child(_abandoned.clear)  # their threads are the parent's


class Replaced(BaseException):
    """Raised in a thread that comes back after another one has taken its place."""


class Call:
    """One call of a consumer, in the thread that made it."""

    __slots__ = (
        "_watchdog",
        "at",
        "began",
        "cancelled",
        "claim",
        "consumer",
        "coroutine",
        "thread",
    )

    def __init__(self, watchdog: Watchdog, consumer: Consumer, claim: Claim, at: float) -> None:
        self._watchdog = watchdog
        self.consumer = consumer
        self.claim = claim
        self.at = at
        """When it began, by the clock of the session."""
        self.began = time.monotonic()
        self.thread = threading.get_ident()
        self.coroutine: Running | None = None
        """What was cancelled at the timeout; its thread goes on itself."""
        self.cancelled = 0.0

    def is_of(self, claim: Claim) -> bool:
        """Whether it was made for the event and the consumer of this claim."""
        mine = self.claim
        return (mine.event.id, mine.handler_id) == (claim.event.id, claim.handler_id)

    def end(self) -> bool:
        """The consumer has returned or raised; whether that was in time.

        Raises Replaced if another thread goes on in place of this one.
        """
        return self._watchdog.end(self)


class Watchdog:
    """Watches the calls of one engine. Threads call `begin` and `end`, one thread calls `look`."""

    def __init__(
        self,
        inbox: Inbox,
        clock: Clock,
        coroutines: Coroutines,
        consumers: Sequence[Consumer],
        *,
        most_in_event: float,
        abandoned: Callable[[Call], None],
        fail: Callable[[Consumer, Claim, Failure], None],
    ) -> None:
        """`abandoned` is called with each call whose thread, or event loop, is; `fail` ends attempts.

        An event in which `most_in_event` threads of this process hang is not run by it.
        """
        self._most_in_event = most_in_event
        self._fail = fail
        self._inbox = inbox
        self._clock = clock
        self._coroutines = coroutines
        self._tell_abandoned = abandoned
        self._shortest = min((_timeout_ms(each) for each in consumers), default=math.inf) / 1000
        self._calls: dict[int, Call] = {}
        self._cancelled: list[Call] = []
        self._lost: set[Call] = set()
        self._deciding = threading.Lock()
        """Held until it is decided who goes on in place of an overdue call."""

    @property
    def has_timeouts(self) -> bool:
        """Whether any consumer has one."""
        return self._shortest < math.inf

    @property
    def abandoned(self) -> int:
        """Number of threads, also of event loops, that were abandoned and have not come back."""
        return _still_stuck(self._lost)

    def has_lost(self, thread: int) -> bool:
        """Whether this thread was abandoned, and has not come back."""
        lost = list(self._lost)
        return any(each.thread == thread and each.coroutine is None for each in lost)

    # -- in the thread that calls -----------------------------------------------------------------

    def refuse(self, claim: Claim) -> Failure | None:
        """The end of an attempt that is not to begin: too many threads hang in its event already."""
        if not _abandoned:
            return None
        hanging = _still_stuck({each for each in list(_abandoned) if each.is_of(claim)})
        if hanging < self._most_in_event:
            return None
        earlier = "an earlier attempt hangs" if hanging == 1 else f"{hanging} earlier attempts hang"
        error = TimeoutError(f"it was not called: {earlier} in this process")
        return Failure(describe_error(error), error, "timed out")

    def begin(self, consumer: Consumer, claim: Claim) -> Call:
        """A consumer is about to be called."""
        call = Call(self, consumer, claim, self._clock.monotonic())
        self._calls[id(call)] = call
        return call

    def end(self, call: Call) -> bool:
        """A call has ended, as `Call.end` says it."""
        if self._calls.pop(id(call), None) is not None:
            return True
        claim = call.claim
        log.warning(
            "event %s (%s): %s has ended after its timeout; nothing of it is written any more",
            *(claim.event.id, claim.event.type, claim.handler_id),
        )
        try:
            with self._deciding:
                replaced = call.coroutine is None
        finally:
            _abandoned.discard(call)
            self._lost.discard(call)
        if replaced:
            raise Replaced
        return False

    # -- in the thread that watches ---------------------------------------------------------------

    def is_overdue(self) -> bool:
        """Whether a call is overdue."""
        calls = list(self._calls.values())  # any thread may ask
        return any(self._left(call) <= 0 for call in calls)

    def look(self) -> float:
        """Time out what is overdue; seconds until the next look is needed."""
        soonest = self._shortest
        for call in list(self._calls.values()):
            left = self._left(call)
            if left > 0:
                soonest = min(soonest, left)
            else:
                self._time_out(call)
        for call in self._cancelled[:]:
            left = call.cancelled + _CLEANING_UP - time.monotonic()
            if left > 0:
                soonest = min(soonest, left)
            else:
                self._cancelled.remove(call)
                self._leave_loop(call)
        return soonest

    def _left(self, call: Call) -> float:
        """Seconds until it is overdue."""
        timeout = _timeout_ms(call.consumer) / 1000
        left = call.at + timeout - self._clock.monotonic()
        if call.consumer.timeout_ms is None:
            until = from_text(call.claim.lease_until)  # the consumer may have renewed it itself
            lease_ms = min(call.claim.asked_ms or math.inf, call.consumer.lease_ms)
            margin = _margin_ms(lease_ms) / 1000
            left = (until - self._clock.now()).total_seconds() - margin
            if isinstance(self._clock, SystemClock):
                return left
        return max(left, call.began + timeout - time.monotonic())

    def _time_out(self, call: Call) -> None:
        """Write that the attempt timed out, and have others go on, unless it has just returned.

        In this order: the thread that takes over may claim the event again.
        """
        stack = stack_of(call.thread)
        with self._deciding:
            if self._calls.pop(id(call), None) is None:
                return
            self._inbox.end(call.claim)
            self._inbox.serve_last(call.consumer)
            call.coroutine = self._coroutines.waited_for(call.thread)
            try:
                where = stack if call.coroutine is None else call.coroutine.stack()
                self._write(call, _of_consumer(where))
            finally:
                if call.coroutine is None:
                    self._abandon(call)
                else:
                    call.cancelled = time.monotonic()
                    self._cancelled.append(call)
                    call.coroutine.cancel()

    def _write(self, call: Call, stack: list[FrameSummary]) -> None:
        consumer, claim = call.consumer, call.claim
        seconds = round(time.monotonic() - call.began, 3)
        began = call.coroutine is None or call.coroutine.begun
        if began:
            hangs, whose = f"still running after {seconds:g} s", "It"
        else:
            hangs = (
                f"not called within {seconds:g} s, since another coroutine blocks the event loop"
            )
            whose = "The event loop"
        error = TimeoutError(hangs)
        if where := "".join(format_list(stack)).rstrip():
            error.add_note(f"{whose} was here:\n{where}")
        if call.coroutine is None:
            became = "another thread goes on in place of its own"
        else:
            became = "it is cancelled"
        log.error(
            "event %s (%s): %s is %s; %s",
            *(claim.event.id, claim.event.type, claim.handler_id, hangs, became),
        )
        self._fail(consumer, claim, Failure(describe_error(error), error, "timed out", lapsed=True))

    def _leave_loop(self, call: Call) -> None:
        """A coroutine was cancelled a while ago: if it still runs, run others elsewhere."""
        if call.coroutine is None or call.coroutine.ended:
            return
        claim = call.claim
        log.error(
            "event %s (%s): %s was cancelled and has not ended; others run on another event loop",
            *(claim.event.id, claim.event.type, claim.handler_id),
        )
        self._coroutines.leave(call.coroutine.loop)
        self._abandon(call)

    def _abandon(self, call: Call) -> None:
        _abandoned.add(call)
        self._lost.add(call)
        self._tell_abandoned(call)


def count_abandoned() -> int:
    """Number of abandoned threads of this process, also of event loops, that have not come back."""
    return _still_stuck(_abandoned)


def _still_stuck(calls: set[Call]) -> int:
    """Number of threads whose calls have not returned; of several on one event loop it is one.

    An event loop does not say that its coroutine has ended.
    """
    for call in list(calls):
        if call.coroutine is not None and call.coroutine.ended:
            calls.discard(call)
    return len({id(each.coroutine.loop if each.coroutine else each) for each in list(calls)})


def _timeout_ms(consumer: Consumer) -> float:
    if consumer.timeout_ms is not None:
        return consumer.timeout_ms
    return consumer.lease_ms - _margin_ms(consumer.lease_ms)


def _margin_ms(lease_ms: float) -> float:
    """How long before the end of a lease a call is overdue: other sessions wait for that end."""
    return min(_MARGIN * lease_ms, _LONGEST_MARGIN_MS)


def _of_consumer(stack: list[FrameSummary]) -> list[FrameSummary]:
    """The part of a stack that is the consumer's: without the calls of this package before it."""
    for number, frame in enumerate(stack):
        path = Path(frame.filename)
        if path.parent == Path(__file__).parent and _CALLS.get(path.name) == frame.name:
            stack = stack[number + 1 :]
            break
    for number, frame in enumerate(stack):
        if not frame.filename.startswith(_OWN):
            return stack[number:]
    return stack
