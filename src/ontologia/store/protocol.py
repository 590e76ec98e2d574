"""What every store promises.

A backend is one object that keeps all of these. The rules hold on each of them:

- Times come from the clock that the store was opened with, never from SQL.
- A write transaction either happens as a whole or not at all, and a reader sees it as a whole.
- Commits are numbered 1, 2, 3 ... in the order in which they become visible.
- Nothing is ever updated or deleted in the history; what is current can be rebuilt from it.
- The database's own errors come out as `ontologia.errors.DatabaseError` or a subclass.

`ontologia.testing.conformance` is the suite that every backend passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from ontologia.query.question import Question
from ontologia.schema.event import Event
from ontologia.store.database import Tx
from ontologia.store.inventory import Inventory
from ontologia.store.provenance import Provenance
from ontologia.store.replies import Replies
from ontologia.store.rows import (
    Announcement,
    Claim,
    CommitRow,
    EntityRow,
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

if TYPE_CHECKING:
    from ontologia.store.events.store import SqlEventStore


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
    def tx(self) -> Tx:
        """The same transaction for the event store, for what belongs together with a commit."""
        ...

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

    def find(self, question: Question) -> list[tuple[ObjectKey, str]]:
        """Key and fields of the current objects asked for, with what was written so far.

        One statement.
        """
        ...

    def announce(self, announcements: Iterable[Announcement]) -> list[Stored]:
        """Store events with what else this transaction writes."""
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
        claim: Claim | None = None,
        keys: Keys | None = None,
    ) -> AbstractContextManager[Transaction]:
        """A write transaction; leaving it with an exception takes everything back.

        Waits while somebody else writes or holds the lease on long writes, at most `timeout_ms`,
        then raises LockContentionError. `durable` (hard) survives a power cut once it returned;
        a soft one survives a killed process, and a power cut only together with a later hard one.
        `claim` and `keys` say what `holds` and `current` will be asked, so that a server gets
        those statements in the round trip that takes the lock.
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

    def ensure_index(self, kind: str, type_name: str, field: str, value_kind: str) -> None:
        """Make sure filters on this field of the current state find an index."""
        ...

    @property
    def inventory(self) -> Inventory:
        """What is in the store: its types, how many objects, and all of them in order."""
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
    def events(self) -> SqlEventStore:
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


class EventStore(Protocol):
    """Where events are kept, claimed and ended.

    A claim is one event for one consumer, with a lease and a token. Whatever is done in its name
    changes nothing once the lease has run out or another session has the claim. Without
    `session_id` and `lease_token` a call means whoever holds it.
    """

    def enqueue(self, event: Event, namespace: str) -> None:
        """Store an event, durably. An id, time and lineage it brings along are kept.

        IntegrityError if the id exists, InvalidValueError if it cannot be stored.
        """
        ...

    def claim(
        self,
        namespace: str,
        handler_id: str,
        session_id: str,
        event_types: list[str],
        limit: int,
        lease_ms: int,
    ) -> list[Event]:
        """Claim up to `limit` events, by priority and then age, for `lease_ms`.

        Registers the consumer `handler_id`, and its types, when this process sees it first. An
        event that cannot be read is buried and left out. Costs what is new, due and taken; with
        nothing to do, one read.
        """
        ...

    def ack(
        self,
        handler_id: str,
        event_id: str,
        *,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """The event was processed: it is never claimed for this handler again."""
        ...

    def release(
        self,
        handler_id: str,
        event_id: str,
        *,
        error: str | None = None,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """The attempt failed: again after the backoff, or buried at `event_max_attempts`.

        Burying writes a dead letter and announces `event.dead_letter`, in the same transaction.
        """
        ...

    def register_session(self, session_id: str, namespace: str, metadata: dict[str, Any]) -> None:
        """Write down that a session is there; its start is kept when it is written again."""
        ...

    def heartbeat(self, session_id: str) -> None:
        """Write down that a session is alive; an unknown one is nothing."""
        ...


class TransactionalEventStore(EventStore, Protocol):
    """What the stores here offer beyond that."""

    def start(
        self,
        handler_id: str,
        event_id: str,
        *,
        lease_ms: int,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> bool:
        """Mark that the attempt begins: from here on a lease that runs out counts as one."""
        ...

    def renew(
        self,
        handler_id: str,
        event_id: str,
        *,
        lease_ms: int,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> bool:
        """Extend the lease to `lease_ms` from now; False if it was lost."""
        ...

    def abandon(
        self,
        handler_id: str,
        event_id: str,
        *,
        session_id: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        """Hand the event back at once, without counting an attempt."""
        ...

    def defer(
        self,
        event: Event,
        namespace: str,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> int | None:
        """Store an event for later; its number, or None if `dedup_key` was taken."""
        ...

    def cancel_deferred(self, namespace: str, number: int) -> bool:
        """Take back a deferred event; False if it fired, was cancelled or never was."""
        ...

    def list_namespaces(self) -> list[dict[str, Any]]:
        """`namespace sessions pending unsubscribed dead_letters` of each; counts all retained events."""
        ...

    def list_sessions(self, namespace: str) -> list[dict[str, Any]]:
        """`session_id hostname pid started_at last_heartbeat stopped_at is_dead metadata`."""
        ...

    def list_events(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        """`id type created_at priority status handler`, by priority and then age."""
        ...

    def list_dead_letters(self, namespace: str, limit: int = 100) -> list[dict[str, Any]]:
        """`event_id type handler attempts last_error failed_at`, the newest first."""
        ...

    def list_consumers(self, namespace: str) -> list[dict[str, Any]]:
        """`name last_seen_at paused_at ready claimed backoff types`, by name."""
        ...

    def inspect_event(self, event_id: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One event with all its claims and failed attempts; None if there is none there."""
        ...

    def replay_event(self, namespace: str, event_id: str) -> str | None:
        """Store the event again as a new one, for all its consumers; the new id, None if unknown."""
        ...

    def cleanup_events(self, namespace: str, before: datetime | timedelta) -> int:
        """Delete events from before then, finished or not, unless leased; how many."""
        ...

    def collect_events(self, namespace: str) -> int:
        """Delete what is past its retention and every consumer has finished, or none has; how many."""
        ...

    def pause(self, namespace: str, handler_id: str) -> bool:
        """Stop deliveries to a consumer until `resume`; False if there is none of that name."""
        ...

    def resume(self, namespace: str, handler_id: str) -> bool:
        """Deliver again."""
        ...

    def forget(self, namespace: str, handler_id: str) -> bool:
        """Remove a consumer and what waits for it; refused while a live session runs it."""
        ...

    def check(self) -> list[str]:
        """What breaks the rules of delivery, one line each; [] for a sound store."""
        ...
