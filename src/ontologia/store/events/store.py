"""The event store, put together over a database: the public face of the event bus's storage."""

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
from ontologia.delivery.retry import handler_policy, storable_text
from ontologia.errors import (
    IntegrityError,
    InvalidTypeError,
    InvalidValueError,
    LeaseExpiredError,
)
from ontologia.ids import Ids
from ontologia.schema.event import Event, former_types
from ontologia.store.database import Database, Tx
from ontologia.store.events import checks
from ontologia.store.events.activity import Activity
from ontologia.store.events.archives import Archives
from ontologia.store.events.backlog import Backlog
from ontologia.store.events.check import broken_rules
from ontologia.store.events.claims import Claims, Dialect
from ontologia.store.events.consumers import Consumers
from ontologia.store.events.decoding import Decoding, classes_of, fill
from ontologia.store.events.intakes import Intakes
from ontologia.store.events.journal import Journal
from ontologia.store.events.listings import Listings, described
from ontologia.store.events.log import EventLog, fire_time
from ontologia.store.events.operations import Operations
from ontologia.store.events.recovery import Recovery
from ontologia.store.events.retention import Retention
from ontologia.store.rows import Announcement, Claim, EventRow, Stored
from ontologia.store.writer import Posted, Request

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

log = logging.getLogger(__name__)
HANDLER_FAILURE = "handler failure"
_MOST_CLAIMED = 10_000


class EventStore(Decoding):
    """Where events are kept, claimed and ended: one class over every database.

    A claim is one event for one consumer, with a lease and a token. Whatever is done in its name
    changes nothing once the lease has run out or another session has the claim. Without
    `session_id` and `lease_token` a call means whoever holds it.

    `log`, `claims`, `consumers`, `retention`, `archives`, `operations`, `activity`, `backlog`,
    `listings`, `journal`, `intakes` and `recovery` are what the runtime works with; the methods here are for
    programs and operators.
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
        submit: Callable[[Request], None],
        post: Callable[[Posted], None],
    ) -> None:
        self.submit = submit
        """Have a request written, with what waits at the same time."""
        self.post = post
        """Have a request written by the next transaction; does not wait."""
        self._database = database
        self._sql = sql
        self._clock = clock
        self._wake = wake
        self._retention = timedelta(milliseconds=config.event_retention_ms)
        self.keep_tracebacks = config.keep_tracebacks
        self.policy = handler_policy(config)
        self.upgraders = {}
        ids = Ids(clock, random)
        self.log = EventLog(sql, dialect, clock, ids, config.max_payload_bytes)
        self.claims = Claims(database, sql, dialect, self.log, clock, ids, random.randint, submit)
        self.consumers = Consumers(database, sql, self.claims, clock, config.session_ttl_ms)
        self.retention = Retention(database, sql, clock, config.session_ttl_ms)
        self.operations = Operations(database, sql, self.log, self.retention, clock)
        self.activity = Activity(database, sql, clock)
        self.backlog = Backlog(database, sql, clock)
        self.listings = Listings(database, sql, clock, config.session_ttl_ms)
        self.journal = Journal(database, sql)
        self.intakes = Intakes(database, sql, self.log, clock, submit)
        self.archives = Archives(
            database,
            sql,
            self.retention,
            clock,
            event_retention=self._retention,
            wake=wake,
        )
        self.recovery = Recovery(database, sql, self.claims, self.log, clock)

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Tx]:
        """A write transaction, for steps that belong together."""
        return self._database.write(durable=durable)

    def wake(self) -> None:
        """Tell the loops that wait on this store that there may be something to do."""
        self._wake()

    # -- claims -----------------------------------------------------------------------------

    def enqueue(self, event: Event, namespace: str) -> None:
        """Store an event, durably. An id, time and lineage it brings along are kept.

        IntegrityError if the id exists, InvalidValueError if it cannot be stored.
        """
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
        """Claim up to `limit` events, by priority and then age, for `lease_ms`.

        Registers the consumer `handler_id`, and its types, when this process sees it first. An
        event that cannot be read is dead-lettered and left out; one of a newer version of its class
        waits as after a failure. Types that a class had `formerly` are claimed with its own. Costs
        what is new, due and claimed; with nothing to do, one read.
        """
        if not event_types or limit <= 0:
            return []
        checks.name("namespace", namespace)
        checks.name("session_id", session_id)
        checks.lease_ms(lease_ms)
        limit = min(limit, _MOST_CLAIMED)
        classes = classes_of(event_types)
        event_types = list(classes)
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
        return self._events_of(claims, classes)

    def ack(
        self,
        handler_id: str,
        event_id: str,
        *,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """Mark the event as processed: it is never claimed for this handler again."""
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
        """End an attempt that failed: retry after the backoff, or dead-letter at `event_max_attempts`.

        The dead letter is written and `event.dead_letter` emitted in the same transaction.
        """
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
        """Give the event back untried: it can be claimed at once, and no attempt is counted."""
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
        """Extend the lease to `lease_ms` from now; False if it was lost."""
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
        """Mark that the attempt begins: from here on a lease that runs out counts as one.

        False if the lease was lost.
        """
        checks.lease_ms(lease_ms)
        held = self._held(handler_id, event_id, session_id, lease_token)
        if held:
            self.claims.settle([], held, lease_ms)
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
        """Record a session. Idempotent: its start is kept when it is recorded again."""
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
        """Record that a session is alive, and that it runs these consumers.

        A session that was not registered is ignored.
        """
        with self._database.write(durable=False) as tx:
            now = to_text(self._clock.now())
            tx.run(self._sql["heartbeat"], {"session_id": session_id, "now": now})
            if consumers:
                self.consumers.seen(tx, consumers)

    def end_session(self, session_id: str) -> None:
        """Write down that a session ended; only listings show it, so it waits half a second."""
        with self._database.write(durable=False, hurry=True) as tx:
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
        """Store an event for later; its number, or None if `dedup_key` was taken."""
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
        """Cancel a deferred event; False if it fired, was cancelled or never was.

        With `source`, only one of that source. LeaseExpiredError if `claim` is not held.
        """
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
        for event_type in (row.type, *former_types(row.type)):
            place = {"namespace": row.namespace, "type": event_type, "key": row.dedup_key}
            rows = self._database.all(self._sql["get_dedup"], place)
            if rows:
                return str(rows[0][0])
        return None

    # -- operators ----------------------------------------------------------------------------

    def list_namespaces(self) -> list[dict[str, Any]]:
        """`namespace sessions pending unsubscribed dead_letters` of each; counts all retained events."""
        return self.listings.namespaces()

    def list_sessions(self, namespace: str) -> list[dict[str, Any]]:
        """`session_id hostname pid started_at last_heartbeat stopped_at is_dead metadata`."""
        return self.listings.sessions(namespace)

    def list_events(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        """`id type created_at priority status handler`, by priority and then age."""
        return self.listings.events(namespace, checks.limit(limit))

    def list_dead_letters(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        """`event_id type handler attempts last_error failed_at`, the newest first."""
        return self.listings.dead_letters(namespace, checks.limit(limit))

    def list_consumers(self, namespace: str) -> list[dict[str, Any]]:
        """`name last_seen_at paused_at ready claimed backoff types`, by name."""
        return self.consumers.list(namespace)

    def inspect_event(self, event_id: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One event with all its claims and failed attempts; None if there is none there.

        One that is not retained is looked up in the archive that `archive_uri` names; `archived` is
        that URI then.
        """
        found = self.listings.inspect(event_id, namespace)
        if found is not None:
            return found
        archived = self.archives.find(event_id, namespace)
        if archived is None:
            return None
        claims = [claim[1:] for claim in archived.claims]
        attempts = [attempt[1:] for attempt in archived.attempts]
        return described(archived.row, claims, attempts) | {"archived": self.archives.uri}

    def replay_event(self, namespace: str, event_id: str) -> str | None:
        """Store the event again as a new one, for all its consumers; the new id, None if unknown."""
        with self._database.write() as tx:
            new_id = self.log.replay(tx, namespace, event_id)
        if new_id is not None:
            self._wake()
        return new_id

    def cleanup_events(self, namespace: str, before: datetime | timedelta) -> int:
        """Delete events from before then, finished or not, unless leased; how many."""
        return self.retention.cleanup(namespace, before)

    def collect_events(self, namespace: str, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete what is past its retention and every consumer has finished, or none has; how many.

        `stop` is asked between batches.
        """
        return self.retention.collect(namespace, self._retention, stop)

    def pause(self, namespace: str, handler_id: str) -> bool:
        """Stop deliveries to a consumer until `resume`; False if there is none of that name."""
        return self.consumers.pause(namespace, handler_id, paused=True)

    def resume(self, namespace: str, handler_id: str) -> bool:
        """Resume deliveries to a consumer; False if there is none of that name."""
        resumed = self.consumers.pause(namespace, handler_id, paused=False)
        self._wake()
        return resumed

    def forget(self, namespace: str, handler_id: str) -> bool:
        """Remove a consumer and what waits for it; False if there is none of that name.

        ConsumerBusyError while a live session runs it.
        """
        return self.consumers.forget(namespace, handler_id)

    def check(self) -> list[str]:
        """What breaks the rules of delivery, one line each; [] for a sound store."""
        return broken_rules(self._database, self._sql)
