"""The dispatch loop of a bus: takes events in a thread, and calls their subscribers on the event loop.

The thread is a worker of the durable queue: claims, leases, the count of attempts, a server that
is away are its business. A bus differs in that one failure is final.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ontologia.delivery.retry import Discard, Retry
from ontologia.errors import ConnectionLostError, LockContentionError, SessionClosedError
from ontologia.extensions import handling
from ontologia.extensions.handling import Handling
from ontologia.extensions.subscribers import Outcome, call_all
from ontologia.queues.current import delivered
from ontologia.queues.dispatch import EventHandler
from ontologia.queues.protocol import DomainEvent, EventDelivery, RetryPolicy
from ontologia.queues.store import StoreEventQueue
from ontologia.queues.worker import EventWorker
from ontologia.runtime.session import Session

if TYPE_CHECKING:
    from ontologia.extensions.bus import EventBus

log = logging.getLogger(__name__)
BATCH = 3
_LOOK = 1.0  # seconds between two looks whether the event loop is still there
_MOST_OUTCOMES = 1_000


class BusQueue(StoreEventQueue):
    """The events of a bus: claimed three at a time, each started when its turn comes.

    The lease of the event at hand is renewed as long as the process lives: whoever asks an agent
    may have to wait for minutes, and must not have his event taken away.
    """

    _kind = "bus"
    _batch = BATCH
    _keeps_running = True

    def __init__(self, session: Session, name: str, poll_interval: float) -> None:
        self._poll = poll_interval
        super().__init__(session, name)

    def begin(self) -> None:
        """Make sure that the bus is known, so that from now on nothing passes it by."""
        self._begun()

    def describe(self) -> str:
        """Which bus it is, and where."""
        return f"bus {self.group!r} in {self._session._store.uri}, {self._session.namespace!r}"

    def dequeue(self, batch_size: int, timeout_seconds: float) -> list[EventDelivery]:
        """The next event; [] when the poll interval is over, or when woken."""
        return super().dequeue(1, self._poll or timeout_seconds)


class _Interrupted(KeyboardInterrupt):
    """The event at hand is given back as if nobody had tried it."""


class Dispatch:
    """One run of a bus, from `start` to `stop`."""

    def __init__(self, bus: EventBus, poll_interval: float) -> None:
        self._bus = bus
        self._session = bus.session
        self._loop = asyncio.get_running_loop()
        self._pause = poll_interval
        self.queue = BusQueue(self._session, bus.name, poll_interval)
        self.registry = self
        self._policy = RetryPolicy(max_attempts=self._session.config.event_max_attempts)
        self._worker = EventWorker(self, retry_policy=self._policy)
        self._outcomes: dict[str, Outcome] = {}
        self._calling: asyncio.Task[Any] | None = None
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(
            target=self._dispatch_loop, name=f"ontologia-bus-{bus.name}", daemon=True
        )

    def begin(self) -> None:
        """Take the first events. Raises what keeps the bus from its store."""
        self.queue.begin()
        self._thread.start()

    # -- the end ----------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it begins no other event."""
        return self._stop.is_set()

    def give_up(self) -> None:
        """It could not begin."""
        self.stop()
        self.queue.close()

    def stop(self) -> None:
        """Begin no other event."""
        self._stop.set()
        self._worker.stop()
        self.queue.wake()

    async def wait_ended(self, grace: float) -> None:
        """Until the event at hand is done; after this time it is cancelled, and given back."""
        if await self._ends_within(grace):
            return
        if self._calling is not None:
            self._calling.cancel()  # the task itself: what it still has to clean up is waited for
        if not await self._ends_within(max(grace, _LOOK)):
            log.error("EventBus: a handler does not end although it was cancelled; left to itself")

    async def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    # -- in the thread ----------------------------------------------------------------------------

    def _dispatch_loop(self) -> None:
        try:
            while not self._stop.is_set():
                self._run_worker()
        finally:
            self.queue.close()
            with suppress(RuntimeError):  # the event loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._ended.set)

    def _run_worker(self) -> None:
        try:
            self._worker.run_forever()
        except _Interrupted:
            if self._loop.is_closed():
                self._stop.set()
            # Somebody cancels tasks that are not his own, or the event loop is about to end.
            self._stop.wait(_LOOK)
        except SessionClosedError:
            self._stop.set()  # whoever closed the session wants no more of it
        except Exception:
            log.exception("EventBus: the store failed; tried again in %g s", self._pause)
            self._stop.wait(self._pause)
        if not self._stop.is_set():
            self._worker = EventWorker(self, retry_policy=self._policy)
            if self._stop.is_set():
                self._worker.stop()  # it came in between, and met the other worker

    def get_event_handlers(self, name: str) -> Sequence[EventHandler]:
        """The one handler that the worker knows: it calls all subscribers."""
        return (self._deliver,)

    def _deliver(self, event: DomainEvent, env: Any) -> None:
        """Have the subscribers called, and say how the event ends by what is raised."""
        delivery = delivered.get()
        claim = None if delivery is None else delivery.claim
        assert claim is not None  # noqa: S101 - the worker has set it
        now = Handling(self._bus, claim)
        try:
            number = self._session._store.events.journal.number_of(now.event.id)
        except (ConnectionLostError, LockContentionError) as error:
            raise _Interrupted from error  # no word of a handler's: it is delivered again
        outcome = self._outcomes.pop(event.event_id, None) or Outcome()
        if now.claim.crashed:
            outcome = Outcome()
        self._await(self._call(now, number, outcome))
        self._judge(now, outcome)

    def _await(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Wait for what runs on the event loop, as long as there is one."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise _Interrupted from error
        while True:
            try:
                return future.result(_LOOK)
            except concurrent.futures.CancelledError:
                raise _Interrupted from None
            except TimeoutError:
                if self._loop.is_closed():
                    raise _Interrupted from None

    # -- on the event loop ------------------------------------------------------------------------

    async def _call(self, now: Handling, number: int, outcome: Outcome) -> None:
        if self._stop.is_set():
            raise asyncio.CancelledError
        self._calling = asyncio.current_task()
        handling.current.set(now)  # in the context of this task, and of those that it starts
        row = now.event
        subscriptions = self._bus.subscribers.of(row.type)
        if not subscriptions:
            log.debug("EventBus: event %s (%s) has no subscriber", number, row.type)
        try:
            await call_all(subscriptions, row, number, now.attempt, outcome)
        finally:
            now.ended = True
        for name, count in now.left_behind().items():
            log.warning("EventBus: %s queued %d objects and did not commit them", name, count)

    def _judge(self, now: Handling, outcome: Outcome) -> None:
        """Nothing if the event is done; Retry or Discard if it is not."""
        if outcome.again and now.attempt < self._policy.max_attempts:
            self._remember(now.event.id, outcome)
            raise Retry(outcome.error, after=self._delay(now.attempt, outcome))
        if outcome.error:
            raise Discard(outcome.error)

    def _remember(self, event_id: str, outcome: Outcome) -> None:
        self._outcomes[event_id] = outcome
        if len(self._outcomes) > _MOST_OUTCOMES:  # the oldest is tried again as a whole
            del self._outcomes[next(iter(self._outcomes))]

    def _delay(self, attempt: int, outcome: Outcome) -> float:
        """The longest wait that a handler asked for; else the backoff of the store."""
        wishes = [each.error.after_ms for each in outcome.again if isinstance(each.error, Retry)]
        backoff = self._session._store.events.policy.backoff
        return max(wishes, default=backoff.delay_ms(attempt, self._session._random.randint)) / 1000

    def health(self) -> dict[str, Any]:
        """What became of the events so far."""
        return self._worker.health_snapshot()
