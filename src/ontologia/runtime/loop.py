"""The loop of `Session.run`: claim, run handlers, wait, until it is stopped.

A pass lets each handler, the most urgent first, claim and run what it can. Passes repeat until
nothing is claimable, which drains what handlers announce to each other; then the loop waits for a
wake, a due time or the poll interval. `max_events_per_iteration` ends an iteration early, and the
whole poll interval is slept then: that is the rate limit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from ontologia.clock import SystemClock, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.errors import (
    ConnectionLostError,
    ConsumerBusyError,
    LockContentionError,
    OntologiaError,
)
from ontologia.runtime.acks import Acks
from ontologia.runtime.coroutines import Coroutines
from ontologia.runtime.dispatch import Dispatcher
from ontologia.runtime.feed import LARGEST_GROUP, Feed
from ontologia.runtime.handlers import Handler
from ontologia.runtime.outage import PASSING, Outage
from ontologia.runtime.signals import stopping_on_signals
from ontologia.runtime.upkeep import Upkeep
from ontologia.store.database import Tx
from ontologia.store.events.claims import Peek
from ontologia.store.events.consumers import Start
from ontologia.store.rows import Claim, Consumer

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_IDLE_POLL = 1.0  # seconds: wakes make it faster, polling makes it certain
_SLICE = 0.001
_SEEN_FOR = 0.02  # seconds
_RECENT = 60.0
_TRY_AGAIN = 0.05  # seconds after the database was busy for longer than anybody waits
_NAMED = 10  # consumers in one line of the log
_LAST_WORDS = 1.0  # seconds a cancelled coroutine has to clean up


class Flag:
    """Set once, by any thread or signal handler: an Event has a lock, which those must not take."""

    __slots__ = ("_on",)

    def __init__(self) -> None:
        self._on = False

    def set(self) -> None:
        """From here on it is set."""
        self._on = True

    def is_set(self) -> bool:
        """Whether it was."""
        return self._on


class EventLoop:
    """One `run` of one session."""

    def __init__(
        self,
        session: Session,
        handlers: Sequence[Handler],
        *,
        workers: int,
        start: Start,
        on_chain_limit: Literal["raise", "log"] = "raise",
    ) -> None:
        self._session = session
        self._config = session.config
        self._clock = session._clock
        self._events = session._store.events
        self._handlers = handlers
        self._workers = workers
        self._start: Start = start
        self._stop = Flag()
        self._hurry = Flag()
        self._handling = False
        self._fatal: BaseException | None = None
        self._watch = session._store.watch()
        self._coroutines = Coroutines()
        self._acks = Acks(self._events.claims, self._config.ack_batch_size, self._events.wake)
        self._deliveries = {each.id: each.delivery(self._config) for each in handlers}
        self._feed = Feed(handlers, workers, self._deliveries)
        self._dispatcher = Dispatcher(
            session,
            self._acks,
            self._coroutines,
            self._stop.is_set,
            raise_at_limit=on_chain_limit == "raise",
        )
        self._consumers: dict[str, Consumer] = {}
        self._active: list[Handler] = []
        """Handlers that have a consumer: all but those whose old name somebody still runs."""
        self._waiting: set[str] = set()
        self._adopt_at: float | None = None
        self._seen: Peek | None = None
        self._looked = 0.0
        self._woken = False
        self._served: Handler | None = None
        self._stopped_at: float | None = None
        self._outage = Outage()
        self._upkeep = Upkeep(
            session,
            self._feed,
            self._acks,
            self._outage,
            self._consumers,
            self._stop.is_set,
            self._cancel_overdue,
            [each.lease_ms for each in self._deliveries.values()],
        )

    # -- from outside -----------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Start nothing more, let what runs come to its end. Any thread may, and a signal."""
        if not self._stop.is_set():
            self._stopped_at = self._clock.monotonic()
            self._stop.set()
        self._watch.wake()

    def hurry(self) -> bool:
        """Wait for nobody; whether a handler is running in the thread that runs the loop."""
        self._hurry.set()
        self.stop()
        return self._handling

    def run(self, max_iterations: int | None) -> None:
        """Run until stopped, or for this many iterations."""
        try:
            with stopping_on_signals(self.stop, self.hurry):
                self._register()
                try:
                    self._upkeep.start()
                    self._run(max_iterations)
                finally:
                    self._shut_down()
        finally:
            self._watch.close()
        if self._fatal is not None:
            raise self._fatal
        if self._hurry.is_set():
            raise KeyboardInterrupt

    # -- iterations ---------------------------------------------------------------------------

    def _run(self, max_iterations: int | None) -> None:
        threads = [
            threading.Thread(target=self._work, name=f"ontologia-worker-{n}", daemon=True)
            for n in range(self._workers if self._workers > 1 else 0)
        ]
        for thread in threads:
            thread.start()
        done = 0
        while not self._stop.is_set():
            soon = False
            try:
                limited, peek = self._iterate()
            except LockContentionError as error:  # others write for longer than we wait: it passes
                log.warning("the database is busy, and is tried again: %s", error.args[0])
                limited, peek, soon = False, None, True  # what woke the loop does not do so again
            except PASSING as error:
                self._outage.wait(error, self._stop.is_set)
                continue
            done += 1
            if max_iterations is not None and done >= max_iterations:
                self._feed.wait_empty(self._stop.is_set)
                self._insist(self._acks.flush)
                break
            self._wait(limited, peek, soon=soon, stepped=max_iterations is not None)

    def _iterate(self) -> tuple[bool, Peek | None]:
        """Passes until nothing is claimable; whether the limit ended it, and what is to come."""
        budget = self._config.max_events_per_iteration
        while not self._stop.is_set():
            self._session._scheduler.fire_due()
            if self._adopt_at is not None and self._clock.monotonic() >= self._adopt_at:
                self._register_consumers(afresh=False)
            quiet = self._feed.empty()  # asked first: what ends later may announce something
            claimed, peek = self._pass(budget)
            budget -= claimed
            if budget <= 0:
                self._acks.flush()
                return True, None
            if claimed or self._stop.is_set():
                continue
            peek = peek or self._peek()
            if quiet:
                return False, peek
            self._watch.wait(self._pause(peek))  # workers are busy: until one is free
        return False, None

    def _pass(self, budget: int) -> tuple[int, Peek | None]:
        """Let each handler claim once; how many events that were."""
        claimed = 0
        self._watch.settle()
        self._run_waiting()  # what a busy database kept from being run
        peek = self._seen_before()
        if self._woken and peek is None:
            claimed, peek = self._guess(budget)
        self._woken = False
        for handler in self._active:
            if self._stop.is_set() or claimed >= budget:
                break
            if not self._feed.lacks(handler):
                continue
            if self._acks.urgent():
                self._acks.flush()  # what it announced may be for this one
                peek = None
            peek = peek or self._peek()
            consumer = self._consumers[handler.id]
            if consumer.id not in peek.claimable:
                continue
            seen = peek
            if peek.fresh:
                peek = None  # the claim hands it out: look again for the next
            claims, full = self._claim(handler, consumer, seen, budget - claimed)
            if full and peek is not None:
                self._seen = peek
            if claims:
                claimed += len(claims)
                self._feed.add(handler, claims)
                self._run_waiting()
        if not claimed and self._acks.flush():
            peek = None  # what waited for the end of its lease does not any more
        return claimed, peek

    def _guess(self, budget: int) -> tuple[int, Peek | None]:
        """Somebody woke us: claim for whom it probably is, and look for the rest by the same stroke.

        That saves a message where each takes time. It is for the handler that was served last; if
        there is something for one that comes before it, nothing is claimed.
        """
        if not self._active:
            return 0, None
        served = self._served
        handler = served if served is not None and served in self._active else self._active[0]
        if not self._feed.lacks(handler) or self._acks.urgent():
            return 0, None
        consumer = self._consumers[handler.id]
        looking: list[Callable[[], Peek]] = []

        def look(tx: Tx) -> None:
            ids = [each.id for each in self._consumers.values()]
            looking[:] = [self._events.claims.look(tx, ids)]

        self._looked = self._clock.monotonic()
        first = takewhile(lambda each: each is not handler, self._active)
        guess = Peek.guess(consumer.id, [self._consumers[each.id].id for each in first])
        try:
            claims, _ = self._claim(handler, consumer, guess, budget, look)
        except ConnectionLostError:  # it may have died while nobody used it: a look finds out
            return 0, None
        self._outage.over()
        peek = looking[0]()
        if claims:
            self._feed.add(handler, claims)
            self._run_waiting()
        # It may have been long ago; and what is gone is to be registered again.
        return len(claims), None if claims or peek.gone else peek

    def _seen_before(self) -> Peek | None:
        """What was seen before a full claim still holds: there is more where that came from.

        Not for long: somebody may have announced something for a more urgent handler.
        """
        peek, self._seen = self._seen, None
        if peek is None or self._clock.monotonic() - self._looked > _SEEN_FOR:
            return None
        return peek

    def _peek(self) -> Peek:
        self._looked, self._seen = self._clock.monotonic(), None
        peek = self._events.claims.peek(each.id for each in self._consumers.values())
        self._outage.over()
        if peek.gone:  # somebody took this session for dead and forgot its consumers
            self._register_consumers()
            return self._events.claims.peek(each.id for each in self._consumers.values())
        return peek

    def _claim(
        self,
        handler: Handler,
        consumer: Consumer,
        peek: Peek,
        budget: int,
        after: Callable[[Tx], None] | None = None,
    ) -> tuple[list[Claim], bool]:
        """Claim, and acknowledge by the same transaction what was done before.

        Whether there were as many as could be had tells that there are more.
        """
        start = self._feed.group_size(handler)
        limit = self._feed.claim_size(handler, min(self._config.event_claim_limit, budget))
        if start == LARGEST_GROUP:
            limit = min(limit, start)  # so fast that all of it is started with the claim
        delivery = self._deliveries[handler.id]
        claims = self._acks.claim(
            consumer,
            [handler.event_type],
            session_id=self._session.session_id,
            limit=limit,
            lease_ms=delivery.lease_ms,
            policy=delivery.policy,
            peek=peek,
            start=start,
            after=after,
        )
        self._outage.over(wrote=True)
        if claims:
            self._served = handler
        return claims, len(claims) == limit

    # -- running handlers -----------------------------------------------------------------------

    def _run_waiting(self) -> None:
        """With one worker, the loop's own thread runs what was claimed."""
        if self._workers > 1:
            return
        while not self._stop.is_set() and (group := self._feed.take()) is not None:
            self._run_group(*group)

    def _work(self) -> None:
        """A worker thread: the next group of the most urgent handler, again and again."""
        while not self._stop.is_set():
            try:
                group = self._feed.take()
                if group is None:
                    self._acks.flush()  # before this thread sleeps
                    group = self._feed.take(block=True)
                if group is None:
                    return
                self._run_group(*group)
                if self._feed.lacks(group[0]):
                    self._acks.flush()
                    self._watch.wake()
            except LockContentionError as error:
                log.warning("the database is busy, and is tried again: %s", error.args[0])
            except PASSING as error:
                self._outage.wait(error, self._stop.is_set)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that runs
                self._fatal = self._fatal or error
                self.stop()
                return

    def _run_group(self, handler: Handler, group: list[Claim]) -> None:
        """Start a group, with what is to be acknowledged, in one transaction, and run it."""
        try:
            if not group[0].started:
                self._acks.flush(group, group[0].lease_ms)
            began = self._clock.monotonic()  # waiting for the database is not the handlers' time
            for claim in group:
                if not self._run_one(handler, claim, began):
                    return  # the run stops: what is left of the group is handed back
        except (LockContentionError, *PASSING):
            self._feed.put_back(handler, group)
            raise
        finally:
            self._feed.finish()
        self._feed.pace(handler, group, self._clock.monotonic() - began)

    def _run_one(self, handler: Handler, claim: Claim, began: float) -> bool:
        if not claim.started or not self._holds(claim, began):
            self._feed.end(claim)
            log.warning("event %s: the lease of %s was lost; skipped", claim.event.id, handler.id)
            return True
        if self._stop.is_set():
            return False
        renew_ms = self._deliveries[handler.id].renew_ms
        if renew_ms is not None:
            claim.renew_until = self._clock.monotonic() + renew_ms / 1000
        if not self._feed.begin(claim):
            return False
        self._handling = self._workers == 1
        try:
            self._dispatcher.attempt(handler, claim)
        finally:
            self._handling = False
            self._feed.end(claim)
        return True

    def _holds(self, claim: Claim, began: float) -> bool:
        """Whether the lease is valid; what was started a moment ago is not looked at again."""
        if (self._clock.monotonic() - began) * 2000 < claim.lease_ms:
            return True
        return lease_is_valid(claim.lease_until, to_text(self._clock.now()))

    # -- waiting ------------------------------------------------------------------------------

    def _wait(self, limited: bool, peek: Peek | None, *, soon: bool, stepped: bool) -> None:
        """Between iterations: the whole interval after the limit, else until there is work."""
        interval = self._config.event_poll_interval_ms / 1000
        seconds = interval if limited else self._pause(peek)
        seconds = min(seconds, _TRY_AGAIN) if soon else seconds
        waits = isinstance(self._clock, SystemClock)
        if stepped and not waits:
            self._clock.sleep(seconds)  # somebody plays the loop step by step
            return
        deadline = self._clock.monotonic() + seconds
        while not self._stop.is_set() and (left := deadline - self._clock.monotonic()) > 0:
            # A clock that does not go by itself is looked at again and again: it may be moved.
            step = left if waits else _SLICE
            if self._watch.wait(step) and not limited:
                # After a long rest the line itself may be dead, which a look survives.
                self._woken = self._watch.told and self._clock.monotonic() < self._looked + _RECENT
                return

    def _pause(self, peek: Peek | None) -> float:
        """Seconds until something is due, at most the poll interval."""
        longest = self._config.event_poll_interval_ms / 1000 or _IDLE_POLL
        now = self._clock.now()
        if self._adopt_at is not None:
            longest = min(longest, max(0.0, self._adopt_at - self._clock.monotonic()))
        tick = self._session._scheduler.next_tick()
        if tick is not None:
            longest = min(longest, max(0.0, (tick - now).total_seconds()))
        return longest if peek is None else peek.wait(now, longest)

    # -- the beginning and the end ------------------------------------------------------------------

    def _register(self) -> None:
        session = self._session
        names = [handler.id for handler in self._handlers]
        types = sorted({handler.event_type for handler in self._handlers})
        while True:  # all of it can be done again
            try:
                session._register(consumers=names, event_types=types)
                self._register_consumers()
                self._name_others(names)
                break
            except ConnectionLostError as error:
                if self._stop.is_set():
                    raise
                self._outage.wait(error, self._stop.is_set)
        session._scheduler.restart()
        number = len(self._handlers)
        log.info(
            "session %s runs %d handler%s", session.session_id, number, "" if number == 1 else "s"
        )

    def _name_others(self, names: list[str]) -> None:
        """Say which consumers of the namespace this program does not run, and what waits for them."""
        namespace = self._session.namespace
        others = sorted(self._events.consumers.others(namespace, names))
        if not others:
            return
        waiting = dict.fromkeys(others, 0)
        for row in self._events.activity.waiting(namespace):
            if row["handler"] in waiting:
                waiting[row["handler"]] += row["waiting"] + row["backoff"]
        said = [f"{name} ({waiting[name]:,} waiting)" for name in others[:_NAMED]]
        more = len(others) - len(said)
        log.info(
            "consumers of namespace %r that this program does not run: %s%s",
            *(namespace, ", ".join(said), f" and {more} more" if more else ""),
        )

    def _register_consumers(self, *, afresh: bool = True) -> None:
        """Register all handlers, or else those that wait until nobody runs their old name."""
        waiting: set[str] = set()
        for handler in self._handlers:
            if handler.id in self._consumers and not afresh:
                continue
            try:
                self._consumers[handler.id] = self._events.consumers.register(
                    self._session.namespace,
                    handler.id,
                    [handler.event_type],
                    session_id=self._session.session_id,
                    start=self._start,
                    afresh=True,
                    formerly=handler.formerly,
                )
            except ConsumerBusyError as error:
                self._consumers.pop(handler.id, None)
                waiting.add(handler.id)
                if handler.id not in self._waiting:
                    log.warning(
                        "%s waits: live sessions still run it by its former name %s: %s",
                        *(handler.id, error.name, ", ".join(error.sessions)),
                    )
        self._waiting = waiting
        every = self._config.session_heartbeat_interval_ms / 1000
        self._adopt_at = self._clock.monotonic() + every if waiting else None
        self._active = [each for each in self._handlers if each.id in self._consumers]

    def _shut_down(self) -> None:
        """Hand back what was not run, write what was, and say goodbye."""
        self.stop()
        waiting = self._feed.close()
        waiting += self._wind_down()
        self._upkeep.stop()
        for what, step in (
            ("acknowledgements", self._acks.flush),
            ("claims", lambda: waiting and self._events.claims.abandon(waiting)),
            ("the end of the session", self._session._end),
        ):
            try:
                self._insist(step)
            except OntologiaError as error:
                log.error("%s could not be written when the run ended: %s", what, error)
                gone = isinstance(error, ConnectionLostError)
                if not gone or step != self._session._end:  # which nobody would miss
                    self._fatal = self._fatal or error
                if gone:
                    break  # the others would only wait for it, too
        self._events.wake()

    def _insist(self, step: Callable[[], object]) -> None:
        """Do it; once more if only a connection was lost, and not the server."""
        try:
            step()
        except ConnectionLostError as error:
            self._outage.wait(error, self._hurry.is_set)
            step()
        self._outage.over(wrote=True)  # also one that began just before the end

    def _wind_down(self) -> list[Claim]:
        """Let running handlers come to their end; those that do not in time."""
        hurry = self._hurry.is_set
        self._feed.wait_quiet(self._config.shutdown_grace_ms / 1000, hurry)
        self._coroutines.close(0.1 if hurry() else _LAST_WORDS)
        if not self._feed.wait_quiet(_LAST_WORDS, hurry):
            # Their threads cannot be ended, but they can write nothing from here on.
            count = len(self._feed.running())
            log.warning("%d handlers are still running; their events are handed back", count)
        return self._feed.running()

    def _cancel_overdue(self) -> None:
        """Coroutines that are still running when the grace is over are cancelled."""
        if self._stopped_at is not None:
            waited = (self._clock.monotonic() - self._stopped_at) * 1000
            if waited >= self._config.shutdown_grace_ms:
                self._coroutines.cancel_all()
