"""`EventStore`, put together over a database: the public face of the event bus's storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.delivery.lineage import Lineage
from ontologia.delivery.retry import (
    Discard,
    Retry,
    describe_error,
    handler_policy,
    storable_text,
    traceback_text,
)
from ontologia.errors import (
    DefinitionError,
    IntegrityError,
    InvalidTypeError,
    InvalidValueError,
    LeaseExpiredError,
)
from ontologia.ids import Ids
from ontologia.schema.event import Event, event_class, event_of
from ontologia.store.database import Database, Tx
from ontologia.store.events import checks
from ontologia.store.events.activity import Activity
from ontologia.store.events.check import broken_rules
from ontologia.store.events.claims import Claims, Dialect
from ontologia.store.events.consumers import Consumers
from ontologia.store.events.journal import Journal
from ontologia.store.events.listings import Listings
from ontologia.store.events.log import EventLog, fire_time
from ontologia.store.events.operations import Operations
from ontologia.store.events.recovery import Recovery
from ontologia.store.events.retention import Retention
from ontologia.store.rows import Announcement, Claim, EventRow, Stored

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

log = logging.getLogger(__name__)
HANDLER_FAILURE = "handler failure"
_MOST_CLAIMED = 10_000


class SqlEventStore:
    """One database as an event store; `store.protocol.EventStore` says what each method promises.

    `log`, `claims`, `consumers`, `retention`, `operations`, `activity`, `listings`, `journal` and
    `recovery` are what the runtime works with; the methods here are for programs and operators.
    """

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        dialect: Dialect,
        *,
        config: OntologiaConfig,
        clock: Clock,
        random: Random,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock
        self._wake = wake
        self._retention = timedelta(milliseconds=config.event_retention_ms)
        self._keep_tracebacks = config.keep_tracebacks
        self.policy = handler_policy(config)
        ids = Ids(clock, random)
        self.log = EventLog(sql, dialect, clock, ids, config.max_payload_bytes)
        self.claims = Claims(database, sql, dialect, self.log, clock, ids, random.randint)
        self.consumers = Consumers(database, sql, self.claims, clock, config.session_ttl_ms)
        self.retention = Retention(database, sql, clock, config.session_ttl_ms)
        self.operations = Operations(database, sql, self.log, self.retention, clock)
        self.activity = Activity(database, sql, clock)
        self.listings = Listings(database, sql, clock, config.session_ttl_ms)
        self.journal = Journal(database, sql)
        self.recovery = Recovery(database, sql, self.claims, self.log, clock)

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Tx]:
        """A write transaction, for steps that belong together."""
        return self._database.write(durable=durable)

    def wake(self) -> None:
        """Tell the loops that wait on this store that there may be something to do."""
        self._wake()

    # -- the protocol -----------------------------------------------------------------------

    def enqueue(self, event: Event, namespace: str) -> None:
        if not isinstance(event, Event):
            raise TypeError(f"enqueue takes an event, got {event!r}")
        checks.name("namespace", namespace)
        row = self.log.given_row(event, namespace)
        if event.id is None:
            self.log.append([row])
        else:
            self._add_given(row)
        fill(event, row)
        self._wake()

    def _add_given(self, row: EventRow) -> None:
        try:
            with self._database.write() as tx:
                self.log.add(tx, [row])
        except IntegrityError as error:
            raise IntegrityError(
                f"there is an event {row.id} already; nothing was stored",
                hint="An event keeps the id it brings. Make a new instance, or set event.id = None.",
            ) from error

    def claim(
        self,
        namespace: str,
        handler_id: str,
        session_id: str,
        event_types: list[str],
        limit: int,
        lease_ms: int,
    ) -> list[Event]:
        if not event_types or limit <= 0:
            return []
        checks.name("namespace", namespace)
        checks.name("session_id", session_id)
        checks.lease_ms(lease_ms)
        limit = min(limit, _MOST_CLAIMED)
        classes = {each: _class_of(each) for each in event_types}
        consumer = self.consumers.register(namespace, handler_id, event_types)
        peek = self.claims.peek([consumer.id])
        if peek.gone:
            consumer = self.consumers.register(namespace, handler_id, event_types, afresh=True)
            peek = self.claims.peek([consumer.id])
        if consumer.id not in peek.claimable:
            return []
        claims = self.claims.claim(
            consumer,
            event_types,
            session_id=session_id,
            limit=limit,
            lease_ms=lease_ms,
            policy=self.policy,
        )
        events: list[Event] = []
        for claim in claims:
            event = self.decoded(claim, classes[claim.event.type])
            if event is not None:
                events.append(event)
        return events

    def decoded(self, claim: Claim, cls: type[Event]) -> Event | None:
        """The event of a claim; None if it cannot be read, and then it is buried."""
        try:
            return fill(event_of(cls, claim.event.payload), claim.event)
        except Exception as error:  # noqa: BLE001 - a validator of the user's may raise anything
            log.error(
                "event %s (%s) cannot be read as %s, a dead letter of %s now: %s",
                *(claim.event.id, claim.event.type, cls.__name__, claim.handler_id, error),
            )
            self.claims.release(
                claim.handler_id,
                claim.event.id,
                error=describe_error(error),
                policy=self.policy,
                token=claim.token,
                outcome="undecodable",
                final=True,
                traceback=self.traceback_of(error),
            )
            return None

    def traceback_of(self, error: BaseException) -> str | None:
        """The traceback to keep of a failed attempt; None if none are kept, or it has none to show.

        `Retry` and `Discard` are a decision of the handler, and their reason says all.
        """
        if not self._keep_tracebacks or isinstance(error, Retry | Discard):
            return None
        return traceback_text(error)

    def ack(
        self,
        handler_id: str,
        event_id: str,
        *,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        place = {"event_id": event_id, "handler_id": handler_id}
        with self._database.write() as tx:
            now = to_text(self._clock.now())
            whose = {"session_id": session_id, "token": lease_token, "now": now}
            held = tx.one(self._sql["lock_claim"], place | whose)
            if held is None:
                log.warning("%s no longer holds event %s; not acknowledged", handler_id, event_id)
                return
            ids = {"ids": codec.encode_checked([event_id]), "token": held[3], "now": now}
            tx.all(self._sql["ack"], {"handler_id": handler_id, **ids})

    def release(
        self,
        handler_id: str,
        event_id: str,
        *,
        error: str | None = None,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        verdict = self.claims.release(
            handler_id,
            event_id,
            error=storable_text(error or HANDLER_FAILURE),
            policy=self.policy,
            session_id=session_id,
            token=lease_token,
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
        for claim in self._held(handler_id, event_id, session_id, lease_token):
            self.claims.abandon([claim])
            self._wake()

    def renew(
        self,
        handler_id: str,
        event_id: str,
        *,
        lease_ms: int,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> bool:
        checks.lease_ms(lease_ms)
        held = self._held(handler_id, event_id, session_id, lease_token)
        return bool(held) and not self.claims.renew(held, lease_ms)

    def start(
        self,
        handler_id: str,
        event_id: str,
        *,
        lease_ms: int,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> bool:
        checks.lease_ms(lease_ms)
        held = self._held(handler_id, event_id, session_id, lease_token)
        if held:
            with self._database.write(durable=False) as tx:
                self.claims.start(tx, held, lease_ms)()
        return bool(held) and held[0].started

    def _held(
        self, handler_id: str, event_id: str, session_id: str | None, token: str | None
    ) -> list[Claim]:
        with self._database.read() as tx:
            place = {"event_id": event_id, "handler_id": handler_id}
            whose = {
                "session_id": session_id,
                "token": token,
                "now": to_text(self._clock.now()),
            }
            held = tx.one(self._sql["get_claim"], place | whose)
            event = self.log.get(tx, event_id)
        if held is None or event is None:
            return []
        attempts, _, _, lease_token, consumer_id, lease_until = held
        return [Claim(event, handler_id, consumer_id, lease_token, attempts, lease_until)]

    # -- sessions -----------------------------------------------------------------------------

    def register_session(self, session_id: str, namespace: str, metadata: dict[str, Any]) -> None:
        checks.name("session_id", session_id)
        checks.name("namespace", namespace)
        with self._database.write(durable=False) as tx:
            tx.run(
                self._sql["register_session"],
                {
                    "session_id": session_id,
                    "namespace": namespace,
                    "now": to_text(self._clock.now()),
                    "metadata": codec.encode(metadata, where="instance_metadata"),
                },
            )

    def heartbeat(self, session_id: str, consumers: Sequence[int] = ()) -> None:
        with self._database.write(durable=False) as tx:
            now = to_text(self._clock.now())
            tx.run(self._sql["heartbeat"], {"session_id": session_id, "now": now})
            if consumers:
                self.consumers.seen(tx, consumers)

    def end_session(self, session_id: str) -> None:
        """Write down that a session ended."""
        with self._database.write(durable=False) as tx:
            now = to_text(self._clock.now())
            tx.run(self._sql["end_session"], {"session_id": session_id, "now": now})

    # -- deferred events and schedules ------------------------------------------------------------

    def defer(
        self,
        event: Event,
        namespace: str,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> int | None:
        checks.name("namespace", namespace)
        fire_at = fire_time(self._clock.now(), delay=delay, at=at)
        if fire_at is None:
            raise InvalidValueError("defer takes delay= or at=")
        row = self.log.row(event, namespace, Lineage(), dedup_key=dedup_key)
        with self._database.write() as tx:
            [stored] = self.log.announce(tx, [Announcement(row, fire_at)])
        event.id = stored.id
        self._wake()
        return stored.deferred

    def announce(
        self,
        row: EventRow,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
    ) -> Stored:
        """Store a row made by `log`, now or for later; with a taken dedup_key, the first one's id."""
        fire_at = fire_time(self._clock.now(), delay=delay, at=at)
        with self._database.write() as tx:
            [stored] = self.log.announce(tx, [Announcement(row, fire_at)])
        self._wake()
        return stored

    def cancel_deferred(
        self,
        namespace: str,
        number: int,
        *,
        claim: Claim | None = None,
        source: str | None = None,
    ) -> bool:
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidTypeError(f"a deferred event has a number, got {number!r}")
        if not 0 < number < 2**63:
            return False
        with self._database.write() as tx:
            if claim is not None and not self.claims.check(tx, claim):
                raise LeaseExpiredError(claim.handler_id, claim.event.id)
            return self.log.cancel(tx, namespace, number, source)

    def holder_of(self, row: EventRow) -> str | None:
        """The id of the stored event that has this one's dedup_key."""
        place = {"namespace": row.namespace, "type": row.type, "key": row.dedup_key}
        rows = self._database.all(self._sql["get_dedup"], place)
        return rows[0][0] if rows else None

    # -- operators ----------------------------------------------------------------------------

    def list_namespaces(self) -> list[dict[str, Any]]:
        return self.listings.namespaces()

    def list_sessions(self, namespace: str) -> list[dict[str, Any]]:
        return self.listings.sessions(namespace)

    def list_events(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        return self.listings.events(namespace, checks.limit(limit))

    def list_dead_letters(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        return self.listings.dead_letters(namespace, checks.limit(limit))

    def list_consumers(self, namespace: str) -> list[dict[str, Any]]:
        return self.consumers.list(namespace)

    def inspect_event(self, event_id: str, namespace: str | None = None) -> dict[str, Any] | None:
        return self.listings.inspect(event_id, namespace)

    def replay_event(self, namespace: str, event_id: str) -> str | None:
        with self._database.write() as tx:
            new_id = self.log.replay(tx, namespace, event_id)
        if new_id is not None:
            self._wake()
        return new_id

    def cleanup_events(self, namespace: str, before: datetime | timedelta) -> int:
        return self.retention.cleanup(namespace, before)

    def collect_events(self, namespace: str, stop: Callable[[], bool] = lambda: False) -> int:
        return self.retention.collect(namespace, self._retention, stop)

    def pause(self, namespace: str, handler_id: str) -> bool:
        return self.consumers.pause(namespace, handler_id, paused=True)

    def resume(self, namespace: str, handler_id: str) -> bool:
        resumed = self.consumers.pause(namespace, handler_id, paused=False)
        self._wake()
        return resumed

    def forget(self, namespace: str, handler_id: str) -> bool:
        return self.consumers.forget(namespace, handler_id)

    def check(self) -> list[str]:
        return broken_rules(self._database, self._sql)


def fill(event: Event, row: EventRow) -> Event:
    """Give an event what the store knows of it."""
    values = vars(event)
    values["id"] = row.id
    values["created_at"] = row.created_at
    values["priority"] = row.priority
    values["root_event_id"] = row.root_event_id
    values["chain_depth"] = row.chain_depth
    return event


def _class_of(event_type: str) -> type[Event]:
    cls = event_class(event_type)
    if cls is None:
        raise DefinitionError(
            f"no event class in this process is stored as {event_type!r}; nothing was claimed",
            hint="Import the module that defines it.",
        )
    return cls
