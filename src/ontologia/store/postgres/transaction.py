"""What can be read and written within one transaction: state, types, and the lease.

The SQLite twin has the same statements under the same names. Here an answer is a way to the server
and back, so there are as few as can be: a commit goes there twice, once for the lock, the fence and
what it compares itself with, however many objects it is, and once with all that it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.query.question import Question
from ontologia.schema.typespec import schema_hash
from ontologia.store.events.store import SqlEventStore
from ontologia.store.lease import LockStatements
from ontologia.store.postgres import answers
from ontologia.store.postgres.database import Tx
from ontologia.store.postgres.wire import Answer, portions
from ontologia.store.rows import (
    TOMBSTONE,
    Announcement,
    Claim,
    Current,
    Keys,
    ObjectKey,
    RawChange,
    State,
    Stored,
    StoredType,
    TypeKey,
)

_T = TypeVar("_T")
_CHUNK = 10_000
_PARTS = {"entity": ("keys",), "relation": ("left", "right", "instance")}
"""What the statements call the parts of a key."""
_PLURAL = {"entity": "entities", "relation": "relations"}


class PostgresReader:
    """One snapshot."""

    def __init__(self, tx: Tx, sql: Mapping[str, str]) -> None:
        self._tx = tx
        self._sql = sql
        self._asked: dict[TypeKey, tuple[Sequence[ObjectKey], Answer]] = {}

    def head(self) -> int:
        return self._tx.one(self._sql["head"])[0] or 0

    def current(self, keys: Keys) -> State:
        return {
            (kind, type_name): self._current(kind, type_name, wanted)
            for (kind, type_name), wanted in keys.items()
        }

    def _current(
        self, kind: str, type_name: str, keys: Collection[ObjectKey]
    ) -> dict[ObjectKey, Current]:
        found: dict[ObjectKey, Current] = {}
        for chunk in _chunks(sorted(keys)):  # neighbours are read together
            asked, answer = self._asked.get((kind, type_name), (None, None))
            if answer is None or asked != chunk:
                answer = self._ask_current(kind, type_name, chunk)
            for row in answer():
                found[row[:-3]] = row[-3:]
        return found

    def _ask_current(self, kind: str, type_name: str, keys: Sequence[ObjectKey]) -> Answer:
        if len(keys) == 1:
            return self._tx.ask(self._sql[f"current_{kind}"], (type_name, *keys[0]))
        asked = {"type": type_name} | _columns(kind, keys)
        return self._tx.ask(self._sql[f"current_{_PLURAL[kind]}"], asked)

    def current_types(self, keys: Iterable[TypeKey]) -> dict[TypeKey, StoredType]:
        listed = codec.encode_checked([list(key) for key in keys])
        rows = self._tx.all(self._sql["current_types"], {"keys": listed})
        return {(row[0], row[1]): StoredType(*row) for row in rows}


class PostgresTransaction(PostgresReader, LockStatements):
    """One write transaction, which has the lock of commits."""

    def __init__(
        self, tx: Tx, sql: Mapping[str, str], clock: Clock, events: SqlEventStore, schema: str
    ) -> None:
        self._schema = schema
        PostgresReader.__init__(self, tx, sql)
        LockStatements.__init__(self, tx, sql, clock)
        self._events = events
        self._fence: tuple[Claim, Callable[[], list[Any]]] | None = None

    def look_ahead(self, claim: Claim | None, keys: Keys | None) -> None:
        """Ask on the way what a commit will want to know: so it waits for one answer, not three."""
        if claim is not None:
            self._fence = claim, self._events.claims.ask(self._tx, claim)
        for (kind, type_name), wanted in (keys or {}).items():
            if len(wanted) <= _CHUNK:
                ordered = sorted(wanted)
                answer = self._ask_current(kind, type_name, ordered)
                self._asked[kind, type_name] = ordered, answer

    def head(self) -> int:
        return self._head

    def enter(self, owner_id: str) -> str | None:
        """Whoever else holds the lease on long writes."""
        assert self._tx.gate is not None  # noqa: S101 - it has the lock of commits
        [(head, generation, holder, expires_at)] = self._tx.gate()
        self.now = to_text(self._clock.now())  # it may have waited for the lock
        self._head: int = head or 0
        self.generation: int = generation or 0
        if holder in (None, owner_id) or expires_at <= self.now:
            return None
        found: str = holder
        return found

    def register_type(
        self, kind: str, name: str, schema_json: str, *, runtime_id: str, reason: str
    ) -> StoredType:
        known = self.current_types([(kind, name)]).get((kind, name))
        stored = StoredType(
            kind, name, known.version + 1 if known else 1, schema_json, schema_hash(schema_json)
        )
        named = {"kind": kind, "name": name, "schema_json": schema_json}
        version = named | {
            "version": stored.version,
            "schema_hash": stored.schema_hash,
            "created_at": to_text(self._clock.now()),
            "runtime_id": runtime_id,
            "reason": reason,
        }
        self._tx.later(self._sql["set_current"], named)
        self._tx.later(self._sql["insert_version"], version)
        return stored

    def write_commit(
        self,
        changes: Sequence[RawChange],
        *,
        metadata: dict[str, Any],
        versions: dict[TypeKey, int],
    ) -> int:
        commit = {
            "commit_id": self._head + 1,
            "created_at": self.now,
            "metadata_json": codec.encode_checked(metadata, where="commit metadata"),
        }
        if len(changes) == 1 and changes[0].after is not None:
            self._commit_one(commit, changes[0], versions)
        else:
            self._commit_many(commit, changes, versions)
        self._head += 1
        return self._head

    def _commit_one(
        self, commit: dict[str, Any], change: RawChange, versions: dict[TypeKey, int]
    ) -> None:
        row = commit | dict(zip(_PARTS[change.kind], change.key, strict=True))
        row["type"], row["fields"] = change.type_name, change.after
        row["version"] = versions[change.kind, change.type_name]
        self._tx.later(self._sql[f"commit_{change.kind}"], row)

    def _commit_many(
        self, commit: dict[str, Any], changes: Sequence[RawChange], versions: dict[TypeKey, int]
    ) -> None:
        number = {"commit_id": commit["commit_id"]}
        self._tx.later(self._sql["insert_commit"], commit)
        for kind, plural in _PLURAL.items():
            chosen = [change for change in changes if change.kind == kind]
            for part in portions(chosen, _CHUNK, lambda change: len(change.after or "")):
                rows = {
                    "types": [c.type_name for c in part],
                    "fields": [TOMBSTONE if c.after is None else c.after for c in part],
                    "versions": [versions[kind, c.type_name] for c in part],
                }
                written = number | rows | _columns(kind, [c.key for c in part])
                self._tx.later(self._sql[f"write_{plural}"], written)
            if any(change.after is None for change in chosen):
                self._tx.later(self._sql[f"delete_latest_{plural}"], number)

    def find(self, question: Question) -> list[tuple[ObjectKey, str]]:
        return answers.found(self._tx, self._schema, question)

    # -- events -----------------------------------------------------------------------------

    def announce(self, announcements: Iterable[Announcement]) -> list[Stored]:
        return self._events.log.announce(self._tx, announcements)

    def holds(self, claim: Claim) -> bool:
        if self._fence is None or self._fence[0] is not claim:
            self._fence = claim, self._events.claims.ask(self._tx, claim)
        held = self._fence[1]()
        return bool(held) and held[0][0] > self.now


def _columns(kind: str, keys: Sequence[ObjectKey]) -> dict[str, Any]:
    """Keys as the statements want them: one list for each of their parts."""
    return {part: [key[place] for key in keys] for place, part in enumerate(_PARTS[kind])}


def _chunks(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
