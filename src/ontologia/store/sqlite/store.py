"""The store on SQLite, put together."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock
from ontologia.errors import LockContentionError
from ontologia.query.question import Question
from ontologia.store.events.store import EventStore
from ontologia.store.lease import STEP, WriteLease
from ontologia.store.records import Records
from ontologia.store.rows import EntityRow, PathRow, RelationRow
from ontologia.store.sqlite import answers
from ontologia.store.sqlite.claiming import SQLiteDialect
from ontologia.store.sqlite.database import Database, Tx
from ontologia.store.sqlite.indexes import create_index
from ontologia.store.sqlite.layout import LAYOUT, prepare
from ontologia.store.sqlite.notation import statements
from ontologia.store.sqlite.place import check_place
from ontologia.store.sqlite.transaction import SQLiteReader, SQLiteTransaction
from ontologia.store.sqlite.watch import Watch, wake_all
from ontologia.store.writer import Request, Writer

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_STATE = statements("state.sql", "types.sql", "locks.sql", "staging.sql")
_EVENTS = statements(
    "events.sql",
    "claims.sql",
    "listings.sql",
    "retention.sql",
    "sessions.sql",
    "check.sql",
    "replies.sql",
    "journal.sql",
    "intakes.sql",
    "archives.sql",
    "backlog.sql",
)


class SQLiteStore(Records):
    """One SQLite file as a store; `store.protocol.Store` says what each method promises."""

    def __init__(
        self, uri: str, path: str, config: OntologiaConfig, clock: Clock, random: Random
    ) -> None:
        self.uri = uri
        self.config = config
        self.clock = clock
        check_place(path, LAYOUT, config.lock_timeout_ms)
        self.database = Database(path, random=random, timeout_ms=config.lock_timeout_ms)
        super().__init__(self.database, _STATE)
        alone = self.database.write  # as every write transaction is here
        self._lease = WriteLease(alone, alone, _STATE, clock, config.lock_lease_ms)
        self._place = f":memory: {id(self)}" if self.database.in_memory else os.path.realpath(path)
        self.event_sql = _EVENTS
        self.events = EventStore(
            self.database,
            _EVENTS,
            SQLiteDialect(self.submit),
            config=config,
            clock=clock,
            random=random,
            wake=lambda: wake_all(self._place),
            submit=self.submit,
            post=lambda request: self._writer.post(request),
        )
        self._writer: Writer = Writer(
            self.database.transaction,
            self._transaction,
            self.database.turn,
            clock,
            wake=self.events.wake,
            check=self.database.check_usable,
            joins=True,
        )
        try:
            self.store_id = prepare(self.database, clock)
        except BaseException:
            self.database.close()
            raise

    def hurry(self) -> None:
        """There is no server to wait for."""

    def close(self) -> None:
        self.database.close()

    def watch(self) -> Watch:
        return Watch(self._place, self.database.change_counter())

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def read(self) -> Generator[SQLiteReader]:
        with self.database.read() as tx:
            yield SQLiteReader(tx)

    @contextmanager
    def write(
        self,
        *,
        owner_id: str | None = None,
        timeout_ms: int | None = None,
        durable: bool = True,
    ) -> Generator[SQLiteTransaction]:
        limit = self.config.lock_timeout_ms if timeout_ms is None else timeout_ms
        started = self.clock.monotonic()
        while True:
            with self.database.write(timeout_ms=limit, durable=durable) as tx:
                transaction = self._transaction(tx)
                holder = transaction.enter(owner_id or "")
                if holder is None:
                    yield transaction
                    return
            waited = (self.clock.monotonic() - started) * 1000
            if waited >= limit:
                raise LockContentionError(holder, waited)
            self.clock.sleep(STEP)

    def _transaction(self, tx: Tx) -> SQLiteTransaction:
        return SQLiteTransaction(tx, self.clock, self.events, self.replies, self.staging)

    def submit(self, request: Request) -> None:
        self._writer.submit(request, self.config.lock_timeout_ms)

    def submit_all(self, requests: Sequence[Request]) -> Sequence[Exception | None]:
        return self._writer.submit_all(requests, self.config.lock_timeout_ms)

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
