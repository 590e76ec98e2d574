"""The store on PostgreSQL, put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock
from ontologia.errors import LockContentionError
from ontologia.query.question import Question
from ontologia.store.events.store import EventStore
from ontologia.store.lease import STEP, WriteLease
from ontologia.store.postgres import answers
from ontologia.store.postgres.claiming import PostgresDialect
from ontologia.store.postgres.clock import ServerClock
from ontologia.store.postgres.database import Database, Tx
from ontologia.store.postgres.indexes import create_index
from ontologia.store.postgres.layout import prepare
from ontologia.store.postgres.notation import statements
from ontologia.store.postgres.place import place_of, qualified
from ontologia.store.postgres.transaction import PostgresReader, PostgresTransaction
from ontologia.store.postgres.watch import Watch, channel_of
from ontologia.store.postgres.wire import prepared
from ontologia.store.records import Records
from ontologia.store.rows import EntityRow, PathRow, RelationRow
from ontologia.store.staging import with_settling
from ontologia.store.turn import Turn
from ontologia.store.writer import Posted, Request, Writer

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_STATE = with_settling(statements("state.sql", "types.sql", "locks.sql", "staging.sql"))
_EVENTS = statements("events.sql", "claims.sql", "sessions.sql", "replies.sql", "intakes.sql")
# Asked now and then, of all there is: these are planned anew each time.
_OPERATION = statements(
    *("listings.sql", "retention.sql", "check.sql", "journal.sql", "archives.sql"),
    "backlog.sql",
)


class PostgresStore(Records):
    """One schema of a PostgreSQL database; `store.protocol.Store` says what each method promises."""

    def __init__(self, uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> None:
        place = place_of(uri)
        self.uri = place.shown
        self.config = config
        self.clock = clock
        servers = clock if isinstance(clock, ServerClock) else None
        if servers is not None:
            servers.report_beyond(config.event_claim_lease_ms)
        self.database = Database(
            place,
            timeout_ms=config.lock_timeout_ms,
            statement_ms=config.statement_timeout_ms,
            clock=servers,
        )
        self._channel = channel_of(place, pooled=self.database.pooled)
        self.database.notice = self._channel.notice
        state = prepared(qualified(_STATE, place.schema))
        for name in ("commit_entity", "commit_relation", "insert_commit"):
            state[name].proof = state["has_commit"]
        for one, many in (("entity", "entities"), ("relation", "relations"), ("value", "values")):
            state[f"stage_{one}"].bulk = state[f"stage_{many}"]
        super().__init__(self.database, state)
        self._gate = state["gate"]
        # The lease begins under the lock of commits, so that no commit is in the middle then.
        alone, write = self.database.write_state, self.database.write
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
        self.event_sql = {**hot, **qualified(_OPERATION, place.schema)}
        self.events = EventStore(
            self.database,
            self.event_sql,
            PostgresDialect(hot, self.database),
            config=config,
            clock=clock,
            random=random,
            wake=self._wake,
            submit=self.submit,
            post=lambda request: self._delivery_writer.post(request),
        )
        # Deliveries need not wait for the lock of commits: they have a writer of their own.
        posted: deque[Posted] = deque()
        check = self.database.check_usable
        self._state_writer: Writer = Writer(
            self._begin_state,
            self._transaction,
            self.database.turn,
            clock,
            wake=self._wake,
            check=check,
            posted=posted,
        )
        self._delivery_writer: Writer = Writer(
            self._begin,
            self._transaction,
            Turn(),
            clock,
            wake=self._wake,
            check=check,
            posted=posted,
        )
        try:
            self.store_id = prepare(self.database)
        except BaseException:
            self.database.close()
            raise

    def hurry(self) -> None:
        self.database.hurry()

    def close(self) -> None:
        self.database.close()

    def watch(self) -> Watch:
        return Watch(self._channel)

    def _wake(self) -> None:
        self._channel.wake(elsewhere=not self.database.told)

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def read(self) -> Generator[PostgresReader]:
        with self.database.read() as tx:
            yield PostgresReader(tx, self._sql)

    @contextmanager
    def write(
        self,
        *,
        owner_id: str | None = None,
        timeout_ms: int | None = None,
        durable: bool = True,
    ) -> Generator[PostgresTransaction]:
        limit = self.config.lock_timeout_ms if timeout_ms is None else timeout_ms
        started = self.clock.monotonic()
        while True:
            with self.database.write_state(self._gate, timeout_ms=limit, durable=durable) as tx:
                transaction = self._transaction(tx)
                holder = transaction.enter(owner_id or "")
                if holder is None:
                    yield transaction
                    return
            waited = (self.clock.monotonic() - started) * 1000
            if waited >= limit:
                raise LockContentionError(holder, waited)
            self.clock.sleep(STEP)

    def _transaction(self, tx: Tx) -> PostgresTransaction:
        return PostgresTransaction(
            *(tx, self._sql, self.clock, self.events, self.replies, self.staging),
            self.database.schema,
        )

    def _begin_state(self, durable: bool, timeout_ms: float) -> AbstractContextManager[Tx]:
        return self.database.state_transaction(self._gate, timeout_ms, durable=durable)

    def _begin(self, durable: bool, timeout_ms: float) -> AbstractContextManager[Tx]:
        return self.database.write(timeout_ms=int(timeout_ms), durable=durable)

    def submit(self, request: Request) -> None:
        writer = self._state_writer if request.state else self._delivery_writer
        if not request.state and request.durable:
            with self._begin(True, self.config.lock_timeout_ms) as tx:
                transaction = self._transaction(tx)
                request.look_ahead(transaction)
                request.write(transaction)
            if request.announces:
                self._wake()
            return
        writer.submit(request, self.config.lock_timeout_ms)

    def submit_all(self, requests: Sequence[Request]) -> Sequence[Exception | None]:
        state = any(each.state for each in requests)
        writer = self._state_writer if state else self._delivery_writer
        return writer.submit_all(requests, self.config.lock_timeout_ms)

    def long_write(
        self, owner_id: str, *, timeout_ms: int | None = None
    ) -> AbstractContextManager[None]:
        limit = self.config.migration_lock_timeout_ms if timeout_ms is None else timeout_ms
        return self._lease.held(owner_id, limit)

    # -- questions --------------------------------------------------------------------------

    def query_entities(self, question: Question) -> list[EntityRow]:
        return answers.entities(self.database, question)

    def query_relations(self, question: Question) -> list[RelationRow]:
        return answers.relations(self.database, question)

    def query_paths(self, question: Question) -> list[PathRow]:
        return answers.paths(self.database, question)

    def aggregate_entities(self, question: Question) -> list[tuple[Any, ...]]:
        return answers.groups(self.database, question)

    aggregate_relations = aggregate_entities

    # -- indexes ----------------------------------------------------------------------------

    def ensure_index(
        self, kind: str, type_name: str, field: str, value_kind: str, fill: str | None = None
    ) -> None:
        create_index(self.database, kind, type_name, field, value_kind, fill)
