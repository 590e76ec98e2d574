"""What can be read and written within one transaction: state, types, and the lease.

The SQLite twin has the same statements under the same names. Here an answer is a way to the server
and back, so there are as few as can be: a commit goes there twice, once for the lock, the fence and
what it compares itself with, however many objects it is, and once with all that it writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.query.question import Question
from ontologia.schema.typespec import schema_hash
from ontologia.store.events.store import EventStore
from ontologia.store.key_length import check_keys
from ontologia.store.lease import LockStatements
from ontologia.store.postgres import answers
from ontologia.store.postgres.database import LONG_COMMIT, Tx
from ontologia.store.postgres.wire import portions
from ontologia.store.replies import Replies
from ontologia.store.rows import (
    TOMBSTONE,
    Announcement,
    Claim,
    Current,
    KeptReply,
    Keys,
    ObjectKey,
    RawChange,
    State,
    Stored,
    StoredType,
    TypeKey,
)
from ontologia.store.staging import Staging, settling_types
from ontologia.store.writer import HeldUp

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
        self._settling: frozenset[TypeKey] | None = None

    # No cached_property: until Python 3.12 it has one lock for all, held for the statement.
    @property
    def settling(self) -> frozenset[TypeKey]:
        """Types of which current objects may not be in their places yet."""
        if self._settling is None:
            row = self._tx.one(self._sql["settling"])
            self._settling = settling_types(row and row[0])
        return self._settling

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
        asked = self._asking(kind, type_name, keys)
        return {row[:-3]: row[-3:] for rows in asked for row in rows}

    def _asking(
        self, kind: str, type_name: str, keys: Collection[ObjectKey]
    ) -> list[Sequence[Any]]:
        """Their rows; neighbours are read together."""
        return [self._ask_current(kind, type_name, chunk) for chunk in _chunks(sorted(keys))]

    def _ask_current(self, kind: str, type_name: str, keys: Sequence[ObjectKey]) -> Sequence[Any]:
        which = "settling_current" if (kind, type_name) in self.settling else "current"
        if len(keys) == 1:
            return self._tx.ask(self._sql[f"{which}_{kind}"], (type_name, *keys[0]))
        asked = {"type": type_name} | _columns(kind, keys)
        return self._tx.ask(self._sql[f"{which}_{_PLURAL[kind]}"], asked)

    def current_types(self, keys: Iterable[TypeKey]) -> dict[TypeKey, StoredType]:
        listed = codec.encode_checked([list(key) for key in keys])
        rows = self._tx.all(self._sql["current_types"], {"keys": listed})
        return {(row[0], row[1]): StoredType(*row) for row in rows}


class PostgresTransaction(PostgresReader, LockStatements):
    """One write transaction. What it will want to know is asked for in one round trip."""

    def __init__(
        self,
        tx: Tx,
        sql: Mapping[str, str],
        clock: Clock,
        events: EventStore,
        replies: Replies,
        staging: Staging,
        schema: str,
    ) -> None:
        self._schema = schema
        self._staging = staging
        self._settling = frozenset()  # the gate says
        PostgresReader.__init__(self, tx, sql)
        LockStatements.__init__(self, tx, sql, clock)
        self._events = events
        self._replies = replies
        self._fences: dict[int, Sequence[Any]] = {}
        self._ahead: dict[TypeKey, set[ObjectKey]] = {}
        self._known: dict[TypeKey, dict[ObjectKey, Current | None]] = {}
        """What is current, with what was written so far; None where there is no object."""
        self._entered = False
        self.has_registered = False

    def begin_requests(self) -> None:
        if self._tx.gate is not None:
            self.enter("")

    def look_ahead(self, claim: Claim | None, keys: Keys) -> None:
        if claim is not None:
            self._fences[id(claim)] = self._events.claims.fence(self._tx, claim)
        for type_key, wanted in keys.items():
            self._ahead.setdefault(type_key, set()).update(wanted)

    def current(self, keys: Keys) -> State:
        found: State = {}
        for type_key, wanted in keys.items():
            known = self._known.setdefault(type_key, {})
            missing = [key for key in wanted if key not in known]
            if missing:
                self._learn(type_key, missing, self._asking(*type_key, missing))
            here = found[type_key] = {}
            for key in wanted:
                now = known[key]
                if now is not None:
                    here[key] = now
        return found

    def _learn(
        self, type_key: TypeKey, keys: Iterable[ObjectKey], asked: Iterable[Sequence[Any]]
    ) -> None:
        known = self._known.setdefault(type_key, {})
        known.update(dict.fromkeys(keys))
        for rows in asked:
            known.update((row[:-3], row[-3:]) for row in rows)

    def head(self) -> int:
        return self._head

    def enter(self, owner_id: str) -> str | None:
        """The other owner who holds the lease on long writes."""
        assert self._tx.gate is not None  # noqa: S101 - it has the lock of commits
        ahead, self._ahead = self._ahead, {}
        if sum(map(len, ahead.values())) > _CHUNK:  # its delta may take seconds
            self._tx.later(LONG_COMMIT)
        asked = [(key, wanted, self._asking(*key, wanted)) for key, wanted in ahead.items()]
        [(head, generation, holder, expires_at, settling)] = self._tx.gate
        self.now = to_text(self._clock.now())  # it may have waited for the lock
        self._settling = settling_types(settling)
        for type_key, wanted, found in asked:
            moved = self._asking(*type_key, wanted) if type_key in self.settling else found
            self._learn(type_key, wanted, moved)
        if not self._entered:
            self._head: int = head or 0
            self._entered = True
        self.generation: int = generation or 0
        if holder in (None, owner_id) or expires_at <= self.now:
            return None
        other: str = holder
        return other

    def admit(self) -> None:
        holder = self.enter("")
        if holder is not None:
            raise HeldUp(holder)

    @property
    def committed(self) -> bool | None:
        return self._tx.committed

    @property
    def written(self) -> int:
        return self._tx.written

    def has_written(self, before: int, error: Exception) -> bool:
        return self._tx.has_written(before, error)

    def register_type(
        self,
        kind: str,
        name: str,
        schema_json: str,
        *,
        runtime_id: str,
        reason: str,
        fills: Mapping[str, Any] | None = None,
    ) -> StoredType:
        self.has_registered = True
        known = self.current_types([(kind, name)]).get((kind, name))
        stored = StoredType(
            *(kind, name, known.version + 1 if known else 1, schema_json, schema_hash(schema_json)),
            None if fills is None else codec.encode_checked(fills),
        )
        named = {"kind": kind, "name": name, "schema_json": schema_json}
        version = named | {
            "version": stored.version,
            "schema_hash": stored.schema_hash,
            "created_at": to_text(self._clock.now()),
            "runtime_id": runtime_id,
            "reason": reason,
            "fills_json": stored.fills_json,
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
        check_keys(changes)
        if self.settling:
            self._staging.settle_changed(self._tx, changes)
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
        for kind, name, key, _, after, *_ in changes:
            now = None if after is None else (after, versions[kind, name], self._head)
            self._known.setdefault((kind, name), {})[key] = now
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
        if (question.shape.kind, question.shape.name) in question.settling:
            return self._staging.find(self, question)
        return answers.found(self._tx, self._schema, question)

    # -- events -----------------------------------------------------------------------------

    def announce(self, announcements: Iterable[Announcement]) -> list[Stored]:
        return self._events.log.announce(self._tx, announcements)

    def number(self, event_id: str) -> int:
        return self._events.log.number(self._tx, event_id)

    def keep_reply(self, reply: KeptReply) -> bool:
        return self._replies.add(self._tx, *reply)

    def holds(self, claim: Claim) -> bool:
        held = self._fences.pop(id(claim), None)
        if held is None:
            held = self._events.claims.fence(self._tx, claim)
        return bool(held) and held[0][0] > self.now


def _columns(kind: str, keys: Sequence[ObjectKey]) -> dict[str, Any]:
    """Keys as the statements want them: one list for each of their parts."""
    return {part: [key[place] for key in keys] for place, part in enumerate(_PARTS[kind])}


def _chunks(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
