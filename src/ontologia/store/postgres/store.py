"""The store on PostgreSQL, put together."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.clock import Clock, from_text
from ontologia.errors import LockContentionError
from ontologia.query.question import Question
from ontologia.store.events.store import SqlEventStore
from ontologia.store.named import statements
from ontologia.store.postgres import answers
from ontologia.store.postgres.claiming import PostgresDialect
from ontologia.store.postgres.database import Database
from ontologia.store.postgres.indexes import create_index
from ontologia.store.postgres.layout import prepare
from ontologia.store.postgres.locks import STEP, WriteLease
from ontologia.store.postgres.place import place_of, qualified
from ontologia.store.postgres.transaction import PostgresReader, PostgresTransaction
from ontologia.store.postgres.watch import Watch, channel_of
from ontologia.store.rows import (
    TOMBSTONE,
    CommitRow,
    EntityRow,
    PathRow,
    RawChange,
    RelationRow,
    StoredType,
)

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_PACKAGE = "ontologia.store.postgres"
_STATE = ("state", "types", "locks")
_EVENTS = ("events", "claims", "listings", "retention", "sessions", "check")


class PostgresStore:
    """One schema of a PostgreSQL database; `store.protocol.Store` says what each method promises."""

    def __init__(self, uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> None:
        place = place_of(uri)
        self.uri = place.shown
        self._config = config
        self._clock = clock
        self._channel = channel_of(place)
        self._database = Database(place, timeout_ms=config.lock_timeout_ms)
        self._sql = _statements(_STATE, place.schema)
        self._lease = WriteLease(self._database, self._sql, clock, config.lock_lease_ms)
        events = _statements(_EVENTS, place.schema)
        self.events = SqlEventStore(
            self._database,
            events,
            PostgresDialect(events),
            config=config,
            clock=clock,
            random=random,
            wake=self._channel.wake,
        )
        try:
            prepare(self._database)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()

    def watch(self) -> Watch:
        return Watch(self._channel)

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def read(self) -> Generator[PostgresReader]:
        with self._database.read() as tx:
            yield PostgresReader(tx, self._sql)

    @contextmanager
    def write(
        self, *, owner_id: str | None = None, timeout_ms: int | None = None, durable: bool = True
    ) -> Generator[PostgresTransaction]:
        limit = self._config.lock_timeout_ms if timeout_ms is None else timeout_ms
        started = self._clock.monotonic()
        while True:
            with self._database.write_state(
                self._sql["gate"], timeout_ms=limit, durable=durable
            ) as tx:
                transaction = PostgresTransaction(tx, self._sql, self._clock, self.events)
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

    # -- commits ----------------------------------------------------------------------------

    def get_head_commit_id(self) -> int | None:
        head: int | None = self._database.all(self._sql["head"])[0][0]
        return head

    def list_commits(self, *, limit: int, since: int | None = None) -> list[CommitRow]:
        span = {"limit": limit, "since": since or 0}
        return [_commit(row) for row in self._database.all(self._sql["list_commits"], span)]

    def get_commit(self, commit_id: int) -> CommitRow | None:
        rows = self._database.all(self._sql["get_commit"], {"id": commit_id})
        return _commit(rows[0]) if rows else None

    def changes_between(self, first: int, last: int) -> list[RawChange]:
        span = {"first": first, "last": last}
        with self._database.read() as tx:
            entities = tx.all(self._sql["entity_changes"], span)
            relations = tx.all(self._sql["relation_changes"], span)
        changes = [_change("entity", row, row[1:2]) for row in entities]
        return changes + [_change("relation", row, row[1:4]) for row in relations]

    # -- types ------------------------------------------------------------------------------

    def get_current_schema_version(self, kind: str, type_name: str) -> dict[str, Any] | None:
        with self._database.read() as tx:
            found = (
                PostgresReader(tx, self._sql)
                .current_types([(kind, type_name)])
                .get((kind, type_name))
            )
        if found is None:
            return None
        return {
            "type_kind": found.kind,
            "type_name": found.name,
            "schema_version_id": found.version,
            "schema_json": found.schema_json,
            "schema_hash": found.schema_hash,
        }

    def schema_generation(self) -> int:
        return self._database.all(self._sql["generation"])[0][0] or 0

    def list_schema_versions(self, kind: str, type_name: str) -> list[StoredType]:
        named = {"kind": kind, "name": type_name}
        return [StoredType(*row) for row in self._database.all(self._sql["list_versions"], named)]

    def ensure_index(self, kind: str, type_name: str, field: str, value_kind: str) -> None:
        create_index(self._database, kind, type_name, field, value_kind)


def _statements(parts: tuple[str, ...], schema: str) -> dict[str, str]:
    found = {k: v for part in parts for k, v in statements(_PACKAGE, f"{part}.sql").items()}
    return qualified(found, schema)


def _commit(row: tuple[int, str, str | None]) -> CommitRow:
    number, created_at, metadata = row
    return CommitRow(number, from_text(created_at), codec.decode(metadata) if metadata else {})


def _change(kind: str, row: Any, key: tuple[str, ...]) -> RawChange:
    before, after, before_version, after_version = row[-4:]
    return RawChange(
        kind,
        row[0],
        key,
        None if before == TOMBSTONE else before,
        None if after == TOMBSTONE else after,
        before_version or 1,  # rows from before versions were kept are of the first
        after_version or 1,
    )
