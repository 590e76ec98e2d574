"""A queue in the store: durable, shared by any number of processes, one with everything else there.

A group of workers is one consumer, `worker:<group>`, of all events of the namespace: what is
enqueued here, and what sessions commit. Deliveries are claims of the event store, so a worker that
dies loses its lease, and with it the event, to another one.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from ontologia.clock import SystemClock, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.delivery.retry import Backoff, RetryPolicy, describe_error, storable_text
from ontologia.engine.consumer import Consumer
from ontologia.engine.engine import IDLE_POLL
from ontologia.engine.inbox import Inbox
from ontologia.engine.source import Failure, StoreSource
from ontologia.errors import (
    IntegrityError,
    SessionClosedError,
    UnknownReceiptError,
)
from ontologia.queues.protocol import DomainEvent, EventDelivery, check_dequeue, checked_seconds
from ontologia.queues.stored import event_of, row_of
from ontologia.runtime.session import Session, core_of
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done
from ontologia.store.events.store import HANDLER_FAILURE
from ontologia.store.rows import Announcement, Claim

log = logging.getLogger(__name__)
WORKERS = "worker:"
"""How the names of groups' consumers begin."""
_NEVER = 2**31 - 1
# The caller decides how often: nothing is dead-lettered unless that is asked for.
_POLICY = RetryPolicy(_NEVER, _NEVER, Backoff(0, 0, 0))
_LOOK = 0.005  # seconds between two looks whether the one that must be alone has ended


class StoreEventQueue:
    """The events of a session's namespace, for one group of workers.

    Each group is given every event once. The session stays the caller's; closing it closes the
    queue. Thread-safe. Of each batch the oldest delivery that has not ended is taken to be the one
    that is being handled: its lease is its own, and the others' are renewed.
    """

    provider_key = "store"

    def __init__(self, session: Session, group: str = "default") -> None:
        self.group = checks.name("group", group)
        self.consumer_name = f"{WORKERS}{group}"
        self._session = session
        self._core = core_of(session)
        self._events = self._core.store.events
        lease_ms = self._core.config.event_claim_lease_ms
        self._consumer = Consumer(self.consumer_name, [ALL_TYPES], _no_call, _POLICY, lease_ms)
        self._source = StoreSource(self._core, [self._consumer])
        self._inbox = Inbox([self._consumer], self._core.clock)
        self._flight: dict[str, tuple[Claim, list[Claim]]] = {}
        """By receipt: a delivery, and what has not ended of its batch."""
        self._ends = threading.Lock()  # of deliveries, and of what is left of their batches
        self._turn = threading.Lock()  # one thread at a time claims, and waits for the others
        self._closed = False
        self._core.on_close.append(self.close)

    @property
    def session(self) -> Session:
        """The session whose store has the events."""
        return self._session

    def describe(self) -> str:
        """Where the events are, and for whom."""
        return (
            f"store: {self._core.store.uri}, namespace {self._core.namespace!r}, "
            f"group {self.group!r}"
        )

    # -- events that come in ----------------------------------------------------------------------

    def enqueue(self, event: DomainEvent) -> None:
        """Store an event: one durable transaction. IntegrityError if its id is there already."""
        self.announce(self.announcement(event))

    def announcement(
        self, event: DomainEvent, *, fire_at: float | None = None, dedup_key: str | None = None
    ) -> Announcement:
        """The event as it is stored, for a unit of work that stores it in its own transaction.

        At the Unix time `fire_at`, if there is one; not again, if a retained event of its name has
        the `dedup_key`. InvalidValueError or EventLoopLimitError if it cannot be stored.
        """
        row = row_of(event, self._session)
        return Announcement(row._replace(dedup_key=dedup_key), fire_at)

    def announce(self, announcement: Announcement) -> None:
        """Store what `announcement` gave, in a durable transaction of its own."""
        self.check_open()
        try:
            with self._events.transaction() as tx:
                self._events.log.announce(tx, [announcement])
        except IntegrityError as error:
            raise IntegrityError(
                f"there is an event {announcement.row.id} already; nothing was stored",
                hint="An event is enqueued once. Build another one.",
            ) from error
        self._events.wake()

    # -- deliveries -------------------------------------------------------------------------------

    def dequeue(self, batch_size: int, timeout_seconds: float) -> list[EventDelivery]:
        """At most this many events, the oldest first; [] if none came within the time.

        First attempts come together; an event that was tried before comes alone. One soft
        transaction.
        """
        check_dequeue(batch_size, timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        if not self._turn.acquire(timeout=timeout_seconds):
            return []  # another thread of this process waits in the same place
        try:
            self.check_open()
            self._source.open(self._inbox, lambda: self._closed, lambda: math.inf)
            while True:
                batch = self._next(batch_size)
                left = deadline - time.monotonic()
                if batch or left <= 0:
                    return batch
                if not self._inbox.lacks(self._consumer):
                    # It must be alone, and waits for those in flight, whose end wakes nothing.
                    time.sleep(min(left, _LOOK))
                else:
                    self._wait(left)
                self.check_open()
        finally:
            self._turn.release()

    def _wait(self, seconds: float) -> None:
        """Until woken or until something is due, at most for this long in real time."""
        deadline = time.monotonic() + seconds
        due = self._source.due_in(IDLE_POLL)
        self._source.wait(
            min(seconds, due) if isinstance(self._core.clock, SystemClock) else due,
            lambda: self._closed or time.monotonic() >= deadline,
        )

    def _next(self, most: int) -> list[EventDelivery]:
        """The next batch; claimed, if nothing is left of what was before."""
        while True:
            if self._inbox.lacks(self._consumer):
                self._source.begin()
                if not self._source.claim(self._consumer, most, most):
                    return []
            taken = self._inbox.take(most)
            if taken is None:
                return []
            batch = taken[1]
            try:
                if not batch[0].started:
                    self._source.start(batch)
                if deliveries := self._deliver(batch):
                    return deliveries
            except BaseException:
                self._inbox.put_back(self._consumer, batch)
                raise

    def _deliver(self, batch: list[Claim]) -> list[EventDelivery]:
        now = to_text(self._core.clock.now())
        events: list[tuple[Claim, DomainEvent]] = []
        for claim in batch:
            event: DomainEvent | None = None
            if not claim.started or not lease_is_valid(claim.lease_until, now):
                log.warning("event %s: the lease of %s was lost", claim.event.id, claim.handler_id)
            else:
                event = decoded(self._source, self._consumer, claim)
            if event is None:
                self._inbox.end(claim)
            else:
                events.append((claim, event))
        batch = [claim for claim, _ in events]
        if not batch or not self._inbox.begin(batch[0]):
            return []
        deliveries: list[EventDelivery] = []
        with self._ends:
            for claim, event in events:
                receipt = f"{claim.event.id}:{claim.token}"
                self._flight[receipt] = (claim, batch)
                deliveries.append(EventDelivery(event, receipt, claim.attempts + 1))
        return deliveries

    # -- the end of a delivery --------------------------------------------------------------------

    def _get(self, receipt_handle: str) -> Claim:
        found = self._flight.get(receipt_handle)
        if found is None:
            raise UnknownReceiptError(receipt_handle)
        return found[0]

    def _end(self, receipt_handle: str) -> Claim:
        """It is in flight no more; the next of its batch is the one that is handled."""
        with self._ends:
            found = self._flight.pop(receipt_handle, None)
            if found is None:
                raise UnknownReceiptError(receipt_handle)
            claim, batch = found
            batch[:] = [each for each in batch if each is not claim]
            self._inbox.end(claim)
            if batch:
                self._inbox.begin(batch[0])
        return claim

    def claim_of(self, receipt_handle: str) -> Claim | None:
        """The claim of a delivery whose handling begins; what is written can be fenced by it.

        UnknownReceiptError if its lease has run out: another worker may have it.
        """
        claim = self._get(receipt_handle)
        if not self._is_held(claim):
            self._end(receipt_handle)
            raise UnknownReceiptError(receipt_handle)
        begin_at(claim, self._core.commits.last)
        return claim

    def _is_held(self, claim: Claim) -> bool:
        return lease_is_valid(claim.lease_until, to_text(self._core.clock.now()))

    def ack(self, receipt_handle: str) -> None:
        """It is done; written with the next claim, within 5 ms, or when the program ends.

        UnknownReceiptError if its lease has run out: it is delivered again.
        """
        claim = self._end(receipt_handle)
        if not self._is_held(claim):
            raise UnknownReceiptError(receipt_handle)
        self._source.ack(Done(claim))

    def nack(
        self, receipt_handle: str, *, retry_after_seconds: float, reason: str | None = None
    ) -> None:
        """It failed: it comes back after this time, as the next attempt. One soft transaction."""
        after_ms = checked_seconds("retry_after_seconds", retry_after_seconds) * 1000
        text = storable_text(reason or HANDLER_FAILURE)
        self._fail(receipt_handle, Failure(text, after_ms=after_ms))

    def dead_letter(self, receipt_handle: str, *, reason: str, tried: bool = True) -> None:
        """Dead-letter it with the reason, and emit `event.dead_letter`."""
        self._fail(receipt_handle, Failure(storable_text(reason), final=True, tried=tried))

    def _fail(self, receipt_handle: str, failure: Failure) -> None:
        claim = self._get(receipt_handle)
        self._ended(receipt_handle, self._source.fail(self._consumer, claim, failure) is not None)

    def abandon(self, receipt_handle: str) -> None:
        """It was not tried: it comes back at once, to its old place, as the same attempt."""
        claim = self._get(receipt_handle)
        self._ended(receipt_handle, bool(self._source.release([claim])))

    def _ended(self, receipt_handle: str, held: bool) -> None:
        """The end is written, and only now forgotten: if it was not, it can be tried again."""
        self._end(receipt_handle)
        if not held:
            raise UnknownReceiptError(receipt_handle)
        self._events.wake()  # it is there again, or a dead letter is

    # -- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write the acks, and release what was claimed and not delivered."""
        try:
            self._source.flush()
        finally:
            if self._source.release(self._inbox.withdraw()):
                self._events.wake()

    def close(self) -> None:
        """Write what is done, release the rest, and stop. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._events.wake()  # those who dequeue here, and the workers of this queue
        with self._turn:
            claims = [*self._inbox.close(), *self._inbox.running()]
            self._source.close(claims, lambda: True)
            self._flight.clear()
        self._core.on_close.remove(self.close)

    def check_open(self) -> None:
        """SessionClosedError if the queue, or its session, is closed."""
        if self._closed:
            raise SessionClosedError("the queue is closed", hint="Open another one.")
        self._core.check_open()


def _no_call(claim: Claim) -> None:
    raise NotImplementedError("deliveries of a queue are run by its caller")


def decoded(source: StoreSource, consumer: Consumer, claim: Claim) -> DomainEvent | None:
    """The event of a claim; None if it cannot be decoded, and then it is dead-lettered."""
    try:
        return event_of(claim.event)
    except ValueError as error:
        log.error("event %s cannot be decoded: %s", claim.event.id, error)
        failure = Failure(describe_error(error), outcome="undecodable", final=True)
        source.fail(consumer, claim, failure)
        return None


def begin_at(claim: Claim, commit_id: int) -> None:
    """Note that an attempt begins at this commit, if that is later than its start mark says."""
    if (claim.read_commit or 0) < commit_id:
        claim.read_commit, claim.moved = commit_id, True
