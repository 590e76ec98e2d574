"""The worker: takes events from a queue and gives them to their handlers, until it is stopped."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from random import SystemRandom
from typing import Any, Protocol

from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia.config import OntologiaConfig
from ontologia.delivery import retry
from ontologia.delivery.retry import describe_error, storable_text
from ontologia.engine.consumer import Consumer
from ontologia.engine.coroutines import Coroutines
from ontologia.engine.engine import Engine, store_engine
from ontologia.engine.runner import GivenUp, Outcome
from ontologia.engine.source import StoreSource
from ontologia.errors import ConfigError, StateConflictError
from ontologia.queues.current import Delivered, delivering
from ontologia.queues.protocol import DomainEvent, EventQueue, RetryPolicy
from ontologia.queues.provider_source import QueueSource
from ontologia.queues.store import StoreEventQueue, begin_at, decoded
from ontologia.runtime.handler_engine import is_outdated
from ontologia.runtime.session import core_of
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

log = logging.getLogger(__name__)
_BATCH = 10
_TIMEOUT = 0.5  # seconds: a stop is noticed after that

EventHandler = Callable[[DomainEvent, Any], Any]


class HandlerRegistry(Protocol):
    """Who knows the handlers."""

    def get_event_handlers(self, name: str) -> Sequence[EventHandler]:
        """Those of an event, in the order in which they are to be called."""
        ...


class WorkerEnv(Protocol):
    """What a worker needs of an environment; handlers are given all of it."""

    @property
    def queue(self) -> EventQueue | None:
        """Where events are."""
        ...

    @property
    def registry(self) -> HandlerRegistry:
        """Who handles them."""
        ...


class Outbox(Protocol):
    """Carries events from a store to a queue, for environments that have one."""

    def start(self) -> None:
        """Begin to carry. Idempotent."""
        ...

    def flush(self) -> bool:
        """Wait until the queue has all that is committed, for some seconds; whether it has."""
        ...


class EventDispatcher:
    """Calls the handlers of an event, `def` or `async def`, one after the other."""

    def __init__(self) -> None:
        self.coroutines = Coroutines()

    def dispatch(self, event: DomainEvent, env: WorkerEnv) -> None:
        """Call each handler. The first that raises ends it: those after it are not called."""
        for handler in env.registry.get_event_handlers(event.name):
            result = handler(event, env)
            if result is not None and inspect.isawaitable(result):
                self.coroutines.run(result)

    def close(self, patience: float = 1.0) -> None:
        """End the event loop of coroutines, if there is one."""
        self.coroutines.close(patience)


class Health:
    """What became of the events of an engine so far."""

    def __init__(self) -> None:
        self.processed = self.succeeded = self.retried = self.dead_lettered = 0
        self._last_error: str | None = None
        self._last_event_at: datetime | None = None

    def observe(self, claim: Claim, outcome: Outcome, error: BaseException | None) -> None:
        """Count how an attempt ended."""
        if outcome == "released":
            return
        self.processed += 1
        self.succeeded += outcome == "done"
        self.retried += outcome == "retried"
        self.dead_lettered += outcome == "dead-lettered"
        self._last_event_at = SYSTEM_CLOCK.now()
        if error is not None:
            self._last_error = describe_error(error)

    def snapshot(self, *, running: bool) -> dict[str, Any]:
        """As `EventWorker.health_snapshot` gives it."""
        at = self._last_event_at
        return {
            "running": running,
            "processed": self.processed,
            "succeeded": self.succeeded,
            "retried": self.retried,
            "dead_lettered": self.dead_lettered,
            "last_error": self._last_error,
            "last_event_at": None if at is None else to_text(at),
        }


class EventWorker:
    """Handles the events of a queue, one at a time, in the thread that runs it.

    An event whose handlers all return is done. If one raises, the whole event is tried again after
    a while, all its handlers with it, so they should be able to do the same twice; after
    `max_attempts` it becomes a dead letter. After a StateConflictError it is handled again at once,
    and no attempt is counted. An event without handlers is done at once.
    """

    def __init__(
        self,
        env: WorkerEnv,
        *,
        queue: EventQueue | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        chosen = env.queue if queue is None else queue
        if chosen is None:
            raise ConfigError(
                "a worker needs a queue, and this environment has none",
                hint="Choose a provider with default_message_broker_provider, or give queue=.",
            )
        self._env = env
        self._queue = chosen
        self._policy = _policy(retry_policy or RetryPolicy())
        self._dispatcher = EventDispatcher()
        self._health = Health()
        self._stopped = False
        self._engine: Engine | None = None
        self._running = threading.Lock()

    def stop(self) -> None:
        """Let the current event come to its end, and start no other. Any thread may, and a signal.

        A worker that was stopped runs no more.
        """
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()

    def health_snapshot(self) -> dict[str, Any]:
        """What became of the events so far: `running`, `processed`, `succeeded`, `retried`,
        `dead_lettered`, `last_error`, and `last_event_at` as text.
        """
        return self._health.snapshot(running=self._running.locked())

    def run_forever(self) -> None:
        """Handle events until stopped: by `stop()` or, in the main thread, SIGINT or SIGTERM.

        A second signal interrupts the handler, and its event is released. A server that is
        away and a busy database are waited out; other errors of the queue are raised, and so is
        SchemaOutdatedError if the store was migrated to other types than the program's.
        """
        self._run(None)

    def run_until_empty(self) -> None:
        """Handle events until the queue has none to give; for tests, and for work by the calendar.

        What handlers emit is handled, too. What is for later (a retry, an event with a delay)
        is not waited for. It can be called again; signals, `stop()` and errors as in `run_forever`.
        """
        self._run(1)

    def _run(self, iterations: int | None) -> None:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this worker is running already; make another EventWorker")
        try:
            log.info("a worker handles events of %s", self._queue.describe())
            outbox = self._outbox()
            if outbox is not None:
                outbox.start()
            engine = self._engine = self._build(0 if iterations else _TIMEOUT)
            if self._stopped:
                engine.stop()
            engine.run(iterations)
            self._stopped = self._stopped or engine.told
        except BaseException:
            self._stopped = True
            raise
        finally:
            self._engine = None
            self._running.release()

    def _build(self, timeout: float) -> Engine:
        queue = self._queue
        return (
            self._store_engine(queue)
            if isinstance(queue, StoreEventQueue)
            else self._provider_engine(queue, timeout)
        )

    def _store_engine(self, queue: StoreEventQueue) -> Engine:
        queue.check_open()
        core = core_of(queue.session)

        def call(claim: Claim) -> Done | StateConflictError | None:
            event = decoded(source, consumer, claim)
            if event is None:
                return None
            begin_at(claim, core.commits.last)
            return self._attempt(claim, Delivered(event, claim.attempts + 1, claim, queue.session))

        consumer = Consumer(
            queue.consumer_name,
            [ALL_TYPES],
            call,
            self._policy,
            core.config.event_claim_lease_ms,
            reason=_reason,
            is_outdated=self._is_outdated,
        )
        source = StoreSource(core, [consumer], check_open=queue.check_open)
        return store_engine(
            core,
            consumer,
            source=source,
            coroutines=self._dispatcher.coroutines,
            observe=self._health.observe,
        )

    def _provider_engine(self, queue: EventQueue, timeout: float) -> Engine:
        def call(claim: Claim) -> Done | StateConflictError:
            event = source.event_of(claim)
            if claim.attempts >= self._policy.max_crashes:
                raise GivenUp(f"it was tried {claim.attempts} times, the last without an end")
            return self._attempt(claim, Delivered(event, claim.attempts + 1, None))

        consumer = Consumer(
            queue.provider_key,
            [ALL_TYPES],
            call,
            self._policy,
            math.inf,
            # Where one attempt is all there is, nothing must be counted that did not run.
            batch=_BATCH if self._policy.max_crashes > 1 else 1,
            reason=_reason,
            is_outdated=self._is_outdated,
        )
        outbox = self._outbox()
        settle = None if timeout or outbox is None else outbox.flush
        source = QueueSource(queue, consumer, timeout, settle)
        return Engine(
            source,
            [consumer],
            SYSTEM_CLOCK,
            SystemRandom(),
            coroutines=self._dispatcher.coroutines,
            grace=math.inf,
            max_conflicts=self._max_conflicts(),
            observe=self._health.observe,
        )

    def _outbox(self) -> Outbox | None:
        """What carries events from the environment's store to this queue, if something does."""
        found: Outbox | None = getattr(self._env, "outbox", None)
        return found if self._queue is self._env.queue else None

    def _max_conflicts(self) -> int:
        """As the session says in which the handlers' commands are carried out."""
        session = getattr(self._env, "session", None)
        config = OntologiaConfig() if session is None else core_of(session).config
        return config.event_max_conflicts

    def _is_outdated(self) -> bool:
        """Whether the types of the handlers' store, or of the queue's, are outdated."""
        sessions = (getattr(each, "session", None) for each in (self._env, self._queue))
        return any(is_outdated(each) for each in sessions if each is not None)

    def _attempt(self, claim: Claim, delivery: Delivered) -> Done | StateConflictError:
        """Call the handlers of an event; the conflict, if one of them had one."""
        try:
            self._call(delivery.event, delivery)
        except StateConflictError as conflict:
            return conflict
        return Done(claim)

    def _call(self, event: DomainEvent, delivery: Delivered) -> None:
        """Call the handlers of an event, for its tenant."""
        with delivering(delivery):
            self._dispatcher.dispatch(event, self._env)


def _policy(policy: RetryPolicy) -> retry.RetryPolicy:
    base, most = (
        math.ceil(each * 1000) for each in (policy.base_delay_seconds, policy.max_delay_seconds)
    )
    backoff = retry.Backoff(base, most, jitter_ms=0, first_exponent=0)
    return retry.RetryPolicy(policy.max_attempts, policy.max_attempts, backoff)


def _reason(error: BaseException) -> str:
    """Its own words; the name of the class where it has none, or cannot say them."""
    try:
        return storable_text(error) or describe_error(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide that the handler failed
        return describe_error(error)
