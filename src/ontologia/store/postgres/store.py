"""The store on PostgreSQL, put together."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock
from ontologia.errors import LockContentionError
from ontologia.query.question import Question
from ontologia.store.events.store import SqlEventStore
from ontologia.store.lease import STEP, WriteLease
from ontologia.store.named import statements
from ontologia.store.postgres import answers
from ontologia.store.postgres.claiming import PostgresDialect
from ontologia.store.postgres.clock import ServerClock
from ontologia.store.postgres.database import Database
from ontologia.store.postgres.indexes import create_index
from ontologia.store.postgres.layout import prepare
from ontologia.store.postgres.place import place_of, qualified
from ontologia.store.postgres.transaction import PostgresReader, PostgresTransaction
from ontologia.store.postgres.watch import Watch, channel_of
from ontologia.store.postgres.wire import prepared
from ontologia.store.records import Records
from ontologia.store.rows import (
    Claim,
    EntityRow,
    Keys,
    PathRow,
    RelationRow,
)

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_PACKAGE = "ontologia.store.postgres"
_STATE = statements(_PACKAGE, "state.sql", "types.sql", "locks.sql")
_EVENTS = statements(_PACKAGE, "events.sql", "claims.sql", "sessions.sql", "replies.sql")
# Asked now and then, of all there is: these are planned anew each time.
_OPERATION = statements(_PACKAGE, "listings.sql", "retention.sql", "check.sql", "journal.sql")


class PostgresStore(Records):
    """One schema of a PostgreSQL database; `store.protocol.Store` says what each method promises."""

    def __init__(self, uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> None:
        place = place_of(uri)
        self.uri = place.shown
        self._config = config
        self._clock = clock
        servers = clock if isinstance(clock, ServerClock) else None
        if servers is not None:
            servers.report_beyond(config.event_claim_lease_ms)
        self._database = Database(
            place,
            timeout_ms=config.lock_timeout_ms,
            statement_ms=config.statement_timeout_ms,
            clock=servers,
        )
        self._channel = channel_of(place, pooled=self._database.pooled)
        self._database.notice = self._channel.notice
        state = prepared(qualified(_STATE, place.schema))
        for name in ("commit_entity", "commit_relation", "insert_commit"):
            state[name].proof = state["has_commit"]
        super().__init__(self._database, state)
        self._gate = state["gate"]
        # The lease begins under the lock of commits, so that no commit is in the middle then.
        alone, write = self._database.write_state, self._database.write
        self._lease = WriteLease(alone, write, self._sql, clock, config.lock_lease_ms)
        hot = prepared(qualified(_EVENTS, place.schema))
        hot["insert_event"].bulk = hot["insert_events"]
        hot["insert_event"].proof = hot["has_event"]
        hot["append_event"].bulk = hot["append_events"]
        hot["append_event"].proof = hot["has_event"]
        for name in ("insert_event", "append_event"):
            hot[name].announces = True
        hot["insert_reply"].proof = hot["get_reply"]
        hot["insert_deferred"].proof = hot["has_deferred"]
        events = {**hot, **qualified(_OPERATION, place.schema)}
        self.events = SqlEventStore(
            self._database,
            events,
            PostgresDialect(hot, self._database),
            config=config,
            clock=clock,
            random=random,
            wake=self._wake,
        )
        try:
            self.store_id = prepare(self._database)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()

    def watch(self) -> Watch:
        return Watch(self._channel)

    def _wake(self) -> None:
        self._channel.wake(elsewhere=not self._database.told)

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def read(self) -> Generator[PostgresReader]:
        with self._database.read() as tx:
            yield PostgresReader(tx, self._sql)

    @contextmanager
    def write(
        self,
        *,
        owner_id: str | None = None,
        timeout_ms: int | None = None,
        durable: bool = True,
        claim: Claim | None = None,
        keys: Keys | None = None,
    ) -> Generator[PostgresTransaction]:
        limit = self._config.lock_timeout_ms if timeout_ms is None else timeout_ms
        started = self._clock.monotonic()
        while True:
            with self._database.write_state(self._gate, timeout_ms=limit, durable=durable) as tx:
                transaction = PostgresTransaction(
                    tx, self._sql, self._clock, self.events, self._database.schema
                )
                transaction.look_ahead(claim, keys)
                holder = transaction.enter(owner_id or "")
                if holder is None:
                    yield transaction
                    return
            waited = (self._clock.monotonic() - started) * 1000
            if waited >= limit:
                raise LockContentionError(holder, waited)
            self._clock.sleep(STEP)

    def long_write(
        self, owner_id: str, *, timeout_ms: int | None = None
    ) -> AbstractContextManager[None]:
        limit = self._config.migration_lock_timeout_ms if timeout_ms is None else timeout_ms
        return self._lease.held(owner_id, limit)

    # -- questions --------------------------------------------------------------------------

    def query_entities(self, question: Question) -> list[EntityRow]:
        return answers.entities(self._database, question)

    def query_relations(self, question: Question) -> list[RelationRow]:
        return answers.relations(self._database, question)

    def query_paths(self, question: Question) -> list[PathRow]:
        return answers.paths(self._database, question)

    def aggregate_entities(self, question: Question) -> list[tuple[Any, ...]]:
        return answers.groups(self._database, question)

    aggregate_relations = aggregate_entities

    # -- indexes ----------------------------------------------------------------------------

    def ensure_index(self, kind: str, type_name: str, field: str, value_kind: str) -> None:
        create_index(self._database, kind, type_name, field, value_kind)
