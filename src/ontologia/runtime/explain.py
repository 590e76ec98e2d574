"""Why is this so? The way back from a value to what began it.

Commits name the event, the handler and the attempt they answer; events name what announced them.
Following those takes a few short reads, however long the history is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations, pairwise
from typing import Any

from ontologia import codec
from ontologia.clock import from_text
from ontologia.delivery.lineage import follows_event
from ontologia.errors import (
    InvalidValueError,
    NotFoundError,
    OntologiaError,
    QueryError,
    QueryTypeError,
)
from ontologia.migration.versions import TypeVersions
from ontologia.schema.registry import shape_of
from ontologia.schema.shape import Shape
from ontologia.store.protocol import Store
from ontologia.store.provenance import StoredVersion, Trail, emitting_commit
from ontologia.store.rows import CommitRow, EventRow, ObjectKey

log = logging.getLogger(__name__)
_NOTHING = object()
_MOST_WAYS = 200  # to read a key with colons in its parts


@dataclass(frozen=True, slots=True)
class Cause:
    """One event on the way back from a commit to what began it."""

    event_id: str
    type: str
    created_at: datetime
    payload: Any
    source: str | None
    """Who announced it; None if it was stored alone.

    A handler, `schedule:...`, `commit:12`, or, of a command that changed nothing, `command:<name>`.
    """
    commit_id: int | None
    """The commit it was announced with, unless a handler announced it."""
    causation_id: str | None
    """The event whose handler announced it; of a replayed event, the event it repeats.

    `command:<id>` if a command did; the commit it was announced with has the same `command_id`.
    """
    archived: str | None = None
    """The archive that the event was found in; None if it is retained."""


@dataclass(frozen=True, slots=True)
class Why:
    """How an object, or one field of it, came to be what it is."""

    kind: str
    type_name: str
    key: ObjectKey
    field: str | None
    value: Any
    """Of the field; of all fields by name if none was asked for; None if the object is deleted."""
    deleted: bool
    commit_id: int
    """The commit that set it."""
    created_at: datetime
    metadata: dict[str, Any]
    causes: tuple[Cause, ...]
    """The event whose handler made the commit, and back to the first event of the chain.

    Empty if no handler made it, or if the event is not retained any more, nor in the archive that
    `archive_uri` names.
    """
    archived_to: tuple[str, ...] = ()
    """If the causes do not go back to the beginning: the archives that the next may be in."""

    @property
    def handler_id(self) -> str | None:
        """The handler that made the commit; None if it was no handler."""
        return self.metadata.get("handler_id")

    @property
    def attempt(self) -> int | None:
        """Which attempt of the handler."""
        return self.metadata.get("attempt")

    @property
    def event_id(self) -> str | None:
        """The event that the handler handled."""
        return self.metadata.get("event_id")

    @property
    def complete(self) -> bool:
        """Whether the causes go back to the beginning; not if an event is retained no more."""
        if self.event_id is None:
            return True
        return bool(self.causes) and not follows_event(self.causes[-1].causation_id)


class Explanations:
    """Answers for one session."""

    def __init__(self, store: Store, versions: TypeVersions) -> None:
        self._store = store
        self._versions = versions

    def why(self, cls: Any, key: Any, field: str | None, as_of: int | None = None) -> Why:
        """See `Session.why`; with `as_of`, how it came to be what it was after that commit."""
        shape = shape_of(cls)
        before = {} if as_of is None else {"before": as_of + 1}
        if field is not None and not shape.has(field):
            raise QueryError(
                f"{shape.name} has no field {field!r}", hint=f"It has {', '.join(shape.fields)}."
            )
        ways = keys_of(shape, key)
        found = None
        with self._store.provenance.read() as trail:
            for way in ways:
                versions = trail.versions(shape.kind, shape.name, way, **before)
                newest = next(versions, None)
                if newest is not None:
                    setter = newest if field is None else _setter(shape, newest, versions, field)
                    found = self._answer(trail, shape, way, field, newest, setter)
                    break
        if found is not None:
            return found if found.complete else self._continued(found)
        shown = ":".join(part for part in ways[0] if part)
        if as_of is not None:
            raise NotFoundError(f"there was no {shape.name} {shown} by commit {as_of}")
        raise NotFoundError(f"there is no {shape.name} {shown}, and there never was")

    def _answer(
        self,
        trail: Trail,
        shape: Shape,
        key: ObjectKey,
        field: str | None,
        newest: StoredVersion,
        setter: StoredVersion,
    ) -> Why:
        commit = trail.commit(setter.commit_id)
        if commit is None:
            raise NotFoundError(f"commit {setter.commit_id}, which wrote it, is not in the store")
        fields = self.fields(shape, key, newest)
        event_id = commit.metadata.get("event_id")
        causes = trail.causes(event_id) if isinstance(event_id, str) else []
        return Why(
            shape.kind,
            shape.name,
            key,
            field,
            fields if field is None or fields is None else fields.get(field),
            newest.fields is None,
            commit.id,
            commit.created_at,
            commit.metadata,
            tuple(map(cause_of, causes)),
        )

    def _continued(self, why: Why) -> Why:
        """With the causes that are archived, and the retained ones before those."""
        archives = self._store.events.archives
        namespace = str(why.metadata.get("namespace"))
        causes = list(why.causes)
        missing = why.event_id if not causes else causes[-1].causation_id
        known = {each.event_id for each in causes}
        reached = True
        while isinstance(missing, str) and follows_event(missing) and missing not in known:
            try:
                archived = archives.find(missing, namespace)
            except OntologiaError as error:  # what is known without it is an answer, too
                log.warning("event %s was not looked up: %s", missing, error.args[0])
                archived, reached = None, False
            if archived is None:
                places = archives.places_of(missing, namespace)
                others = [each for each in places if not reached or each != archives.uri]
                return replace(why, causes=tuple(causes), archived_to=tuple(others))
            causes.append(replace(cause_of(archived.row), archived=archives.uri))
            if follows_event(archived.row.causation_id):
                with self._store.provenance.read() as trail:
                    causes += map(cause_of, trail.causes(str(archived.row.causation_id)))
            known.update(each.event_id for each in causes)
            missing = causes[-1].causation_id
        return replace(why, causes=tuple(causes))

    def fields(self, shape: Shape, key: ObjectKey, version: StoredVersion) -> dict[str, Any] | None:
        """The fields of a version, as the type has them now; None if it says "deleted"."""
        if version.fields is None:
            return None
        stored: dict[str, Any] = codec.decode_stored(version.fields)
        load = self._versions.loader(shape, version.schema_version)
        fields = shape.decode(stored) if load is None else load(key, stored)
        if shape.instance_key is not None:
            fields[shape.instance_key] = shape.key_value(key[2])
        declared = {name: fields[name] for name in shape.fields if name in fields}
        return declared | shape.undeclared(fields)


def find_commits(
    store: Store, *, since: int = 0, metadata: Mapping[str, str] | None = None
) -> Iterator[CommitRow]:
    """Commits after `since` whose metadata says all of this, as text; the newest first.

    Those of an event are found by its id, others by looking at one after the other. However many
    there are, few of them are in memory.
    """
    provenance, wanted = store.provenance, metadata or {}
    found: Iterable[CommitRow] = provenance.commits(since=since)
    if "event_id" in wanted:
        with provenance.read() as trail:
            answers = trail.commits_for([wanted["event_id"]])
        found = (each for each in reversed(answers) if each.id > since)
    for commit in found:
        if all(
            name in commit.metadata and str(commit.metadata[name]) == text
            for name, text in wanted.items()
        ):
            yield commit


# -- keys and versions ----------------------------------------------------------------------------


class StoredKey(tuple[str, ...]):
    """A key as its columns have it, `(key,)` or `(left, right, instance)`; means itself alone."""

    __slots__ = ()


def keys_of(shape: Shape, key: Any) -> list[ObjectKey]:
    """What a caller's key may mean; several if the text has more colons than a key has parts."""
    if isinstance(key, StoredKey):
        for part in key:
            codec.check(part, "key")
        return [tuple(key)]
    if shape.kind == "entity":
        text = (
            key
            if isinstance(key, str)
            else shape.key_text(shape.validate_one(shape.key or "", key))
        )
        codec.check(text, "key")
        return [(text,)]
    size = 2 if shape.instance_key is None else 3
    if isinstance(key, str):
        codec.check(key, "key")
        found = list(_splits(key, size))
    elif isinstance(key, tuple | list) and len(key) == size:
        return [shape.key_parts(key)]
    else:
        found = []
    if not found:
        parts = "left, right" if size == 2 else f"left, right, {shape.instance_key}"
        raise (QueryError if isinstance(key, str | tuple | list) else QueryTypeError)(
            f"{key!r} is no key of {shape.name}",
            hint=f"Give its parts, ({parts}), or the text {parts.replace(', ', ':')}.",
        )
    return [_relation_key(shape, parts) for parts in found]


def _relation_key(shape: Shape, parts: tuple[Any, ...]) -> ObjectKey:
    ends = [
        part if isinstance(part, str) else shape.end_key(side, part)
        for side, part in zip(("left", "right"), parts, strict=False)
    ]
    if shape.instance_key is None:
        return (*ends, "")
    instance = parts[2]
    if not isinstance(instance, str):
        instance = shape.key_text(shape.validate_one(shape.instance_key, instance))
    return (*ends, instance)


def _splits(text: str, size: int) -> Iterator[tuple[str, ...]]:
    """The ways to cut a text at its colons into so many parts, none of them empty."""
    colons = [place for place, letter in enumerate(text) if letter == ":"]
    for number, cut in enumerate(combinations(colons, size - 1)):
        if number >= _MOST_WAYS:
            return
        bounds = (-1, *cut, len(text))
        parts = tuple(text[start + 1 : end] for start, end in pairwise(bounds))
        if all(parts):
            yield parts


def _setter(
    shape: Shape, newest: StoredVersion, older: Iterator[StoredVersion], field: str
) -> StoredVersion:
    """The version that gave a field the value it has."""
    if newest.fields is None:
        return newest
    value, setter = _value(newest, field), newest
    for version in older:
        if version.fields is None or _value(version, field) != value:
            break
        setter = version
    else:
        if value is _NOTHING and field not in shape.fields:
            raise NotFoundError(f"this {shape.name} never had a field {field!r}")
    return setter


def _value(version: StoredVersion, field: str) -> object:
    """A field as it is stored; as text, since to Python True is 1."""
    fields: dict[str, Any] = codec.decode_stored(version.fields or "{}")
    return codec.encode(fields[field]) if field in fields else _NOTHING


# -- events ---------------------------------------------------------------------------------------


def cause_of(row: EventRow) -> Cause:
    """An event as a step on the way back."""
    return Cause(
        row.id,
        row.type,
        from_text(row.created_at),
        payload_of(row),
        row.source,
        emitting_commit(row.source),
        row.causation_id,
    )


def payload_of(row: EventRow) -> Any:
    """An event's payload; what cannot be read is shown as it is."""
    try:
        return codec.decode_stored(row.payload)
    except InvalidValueError:
        text = row.payload
        return text if isinstance(text, str) else text.decode(errors="backslashreplace")
