"""Acks, gathered: they go with the next transaction of the store, whatever that writes."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from ontologia.forking import in_forked_child
from ontologia.store.events.leases import NOTHING, Acking, Done, Settled
from ontologia.store.events.store import EventStore
from ontologia.store.protocol import Transaction
from ontologia.store.rows import Claim
from ontologia.store.writer import Posted

log = logging.getLogger(__name__)
GATHER = 0.005  # seconds an ack may wait for a transaction to go with
_FEW = 8
_LOOK = 0.05
_unwritten: set[Acks] = set()
"""Those that have something to write: a program that ends without closing them writes it at exit."""


class Acks(Posted):
    """Ends that are not written yet. Thread-safe."""

    def __init__(self, events: EventStore, batch_size: int) -> None:
        self._events = events
        self._batch_size = batch_size
        self.nudge: Callable[[], None] = lambda: None
        """Called when there is something to look after."""
        self._done: list[Done] = []
        self._flights: list[Acking] = []
        """What is part of transactions that have not ended."""
        self._riding: Acking | None = None
        """That of them that goes with a transaction of another request."""
        self._posted = False
        self._refused = False
        """Whether the last ride failed: until a flush succeeds nothing rides."""
        self._failed_rides = 0
        self.landed = 0
        """Number of times that some were written."""
        self._changed = threading.Condition()
        self._oldest = 0.0

    def add(self, done: Done) -> None:
        """Note that a handler succeeded; written when there are enough, or soon."""
        with self._changed:
            first = not self._done
            if first:
                self._oldest = time.monotonic()
                _unwritten.add(self)
            self._done.append(done)
            enough = len(self._done) >= self._batch_size
            self._post()
        if enough:
            self.flush()
        elif first:
            self.nudge()

    def _post(self) -> None:
        """Have them ride, one transaction at a time."""
        if not self._posted and self._riding is None and not self._refused:
            self._posted = True
            self._events.post(self)

    def due_in(self) -> float | None:
        """Seconds until they should be written; None if there are none."""
        with self._changed:
            return self._oldest + GATHER - time.monotonic() if self._done else None

    def urgent(self) -> bool:
        """Whether an event is not written yet that a handler announced, and may be claimable."""
        with self._changed:
            waiting = [*self._done, *(done for flight in self._flights for done in flight.done)]
            return any(done.announcements for done in waiting)

    def flush(self, starting: Sequence[Claim] = (), lease_ms: float = 0) -> bool:
        """Write what there is, and start these claims, in one soft transaction; whether there was any.

        When it returns, whatever was added before is written, by this thread or another.
        """
        with self._changed:
            others, failed = list(self._flights), self._failed_rides
        flight: Acking | None = None
        settled, written = NOTHING, False
        try:
            flight = self._take_off()
            wrote = bool(flight.done or starting)
            if wrote:
                settled = self._events.claims.settle(flight, starting, lease_ms)
            written = True
        finally:
            self._land(flight, written=written)
        self._tell(settled)
        with self._changed:
            self._refused = False
            while any(each in self._flights for each in others):
                self._changed.wait(_LOOK)
            again = self._done and self._failed_rides != failed
        return (self.flush() or wrote) if again else wrote

    def _take_off(self) -> Acking:
        """All that is not written yet, to be written by one transaction."""
        with self._changed:
            flight = self._events.claims.acking(self._done)
            self._flights.append(flight)
            self._done = []
            return flight

    def _land(self, flight: Acking | None, *, written: bool) -> None:
        """It is written, or else it is to be written again. Idempotent."""
        with self._changed:
            if flight is None or flight not in self._flights:
                return
            self._flights.remove(flight)
            self.landed += bool(written and flight.done)
            if not written:
                self._done[:0] = flight.done
            if not self._done and not self._flights:
                _unwritten.discard(self)
            self._oldest = time.monotonic()
            self._changed.notify_all()

    def _tell(self, settled: Settled) -> None:
        lost, announced = settled
        for claim in lost:
            log.warning(
                "event %s: %s was done after its lease had run out; it is delivered again. "
                "@on_event(..., lease=...), renew=True or ctx.renew() gives it longer",
                *(claim.event.id, claim.handler_id),
            )
        if announced:
            self._events.wake()

    # -- with a transaction of another request -------------------------------------------------

    def wants(self, durable: bool) -> bool:
        done = self._done
        if not durable and any(each.durable for each in done):
            return False  # they would make it a durable one
        # Of many small commits one takes the acks of several along.
        ripe = len(done) >= _FEW or time.monotonic() - self._oldest >= GATHER / 2
        return ripe or not durable

    def take(self) -> bool:
        with self._changed:
            self._posted = False
            if self._done:
                self._riding = self._take_off()
        return self._riding is not None

    def write(self, tx: Transaction) -> None:
        if self._riding is not None:
            self._riding.write(tx.tx)

    def ended(self, error: BaseException | None) -> None:
        flight = self._riding
        self._land(flight, written=error is None)
        with self._changed:
            self._riding, self._refused = None, error is not None
            self._failed_rides += error is not None
            if self._done:
                self._post()
        if error is not None:
            self.nudge()  # it rides no more: a flush writes it
        elif flight is not None:
            self._tell(flight.settled())


@contextmanager
def nothing_at_exit() -> Generator[None]:
    """Within it processes die that are only simulated: what they have not written is lost."""
    before = set(_unwritten)
    try:
        yield
    finally:
        _unwritten.intersection_update(before)


def _flush_at_exit() -> None:
    while _unwritten:
        try:
            _unwritten.pop().flush()
        except Exception as error:  # noqa: BLE001 - the others are written all the same
            log.error(
                "acknowledgements were not written at exit; their events are delivered again: %s",
                error,
            )


atexit.register(_flush_at_exit)
in_forked_child(_unwritten.clear)  # they are the parent's to write
