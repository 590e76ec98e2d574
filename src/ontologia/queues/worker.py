"""The worker: takes events from a queue and gives them to their handlers, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia.delivery.retry import Discard, Retry, describe_error, storable_text
from ontologia.errors import (
    ConfigError,
    EventLoopLimitError,
    LockContentionError,
    SchemaOutdatedError,
    UnknownReceiptError,
)
from ontologia.queues.current import (
    Delivered,
    delivered,
    reset_current_tenant_id,
    set_current_tenant_id,
)
from ontologia.queues.dispatch import EventDispatcher, WorkerEnv
from ontologia.queues.protocol import CarefulQueue, EventDelivery, EventQueue, RetryPolicy
from ontologia.runtime.dispatch import is_outdated
from ontologia.runtime.loop import Flag
from ontologia.runtime.outage import PASSING, Outage
from ontologia.runtime.signals import stopping_on_signals
from ontologia.store.rows import Claim

log = logging.getLogger(__name__)
_BATCH = 10
_TIMEOUT = 0.5


class EventWorker:
    """Handles the events of a queue, one at a time, in the thread that runs it.

    An event whose handlers all return is done. If one raises, the whole event is tried again after
    a while, all its handlers with it, so they should be able to do the same twice; after
    `max_attempts` it becomes a dead letter. An event without handlers is done at once.
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
        self._careful = chosen if isinstance(chosen, CarefulQueue) else None
        self._policy = retry_policy or RetryPolicy()
        # Where one attempt is all there is, nothing must be counted that did not run.
        self._batch = _BATCH if self._policy.max_attempts > 1 else 1
        self._dispatcher = EventDispatcher()
        self._outage = Outage()
        self._stop = Flag()
        self._handling = False
        self._running = threading.Lock()
        self._processed = self._succeeded = self._retried = self._dead_lettered = 0
        self._last_error: str | None = None
        self._last_event_at: datetime | None = None

    def stop(self) -> None:
        """Let the current event come to its end, and start no other. Any thread may, and a signal.

        A worker that was stopped runs no more.
        """
        self._stop.set()

    def health_snapshot(self) -> dict[str, Any]:
        """What became of the events so far: `running`, `processed`, `succeeded`, `retried`,
        `dead_lettered`, `last_error`, and `last_event_at` as text.
        """
        at = self._last_event_at
        return {
            "running": self._running.locked(),
            "processed": self._processed,
            "succeeded": self._succeeded,
            "retried": self._retried,
            "dead_lettered": self._dead_lettered,
            "last_error": self._last_error,
            "last_event_at": None if at is None else to_text(at),
        }

    def run_forever(self) -> None:
        """Handle events until stopped: by `stop()` or, in the main thread, SIGINT or SIGTERM.

        A second signal interrupts the handler, and its event is handed back. A server that is
        away and a busy database are waited out; other errors of the queue are raised, and so is
        SchemaOutdatedError if the store was migrated to other types than the program's.
        """
        with self._at_work():
            while not self._stop.is_set():
                self._handle_all(self._dequeue(_TIMEOUT) or ())

    def run_until_empty(self) -> None:
        """Handle events until the queue has none to give; for tests, and for work by the calendar.

        What handlers announce is handled, too. What is for later (a retry, an event with a delay)
        is not waited for. It can be called again; signals, `stop()` and errors as in `run_forever`.
        """
        with self._at_work():
            while not self._stop.is_set() and (batch := self._dequeue(0)) != []:
                self._handle_all(batch or ())

    @contextmanager
    def _at_work(self) -> Generator[None]:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this worker is running already; make another EventWorker")
        try:
            with stopping_on_signals(self.stop, self._interrupt):
                log.info("a worker handles events of %s", self._queue.describe())
                try:
                    yield
                except BaseException:
                    self.stop()
                    raise
                finally:
                    self._dispatcher.close()
                    if self._careful is not None:
                        self._insist(None, self._careful.settle)
        finally:
            self._running.release()

    def _interrupt(self) -> bool:
        """A second signal: whether a handler is running, which nothing else can end."""
        self.stop()
        return self._handling

    # -- deliveries -------------------------------------------------------------------------------

    def _dequeue(self, timeout: float) -> list[EventDelivery] | None:
        """What the queue gives; None if it could not be asked."""
        try:
            batch = self._queue.dequeue(self._batch, timeout)
        except LockContentionError as error:  # others write for longer than we wait: it passes
            log.warning("the database is busy, and is tried again: %s", error.args[0])
            return None
        except PASSING as error:
            self._outage.wait(error, self._stop.is_set)
            return None
        self._outage.over(wrote=bool(batch))
        return batch

    def _handle_all(self, batch: Sequence[EventDelivery]) -> None:
        begun = 0
        try:
            for delivery in batch:
                if self._stop.is_set():
                    break
                begun += 1
                self._handle(delivery)
        finally:
            for delivery in batch[begun:]:
                self._abandon(delivery)

    def _handle(self, delivery: EventDelivery) -> None:
        """One attempt. Raises only what must end the worker."""
        crashes = delivery.attempt_number - 1
        if crashes >= self._policy.max_attempts:
            reason = f"it was tried {crashes} times, the last without an end"
            self._processed += 1
            self._bury(delivery, reason, tried=False)
            return
        try:
            claim = (
                None if self._careful is None else self._careful.claim_of(delivery.receipt_handle)
            )
        except UnknownReceiptError:
            log.warning("%s: the lease was lost before its turn came; skipped", _what(delivery))
            return
        try:
            self._call(delivery, claim)
        except KeyboardInterrupt:
            self._abandon(delivery)
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the worker goes on
            self._failed(delivery, error)
        except BaseException as error:
            self._failed(delivery, error)  # one that always exits must not do so forever
            raise
        else:
            self._processed += 1
            self._succeeded += 1
            self._insist(delivery, lambda: self._queue.ack(delivery.receipt_handle))
        self._last_event_at = SYSTEM_CLOCK.now()

    def _call(self, delivery: EventDelivery, claim: Claim | None) -> None:
        event = delivery.event
        tenant = set_current_tenant_id(event.tenant_id)
        session = getattr(self._queue, "session", None)
        token = delivered.set(Delivered(event, delivery.attempt_number, claim, session))
        self._handling = True
        try:
            self._dispatcher.dispatch(event, self._env)
        finally:
            self._handling = False
            delivered.reset(token)
            reset_current_tenant_id(tenant)

    def _failed(self, delivery: EventDelivery, error: BaseException) -> None:
        """The attempt did not succeed: again later, or never."""
        if isinstance(error, SchemaOutdatedError) and self._is_outdated():
            # No fault of the event, and no attempt will be better: the program is of another time.
            self._abandon(delivery)
            error.add_note(f"{_what(delivery)} was interrupted, and is handed back")
            raise error
        self._processed += 1
        self._last_error = describe_error(error)
        final = isinstance(error, Discard | EventLoopLimitError)
        if final or delivery.attempt_number >= self._policy.max_attempts:
            self._bury(delivery, _reason(error), error)
            return
        if isinstance(error, Retry):
            delay, level = error.after_ms / 1000, logging.INFO
        else:
            delay = self._policy.compute_delay_seconds(delivery.attempt_number)
            level = logging.WARNING
        log.log(
            level,
            "%s failed, again in %.2f s: %s",
            *(_what(delivery), delay, self._last_error),
            exc_info=_traceback(error),
        )
        self._retried += 1
        self._insist(delivery, lambda: self._nack(delivery, delay))

    def _is_outdated(self) -> bool:
        """Whether it is the store of the handlers, or of the queue, that does not fit."""
        sessions = (getattr(each, "session", None) for each in (self._env, self._queue))
        return any(is_outdated(each) for each in sessions if each is not None)

    def _nack(self, delivery: EventDelivery, delay: float) -> None:
        if self._careful is None:
            self._queue.nack(delivery.receipt_handle, retry_after_seconds=delay)
        else:
            self._careful.nack(
                delivery.receipt_handle, retry_after_seconds=delay, reason=self._last_error
            )

    def _bury(
        self,
        delivery: EventDelivery,
        reason: str,
        error: BaseException | None = None,
        *,
        tried: bool = True,
    ) -> None:
        log.error(
            "%s failed for good: %s",
            *(_what(delivery), reason if error is None else describe_error(error)),
            exc_info=_traceback(error),
        )
        self._last_error = reason if error is None else describe_error(error)
        self._dead_lettered += 1

        def dead_letter() -> None:
            if self._careful is None:
                self._queue.dead_letter(delivery.receipt_handle, reason=reason)
            else:
                self._careful.dead_letter(delivery.receipt_handle, reason=reason, tried=tried)

        self._insist(delivery, dead_letter)

    def _abandon(self, delivery: EventDelivery) -> None:
        """Hand it back without counting an attempt, where the provider allows."""

        def hand_back() -> None:
            if self._careful is None:
                self._queue.nack(delivery.receipt_handle, retry_after_seconds=0)
            else:
                self._careful.abandon(delivery.receipt_handle)

        self._insist(delivery, hand_back)

    def _insist(self, delivery: EventDelivery | None, step: Callable[[], object]) -> None:
        """Have the queue write something down, however long it takes the database to be there.

        A worker that stops tries once more, and then leaves it to the lease.
        """
        while True:
            stopping = self._stop.is_set()
            try:
                step()
            except UnknownReceiptError:
                log.warning("%s: its lease ran out; another worker may have it", _what(delivery))
            except (LockContentionError, *PASSING) as error:
                if isinstance(error, PASSING):
                    self._outage.wait(error, self._stop.is_set)
                else:
                    log.warning("the database is busy, and is tried again: %s", error.args[0])
                if not stopping:
                    continue
                log.error("%s: its end was not written; it is delivered again", _what(delivery))
            return


def _what(delivery: EventDelivery | None) -> str:
    if delivery is None:
        return "the last events"
    event = delivery.event
    return f"event {event.event_id} ({event.name}), attempt {delivery.attempt_number}"


def _reason(error: BaseException) -> str:
    """Its own words; the name of the class where it has none, or cannot say them."""
    try:
        return storable_text(error) or describe_error(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide that the handler failed
        return describe_error(error)


def _traceback(error: BaseException | None) -> BaseException | None:
    return None if isinstance(error, Retry | Discard) else error
