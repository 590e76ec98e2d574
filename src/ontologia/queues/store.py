"""A queue in the store: durable, shared by any number of processes, one with everything else there.

A group of workers is one consumer, `worker:<group>`, of all events of the namespace: what is
enqueued here, and what sessions commit. Deliveries are claims of the event store, so a worker that
dies loses its lease, and with it the event, to another one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ontologia.clock import to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.delivery.retry import describe_error, storable_text
from ontologia.errors import (
    IntegrityError,
    LockContentionError,
    OntologiaError,
    SessionClosedError,
    UnknownReceiptError,
)
from ontologia.queues.claiming import POLICY, Claiming
from ontologia.queues.held import Held
from ontologia.queues.protocol import (
    DomainEvent,
    EventDelivery,
    check_dequeue,
    checked_seconds,
)
from ontologia.queues.stored import event_of, row_of
from ontologia.runtime.acks import Acks
from ontologia.runtime.outage import PASSING, Outage
from ontologia.runtime.upkeep import Upkeep
from ontologia.store.events import checks
from ontologia.store.events.leases import Done
from ontologia.store.events.store import HANDLER_FAILURE
from ontologia.store.rows import Announcement, Claim

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_LOOK = 0.005  # seconds between two looks whether the one that must be alone has ended


class StoreEventQueue:
    """The events of a session's namespace, for one group of workers.

    Each group is given every event once. The session stays the caller's; closing it closes the
    queue. Any thread may use it. Of each batch the oldest delivery that has not ended is taken to
    be the one that is being handled: its lease is its own, and the others' are renewed.
    """

    provider_key = "store"
    _kind = "worker"
    _batch: int | None = None
    """How many are claimed at a time; None for as many as are handled fast."""
    _poll: float | None = None
    """How long it waits for a wake before it looks again, in seconds."""
    _keeps_running = False
    """Whether the lease of the delivery that is being handled is renewed, too."""

    def __init__(self, session: Session, group: str = "default") -> None:
        self.group = checks.name("group", group)
        self._name = f"{self._kind}:{group}"
        self._session = session
        self._lease_ms = session.config.event_claim_lease_ms
        self._clock = session._clock
        self._events = session._store.events
        self._acks = Acks(self._events.claims, session.config.ack_batch_size, self._events.wake)
        self._held = Held(keeps_running=self._keeps_running)
        self._outage = Outage()
        self._turn = threading.Lock()  # one thread at a time looks and waits for the others
        self._closed = self._woken = False
        self._claiming: Claiming | None = None
        self._upkeep: Upkeep | None = None
        session._on_close.append(self.close)

    @property
    def session(self) -> Session:
        """The session whose store has the events."""
        return self._session

    def describe(self) -> str:
        """Where the events are, and for whom."""
        return (
            f"store: {self._session._store.uri}, namespace {self._session.namespace!r}, "
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
        self._check_open()
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
        transaction for up to 50 events, where they are handled fast.
        """
        check_dequeue(batch_size, timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        if not self._turn.acquire(timeout=timeout_seconds):
            return []  # another thread of this process waits in the same place
        try:
            claiming = self._begun()
            while True:
                batch = self._next(claiming, batch_size)
                left = deadline - time.monotonic()
                if batch or left <= 0 or self._woken:
                    self._woken = False
                    return batch
                if self._held.waiting():
                    # It must be alone, and waits for those in flight; of their end nobody is woken.
                    time.sleep(min(left, _LOOK))
                else:
                    claiming.wait(left, lambda: self._closed or self._woken)
                self._check_open()
        finally:
            self._turn.release()

    def wake(self) -> None:
        """End a wait in `dequeue`, or the next one: it returns, with nothing if there is nothing."""
        self._woken = True
        if self._claiming is not None:
            self._claiming.wake()

    def _begun(self) -> Claiming:
        """Make sure that the consumer is there, and looked after."""
        self._check_open()
        if self._claiming is None:
            self._claiming = Claiming(
                self._session,
                self._name,
                self._acks,
                self._outage,
                batch=self._batch,
                poll=self._poll,
            )
            self._upkeep = Upkeep(
                self._session,
                self._held,
                self._acks,
                self._outage,
                self._claiming.consumers,
                lambda: self._closed,
                lambda: None,
            )
            self._upkeep.start()
        return self._claiming

    def _next(self, claiming: Claiming, most: int) -> list[EventDelivery]:
        """What is to be handed out now; claimed, if nothing is left of what was before."""
        while True:
            if not self._held.waiting():
                claims = claiming.claim(most)
                if not claims:
                    return []
                self._held.add(claims)
            now = to_text(self._clock.now())
            group = self._held.group(most, now)
            if not group:
                return []
            if not group[0].started:
                self._acks.flush(group, self._lease_ms)
            batch = self._handed_out(group, now)
            if batch:
                return batch

    def _handed_out(self, group: Sequence[Claim], now: str) -> list[EventDelivery]:
        kept: list[Claim] = []
        events: list[DomainEvent] = []
        for claim in group:
            if not claim.started or not lease_is_valid(claim.lease_until, now):
                log.warning("event %s: the lease of %s was lost", claim.event.id, self._name)
                self._held.drop(claim)
            elif (event := self._decoded(claim)) is not None:
                kept.append(claim)
                events.append(event)
        receipts = self._held.hand_out(kept)
        return [
            EventDelivery(event, receipt, claim.attempts + 1)
            for event, receipt, claim in zip(events, receipts, kept, strict=True)
            if receipt is not None
        ]

    def _decoded(self, claim: Claim) -> DomainEvent | None:
        """The event of a claim; None if it cannot be read, and then it is buried."""
        try:
            return event_of(claim.event)
        except ValueError as error:
            log.error("event %s cannot be read: %s", claim.event.id, error)
            self._end(claim, describe_error(error), outcome="undecodable", final=True)
            self._held.drop(claim)
            return None

    # -- the end of a delivery --------------------------------------------------------------------

    def claim_of(self, receipt_handle: str) -> Claim | None:
        """The claim of a delivery whose handling begins; what is written can be fenced by it.

        UnknownReceiptError if its lease has run out: another worker may have it.
        """
        claim = self._held.get(receipt_handle)
        if not lease_is_valid(claim.lease_until, to_text(self._clock.now())):
            self._held.end(receipt_handle)
            raise UnknownReceiptError(receipt_handle)
        if not claim.moved and (claim.read_commit or 0) < self._session._commits.last:
            claim.read_commit, claim.moved = self._session._commits.last, True
        return claim

    def ack(self, receipt_handle: str) -> None:
        """It is done; written with the next claim, within 5 ms, or when the program ends.

        UnknownReceiptError if its lease has run out: it is delivered again.
        """
        claim = self._held.end(receipt_handle)
        if not lease_is_valid(claim.lease_until, to_text(self._clock.now())):
            raise UnknownReceiptError(receipt_handle)
        try:
            self._acks.add(Done(claim))
        except (LockContentionError, *PASSING) as error:
            log.warning("acknowledgements are written later: %s", error.args[0])

    def nack(
        self, receipt_handle: str, *, retry_after_seconds: float, reason: str | None = None
    ) -> None:
        """It failed: it comes back after this time, as the next attempt. One soft transaction."""
        after_ms = checked_seconds("retry_after_seconds", retry_after_seconds) * 1000
        claim = self._held.get(receipt_handle)
        held = self._end(claim, storable_text(reason or HANDLER_FAILURE), after_ms=after_ms)
        self._ended(receipt_handle, held)

    def dead_letter(self, receipt_handle: str, *, reason: str, tried: bool = True) -> None:
        """Dead-letter it with the reason, and emit `event.dead_letter`."""
        claim = self._held.get(receipt_handle)
        held = self._end(claim, storable_text(reason), final=True, tried=tried)
        self._ended(receipt_handle, held)

    def abandon(self, receipt_handle: str) -> None:
        """It was not tried: it comes back at once, to its old place, as the same attempt."""
        claim = self._held.get(receipt_handle)
        self._ended(receipt_handle, bool(self._events.claims.abandon([claim])))

    def _end(
        self,
        claim: Claim,
        error: str,
        *,
        after_ms: float = 0,
        outcome: str = "failed",
        final: bool = False,
        tried: bool = True,
    ) -> bool:
        """Write down an attempt that did not succeed; whether the claim was still held."""
        verdict = self._events.claims.release(
            claim.handler_id,
            claim.event.id,
            error=error,
            policy=POLICY,
            token=claim.token,
            after_ms=after_ms,
            outcome=outcome,
            final=final,
            tried=tried,
            claim=claim,
        )
        return verdict is not None

    def _ended(self, receipt_handle: str, held: bool) -> None:
        """The end is written, and only now forgotten: if it was not, it can be tried again."""
        self._held.end(receipt_handle)
        if not held:
            raise UnknownReceiptError(receipt_handle)
        self._events.wake()  # it is there again, or a dead letter is

    # -- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write the acknowledgements, and hand back what was claimed and given to nobody."""
        self._settle()

    def _settle(self, *, flying: bool = False) -> None:
        try:
            self._acks.flush()
        finally:
            given = self._held.give_back(flying=flying)
            if given:
                self._events.claims.abandon(given)
                self._events.wake()

    def close(self) -> None:
        """Write what is done, hand back the rest, and stop. Closing again is nothing."""
        if self._closed:
            return
        self._closed = True
        if self._claiming is not None:
            self._claiming.wake()
        with self._turn:
            if self._upkeep is not None:
                self._upkeep.stop()
            try:
                self._settle(flying=True)
                if self._claiming is not None:
                    self._claiming.close()
            except OntologiaError as error:
                log.error("not all was written when the queue was closed: %s", error)
        self._session._on_close.remove(self.close)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the queue is closed", hint="Open another one.")
        self._session._check_open()
