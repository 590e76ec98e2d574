"""The engine: claims events for consumers and runs them, until it is stopped.

A pass lets each consumer, the most urgent first, claim and run what it can. Passes repeat until
nothing is claimable, which drains what consumers emit for each other; then the engine waits for a
wake, a due time or the poll interval. `per_iteration` ends an iteration early, and the whole
`pause` is slept then: that is the rate limit.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from random import Random

from ontologia.clock import Clock, SystemClock, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.engine.consumer import Consumer, Host
from ontologia.engine.coroutines import Coroutines
from ontologia.engine.handover import Handover
from ontologia.engine.inbox import Inbox
from ontologia.engine.outage import PASSING
from ontologia.engine.runner import Observer, Runner
from ontologia.engine.source import Source, StoreSource
from ontologia.engine.watchdog import Call, Replaced, Watchdog, count_abandoned
from ontologia.errors import AbandonedThreadsError, ConnectionLostError, LockContentionError
from ontologia.store.rows import Claim

log = logging.getLogger(__name__)
IDLE_POLL = 1.0  # seconds: wakes make it faster, polling makes it certain
_TRY_AGAIN = 0.05  # seconds after the database was busy for longer than a write waits
_CANCELLED = 1.0  # seconds a cancelled coroutine has to clean up
_SHORTEST_LOOK = 0.05  # seconds between two looks at what takes too long
_SHARE = 4  # of the threads that may be abandoned, one event keeps at most a fourth
_UNLIMITED = 2**31 - 1


class Flag:
    """Set once, by any thread or signal handler: an Event has a lock, which those must not take."""

    __slots__ = ("_on",)

    def __init__(self) -> None:
        self._on = False

    def set(self) -> None:
        """Set it."""
        self._on = True

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._on


class Engine:
    """One run of some consumers. `run` is for one thread; `stop` and `hurry` are for all."""

    def __init__(
        self,
        source: Source,
        consumers: Sequence[Consumer],
        clock: Clock,
        random: Random,
        *,
        coroutines: Coroutines,
        workers: int = 1,
        claim_limit: int = 100,
        per_iteration: int = _UNLIMITED,
        poll: float = IDLE_POLL,
        pause: float = 0.0,
        grace: float,
        max_conflicts: int = _UNLIMITED,
        max_abandoned: float = math.inf,
        raise_at_limit: bool = False,
        observe: Observer | None = None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._coroutines = coroutines
        self._workers = workers
        self._claim_limit = claim_limit
        self._per_iteration = per_iteration
        self._poll = poll
        self._pause = pause
        self._grace = grace
        self._most_abandoned = max_abandoned
        self.told = False
        """Whether it was told to stop, rather than having come to its end."""
        self._stop = Flag()
        self._hurry = Flag()
        self._handling = False
        self._stopped_at: float | None = None
        self._inbox = Inbox(consumers, clock, workers)
        self._watchdog = Watchdog(
            *(self._inbox, clock, coroutines, consumers),
            most_in_event=max(1.0, max_abandoned / _SHARE),
            abandoned=self._abandoned,
            fail=lambda consumer, claim, failure: self._runner.time_out(consumer, claim, failure),
        )
        self._batches: dict[int, tuple[Consumer, list[Claim]]] = {}
        """What each thread is running, by its identity."""
        self._iterations: float = math.inf
        """How many are left."""
        self._handover = Handover(self._run, self.close, self._watchdog.has_lost)
        self._looking = threading.Lock()
        """Held by the one thread that looks for what is overdue."""
        self._noted = 0
        """Number of abandoned threads that the source knows of."""
        options = {} if observe is None else {"observe": observe}
        self._runner = Runner(
            source,
            self._stop.is_set,
            lambda least, most: clock.sleep(random.uniform(least, most)),
            max_conflicts=max_conflicts,
            raise_at_limit=raise_at_limit,
            watchdog=self._watchdog,
            **options,
        )

    # -- from outside -----------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Start nothing more, let what runs return. Any thread may, and a signal handler."""
        self.told = True
        self._stop_running()

    def _stop_running(self) -> None:
        if not self._stop.is_set():
            self._stopped_at = self._clock.monotonic()
            self._stop.set()
        self._source.wake()

    def hurry(self) -> bool:
        """Wait for nothing; whether a consumer runs in the thread that runs the engine."""
        self._hurry.set()
        self.stop()
        return self._handling or self._handover.taken_over

    def open(self) -> None:
        """Register the consumers; `run` does so, too. Raises what keeps it from its source."""
        self._source.open(self._inbox, self._stop.is_set, self._look)

    def run(self, max_iterations: int | None = None) -> None:
        """Run until stopped, or for this many iterations.

        AbandonedThreadsError once more consumers than `max_abandoned_threads` do not return.
        """
        self._iterations = math.inf if max_iterations is None else max_iterations
        begins = self._open_and_start, self.stop, self.hurry
        if self._workers == 1 and self._watchdog.has_timeouts and not _in_main_thread():
            self._handover.run_elsewhere(*begins)
        else:
            self._handover.run_here(*begins)
        if self._handover.error is not None:
            raise self._handover.error
        if self._hurry.is_set():
            raise KeyboardInterrupt

    def _open_and_start(self) -> None:
        self._open()
        for _ in range(self._workers if self._workers > 1 else 0):
            self._handover.start_worker(self._work)

    def _open(self) -> None:
        """Open, however long the database is busy or away; not for longer than until stopped."""
        while True:  # all of it can be done again
            try:
                self.open()
                return
            except LockContentionError as error:
                log.warning("the database is busy, and is tried again: %s", error.args[0])
            except ConnectionLostError as error:
                self._source.outage.wait(error, self._stop.is_set)
            if self._stop.is_set():
                return

    # -- iterations -------------------------------------------------------------------------------

    def _run(self) -> None:
        stepped = self._iterations < math.inf
        while not self._stop.is_set():
            try:
                pause = self._iterate()
            except LockContentionError as error:  # others write for longer than we wait: it passes
                log.warning("the database is busy, and is tried again: %s", error.args[0])
                # What woke the engine does not do so again.
                self._wait(_TRY_AGAIN, stepped=stepped)
                continue
            except PASSING as error:
                self._source.outage.wait(error, self._stop.is_set)
                continue
            self._iterations -= 1
            if self._iterations <= 0:
                self._inbox.wait_empty(self._stop.is_set)
                break  # closing the source writes the acks
            self._wait(pause, stepped=stepped)

    def _iterate(self) -> float | None:
        """Passes until nothing is claimable; seconds until something is due, None after the limit."""
        budget = self._per_iteration
        while not self._stop.is_set():
            quiet = self._inbox.empty()  # asked first: what ends later may emit something
            claimed = self._pass(budget)
            budget -= claimed
            if budget <= 0:
                self._source.flush()
                return None
            if claimed or self._stop.is_set() or self._has_waiting():
                continue
            pause = self._source.due_in(self._poll)
            if quiet:
                return pause
            self._source.wait(pause, self._stop.is_set)  # workers are busy: until one is free
        return 0.0

    def _pass(self, budget: int) -> int:
        """Let each consumer claim once; how many events that were."""
        claimed = 0
        self._source.begin()
        if self._watchdog.is_overdue():
            self._look()  # first, or the claim would take its lease for that of a dead session
        for consumer in self._inbox.in_turn(self._source.active):
            if self._stop.is_set() or claimed >= budget:
                break
            self._run_waiting(consumer)  # what a busy database, or a call that hangs, kept waiting
            if not self._inbox.lacks(consumer):
                continue
            limit = self._inbox.claim_size(consumer, min(self._claim_limit, budget - claimed))
            count = self._source.claim(consumer, limit, self._inbox.start_size(consumer))
            if count:
                claimed += count
                self._run_waiting(consumer)
        if not claimed and self._inbox.empty():
            self._source.flush()  # else acks go with what those that run commit, or within 5 ms
        return claimed

    def _wait(self, pause: float | None, *, stepped: bool) -> None:
        """Between iterations: the whole pause after the limit, else until there is work."""
        limited = pause is None
        seconds = self._pause if pause is None else pause
        if stepped and not isinstance(self._clock, SystemClock):
            self._clock.sleep(seconds)  # the run is played step by step
            return
        deadline = self._clock.monotonic() + seconds
        while self._source.wait(deadline - self._clock.monotonic(), self._stop.is_set):
            if not limited:
                return

    # -- running ----------------------------------------------------------------------------------

    def _run_waiting(self, consumer: Consumer) -> None:
        """With one worker, the engine's own thread runs what was claimed for a consumer."""
        if self._workers > 1 or self._inbox.lacks(consumer):
            return
        while not self._stop.is_set():
            batch = self._inbox.take(consumer=consumer)
            if batch is None:
                return
            self._run_batch(*batch)
            if self._inbox.comes_last(consumer):
                return

    def _has_waiting(self) -> bool:
        """Whether the engine's own thread has left something for the next pass."""
        lacks = self._inbox.lacks
        return self._workers == 1 and not all(lacks(each) for each in self._source.active)

    def _work(self) -> None:
        """A worker thread: the next batch of the most urgent consumer, again and again."""
        while not self._stop.is_set():
            try:
                batch = self._inbox.take(block=True)
                if batch is None:
                    return
                self._run_batch(*batch)
                if self._inbox.lacks(batch[0]):
                    self._source.wake()  # to claim; acks go along, or are flushed
            except LockContentionError as error:
                log.warning("the database is busy, and is tried again: %s", error.args[0])
            except PASSING as error:
                self._source.outage.wait(error, self._stop.is_set)
            except Replaced:
                return
            except BaseException as error:  # noqa: BLE001 - raised by the thread that runs
                self._handover.fail(error)
                self.stop()
                return

    def _run_batch(self, consumer: Consumer, batch: list[Claim]) -> None:
        """Start a batch, with the acks that wait, in one transaction, and run it."""
        self._batches[threading.get_ident()] = (consumer, batch)
        try:
            if not batch[0].started:
                self._source.start(batch)
            if consumer.in_order is not None:
                consumer.in_order.prepare(batch)
            began = self._clock.monotonic()  # waiting for the database is not the consumer's time
            for claim in batch:
                if not self._run_one(consumer, claim, began):
                    return  # the run stops: what is left of the batch is released
                if self._inbox.comes_last(consumer):
                    self._inbox.put_back(consumer, batch)  # a coroutine of it timed out
                    return
        except (LockContentionError, *PASSING):
            self._inbox.put_back(consumer, batch)
            raise
        self._inbox.pace(consumer, batch, self._clock.monotonic() - began)

    def _run_one(self, consumer: Consumer, claim: Claim, began: float) -> bool:
        """Run one event unless the run stops; whether the next one may run."""
        if not claim.started or not self._holds(claim, began):
            self._inbox.end(claim)
            log.warning(
                "event %s: the lease of %s was lost; skipped", claim.event.id, consumer.name
            )
            return True
        if self._stop.is_set():
            return False
        claim.renewed = consumer.renew
        if not self._inbox.begin(claim):
            return False
        self._handling = self._workers == 1
        try:
            self._runner.attempt(consumer, claim)
        finally:
            self._handling = False
            self._inbox.end(claim)
        return True

    def _holds(self, claim: Claim, began: float) -> bool:
        """Whether the lease is valid; what was started a moment ago is not looked at again."""
        if (self._clock.monotonic() - began) * 2000 < claim.lease_ms:
            return True
        return lease_is_valid(claim.lease_until, to_text(self._clock.now()))

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Release what was not run, and write what was; `run` does so at its end."""
        self._stop_running()
        waiting = self._inbox.close()
        try:
            waiting += self._wind_down()
        finally:
            error = self._source.close(waiting, self._hurry.is_set)
        self._handover.fail(error)

    def _wind_down(self) -> list[Claim]:
        """Let running consumers return; those that do not in time."""
        hurry = self._hurry.is_set
        self._inbox.wait_quiet(self._grace, hurry)
        self._coroutines.close(0.1 if hurry() else _CANCELLED)
        if not self._inbox.wait_quiet(_CANCELLED, hurry):
            # Their threads cannot be ended, but they can write nothing from here on.
            count = len(self._inbox.running())
            log.warning("%d handlers are still running; their events are released", count)
        return self._inbox.running()

    # -- consumers that do not return -------------------------------------------------------------

    def _look(self) -> float:
        """Time out what is overdue, at a shutdown also by its grace; seconds until the next look."""
        stopped_at = self._stopped_at
        if stopped_at is not None and self._clock.monotonic() - stopped_at >= self._grace:
            self._coroutines.cancel_all()
        with self._looking:
            seconds = self._watchdog.look()
        if self._watchdog.abandoned != self._noted:
            self._noted = self._watchdog.abandoned
            self._source.note_abandoned(self._noted)
        return min(seconds, max(_SHORTEST_LOOK, self._grace / 4))

    def _abandoned(self, call: Call) -> None:
        """Have another thread go on in place of one that does not come back."""
        if count_abandoned() > self._most_abandoned:
            self._handover.fail(AbandonedThreadsError(count_abandoned(), self._most_abandoned))
            self._stop_running()
        if call.coroutine is not None:
            return  # of an event loop: the thread that waited has come back
        if batch := self._batches.pop(call.thread, None):
            self._inbox.put_back(*batch)  # what of it was not run
        if self._workers > 1:
            self._handover.start_worker(self._work)
        else:
            self._handling = False
            self._handover.take_over()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def store_engine(
    host: Host,
    consumer: Consumer,
    *,
    source: StoreSource | None = None,
    coroutines: Coroutines | None = None,
    poll: float = IDLE_POLL,
    observe: Observer | None = None,
) -> Engine:
    """An engine for one consumer of a store, which lets an event that has begun come to its end."""
    return Engine(
        source or StoreSource(host, [consumer]),
        [consumer],
        host.clock,
        host.random,
        coroutines=coroutines or Coroutines(),
        claim_limit=host.config.event_claim_limit,
        poll=poll,
        grace=math.inf,
        max_conflicts=host.config.event_max_conflicts,
        max_abandoned=host.config.max_abandoned_threads,
        observe=observe,
    )
