"""The events of any queue provider, for an engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from ontologia.delivery.retry import Verdict
from ontologia.engine.consumer import Consumer
from ontologia.engine.inbox import Inbox
from ontologia.engine.outage import Outage
from ontologia.engine.source import Failure
from ontologia.errors import UnknownReceiptError
from ontologia.queues.protocol import CarefulQueue, DomainEvent, EventDelivery, EventQueue
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim, EventRow

log = logging.getLogger(__name__)
_NEVER = "9999"  # when leases end here: the provider says so when it is asked
_PRIORITY = 100


class QueueSource:
    """The events of a provider that is no store: in memory, or a broker's.

    A delivery is a claim whose token is its receipt. What the provider was not told within its own
    time it delivers again.
    """

    def __init__(
        self,
        queue: EventQueue,
        consumer: Consumer,
        timeout: float,
        settle: Callable[[], object] | None = None,
    ) -> None:
        """`timeout` is how long a claim waits for deliveries, in seconds.

        `settle` is called before a claim, and has the queue given what is on its way to it.
        """
        self._settle = settle
        self._queue = queue
        self._careful = queue if isinstance(queue, CarefulQueue) else None
        self.active = [consumer]
        self.outage = Outage("broker")
        self._timeout = timeout
        self._inbox: Inbox | None = None
        self._events: dict[str, DomainEvent] = {}

    def event_of(self, claim: Claim) -> DomainEvent:
        """The event of a claim."""
        return self._events[claim.token]

    def open(self, inbox: Inbox, stopped: Callable[[], bool], look: Callable[[], float]) -> None:
        """Put deliveries into this inbox; a provider needs to know no consumer."""
        self._inbox = inbox

    def note_abandoned(self, threads: int) -> None:
        """Nothing: deliveries of a provider have no timeouts."""

    def begin(self) -> None:
        """Nothing: a provider is asked by each claim."""

    def claim(self, consumer: Consumer, limit: int, start: int) -> int:
        """Put up to `limit` deliveries into the inbox; how many."""
        if self._settle is not None:
            self._settle()
        deliveries = self._queue.dequeue(limit, self._timeout)
        self.outage.over(wrote=bool(deliveries))
        if self._inbox is not None:
            self._inbox.add(consumer, [self._claim(each) for each in deliveries])
        return len(deliveries)

    def _claim(self, delivery: EventDelivery) -> Claim:
        event, receipt = delivery.event, delivery.receipt_handle
        self._events[receipt] = event
        row = EventRow(event.event_id, "", event.name, "", "", _PRIORITY, event.event_id, 0)
        attempts = delivery.attempt_number - 1
        claim = Claim(row, self.active[0].name, 0, receipt, attempts, _NEVER, started=True)
        claim.lease_ms = math.inf
        return claim

    def start(self, claims: Sequence[Claim]) -> None:
        """A delivery is started; so is one that was put back."""
        for claim in claims:
            claim.started = True

    # -- ends -------------------------------------------------------------------------------------

    def ack(self, done: Done) -> None:
        """Written by the provider, at once or soon."""
        self._end(done.claim, partial(self._queue.ack, done.claim.token))

    def fail(self, consumer: Consumer, claim: Claim, failure: Failure) -> Verdict | None:
        """Nack it, or dead-letter it; None if the provider has delivered it to another."""
        if not failure.tried and not failure.final:
            return Verdict(claim.attempts, buried=False) if self.release([claim]) else None
        attempts = claim.attempts + failure.tried
        final = failure.final or attempts >= consumer.policy.max_failures
        delay_ms = failure.after_ms
        if delay_ms is None:
            delay_ms = consumer.policy.backoff.delay_ms(attempts, lambda least, most: least)

        def write() -> None:
            if final and self._careful is not None:
                self._careful.dead_letter(claim.token, reason=failure.text, tried=failure.tried)
            elif final:
                self._queue.dead_letter(claim.token, reason=failure.text)
            elif self._careful is not None:
                self._careful.nack(
                    claim.token, retry_after_seconds=delay_ms / 1000, reason=failure.text
                )
            else:
                self._queue.nack(claim.token, retry_after_seconds=delay_ms / 1000)

        held = self._end(claim, write)
        return Verdict(attempts, final, 0 if final else delay_ms) if held else None

    def release(self, claims: Sequence[Claim]) -> int:
        """Give them back, where the provider can as the same attempt."""
        released, failed = 0, None
        for claim in claims:
            try:
                released += self._end(claim, partial(self._release, claim.token))
            except Exception as error:  # noqa: BLE001 - the others are released all the same
                failed = failed or error
        if failed is not None:
            raise failed
        return released

    def _release(self, receipt: str) -> None:
        if self._careful is not None:
            self._careful.abandon(receipt)
        else:
            self._queue.nack(receipt, retry_after_seconds=0)

    def _end(self, claim: Claim, write: Callable[[], object]) -> bool:
        """Write how it ended; whether it was still this one's."""
        try:
            write()
        except UnknownReceiptError:
            log.warning(
                "event %s (%s): its lease ran out; another worker may have it",
                *(claim.event.id, claim.event.type),
            )
            held = False
        else:
            held = True
        self._events.pop(claim.token, None)
        return held

    def run_again(self, claim: Claim) -> bool:
        """Always: nothing has to be written for it."""
        return True

    def flush(self) -> None:
        """Nothing: a provider writes each end itself."""

    # -- waiting ----------------------------------------------------------------------------------

    def due_in(self, longest: float) -> float:
        """The provider knows what is due."""
        return longest

    def wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Do not wait: a claim does."""
        return True

    def wake(self) -> None:
        """Nothing: a claim does not wait for long."""

    def close(self, claims: Sequence[Claim], hurry: Callable[[], bool]) -> BaseException | None:
        """Release these claims, and have the provider write what it has not yet."""
        try:
            self.release(claims)
        except Exception as error:  # noqa: BLE001 - raised by the engine
            return error
        finally:
            if self._careful is not None:
                self._careful.settle()
        return None
