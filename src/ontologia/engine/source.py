"""Where an engine gets its claims from, and where it writes how they ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ontologia.delivery.retry import Verdict
from ontologia.engine.acks import Acks
from ontologia.engine.claimer import Claimer
from ontologia.engine.consumer import Consumer, Host
from ontologia.engine.inbox import Inbox
from ontologia.engine.maintenance import Maintenance
from ontologia.engine.outage import PASSING, Outage
from ontologia.errors import (
    ConnectionLostError,
    ConsumerBusyError,
    LockContentionError,
    OntologiaError,
    SessionClosedError,
)
from ontologia.store.events.consumers import Start
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

log = logging.getLogger(__name__)
_WHOLE = 1_000
_BEFORE_LAST_TRY = 0.2  # seconds


class Failure(NamedTuple):
    """How an attempt failed, as it is written."""

    text: str
    error: BaseException | None = None
    outcome: str = "failed"
    after_ms: float | None = None
    """The wait that was asked for; None for the backoff of the policy."""
    final: bool = False
    """Whether it is dead-lettered, whatever the number of attempts."""
    tried: bool = True
    """Whether it counts as an attempt."""
    lapsed: bool = False
    """Whether it is written also if the lease has ended, unless another session has the event."""


class Source(Protocol):
    """Events for some consumers: a store's, or those of a queue provider."""

    outage: Outage

    @property
    def active(self) -> Sequence[Consumer]:
        """The consumers that can claim now, in their order."""
        ...

    def open(self, inbox: Inbox, stopped: Callable[[], bool], look: Callable[[], float]) -> None:
        """Begin: from now on no event passes the consumers by. Idempotent.

        `look` ends what takes too long; it says in how many seconds to call it again.
        """
        ...

    def begin(self) -> None:
        """A pass over the consumers begins."""
        ...

    def claim(self, consumer: Consumer, limit: int, start: int) -> int:
        """Put up to `limit` events into the inbox, the first `start` of them started; how many."""
        ...

    def start(self, claims: Sequence[Claim]) -> None:
        """Start claims of one call; `started` says which are still held."""
        ...

    def ack(self, done: Done) -> None:
        """An attempt succeeded; written soon, with `flush` at the latest."""
        ...

    def fail(self, consumer: Consumer, claim: Claim, failure: Failure) -> Verdict | None:
        """An attempt failed: retry or dead-letter it; None if the lease was lost."""
        ...

    def release(self, claims: Sequence[Claim]) -> int:
        """Give claims back untried; how many were still held."""
        ...

    def run_again(self, claim: Claim) -> bool:
        """Start the same attempt anew, after a conflict; False if the lease was lost."""
        ...

    def flush(self) -> None:
        """Write all acks."""
        ...

    def due_in(self, longest: float) -> float:
        """Seconds until something comes due, at most `longest`."""
        ...

    def wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Wait for events, at most this long by the clock; whether there may be some."""
        ...

    def wake(self) -> None:
        """End the wait. Any thread may, and a signal handler."""
        ...

    def note_abandoned(self, threads: int) -> None:
        """Record, for operators, how many threads are stuck in consumers past their timeouts."""
        ...

    def close(self, claims: Sequence[Claim], hurry: Callable[[], bool]) -> BaseException | None:
        """Write all acks, release these claims and end; what kept it from doing so."""
        ...


class StoreSource:
    """The events of a session's namespace. Claims are for one thread at a time, ends for all."""

    def __init__(
        self,
        host: Host,
        consumers: Sequence[Consumer],
        *,
        start: Start = "retained",
        ends_session: bool = False,
        check_open: Callable[[], None] | None = None,
    ) -> None:
        """`check_open` raises SessionClosedError when the engine is to end."""
        self._host = host
        self._events = host.store.events
        self._consumers = consumers
        self._start: Start = start
        self._ends_session = ends_session
        self._check_open = check_open or host.check_open
        self.outage = Outage()
        self.acks = Acks(
            self._events,
            # What is processed as one batch is acked as one.
            host.config.ack_batch_size if not any(c.in_order for c in consumers) else _WHOLE,
        )
        self._landed = 0
        self._claimer = Claimer(host, self.outage, self._register)
        self._maintenance: Maintenance | None = None
        self._inbox: Inbox | None = None
        self._claiming = threading.Lock()
        """Held while the engine claims or waits: closing must not come in between."""
        self._closing = threading.Lock()
        self._closed = False
        self._ending = False
        """Whether the session is closing under the engine."""
        self.active: list[Consumer] = []
        """The consumers that are registered: all but those whose former name a live session runs."""
        self._waiting: set[str] = set()
        self._adopt_at: float | None = None

    # -- the beginning and the end ----------------------------------------------------------------

    def open(self, inbox: Inbox, stopped: Callable[[], bool], look: Callable[[], float]) -> None:
        """Write that the session runs the consumers, register them, and look after both."""
        if self._maintenance is not None:
            return
        if self._inbox is None:
            self._inbox = inbox
            self._host.running.extend(self._consumers)
        self._host.register_session()
        self._register()
        self.beat()
        maintenance = Maintenance(self._host, self, self._consumers, inbox, stopped, look)
        self.acks.nudge = maintenance.nudge
        maintenance.start()
        self._maintenance = maintenance
        self._host.on_close.append(self._session_closes)

    def _register(self, *, afresh: bool = True) -> None:
        """Register all consumers, or else those that wait until no session runs their former name."""
        waiting: set[str] = set()
        rows = self._claimer.rows
        for consumer in self._consumers:
            if consumer.name in rows and not afresh:
                continue
            try:
                rows[consumer.name] = self._events.consumers.register(
                    self._host.namespace,
                    consumer.name,
                    consumer.types,
                    session_id=self._host.session_id,
                    start=self._start,
                    afresh=True,
                    formerly=consumer.formerly,
                )
            except ConsumerBusyError as error:
                rows.pop(consumer.name, None)
                waiting.add(consumer.name)
                if consumer.name not in self._waiting:
                    log.warning(
                        "%s waits: live sessions still run it by its former name %s: %s",
                        *(consumer.name, error.name, ", ".join(error.sessions)),
                    )
        self._waiting = waiting
        every = self._host.config.session_heartbeat_interval_ms / 1000
        self._adopt_at = self._host.clock.monotonic() + every if waiting else None
        self.active = [each for each in self._consumers if each.name in rows]

    def close(self, claims: Sequence[Claim], hurry: Callable[[], bool]) -> BaseException | None:
        """Write all acks, release these claims and write that the consumers do not run any more.

        Idempotent; a second caller waits for the first.
        """
        with self._closing:
            if self._closed:
                return None
            self._closed = True
            return self._close(claims, hurry)

    def _close(self, claims: Sequence[Claim], hurry: Callable[[], bool]) -> BaseException | None:
        if self._maintenance is not None:
            self._maintenance.stop()
            self._host.on_close.remove(self._session_closes)
        fatal: BaseException | None = None
        try:
            for what, step in (
                ("acks", self.flush),
                ("claims", lambda: self.release(claims)),
                ("the end of the session", self._end),
            ):
                try:
                    self._insist(step, hurry)
                except OntologiaError as error:
                    log.error("%s could not be written at the end: %s", what, error)
                    gone = isinstance(error, ConnectionLostError)
                    if not gone or step != self._end:  # which no one would miss
                        fatal = fatal or error
                    if gone:
                        break  # the others would only wait for it, too
        finally:
            self._claimer.close()  # also if it is interrupted
        if self._maintenance is not None:
            self._events.wake()
        return fatal

    def _session_closes(self) -> None:
        """The session is closed under the engine: what runs can write nothing from here on."""
        self._ending = True
        self._claimer.wake()
        with self._claiming:  # the engine's thread has left the claimer, and finds it closed
            if self._inbox is not None:
                self.close([*self._inbox.close(), *self._inbox.running()], lambda: True)

    def _end(self) -> None:
        """Write that the session does not run these any more."""
        for consumer in self._consumers:
            if consumer in self._host.running:
                self._host.running.remove(consumer)
        if self._maintenance is None:
            return  # it was never opened
        if self._ends_session and not self._host.running:
            self._host.end_session()
        else:
            self._host.register_session()

    def _insist(self, step: Callable[[], object], hurry: Callable[[], bool]) -> None:
        """Do it; once more if only a connection was lost, and not the server."""
        try:
            step()
        except ConnectionLostError as error:
            self.outage.wait(error, hurry, _BEFORE_LAST_TRY)
            step()
        self.outage.over(wrote=True)  # also one that began just before the end

    # -- claims -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Fire schedules, adopt what can be adopted, and look again."""
        self._check_open()
        self._host.scheduler.fire_due()
        with self._claiming:
            self._check_usable()
            if self._adopt_at is not None and self._host.clock.monotonic() >= self._adopt_at:
                self._register(afresh=False)
            self._landed = self.acks.landed
            self._claimer.begin()

    def claim(self, consumer: Consumer, limit: int, start: int) -> int:
        """Put up to `limit` events into the inbox, the first `start` of them started; how many."""
        if self.acks.urgent():
            self.acks.flush()  # what it emitted may be for this one
            self._claimer.forget()
        with self._claiming:
            self._check_usable()
            claims = self._claimer.claim(consumer, limit, start)
            if claims and self._inbox is not None:
                self._inbox.add(consumer, claims)
        return len(claims)

    def _check_usable(self) -> None:
        if self._closed or self._ending:
            raise SessionClosedError("the session is closed", hint="Open another Session.")

    def start(self, claims: Sequence[Claim]) -> None:
        """Start claims of one call, with the acks that wait, in one soft transaction."""
        self.acks.flush(claims, claims[0].lease_ms)

    # -- ends -------------------------------------------------------------------------------------

    def ack(self, done: Done) -> None:
        """Written with the next transaction of the store, within 5 ms, or when the program ends."""
        if self._closed:
            log.warning(
                "event %s: %s was done after its session was closed; it is delivered again",
                *(done.claim.event.id, done.claim.handler_id),
            )
            return
        try:
            self.acks.add(done)
        except (LockContentionError, *PASSING) as error:
            log.warning("acks are written later: %s", error.args[0])

    def fail(self, consumer: Consumer, claim: Claim, failure: Failure) -> Verdict | None:
        """Retry the event later, or dead-letter it. One soft transaction."""
        verdict = self._events.claims.release(
            claim.handler_id,
            claim.event.id,
            error=failure.text,
            policy=consumer.policy,
            token=claim.token,
            after_ms=failure.after_ms,
            outcome=failure.outcome,
            final=failure.final,
            tried=failure.tried,
            claim=claim,
            lapsed=failure.lapsed,
            traceback=None if failure.error is None else self._events.traceback_of(failure.error),
        )
        if verdict is not None and verdict.buried:
            self._events.wake()  # of dead letters there is an event
        return verdict

    def release(self, claims: Sequence[Claim]) -> int:
        """Give claims back untried. One soft transaction."""
        return self._events.claims.abandon(claims) if claims else 0

    def run_again(self, claim: Claim) -> bool:
        """Count a conflict, and start the same attempt anew. One soft transaction."""
        return self._events.claims.run_again(claim)

    def flush(self) -> None:
        """Write all acks."""
        self.acks.flush()

    def note_abandoned(self, threads: int) -> None:
        """Record it in the row of the session."""
        self._host.instance["abandoned_threads"] = threads
        self._host.register_session()

    # -- maintenance ------------------------------------------------------------------------------

    def beat(self) -> None:
        """Write that the session, and what it runs, is alive."""
        ids = [row.id for row in list(self._claimer.rows.values())]  # the run adds to it
        self._events.heartbeat(self._host.session_id, ids)
        self.outage.over(wrote=True)

    def renew(self, claims: Sequence[Claim]) -> None:
        """Extend the leases of these claims. Those that do not run take one soft transaction.

        A running consumer may be committing, and its commit locks its claim and those it acks: its
        own claim is renewed alone, so that no two transactions wait for each other.
        """
        if waiting := [claim for claim in claims if not claim.renewed]:
            self._events.claims.renew(waiting)
        busy: LockContentionError | None = None
        for claim in claims:
            if not claim.renewed:
                continue
            try:
                self._events.claims.renew([claim])
            except LockContentionError as error:
                busy = error
        if busy is not None:
            raise busy

    def acks_due_in(self) -> float | None:
        """Seconds until acks should be written; None if there are none."""
        return self.acks.due_in()

    def collect(self, stopped: Callable[[], bool]) -> int:
        """Delete what is finished and past its retention; how many events."""
        return self._events.collect_events(self._host.namespace, stopped)

    # -- waiting ----------------------------------------------------------------------------------

    def due_in(self, longest: float) -> float:
        """Seconds until a claim, a schedule or an adoption is due, at most `longest`."""
        if self.acks.landed != self._landed:
            self._claimer.forget()  # what waited for the end of its lease does not any more
        if self._adopt_at is not None:
            longest = min(longest, max(0.0, self._adopt_at - self._host.clock.monotonic()))
        tick = self._host.scheduler.next_tick()
        if tick is not None:
            longest = min(longest, max(0.0, (tick - self._host.clock.now()).total_seconds()))
        with self._claiming:
            self._check_usable()
            return self._claimer.due_in(longest)

    def wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Wait until woken, stopped, or for this long by the session's clock; whether woken."""
        with self._claiming:
            self._check_usable()
            return self._claimer.wait(seconds, lambda: self._ending or stopped())

    def wake(self) -> None:
        """End the wait."""
        self._claimer.wake()
