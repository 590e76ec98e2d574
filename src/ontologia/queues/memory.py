"""A queue in the memory of one process, for development and tests. It dies with the process."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from ontologia.clock import SYSTEM_CLOCK, Clock, SystemClock
from ontologia.errors import SessionClosedError, UnknownReceiptError
from ontologia.queues.protocol import (
    DomainEvent,
    EventDelivery,
    check_dequeue,
    check_event,
    checked_seconds,
)

_SLICE = 0.001  # seconds between two looks at a clock that does not go by itself


class DeadLetter(NamedTuple):
    """An event that failed for good."""

    event: DomainEvent
    reason: str
    attempt_number: int
    """Of the last attempt."""


class InMemoryEventQueue:
    """Events in memory, for any number of threads. The clock says when a retry is due.

    There is no lease: a thread that dies keeps what it was given. `timeout_seconds` of `dequeue`
    is real time, whatever the clock.
    """

    provider_key = "inmemory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sleeping = 0
        self._closed = False
        self._numbers = count(1)
        self._prefix = secrets.token_hex(4)
        self._new: deque[DomainEvent] = deque()
        # By the number of the first delivery: whatever comes back is older than all that is new.
        self._flight: dict[str, tuple[int, EventDelivery]] = {}
        self._back: list[tuple[int, int, DomainEvent]] = []
        self._later: list[tuple[float, int, int, DomainEvent]] = []
        self._dead: list[DeadLetter] = []

    def enqueue(self, event: DomainEvent) -> None:
        """Add an event."""
        check_event(event)
        with self._lock:
            if self._closed:
                raise _closed()
            self._new.append(event)
            if self._sleeping:
                self._changed.notify()

    def dequeue(self, batch_size: int, timeout_seconds: float) -> list[EventDelivery]:
        """At most this many events, the oldest first; [] if none came within the time."""
        check_dequeue(batch_size, timeout_seconds)
        deadline: float | None = None
        with self._lock:
            while True:
                if self._closed:
                    raise _closed()
                batch = self._take(batch_size)
                if batch:
                    return batch
                now = time.monotonic()
                deadline = now + timeout_seconds if deadline is None else deadline
                if now >= deadline:
                    return []
                self._sleep(deadline - now)

    def _take(self, most: int) -> list[EventDelivery]:
        batch: list[EventDelivery] = []
        if self._later:
            self._return_due()
        while self._back and len(batch) < most:
            first, attempt, event = heappop(self._back)
            delivery = EventDelivery(event, f"{self._prefix}-{next(self._numbers)}", attempt)
            self._flight[delivery.receipt_handle] = (first, delivery)
            batch.append(delivery)
        for _ in range(min(most - len(batch), len(self._new))):
            number = next(self._numbers)
            handle = f"{self._prefix}-{number}"
            delivery = EventDelivery(self._new.popleft(), handle, 1)
            self._flight[handle] = (number, delivery)
            batch.append(delivery)
        return batch

    def _return_due(self) -> None:
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            heappush(self._back, heappop(self._later)[1:])

    def _sleep(self, seconds: float) -> None:
        """Until something changes or comes due, at most for this long."""
        if self._later:
            seconds = min(seconds, self._later[0][0] - self._clock.monotonic())
            if not isinstance(self._clock, SystemClock):
                seconds = _SLICE  # it may be moved
        self._sleeping += 1
        try:
            self._changed.wait(max(0.0, seconds))
        finally:
            self._sleeping -= 1

    # -- the end of a delivery --------------------------------------------------------------------

    def ack(self, receipt_handle: str) -> None:
        """It is done, and never comes back."""
        with self._lock:
            if self._flight.pop(receipt_handle, None) is None:
                raise UnknownReceiptError(receipt_handle)

    def nack(
        self, receipt_handle: str, *, retry_after_seconds: float, reason: str | None = None
    ) -> None:
        """It failed: it comes back after this time, as the next attempt."""
        checked_seconds("retry_after_seconds", retry_after_seconds)
        with self._lock:
            first, delivery = self._ended(receipt_handle)
            due = self._clock.monotonic() + retry_after_seconds
            heappush(self._later, (due, first, delivery.attempt_number + 1, delivery.event))
            self._changed.notify_all()

    def dead_letter(self, receipt_handle: str, *, reason: str, tried: bool = True) -> None:
        """It failed for good; `dead_letters` has it."""
        with self._lock:
            _, delivery = self._ended(receipt_handle)
            attempts = delivery.attempt_number if tried else delivery.attempt_number - 1
            self._dead.append(DeadLetter(delivery.event, reason, attempts))

    def abandon(self, receipt_handle: str) -> None:
        """It was not tried: it comes back at once, to its old place, as the same attempt."""
        with self._lock:
            first, delivery = self._ended(receipt_handle)
            heappush(self._back, (first, delivery.attempt_number, delivery.event))
            self._changed.notify_all()

    def _ended(self, receipt_handle: str) -> tuple[int, EventDelivery]:
        found = self._flight.pop(receipt_handle, None)
        if found is None:
            raise UnknownReceiptError(receipt_handle)
        return found

    # -- besides ----------------------------------------------------------------------------------

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """What failed for good, in the order in which it did."""
        with self._lock:
            return list(self._dead)

    def settle(self) -> None:
        """Nothing: an ack is written at once, and nothing is held that was not delivered."""

    def describe(self) -> str:
        """What there is, in numbers."""
        with self._lock:
            waiting, later = len(self._new) + len(self._back), len(self._later)
            flight, dead = len(self._flight), len(self._dead)
        return (
            f"inmemory: {waiting} waiting, {flight} in flight, {later} for later, "
            f"{dead} dead letters"
        )

    def close(self) -> None:
        """Take and give out nothing more; whoever waits is told."""
        with self._lock:
            self._closed = True
            self._flight.clear()
            self._changed.notify_all()


def _closed() -> SessionClosedError:
    return SessionClosedError("the queue is closed", hint="Open another one.")
