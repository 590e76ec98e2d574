"""What can be read and written within one transaction: state, types, and the lease.

The PostgreSQL twin has the same statements under the same names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.query.question import Question
from ontologia.schema.typespec import schema_hash
from ontologia.store.events.store import EventStore
from ontologia.store.key_length import check_keys
from ontologia.store.lease import LockStatements
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
from ontologia.store.sqlite import answers
from ontologia.store.sqlite.database import Tx
from ontologia.store.sqlite.notation import statements
from ontologia.store.staging import Staging, settling_types, with_settling
from ontologia.store.writer import HeldUp

_STATE = with_settling(statements("state.sql", "types.sql", "locks.sql", "staging.sql"))
_PLURAL = {"entity": "entities", "relation": "relations"}
_CHUNK = 10_000
_FEW = 4
"""Up to here a statement for each object is faster than one for all of them."""


class SQLiteReader:
    """One snapshot."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._settling: frozenset[TypeKey] | None = None

    # No cached_property: until Python 3.12 it has one lock for all, held for the statement.
    @property
    def settling(self) -> frozenset[TypeKey]:
        """Types of which current objects may not be in their places yet."""
        if self._settling is None:
            row = self._tx.one(_STATE["settling"])
            self._settling = settling_types(row and row[0])
        return self._settling

    def head(self) -> int:
        return self._tx.one(_STATE["head"])[0] or 0

    def current(self, keys: Keys) -> State:
        return {
            (kind, type_name): self._current(kind, type_name, wanted)
            for (kind, type_name), wanted in keys.items()
        }

    def _current(
        self, kind: str, type_name: str, keys: Collection[ObjectKey]
    ) -> dict[ObjectKey, Current]:
        found: dict[ObjectKey, Current] = {}
        which = "settling_current" if (kind, type_name) in self.settling else "current"
        if len(keys) <= _FEW:
            for key in keys:
                row = self._tx.one(_STATE[f"{which}_{kind}"], (type_name, *key))
                if row is not None:
                    found[key] = row
            return found
        statement = _STATE[f"{which}_{_PLURAL[kind]}"]
        for chunk in _chunks(sorted(keys)):  # neighbours are read together
            parts = [key for (key,) in chunk] if kind == "entity" else [list(key) for key in chunk]
            listed = codec.encode_checked(parts)
            for row in self._tx.all(statement, {"type": type_name, "keys": listed}):
                found[row[:-3]] = row[-3:]
        return found

    def current_types(self, keys: Iterable[TypeKey]) -> dict[TypeKey, StoredType]:
        listed = codec.encode_checked([list(key) for key in keys])
        rows = self._tx.all(_STATE["current_types"], {"keys": listed})
        return {(row[0], row[1]): StoredType(*row) for row in rows}


class SQLiteTransaction(SQLiteReader, LockStatements):
    """One write transaction."""

    def __init__(
        self, tx: Tx, clock: Clock, events: EventStore, replies: Replies, staging: Staging
    ) -> None:
        SQLiteReader.__init__(self, tx)
        LockStatements.__init__(self, tx, _STATE, clock)
        self._events = events
        self._replies = replies
        self._staging = staging
        self.generation = 0
        self._admitted = False
        self.has_registered = False

    def begin_requests(self) -> None:
        """BEGIN IMMEDIATE has waited for the lock."""

    def enter(self, owner_id: str) -> str | None:
        """The other owner who holds the lease on long writes."""
        holder: str | None
        self.now = to_text(self._clock.now())
        holder, generation, settling = self._tx.one(_STATE["gate"], (self.now, owner_id))
        self.generation = generation or 0
        self._settling = settling_types(settling)
        return holder

    def admit(self) -> None:
        if self._admitted:
            self.now = to_text(self._clock.now())
        elif (holder := self.enter("")) is not None:
            raise HeldUp(holder)
        self._admitted = True

    def look_ahead(self, claim: Claim | None, keys: Keys) -> None:
        """Statements are answered at once here."""

    @property
    def committed(self) -> bool:
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
        self._tx.run(
            _STATE["set_current"], {"kind": kind, "name": name, "schema_json": schema_json}
        )
        self._tx.run(
            _STATE["insert_version"],
            {
                "kind": kind,
                "name": name,
                "version": stored.version,
                "schema_json": schema_json,
                "schema_hash": stored.schema_hash,
                "created_at": to_text(self._clock.now()),
                "runtime_id": runtime_id,
                "reason": reason,
                "fills_json": stored.fills_json,
            },
        )
        return stored

    def write_commit(
        self,
        changes: Sequence[RawChange],
        *,
        metadata: dict[str, Any],
        versions: dict[TypeKey, int],
    ) -> int:
        check_keys(changes)
        tx = self._tx
        if self.settling:
            self._staging.settle_changed(tx, changes)
        encoded = codec.encode_checked(metadata, where="commit metadata")
        tx.later(_STATE["insert_commit"], (self.now, encoded))
        commit_id = tx.last_id()
        rows: dict[str, list[tuple[Any, ...]]] = {}
        deleted: set[str] = set()
        for kind, type_name, key, _, after, *_ in changes:
            if after is None:
                after = TOMBSTONE
                deleted.add(kind)
            values = (type_name, *key, after, commit_id, versions[kind, type_name])
            rows.setdefault(kind, []).append(values)
        for kind, written in rows.items():
            if len(written) <= _FEW and kind not in deleted:
                for row in written:
                    tx.later(_STATE[f"insert_{kind}_version"], row)
                    tx.later(_STATE[f"set_latest_{kind}"], row)
                continue
            tx.many(_STATE[f"insert_{kind}_version"], written)
            plural = _PLURAL[kind]
            tx.later(_STATE[f"update_latest_{plural}"], {"commit_id": commit_id})
            if kind in deleted:
                tx.later(_STATE[f"delete_latest_{plural}"], {"commit_id": commit_id})
        return commit_id

    def find(self, question: Question) -> list[tuple[ObjectKey, str]]:
        if (question.shape.kind, question.shape.name) in question.settling:
            return self._staging.find(self, question)
        return answers.found(self._tx, question)

    # -- events -----------------------------------------------------------------------------

    def announce(self, announcements: Iterable[Announcement]) -> list[Stored]:
        return self._events.log.announce(self._tx, announcements)

    def number(self, event_id: str) -> int:
        return self._events.log.number(self._tx, event_id)

    def keep_reply(self, reply: KeptReply) -> bool:
        return self._replies.add(self._tx, *reply)

    def holds(self, claim: Claim) -> bool:
        return self._events.claims.check(self._tx, claim)


def _chunks(keys: Sequence[ObjectKey]) -> Iterator[list[ObjectKey]]:
    if len(keys) <= _CHUNK:
        yield list(keys)
        return
    rest = iter(keys)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
