"""`S3EventStore`: events, claims and dead letters in a bucket, without a second service."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from random import Random, SystemRandom
from typing import Any, NoReturn, Self

from ontologia.clock import SYSTEM_CLOCK, Clock
from ontologia.config import OntologiaConfig
from ontologia.delivery.retry import handler_policy, storable_text
from ontologia.errors import IntegrityError, InvalidValueError
from ontologia.ids import Ids
from ontologia.schema.event import Event
from ontologia.store.database import Tx
from ontologia.store.events import checks
from ontologia.store.events.decoding import Decoding, classes_of, fill
from ontologia.store.events.log import EventLog
from ontologia.store.rows import Claim, EventRow
from ontologia.store.s3.bucket import Bucket
from ontologia.store.s3.claims import Claims
from ontologia.store.s3.consumers import Consumers
from ontologia.store.s3.index import Index
from ontologia.store.s3.objects import Objects, Versioned
from ontologia.store.s3.operations import Operations
from ontologia.store.s3.sessions import Sessions

log = logging.getLogger(__name__)
HANDLER_FAILURE = "handler failure"
_MOST_CLAIMED = 10_000


class S3EventStore(Decoding):
    """An event store under `s3://bucket/prefix`, shared by all processes that open it.

    Claims are objects that are written on a condition, so that each event is one process's at a
    time, for each consumer. There are no transactions: what is stored here is not atomic with
    state in a database. `Session(uri, event_store="s3://bucket/prefix")` stores events with the
    state, and carries them here. Nor is there a deferred event here: those wait with the state.

    Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the clocks of all processes
    agree to within a small part of a lease. Thread-safe. Opening sends no request.
    """

    def __init__(
        self,
        uri: str,
        *,
        config: OntologiaConfig | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        config = config or OntologiaConfig()
        self.bucket = Bucket(uri)
        self._clock: Clock = clock or config.clock or SYSTEM_CLOCK
        chance = random or config.random or SystemRandom()
        ids = Ids(self._clock, chance)
        self._objects = Objects(self.bucket, self._clock, ids)
        self.log = EventLog({}, _NoTables(), self._clock, ids, config.max_payload_bytes)
        self.consumers = Consumers(self._objects)
        self.index = Index(self._objects)
        self.claims = Claims(self._objects, self.consumers, self.log, self.index, chance.randint)
        self.sessions = Sessions(self._objects, config.session_ttl_ms)
        self.operations = Operations(
            self._objects,
            self.consumers,
            self.claims,
            self.sessions,
            self.log,
            retention=timedelta(milliseconds=config.event_retention_ms),
            ttl_ms=config.session_ttl_ms,
        )
        self.policy = handler_policy(config)
        self.upgraders = {}
        self.keep_tracebacks = config.keep_tracebacks
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.bucket.uri

    def __repr__(self) -> str:
        return f"<S3EventStore {self.uri}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the index, and end the threads. Idempotent."""
        self.index.write(all_of_it=True)
        self._objects.close()

    def probe(self) -> None:
        """One request: StoreOpenError for a bucket or credentials that are wrong."""
        self.bucket.probe()

    # -- waking -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Tell the loops of this process that wait on this store that there may be an event."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def on_wake(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it with every wake; the function that comes back ends that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    # -- events -----------------------------------------------------------------------------------

    def enqueue(self, event: Event, namespace: str) -> None:
        """Store an event. An id, time and lineage it brings along are kept. Two requests.

        IntegrityError if the id exists with another content, InvalidValueError if it cannot be
        stored.
        """
        if not isinstance(event, Event):
            raise TypeError(f"enqueue takes an event, got {event!r}")
        checks.name("namespace", namespace)
        row = self.log.given_row(event, namespace)
        self.put(row)
        fill(event, row)

    def put(self, row: EventRow) -> None:
        """Store an event as a row has it. Idempotent: the same event again is no other.

        IntegrityError if there is another event of this id.
        """
        if not self._objects.put_event(row):
            raise IntegrityError(
                f"there is an event {row.id} already; nothing was stored",
                hint="An event keeps the id it brings. Make a new instance, or set event.id = None.",
            )
        self.wake()

    # -- claims -----------------------------------------------------------------------------------

    def claim(
        self,
        namespace: str,
        handler_id: str,
        session_id: str,
        event_types: list[str],
        limit: int,
        lease_ms: int,
    ) -> list[Event]:
        """Claim up to `limit` events, by priority and then age, for `lease_ms`.

        Registers the consumer `handler_id`, and its types, when this process sees it first. An
        event that cannot be read is dead-lettered and left out; one of a newer version of its class
        waits as after a failure. Types that a class had `formerly` are claimed with its own. Costs
        a listing of what is unfinished; if there is something to claim, one request more, and two
        for each event.
        """
        if not event_types or limit <= 0:
            return []
        checks.name("namespace", namespace)
        checks.name("session_id", session_id)
        checks.lease_ms(lease_ms)
        classes = classes_of(event_types)
        event_types = list(classes)
        claims = self._claim(namespace, handler_id, session_id, event_types, limit, lease_ms)
        if not claims and handler_id not in self.claims.snapshot_of(namespace).consumers:
            # Another process has forgotten it.
            self.consumers.register(namespace, handler_id, event_types, afresh=True)
            claims = self._claim(namespace, handler_id, session_id, event_types, limit, lease_ms)
        events = self._events_of(claims, classes)
        self.index.write()
        return events

    def _claim(
        self,
        namespace: str,
        handler_id: str,
        session_id: str,
        event_types: list[str],
        limit: int,
        lease_ms: int,
    ) -> list[Claim]:
        return self.claims.claim(
            self.consumers.register(namespace, handler_id, event_types),
            event_types,
            session_id=session_id,
            limit=min(limit, _MOST_CLAIMED),
            lease_ms=lease_ms,
            policy=self.policy,
        )

    def ack(
        self,
        handler_id: str,
        event_id: str,
        *,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """Mark the event as processed: it is never claimed for this handler again."""
        claim = self._held(handler_id, event_id, session_id, lease_token)
        if claim is not None:
            self.claims.snapshot(claim.event.namespace)  # who else is to finish it
        if claim is None or self.claims.acknowledge([claim]):
            log.warning("%s no longer holds event %s; not acknowledged", handler_id, event_id)
        self.index.write()

    def release(
        self,
        handler_id: str,
        event_id: str,
        *,
        error: str | None = None,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """End an attempt that failed: retry after the backoff, or dead-letter at `event_max_attempts`.

        The dead letter is written and `event.dead_letter` emitted soon after, whatever happens.
        """
        claim = self._held(handler_id, event_id, session_id, lease_token)
        verdict = claim and self.claims.release(
            handler_id,
            event_id,
            error=storable_text(error or HANDLER_FAILURE),
            policy=self.policy,
            claim=claim,
        )
        if verdict is None:
            log.warning("%s no longer holds event %s; not released", handler_id, event_id)

    def abandon(
        self,
        handler_id: str,
        event_id: str,
        *,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """Give the event back untried: it can be claimed at once, and no attempt is counted."""
        claim = self._held(handler_id, event_id, session_id, lease_token)
        if claim is not None:
            self.claims.abandon([claim])
            self.wake()

    def renew(
        self,
        handler_id: str,
        event_id: str,
        *,
        lease_ms: int,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> bool:
        """Extend the lease to `lease_ms` from now; False if it was lost."""
        checks.lease_ms(lease_ms)
        claim = self._held(handler_id, event_id, session_id, lease_token)
        return claim is not None and not self.claims.renew([claim], lease_ms)

    def start(
        self,
        handler_id: str,
        event_id: str,
        *,
        lease_ms: int,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> bool:
        """Mark that the attempt begins: from here on a lease that runs out counts as one.

        False if the lease was lost.
        """
        checks.lease_ms(lease_ms)
        claim = self._held(handler_id, event_id, session_id, lease_token)
        if claim is not None:
            self.claims.start([claim], lease_ms)
        return claim is not None and claim.started

    def _held(
        self, handler_id: str, event_id: str, session_id: str | None, token: str | None
    ) -> Claim | None:
        """The claim, as it is now; None if it is not held, or not theirs.

        An id is unique for each namespace alone. InvalidValueError if claims of several are meant.
        """
        held: list[Claim] = []
        for row in self.operations.find_all(event_id):
            claim = self._held_of(row, handler_id, session_id, token)
            if claim is not None:
                held.append(claim)
                if token is not None:
                    break
        if len(held) > 1:
            namespaces = ", ".join(claim.event.namespace for claim in held)
            raise InvalidValueError(
                f"{handler_id} holds an event {event_id} of each of the namespaces {namespaces}; "
                "nothing was written",
                hint="Say which by lease_token=, which inspect_event(id, namespace) shows.",
            )
        return held[0] if held else None

    def _held_of(
        self, row: EventRow, handler_id: str, session_id: str | None, token: str | None
    ) -> Claim | None:
        found: Versioned | None = self.claims.find(row, handler_id)
        if found is None or not found.doc.is_held(
            self.claims.now(), session_id=session_id, token=token
        ):
            return None
        doc = found.doc
        return Claim(
            row,
            handler_id,
            0,
            doc.token or "",
            doc.attempts,
            doc.lease_until,
            started=doc.started_at is not None,
            read_commit=doc.read_commit,
            outside=True,
        )

    # -- sessions ---------------------------------------------------------------------------------

    def register_session(self, session_id: str, namespace: str, metadata: dict[str, Any]) -> None:
        """Record a session. Idempotent: its start is kept when it is recorded again."""
        checks.name("session_id", session_id)
        checks.name("namespace", namespace)
        self.sessions.register(session_id, namespace, metadata)

    def heartbeat(self, session_id: str, consumers: Sequence[int] = ()) -> None:
        """Record that a session is alive, and that it runs these consumers.

        A session that this process has not registered is ignored.
        """
        self.sessions.heartbeat(session_id)
        if consumers:
            self.consumers.seen(consumers)

    def end_session(self, session_id: str) -> None:
        """Record that a session ended; only listings show it."""
        self.sessions.end(session_id)

    # -- operators --------------------------------------------------------------------------------

    def list_namespaces(self) -> list[dict[str, Any]]:
        """`namespace sessions pending unsubscribed dead_letters` of each."""
        return self.operations.counts()

    def list_sessions(self, namespace: str) -> list[dict[str, Any]]:
        """`session_id hostname pid started_at last_heartbeat stopped_at is_dead metadata`."""
        return self.sessions.list(namespace)

    def list_events(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        """`id type created_at priority status handler`, by priority and then age.

        Of the finished events the newest 1,000 are looked at.
        """
        return self.operations.events(namespace, checks.limit(limit))

    def list_dead_letters(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        """`event_id type handler attempts last_error failed_at`, the newest first."""
        return self.operations.dead_letters(namespace, checks.limit(limit))

    def list_consumers(self, namespace: str) -> list[dict[str, Any]]:
        """`name last_seen_at paused_at ready claimed backoff types`, by name."""
        return self.operations.consumers(namespace)

    def inspect_event(self, event_id: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One event with all its claims and failed attempts; None if there is none there."""
        return self.operations.inspect(event_id, namespace)

    def replay_event(self, namespace: str, event_id: str) -> str | None:
        """Store the event again as a new one, for all its consumers; the new id, None if unknown."""
        new_id = self.operations.replay(namespace, event_id)
        if new_id is not None:
            self.wake()
        return new_id

    def cleanup_events(self, namespace: str, before: datetime | timedelta) -> int:
        """Delete events from before then, finished or not, unless leased; how many."""
        return self.operations.cleanup(namespace, before)

    def collect_events(self, namespace: str, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete what is past its retention and every consumer has finished, or none has; how many.

        `stop` is asked between batches.
        """
        return self.operations.collect(namespace, stop)

    def pause(self, namespace: str, handler_id: str) -> bool:
        """Stop deliveries to a consumer until `resume`; False if there is none of that name."""
        return self.consumers.pause(namespace, handler_id, paused=True)

    def resume(self, namespace: str, handler_id: str) -> bool:
        """Resume deliveries to a consumer; False if there is none of that name."""
        resumed = self.consumers.pause(namespace, handler_id, paused=False)
        self.wake()
        return resumed

    def forget(self, namespace: str, handler_id: str) -> bool:
        """Remove a consumer and what waits for it; False if there is none of that name.

        ConsumerBusyError while a live session runs it.
        """
        return self.operations.forget(namespace, handler_id)

    def check(self) -> list[str]:
        """What breaks the rules of delivery, one line each; [] for a sound store."""
        return self.operations.check()


class _NoTables:
    """The log makes rows here, and stores none."""

    def add(self, tx: Tx, rows: Sequence[EventRow]) -> NoReturn:
        raise NotImplementedError("events of a bucket are put one by one")

    def append(self, rows: Iterable[Sequence[Any]]) -> NoReturn:
        raise NotImplementedError("events of a bucket are put one by one")
