"""Where a queue in the store gets its events: one consumer of everything, claimed and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ontologia.clock import SystemClock
from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.errors import ConnectionLostError
from ontologia.queues.held import Pace
from ontologia.runtime.acks import Acks
from ontologia.runtime.outage import Outage
from ontologia.store.events.claims import ALL_TYPES, Peek
from ontologia.store.rows import Claim, Consumer

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_IDLE_POLL = 1.0  # seconds: wakes make it faster, polling makes it certain
_SLICE = 0.001  # seconds between two looks at a clock that does not go by itself
_SEEN_FOR = 0.02  # seconds
_RECENT = 60.0  # after a longer rest the line itself may be dead, which a look survives
_NEVER = 2**31 - 1
# How often is the worker's to say: here nothing is buried unless somebody asks for it.
POLICY = RetryPolicy(_NEVER, _NEVER, Backoff(0, 0, 0))


class Claiming:
    """Claims for one consumer. For one thread at a time, but for `wake`."""

    def __init__(
        self,
        session: Session,
        name: str,
        acks: Acks,
        outage: Outage,
        *,
        batch: int | None = None,
        poll: float | None = None,
    ) -> None:
        """With a `batch`, as many are claimed at a time and each is started when its turn comes."""
        self._session = session
        self._name = name
        self._acks = acks
        self._outage = outage
        self._batch = batch
        self._poll = _IDLE_POLL if poll is None else poll
        self._clock = session._clock
        self._events = session._store.events
        self._pace = Pace()
        self._seen: tuple[Peek, float] | None = None
        self._due = 0.0
        self._woken = False
        self._looked = 0.0
        self.consumers: dict[str, Consumer] = {}
        """The consumer, by its name."""
        self._say(runs=True)
        self._register()
        self._watch = session._store.watch()

    def _say(self, *, runs: bool) -> None:
        """Write down whether the session runs the consumer: nobody is to forget it then."""
        instance: dict[str, Any] = self._session._instance
        others = [name for name in instance.get("consumers", ()) if name != self._name]
        instance["consumers"] = [*others, self._name] if runs else others
        self._session._register()

    def _register(self) -> Consumer:
        consumer = self.consumers[self._name] = self._events.consumers.register(
            self._session.namespace,
            self._name,
            [ALL_TYPES],
            session_id=self._session.session_id,
            afresh=True,
        )
        return consumer

    def close(self) -> None:
        """Claim no more."""
        self._watch.close()
        self._say(runs=False)

    # -- claims -----------------------------------------------------------------------------------

    def claim(self, most: int) -> list[Claim]:
        """What there is for somebody who asks for `most`; more, where events are handled fast.

        What was done before is acknowledged by the same transaction.
        """
        seen, woken = self._seen_before(), self._woken
        self._woken = False
        if seen is None and woken and (claims := self._guess(most)):
            return claims
        peek, looked = seen or self._peek()
        self._due = self._next_due(peek)
        consumer = self.consumers[self._name]
        if consumer.id not in peek.claimable:
            return []
        claims, full = self._claim(consumer, most, peek)
        if full and not peek.fresh:
            self._seen = (peek, looked)
        return claims

    def _guess(self, most: int) -> list[Claim]:
        """Somebody woke us: where a claim costs what a look does, nobody looks first."""
        self._watch.settle()
        consumer = self.consumers[self._name]
        try:
            claims, _ = self._claim(consumer, most, Peek.guess(consumer.id))
        except ConnectionLostError:  # it may have died while nobody used it: a look finds out
            return []
        self._outage.over()
        self._due = 0.0  # nobody has looked: the next one to wait does
        return claims

    def _claim(self, consumer: Consumer, most: int, peek: Peek) -> tuple[list[Claim], bool]:
        """Whether there were as many as could be had tells that there are more."""
        limit = self._batch or self._pace.wanted(most, time.monotonic())
        started = limit if self._batch is None else 1
        claims = self._acks.claim(
            consumer,
            [ALL_TYPES],
            session_id=self._session.session_id,
            limit=limit,
            lease_ms=self._session.config.event_claim_lease_ms,
            policy=POLICY,
            peek=peek,
            start=started,
        )
        self._pace.claimed(len(claims), time.monotonic())
        return claims, len(claims) == limit

    def _seen_before(self) -> tuple[Peek, float] | None:
        """What was seen before a full claim still holds, for a while: there is more of it."""
        seen, self._seen = self._seen, None
        return seen if seen is not None and time.monotonic() - seen[1] < _SEEN_FOR else None

    def _peek(self) -> tuple[Peek, float]:
        self._watch.settle()
        looked = self._looked = time.monotonic()
        peek = self._events.claims.peek([self.consumers[self._name].id])
        self._outage.over()
        if peek.gone:  # somebody took this session for dead and forgot its consumer
            peek = self._events.claims.peek([self._register().id])
        return peek, looked

    # -- waiting ----------------------------------------------------------------------------------

    def _next_due(self, peek: Peek) -> float:
        """When, by the clock, there is something to look for, if nobody wakes us before."""
        return self._clock.monotonic() + peek.wait(self._clock.now(), self._poll)

    def wait(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Until woken or until something is due, at most for this long in real time."""
        deadline = time.monotonic() + seconds
        goes = isinstance(self._clock, SystemClock)
        while not stopped() and (left := deadline - time.monotonic()) > 0:
            until_due = self._due - self._clock.monotonic()
            # A clock that does not go by itself is looked at again and again: it may be moved.
            if until_due <= 0:
                return
            if self._watch.wait(min(left, until_due) if goes else _SLICE):
                self._woken = self._watch.told and time.monotonic() < self._looked + _RECENT
                return

    def wake(self) -> None:
        """End the wait. Any thread may."""
        self._watch.wake()
