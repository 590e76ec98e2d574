"""What every store promises.

A backend is one object that keeps all of these. The rules hold on each of them:

- Times come from the clock that the store was opened with, never from SQL.
- A write transaction either happens as a whole or not at all, and a reader sees it as a whole.
- Commits are numbered 1, 2, 3 ... in the order in which they become visible.
- Nothing is ever updated or deleted in the history; what is current can be rebuilt from it.
- The database's own errors come out as `ontologia.errors.DatabaseError` or a subclass.

`tests/conformance` runs one suite over every backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from ontologia.query.question import Question
from ontologia.store.rows import (
    Batch,
    CommitRow,
    EntityRow,
    PathRow,
    RawChange,
    RelationRow,
    StoredType,
    TypeKey,
)


class StateReader(Protocol):
    """Questions about state, all answered from one snapshot."""

    def head(self) -> int:
        """The number of the last commit; 0 on an empty store."""
        ...

    def delta(self, batch: Batch) -> list[RawChange]:
        """What a commit of `batch` would change; equal canonical text is no change.

        One statement per touched type and 10,000 objects.
        """
        ...

    def current_types(self, keys: Iterable[TypeKey]) -> dict[TypeKey, StoredType]:
        """The current schema version of those of these types that are registered."""
        ...


class Transaction(StateReader, Protocol):
    """A write transaction. What it reads cannot change before it is written."""

    def register_type(
        self, kind: str, name: str, schema_json: str, *, runtime_id: str, reason: str
    ) -> StoredType:
        """Make this the current schema of a type, under the type's next version number."""
        ...

    def write_commit(
        self,
        changes: Sequence[RawChange],
        *,
        metadata: dict[str, Any],
        versions: dict[TypeKey, int],
    ) -> int:
        """Append a commit with these changes; its number. `versions` are the schema versions."""
        ...

    def verify_lock(self, owner_id: str) -> None:
        """LockLostError unless `owner_id` holds the lease on long writes at this moment."""
        ...


class Store(Protocol):
    """An opened store. Any thread may use it."""

    uri: str

    def close(self) -> None:
        """Give up all connections. Closing again is nothing."""
        ...

    # -- state ------------------------------------------------------------------------------

    def read(self) -> AbstractContextManager[StateReader]:
        """A snapshot. Never waits for writers."""
        ...

    def write(
        self, *, owner_id: str | None = None, timeout_ms: int | None = None, durable: bool = True
    ) -> AbstractContextManager[Transaction]:
        """A write transaction; leaving it with an exception takes everything back.

        Waits while somebody else writes or holds the lease on long writes, at most `timeout_ms`,
        then raises LockContentionError. `durable` (hard) survives a power cut once it returned;
        a soft one survives a killed process, and a power cut only together with a later hard one.
        """
        ...

    def query_entities(self, question: Question) -> list[EntityRow]:
        """Versions of the entities asked for; [] if there are none. One statement."""
        ...

    def query_relations(self, question: Question) -> list[RelationRow]:
        """Versions of the relations asked for, with their ends. One statement."""
        ...

    def query_paths(self, question: Question) -> list[PathRow]:
        """The ways asked for. One statement."""
        ...

    def aggregate_entities(self, question: Question) -> list[tuple[Any, ...]]:
        """One row a group: the values it is grouped by, then the aggregates. One statement."""
        ...

    def aggregate_relations(self, question: Question) -> list[tuple[Any, ...]]:
        """The same for relations."""
        ...

    def get_head_commit_id(self) -> int | None:
        """The number of the last commit; None on an empty store."""
        ...

    def list_commits(self, *, limit: int, since: int | None = None) -> list[CommitRow]:
        """The newest `limit` commits, newest first; only those after commit `since`, if given."""
        ...

    def get_commit(self, commit_id: int) -> CommitRow | None:
        """One commit, or None."""
        ...

    def changes_between(self, first: int, last: int) -> list[RawChange]:
        """How each object that changed after commit `first`, up to `last`, differs between them.

        Costs the number of versions written in between, not of those stored.
        """
        ...

    # -- types ------------------------------------------------------------------------------

    def get_current_schema_version(self, kind: str, type_name: str) -> dict[str, Any] | None:
        """The current version of a type: a mapping with `schema_version_id`; None if unknown."""
        ...

    def schema_generation(self) -> int:
        """A number that is another one after every change of any type's schema."""
        ...

    def list_schema_versions(self, kind: str, type_name: str) -> list[StoredType]:
        """Every version of a type, oldest first."""
        ...

    def ensure_index(self, kind: str, type_name: str, field: str, value_kind: str) -> None:
        """Make sure filters on this field of the current state find an index."""
        ...

    # -- the lease on long writes -------------------------------------------------------------

    def long_write(
        self, owner_id: str, *, timeout_ms: int | None = None
    ) -> AbstractContextManager[None]:
        """Hold `ontology_write`: until the end, no other owner commits or writes long.

        The lease is renewed in the background. Raises LockContentionError after `timeout_ms`.
        """
        ...

    # -- sessions ---------------------------------------------------------------------------

    def register_session(self, session_id: str, namespace: str, metadata: dict[str, Any]) -> None:
        """Write down that a session is there; its start is kept when it is written again."""
        ...

    def end_session(self, session_id: str, now: datetime) -> None:
        """Write down that a session ended."""
        ...
