"""The events of a bucket, for an engine; what its consumers emit goes to the session's database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ontologia.clock import SystemClock
from ontologia.delivery.retry import Verdict
from ontologia.engine.consumer import Consumer, Host
from ontologia.engine.inbox import Inbox
from ontologia.engine.maintenance import SCHEDULE_LOOK, Maintenance, Task
from ontologia.engine.outage import PASSING, Outage
from ontologia.engine.source import Failure
from ontologia.errors import ConnectionLostError, OntologiaError, SessionClosedError
from ontologia.store.events.consumers import Start
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim, ConsumerRow
from ontologia.store.s3 import S3EventStore
from ontologia.store.s3.claims import View
from ontologia.store.waker import Waker

log = logging.getLogger(__name__)
_GATHER = 0.02  # seconds an ack may wait for others
_SLICE = 0.02  # seconds between two looks at a manual clock


class BucketSource:
    """The events of a session's namespace in a bucket. Claims are for one thread, ends for all.

    An ack is preceded by a durable transaction in the database if its consumer emitted something:
    what was emitted is there before the event is done, and is stored again if the ack is lost.
    """

    def __init__(
        self, host: Host, events: S3EventStore, consumers: Sequence[Consumer], *, start: Start
    ) -> None:
        self._host = host
        self._events = events
        self._consumers = consumers
        self._start: Start = start
        self.active: list[Consumer] = list(consumers)
        self.outage = Outage()
        self._rows: dict[str, ConsumerRow] = {}
        self._view: View | None = None
        """What is unfinished, as this pass lists it."""
        self._inbox: Inbox | None = None
        self._waker = Waker()
        self._done: list[Done] = []
        self._oldest = 0.0
        self._adding = threading.Lock()
        self._flushing = threading.Lock()
        self._claiming = threading.Lock()
        """Held while the engine claims: closing must not come in between."""
        self._closing = threading.Lock()
        self._closed = False
        self._maintenance: Maintenance | None = None
        self._unlisten: Callable[[], None] = lambda: None

    # -- the beginning and the end ----------------------------------------------------------------

    def open(self, inbox: Inbox, stopped: Callable[[], bool], look: Callable[[], float]) -> None:
        """Register the consumers and the session in the bucket, and look after both."""
        if self._maintenance is not None:
            return
        if self._inbox is None:
            self._inbox = inbox
            self._host.running.extend(self._consumers)
        self._host.register_session()
        for consumer in self._consumers:
            self._register(consumer)
        self._register_session()
        self._unlisten = self._events.on_wake(self._waker.wake)
        # A heartbeat is paid for: three within the time after which a session counts as dead.
        config = self._host.config
        beat = max(config.session_heartbeat_interval_ms, config.session_ttl_ms / 3) / 1000
        self._maintenance = Maintenance(
            *(self._host, self, self._consumers, inbox, stopped, look),
            beat_seconds=beat,
            tasks=[Task("the index", SCHEDULE_LOOK, self._events.index.write)],
        )
        self._maintenance.start()
        self._host.on_close.append(self._session_closes)

    def _register(self, consumer: Consumer) -> None:
        self._rows[consumer.name] = self._events.consumers.register(
            self._host.namespace,
            consumer.name,
            consumer.types,
            session_id=self._host.session_id,
            start=self._start,
            afresh=True,
            formerly=consumer.formerly,
        )

    def _register_session(self) -> None:
        names = [each.name for each in self._consumers]
        metadata = {**self._host.instance, "consumers": names}
        self._events.register_session(self._host.session_id, self._host.namespace, metadata)

    def beat(self) -> None:
        """Write that the session, and what it runs, is alive."""
        ids = [row.id for row in list(self._rows.values())]
        self._events.heartbeat(self._host.session_id, ids)
        self._host.store.events.heartbeat(self._host.session_id)

    def renew(self, claims: Sequence[Claim]) -> None:
        """Extend the leases of these claims. One request each."""
        self._events.claims.renew(claims)

    def collect(self, stopped: Callable[[], bool]) -> int:
        """Delete what is finished and past its retention; how many events."""
        return self._events.collect_events(self._host.namespace, stopped)

    def _session_closes(self) -> None:
        """The session is closed under the engine: what runs can write nothing from here on."""
        self._waker.wake()
        with self._claiming:
            if self._inbox is not None:
                self.close([*self._inbox.close(), *self._inbox.running()], lambda: True)

    def close(self, claims: Sequence[Claim], hurry: Callable[[], bool]) -> BaseException | None:
        """Write all acks, release these claims and write that the session has ended. Idempotent."""
        with self._closing:
            if self._closed:
                return None
            self._closed = True
            return self._close(claims, hurry)

    def _close(self, claims: Sequence[Claim], hurry: Callable[[], bool]) -> BaseException | None:
        opened = self._maintenance is not None
        if hurry():
            self._events.bucket.hurry()
        if self._maintenance is not None:
            self._maintenance.stop()
            self._host.on_close.remove(self._session_closes)
        self._unlisten()
        fatal: BaseException | None = None
        steps: list[tuple[str, Callable[[], object]]] = [
            ("acks", self.flush),
            ("claims", lambda: self.release(claims)),
            ("the index", lambda: self._events.index.write(all_of_it=True)),
        ]
        if opened:
            steps.append(("the end of the session", self._end))
        for what, step in steps:
            try:
                step()
            except OntologiaError as error:
                log.error("%s could not be written at the end: %s", what, error)
                fatal = fatal or error
                if isinstance(error, ConnectionLostError):
                    break  # the others would only wait for it, too
        self._waker.close()
        return fatal

    def _end(self) -> None:
        for consumer in self._consumers:
            if consumer in self._host.running:
                self._host.running.remove(consumer)
        self._events.end_session(self._host.session_id)
        self._host.register_session()

    # -- claims -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Fire schedules, and list anew with the next claim."""
        self._host.check_open()
        self._host.scheduler.fire_due()
        self._view = None

    def claim(self, consumer: Consumer, limit: int, start: int) -> int:
        """Put up to `limit` events into the inbox, the first `start` of them started; how many."""
        with self._claiming:
            if self._closed:
                raise SessionClosedError("the session is closed", hint="Open another Session.")
            if self._view is None:
                self._view = self._events.claims.look(self._host.namespace)
            claims = self._events.claims.claim(
                self._rows[consumer.name],
                consumer.types,
                session_id=self._host.session_id,
                limit=limit,
                lease_ms=consumer.lease_ms,
                policy=consumer.policy,
                start=start,
                view=self._view,
            )
            self.outage.over(wrote=True)
            snapshot = self._events.claims.snapshot_of(self._host.namespace)
            if consumer.name not in snapshot.consumers:
                self._register(consumer)  # another process has forgotten it
                self._view = None
            if claims and self._inbox is not None:
                self._inbox.add(consumer, claims)
        return len(claims)

    def start(self, claims: Sequence[Claim]) -> None:
        """Start claims of one call, after the acks that wait. One request for each."""
        self.flush()
        self._events.claims.start(claims, claims[0].lease_ms)

    # -- ends -------------------------------------------------------------------------------------

    def ack(self, done: Done) -> None:
        """Written with others within 20 ms, or when there are enough."""
        if self._closed:
            log.warning(
                "event %s: %s was done after its session was closed; it is delivered again",
                *(done.claim.event.id, done.claim.handler_id),
            )
            return
        with self._adding:
            if not self._done:
                self._oldest = time.monotonic()
            self._done.append(done)
            enough = len(self._done) >= self._host.config.ack_batch_size
            first = len(self._done) == 1
        if enough:
            try:
                self.flush()
            except PASSING as error:
                log.warning("acks are written later: %s", error.args[0])
        elif first and self._maintenance is not None:
            self._maintenance.nudge()

    def acks_due_in(self) -> float | None:
        """Seconds until acks should be written; None if there are none."""
        with self._adding:
            return self._oldest + _GATHER - time.monotonic() if self._done else None

    def flush(self) -> None:
        """Write all acks, after what was emitted."""
        with self._flushing:
            with self._adding:
                done, self._done = self._done, []
            if not done:
                return
            try:
                done = self._emit(done)
                lost = self._events.claims.acknowledge([each.claim for each in done])
            except BaseException:
                with self._adding:
                    self._done[:0] = done
                    self._oldest = time.monotonic()
                raise
        for claim in lost:
            log.warning(
                "event %s: %s was done after its lease had run out; it is delivered again. "
                "@on_event(..., lease=...), renew=True or ctx.renew() gives it longer",
                *(claim.event.id, claim.handler_id),
            )
        self._events.index.write()

    def _emit(self, done: list[Done]) -> list[Done]:
        """Store what was emitted with the claims that are held; the same without it."""
        announced = [
            announcement
            for each in done
            if each.announcements and self._events.claims.holds(each.claim)
            for announcement in each.announcements
        ]
        if announced:
            store = self._host.store.events
            with store.transaction() as tx:  # a durable one: the acks are on no disk of ours
                store.log.announce(tx, announced)
            store.wake()
        return [each._replace(announcements=()) for each in done]

    def fail(self, consumer: Consumer, claim: Claim, failure: Failure) -> Verdict | None:
        """Retry the event later, or dead-letter it. Two requests, or a few more."""
        verdict = self._events.claims.release(
            claim.handler_id,
            claim.event.id,
            error=failure.text,
            policy=consumer.policy,
            after_ms=failure.after_ms,
            outcome=failure.outcome,
            final=failure.final,
            tried=failure.tried,
            lapsed=failure.lapsed,
            claim=claim,
            traceback=None if failure.error is None else self._events.traceback_of(failure.error),
        )
        if verdict is not None and verdict.buried:
            self._events.wake()  # of dead letters there is an event
        return verdict

    def release(self, claims: Sequence[Claim]) -> int:
        """Give claims back untried. Two requests each."""
        return self._events.claims.abandon(claims) if claims else 0

    def run_again(self, claim: Claim) -> bool:
        """Count a conflict, and start the same attempt anew. One request."""
        return self._events.claims.run_again(claim)

    def note_abandoned(self, threads: int) -> None:
        """Record it in the row of the session."""
        self._host.instance["abandoned_threads"] = threads
        self._host.register_session()

    # -- waiting ----------------------------------------------------------------------------------

    def due_in(self, longest: float) -> float:
        """Seconds until a claim or a schedule is due, at most `longest`."""
        tick = self._host.scheduler.next_tick()
        if tick is not None:
            longest = min(longest, max(0.0, (tick - self._host.clock.now()).total_seconds()))
        if self._view is None:
            return longest
        for consumer in self._consumers:
            due = self._events.claims.due_in(self._view, self._rows[consumer.name], consumer.types)
            longest = longest if due is None else min(longest, due)
        return longest

    def wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Wait until woken, stopped, or for this long by the session's clock; whether woken."""
        clock = self._host.clock
        deadline = clock.monotonic() + seconds
        goes = isinstance(clock, SystemClock)
        while not stopped() and not self._closed and (left := deadline - clock.monotonic()) > 0:
            if self._waker.wait(left if goes else _SLICE):
                return True
        return False

    def wake(self) -> None:
        """End the wait. Any thread may, and a signal handler."""
        self._waker.wake()
