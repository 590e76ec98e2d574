"""What every store promises.

A backend is one object that keeps all of these. The rules hold on each of them:

- Times come from the clock that the store was opened with, never from SQL.
- A write transaction either happens as a whole or not at all, and a reader sees it as a whole.
- Commits are numbered 1, 2, 3 ... in the order in which they become visible.
- Nothing is ever updated or deleted in the history; what is current can be rebuilt from it.
- The database's own errors come out as `ontologia.errors.DatabaseError` or a subclass.

`ontologia_conformance` is the suite that every backend passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from ontologia.query.question import Question
from ontologia.store.database import Tx
from ontologia.store.inventory import Inventory
from ontologia.store.provenance import Provenance
from ontologia.store.replies import Replies
from ontologia.store.rows import (
    Announcement,
    Claim,
    CommitRow,
    EntityRow,
    KeptReply,
    Keys,
    ObjectKey,
    PathRow,
    RawChange,
    RelationRow,
    State,
    Stored,
    StoredType,
    TypeKey,
)
from ontologia.store.staging import Staging
from ontologia.store.writer import Request

if TYPE_CHECKING:
    from ontologia.store.events.store import EventStore


class StateReader(Protocol):
    """Questions about state, all answered from one snapshot."""

    def head(self) -> int:
        """The number of the last commit; 0 on an empty store."""
        ...

    def current(self, keys: Keys) -> State:
        """The current versions of these objects. One statement per type and 10,000 objects."""
        ...

    def current_types(self, keys: Iterable[TypeKey]) -> dict[TypeKey, StoredType]:
        """The current version of those of these types that were registered; see `dropped`."""
        ...


class Transaction(StateReader, Protocol):
    """A write transaction. What it reads cannot change before it is written."""

    generation: int
    """`schema_generation` as this transaction began."""

    @property
    def settling(self) -> Collection[TypeKey]:
        """Types of which current objects may not be in their places yet; see `Staging`."""
        ...

    @property
    def tx(self) -> Tx:
        """The same transaction for the event store, for what belongs together with a commit."""
        ...

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
        """Make this the current schema of a type, under the type's next version number.

        `fills` is what its new fields are in objects of the version before, if these are not
        written anew.
        """
        ...

    def write_commit(
        self,
        changes: Sequence[RawChange],
        *,
        metadata: dict[str, Any],
        versions: dict[TypeKey, int],
    ) -> int:
        """Append a commit with these changes; its number. `versions` are the schema versions.

        InvalidValueError, before anything is written, if one creates an object with a key of more
        than `key_length.LONGEST_KEY` bytes.
        """
        ...

    def find(self, question: Question) -> list[tuple[ObjectKey, str]]:
        """Key and fields of the current objects asked for, with what was written so far.

        One statement.
        """
        ...

    def announce(self, announcements: Iterable[Announcement]) -> list[Stored]:
        """Store events with what else this transaction writes."""
        ...

    def number(self, event_id: str) -> int:
        """The number of an event that is stored."""
        ...

    def keep_reply(self, reply: KeptReply) -> bool:
        """Store a reply; False if there is one under its key."""
        ...

    @property
    def committed(self) -> bool | None:
        """Whether it is committed, also if an interrupt came right after that; None if unknown."""
        ...

    @property
    def has_registered(self) -> bool:
        """Whether it has registered a type: until it is committed, others must not rely on that."""
        ...

    def begin_requests(self) -> None:
        """Have everything answered that requests looked ahead for, once the lock is held."""
        ...

    @property
    def written(self) -> int:
        """How much was written so far, for `has_written`."""
        ...

    def has_written(self, before: int, error: Exception) -> bool:
        """Whether a request that raised this may have written something since `written` was `before`.

        Then the transaction is to be rolled back: a savepoint would cost every request something.
        """
        ...

    def admit(self) -> None:
        """Begin to write state; HeldUp if another owner holds the lease on long writes."""
        ...

    def look_ahead(self, claim: Claim | None, keys: Keys) -> None:
        """Say what `holds` and `current` will be asked, so that a server answers in one round trip."""
        ...

    def holds(self, claim: Claim) -> bool:
        """The fence: whether this claim is held at this moment."""
        ...

    def verify_lock(self, owner_id: str) -> None:
        """LockLostError unless `owner_id` holds the lease on long writes at this moment."""
        ...


class Store(Protocol):
    """An opened store. Any thread may use it."""

    uri: str
    store_id: str
    """Names this store for good: versions of objects from another store mean nothing here."""

    def hurry(self) -> None:
        """The session is about to close: wait seconds at most for a server that does not answer.

        That also ends waits that have begun, with ConnectionLostError. Idempotent.
        """
        ...

    def close(self) -> None:
        """Give up all connections. Closing again is nothing."""
        ...

    # -- state ------------------------------------------------------------------------------

    def read(self) -> AbstractContextManager[StateReader]:
        """A snapshot. Never waits for writers."""
        ...

    def write(
        self,
        *,
        owner_id: str | None = None,
        timeout_ms: int | None = None,
        durable: bool = True,
    ) -> AbstractContextManager[Transaction]:
        """A write transaction; leaving it with an exception takes everything back.

        Waits while somebody else writes or holds the lease on long writes, at most `timeout_ms`,
        then raises LockContentionError. `durable` (hard) survives a power cut once it returned;
        a soft one survives a killed process, and a power cut only together with a later hard one.
        """
        ...

    def submit(self, request: Request) -> None:
        """Have a request written, in one transaction with what waits at the same time.

        Raises what the request raised, and LockContentionError as `write` does.
        """
        ...

    def submit_all(self, requests: Sequence[Request]) -> Sequence[Exception | None]:
        """Have requests written, each as by `submit`, in as few transactions as possible.

        Returns what `submit` would have raised for each, None for one that is written.
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

    def commit_at(self, when: datetime) -> int:
        """The number of the last commit made at or before `when`; 0 if there is none.

        Looks at one commit for each halving of their number (20 of a million), in one snapshot.
        If times do not rise with the numbers, it is one that was made by then and whose next one
        was not.
        """
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

    def unversioned_types(self) -> list[tuple[str, str, str]]:
        """Kind, name and schema of all registered types, if no type has a version; else []."""
        ...

    def ensure_index(
        self, kind: str, type_name: str, field: str, value_kind: str, fill: str | None = None
    ) -> None:
        """Make sure filters on this field of the current state find an index.

        `fill` is what objects that lack the field are read with, as in `Question.fills`.
        """
        ...

    @property
    def inventory(self) -> Inventory:
        """What is in the store: its types, how many objects, and all of them in order."""
        ...

    @property
    def staging(self) -> Staging:
        """What a migration of many objects has staged."""
        ...

    @property
    def provenance(self) -> Provenance:
        """Where a value, a commit or an event comes from."""
        ...

    @property
    def replies(self) -> Replies:
        """What was answered to requests that came with a key of their own."""
        ...

    # -- the lease on long writes -------------------------------------------------------------

    def long_write(
        self, owner_id: str, *, timeout_ms: int | None = None
    ) -> AbstractContextManager[None]:
        """Hold `ontology_write`: until the end, no other owner commits or writes long.

        The lease is renewed in the background. Raises LockContentionError after `timeout_ms`.
        """
        ...

    # -- events -----------------------------------------------------------------------------

    @property
    def events(self) -> EventStore:
        """The event store: in the same database, and in the same transactions."""
        ...

    def watch(self) -> Waiting:
        """Something to wait on for new events."""
        ...


class Waiting(Protocol):
    """A wait that ends early when there may be something to do."""

    @property
    def told(self) -> bool:
        """Whether the last wait was ended by somebody, and a claim costs no more than a look."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait for this long, or until woken by anybody; whether it was."""
        ...

    def wake(self) -> None:
        """End the wait. Any thread may, and a signal handler."""
        ...

    def settle(self) -> None:
        """Forget what happened so far: the caller is about to look for itself."""
        ...

    def close(self) -> None:
        """Give up what was held."""
        ...
