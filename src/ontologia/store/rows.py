"""What crosses the seam between the runtime and a store: plain data, no classes of the user's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ontologia import codec

TypeKey: TypeAlias = tuple[str, str]
"""(kind, type name)"""
ObjectKey: TypeAlias = tuple[str, ...]
"""(key,) of an entity; (left key, right key, instance key) of a relation."""
Batch: TypeAlias = dict[TypeKey, dict[ObjectKey, str | None]]
"""What should be true: canonical fields by key, None where the object should not exist."""
Keys: TypeAlias = Mapping[TypeKey, Collection[ObjectKey]]
"""Objects, by their keys."""

TOMBSTONE = "null"
"""The fields_json of a version that says: deleted here; the schema of a type that was dropped."""


EntityRow: TypeAlias = tuple[str, str, int, int | None, int]
"""One version of an entity: key, fields, commit, schema version, whether it says "deleted".

A plain tuple, as the driver makes it: a scan of 100,000 entities has no time for more.
"""


class Version(NamedTuple):
    """One stored version of a relation."""

    key: ObjectKey
    fields: str
    commit_id: int
    schema_version: int | None
    deleted: int = 0


class EndRow(NamedTuple):
    """The entity at one end of a relation, as it came with the relation."""

    fields: str | None
    commit_id: int | None
    schema_version: int | None


class RelationRow(NamedTuple):
    """A relation's version with what stands at its ends."""

    version: Version
    left: EndRow
    right: EndRow


class PathRow(NamedTuple):
    """One way: the entity it starts from, then each relation with the entity at its far end."""

    source: EntityRow
    steps: tuple[tuple[Version, EndRow], ...]


class RawChange(NamedTuple):
    """How one object changes: canonical fields before and after, None where there is none."""

    kind: str
    type_name: str
    key: ObjectKey
    before: str | None
    after: str | None
    before_version: int | None = None
    after_version: int | None = None


Current: TypeAlias = tuple[str, int | None, int]
"""The current version of one object: fields, schema version, commit.

A plain tuple, as the driver makes it: a commit may look at 10,000 of them.
"""
State: TypeAlias = dict[TypeKey, dict[ObjectKey, Current]]
"""Current versions, by key; an object that does not exist is left out."""


def delta(batch: Batch, state: State) -> list[RawChange]:
    """What a commit of `batch` would change; equal canonical text is no change.

    In the order of the keys: neighbouring rows are written together.
    """
    changes: list[RawChange] = []
    for type_key, wanted in batch.items():
        now = state.get(type_key, {})
        for key in sorted(wanted):
            current, after = now.get(key), wanted[key]
            before, version = (None, None) if current is None else current[:2]
            if before != after:
                changes.append(raw_change((*type_key, key, before, after, version or 1, None)))
    return changes


raw_change: Callable[[Iterable[Any]], RawChange] = partial(tuple.__new__, RawChange)
"""Makes a `RawChange` of its columns, as `_make` does, in a third of the time."""


@dataclass(frozen=True, slots=True)
class StoredType:
    """One schema version of one type."""

    kind: str
    name: str
    version: int
    schema_json: str
    schema_hash: str
    fills_json: str | None = None
    """JSON: what new fields of this version are in objects of the version before, which were not
    written anew; None if they were."""

    @property
    def fills(self) -> dict[str, Any] | None:
        """What new fields are in objects of the version before; None if these were written anew."""
        return None if self.fills_json is None else codec.decode_stored(self.fills_json)

    @property
    def dropped(self) -> bool:
        """Whether this version says that the type is there no more."""
        return says_dropped(self.version, self.schema_json)


def says_dropped(version: int, schema_json: str) -> bool:
    """Whether this is the mark of a type that was dropped; one that never was cannot go."""
    return schema_json == TOMBSTONE and version > 1


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One commit."""

    id: int
    created_at: datetime
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class EventRow(NamedTuple):
    """One event as it is stored, in the order of the columns."""

    id: str
    namespace: str
    type: str
    payload: str | bytes
    """JSON. As it comes from a file it is bytes: whether they are text is for the reader to see."""
    created_at: str
    priority: int
    root_event_id: str
    chain_depth: int
    source: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    tenant_id: str | None = None
    dedup_key: str | None = None
    occurred_at: str | None = None
    """The time that the event itself names; None if that is `created_at`."""


class Announcement(NamedTuple):
    """An event to store, now or, with `fire_at` (Unix seconds), when its time comes."""

    row: EventRow
    fire_at: float | None = None


class Stored(NamedTuple):
    """What became of an announcement: the event's id, and its number if it was deferred.

    With a dedup_key that was taken, the id is that of the first one.
    """

    id: str
    deferred: int | None
    number: int | None = None
    """Its number in the journal, if that was asked for."""


class KeptReply(NamedTuple):
    """What is answered to a request that came with a key of its own."""

    namespace: str
    key: str
    request_hash: str
    reply: str


@dataclass(slots=True)
class Claim:
    """One event that one session has to itself, for one consumer, until `lease_until`."""

    event: EventRow
    handler_id: str
    consumer_id: int
    token: str
    attempts: int
    """Attempts before this one."""
    lease_until: str
    crashed: bool = False
    """Whether the last of them ended without a word, as it does when a process dies."""
    started: bool = False
    read_commit: int | None = None
    """The last commit when the attempt began."""
    moved: bool = False
    """Whether that is a later one than the start mark says."""
    lease_ms: float = 0.0
    """How long the lease was when the event was claimed; renewals are as long."""
    asked_ms: float | None = None
    """How long a lease the handler asked for itself, if it did."""
    renewed: bool = False
    """Whether the lease is renewed while the handler runs."""
    outside: bool = False
    """Whether the claim is kept outside the database, whose only fence is the end of the lease."""


class ConsumerRow(NamedTuple):
    """A consumer as a claimer knows it."""

    id: int
    namespace: str
    name: str
