"""The store on SQLite, put together."""

from __future__ import annotations

import os
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
from ontologia.store.records import Records
from ontologia.store.rows import (
    Claim,
    EntityRow,
    Keys,
    PathRow,
    RelationRow,
)
from ontologia.store.sqlite import answers
from ontologia.store.sqlite.claiming import SQLiteDialect
from ontologia.store.sqlite.database import Database
from ontologia.store.sqlite.indexes import create_index
from ontologia.store.sqlite.layout import LAYOUT, prepare
from ontologia.store.sqlite.place import check_place
from ontologia.store.sqlite.transaction import SQLiteReader, SQLiteTransaction
from ontologia.store.sqlite.watch import Watch, wake_all

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_PACKAGE = "ontologia.store.sqlite"
_STATE = statements(_PACKAGE, "state.sql", "types.sql", "locks.sql")
_EVENTS = statements(
    _PACKAGE,
    "events.sql",
    "claims.sql",
    "listings.sql",
    "retention.sql",
    "sessions.sql",
    "check.sql",
    "replies.sql",
    "journal.sql",
)


class SQLiteStore(Records):
    """One SQLite file as a store; `store.protocol.Store` says what each method promises."""

    def __init__(
        self, uri: str, path: str, config: OntologiaConfig, clock: Clock, random: Random
    ) -> None:
        self.uri = uri
        self._config = config
        self._clock = clock
        check_place(path, LAYOUT, config.lock_timeout_ms)
        self._database = Database(path, random=random, timeout_ms=config.lock_timeout_ms)
        super().__init__(self._database, _STATE)
        alone = self._database.write  # as every write transaction is here
        self._lease = WriteLease(alone, alone, _STATE, clock, config.lock_lease_ms)
        self._place = f":memory: {id(self)}" if self._database.in_memory else os.path.realpath(path)
        self.events = SqlEventStore(
            self._database,
            _EVENTS,
            SQLiteDialect(self._database),
            config=config,
            clock=clock,
            random=random,
            wake=lambda: wake_all(self._place),
        )
        try:
            self.store_id = prepare(self._database, clock)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()

    def watch(self) -> Watch:
        return Watch(self._place, self._database.change_counter())

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def read(self) -> Generator[SQLiteReader]:
        with self._database.read() as tx:
            yield SQLiteReader(tx)

    @contextmanager
    def write(
        self,
        *,
        owner_id: str | None = None,
        timeout_ms: int | None = None,
        durable: bool = True,
        claim: Claim | None = None,
        keys: Keys | None = None,
    ) -> Generator[SQLiteTransaction]:
        limit = self._config.lock_timeout_ms if timeout_ms is None else timeout_ms
        started = self._clock.monotonic()
        while True:
            with self._database.write(timeout_ms=limit, durable=durable) as tx:
                transaction = SQLiteTransaction(tx, self._clock, self.events)
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
