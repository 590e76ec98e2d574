"""Commits and types as they are on record: the same questions to every database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock, from_text
from ontologia.store.database import Database
from ontologia.store.inventory import Inventory
from ontologia.store.protocol import StateReader
from ontologia.store.provenance import Provenance, commit_of
from ontologia.store.replies import Replies
from ontologia.store.rows import TOMBSTONE, CommitRow, RawChange, StoredType
from ontologia.store.staging import Staging

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.store.events.store import EventStore


class Records:
    """The part of a store that reads its own records; `store.protocol.Store` says what each is."""

    clock: Clock
    config: OntologiaConfig
    events: EventStore
    event_sql: Mapping[str, str]

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._records = database
        self._sql = sql

    @property
    def inventory(self) -> Inventory:
        return Inventory(self._records, self.event_sql)

    @property
    def provenance(self) -> Provenance:
        return Provenance(self._records, self.event_sql)

    @property
    def replies(self) -> Replies:
        return Replies(self._records, self.event_sql, self.clock)

    @property
    def staging(self) -> Staging:
        return Staging(self._records, self._sql, self.clock, self.config.lock_lease_ms)

    def read(self) -> AbstractContextManager[StateReader]:
        """A snapshot."""
        raise NotImplementedError

    # -- commits ----------------------------------------------------------------------------

    def get_head_commit_id(self) -> int | None:
        head: int | None = self._records.all(self._sql["head"])[0][0]
        return head

    def list_commits(self, *, limit: int, since: int | None = None) -> list[CommitRow]:
        span = {"limit": limit, "since": since or 0}
        return [commit_of(row) for row in self._records.all(self._sql["list_commits"], span)]

    def get_commit(self, commit_id: int) -> CommitRow | None:
        rows = self._records.all(self._sql["get_commit"], {"id": commit_id})
        return commit_of(rows[0]) if rows else None

    def commit_at(self, when: datetime) -> int:
        # Times have no index: every commit would pay for it. They rise with the numbers, which have.
        found = 0
        with self._records.read() as tx:
            first, last = 1, tx.all(self._sql["head"])[0][0] or 0
            while first <= last:
                middle = (first + last) // 2
                row = tx.one(self._sql["commit_between"], {"first": first, "last": middle})
                if row is None:
                    first = middle + 1
                elif from_text(row[1]) <= when:
                    found, first = row[0], middle + 1
                else:
                    last = row[0] - 1
        return found

    def changes_between(self, first: int, last: int) -> list[RawChange]:
        span = {"first": first, "last": last}
        with self._records.read() as tx:
            entities = tx.all(self._sql["entity_changes"], span)
            relations = tx.all(self._sql["relation_changes"], span)
            settling = [
                (kind, tx.all(self._sql[f"settling_changes_{plural}"], span))
                for kind, plural in (("entity", "entities"), ("relation", "relations"))
            ]
        changes = [_change("entity", row, row[1:2]) for row in entities]
        changes += [_change("relation", row, row[1:4]) for row in relations]
        if any(rows for _, rows in settling):
            return _with_settling(changes, settling)
        return changes

    # -- types ------------------------------------------------------------------------------

    def get_current_schema_version(self, kind: str, type_name: str) -> dict[str, Any] | None:
        with self.read() as reader:
            found = reader.current_types([(kind, type_name)]).get((kind, type_name))
        if found is None or found.dropped:
            return None
        return {
            "type_kind": found.kind,
            "type_name": found.name,
            "schema_version_id": found.version,
            "schema_json": found.schema_json,
            "schema_hash": found.schema_hash,
        }

    def schema_generation(self) -> int:
        return self._records.all(self._sql["generation"])[0][0] or 0

    def list_schema_versions(self, kind: str, type_name: str) -> list[StoredType]:
        named = {"kind": kind, "name": type_name}
        return [StoredType(*row) for row in self._records.all(self._sql["list_versions"], named)]

    def unversioned_types(self) -> list[tuple[str, str, str]]:
        return [tuple(row) for row in self._records.all(self._sql["unversioned_types"])]


def _with_settling(
    changes: list[RawChange], settling: list[tuple[str, list[Any]]]
) -> list[RawChange]:
    """The changes with those of a migration's commit that the history does not have yet."""
    found = {each[:3]: each for each in changes}
    for kind, rows in settling:
        for row in rows:
            later = _change(kind, row, row[1:-4])
            known = found.get(later[:3])
            if known is not None:
                later = later._replace(before=known.before, before_version=known.before_version)
            found[later[:3]] = later
    return sorted(found.values(), key=lambda each: each[:3])


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
