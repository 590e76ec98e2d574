"""Types, their objects, and how one object came to be as it is; now, or as of a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ontologia import codec
from ontologia.errors import MissingUpgraderError, NotFoundError, ReadTimeoutError
from ontologia.query.paging import after_key
from ontologia.query.words import Words
from ontologia.runtime.delta import ChangeKind
from ontologia.runtime.explain import Explanations, keys_of
from ontologia.runtime.session import core_of
from ontologia.runtime.stored import StoredTypes
from ontologia.runtime.views.commits import Maker, differing, makers
from ontologia.runtime.views.paging import DEADLINE, PAGE, Count, Page, bounded, cursor, place
from ontologia.schema.diff import field_changes
from ontologia.schema.expression import Column, Compare, Path
from ontologia.schema.shape import Shape
from ontologia.schema.stored import plain
from ontologia.schema.typespec import TypeSpec, spec_of
from ontologia.store.database import reading_within
from ontologia.store.inventory import TypeVersion
from ontologia.store.provenance import StoredVersion, Trail
from ontologia.store.rows import ObjectKey, TypeKey

if TYPE_CHECKING:
    from ontologia.runtime.core import Core
    from ontologia.runtime.session import Session

_COUNTED = 1_000
_LOOKED_BACK = 1_000  # versions of an object
_DRAWN = 100  # versions whose values are given field by field
_RELATIONS = 20
_ANY_SIZE = 2**62  # bytes: a page has as many objects as it shows
_ENDS: tuple[tuple[Literal["left", "right"], Literal["left", "right"]], ...] = (
    ("left", "right"),
    ("right", "left"),
)
_COLUMNS: dict[str, Column] = {"left": "left_key", "right": "right_key"}


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type of the store."""

    kind: str
    """`entity` or `relation`."""
    name: str
    version: int
    key: str | None
    """Of an entity: the field that is its key."""
    left: str | None
    right: str | None
    fields: dict[str, Any]
    """What each field is, by name: `str`, or a larger description."""
    objects: Count
    """Current objects; counted to 1,000."""
    open: bool
    """Whether objects may have other fields as well."""
    dropped: bool = False
    """Whether the type is there no more; then this is its last version."""

    @property
    def others(self) -> list[str]:
        """The fields that are no part of the key."""
        return [name for name in self.fields if name != self.key]


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """One object, as it is stored."""

    kind: str
    type_name: str
    key: ObjectKey
    """(key,) of an entity; (left, right, instance) of a relation."""
    commit_id: int
    """The commit that wrote this version."""
    fields: dict[str, Any]
    as_stored: bool = False
    """Whether an upgrader is missing, and the fields are those of an older version of the type."""

    @property
    def label(self) -> str:
        """The key as one text: `o-7`, `c1:10`."""
        return ":".join(part for part in self.key if part)


@dataclass(frozen=True, slots=True)
class FieldValue:
    """One field of an object, and what set it."""

    name: str
    value: Any
    declared: bool
    """Whether the type has such a field; objects of open types may have more."""
    set_by: Maker | None
    """The commit that gave it this value; None if that is further back than 1,000 versions."""
    changes: tuple[tuple[int, Any], ...] = ()
    """The commits of the last 100 versions in which it changed, oldest first, each with the value
    that was stored; None where it was missing, or the object deleted."""


@dataclass(frozen=True, slots=True)
class RelationsOf:
    """The relations of one type that an entity has, at one of its ends."""

    type_name: str
    end: str
    """`left` or `right`: where the entity stands."""
    other: str
    """The type at the other end."""
    rows: tuple[ObjectRow, ...]
    more: bool
    """Whether there are more than are shown; of the past without any, that it took too long."""


@dataclass(frozen=True, slots=True)
class ObjectDetail:
    """One object, with what set each of its fields."""

    kind: str
    type_name: str
    key: ObjectKey
    deleted: bool
    written_by: Maker | None
    """The commit that wrote this version."""
    fields: tuple[FieldValue, ...]
    """Empty if it is deleted."""
    relations: tuple[RelationsOf, ...]
    """Of an entity, both ways."""
    schema_version: int = 1
    """The version of the type in which it is stored; its fields are as the type has them now."""
    as_stored: bool = False
    """Whether an upgrader is missing, and the fields are those of that version."""
    first_drawn: int = 0
    """The oldest commit that `FieldValue.changes` look back to."""

    @property
    def label(self) -> str:
        """The key as one text: `o-7`, `c1:10`."""
        return ":".join(part for part in self.key if part)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of an object, and how it differs from the one before."""

    made: Maker | None
    change: ChangeKind
    changes: dict[str, tuple[Any, Any]]
    """Before and after of each field that differs, as it was stored."""
    schema_version: int = 1
    """The version of the type in which it is stored."""


@dataclass(frozen=True, slots=True)
class VersionAt:
    """One side of a comparison: the object after a commit."""

    as_of: int
    made: Maker | None
    """The commit that wrote the version; None if there was no such object yet."""
    deleted: bool
    schema_version: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """An object after two commits."""

    left: VersionAt
    right: VersionAt
    fields: tuple[tuple[str, Any, Any, bool], ...]
    """Name, both values as they were stored (None where missing), and whether they differ."""


def types(session: Session) -> list[TypeRow]:
    """The types that are registered, by kind and name.

    Counts 1,000 current objects of each at most, and costs that.
    """
    with core_of(session).store.inventory.read() as contents:
        found = contents.types()
        counts = contents.counts_up_to([(each.kind, each.name) for each in found], _COUNTED + 1)
    return [
        _type_row(each.kind, each.name, each.version, each.schema_json, counts) for each in found
    ]


def type_(session: Session, kind: str, name: str) -> tuple[TypeRow, list[TypeVersion]]:
    """One type, also one that was dropped, and its versions, the newest first.

    Counts 1,000 current objects at most. NotFoundError if there never was such a type.
    """
    stored = StoredTypes.of(session)
    cls = stored.entity(name) if kind == "entity" else stored.relation(name)
    with core_of(session).store.inventory.read() as contents:
        history = contents.history(kind, name)[::-1]
        counts = contents.counts_up_to([(kind, name)], _COUNTED + 1)
    last = next((each for each in history if not each.dropped), None)
    if last is None:  # the program's own, of which nothing was stored
        text = spec_of(cls.__shape__).to_json()
        return _type_row(kind, name, 1, text, counts), history
    row = _type_row(kind, name, last.version, last.schema_json, counts)
    return replace(row, dropped=history[0].dropped), history


def _type_row(
    kind: str, name: str, version: int, schema_json: str, counts: dict[TypeKey, int]
) -> TypeRow:
    spec = TypeSpec.from_json(schema_json)
    described = field_changes(None, TypeSpec("", "", spec.fields))
    return TypeRow(
        kind,
        name,
        version,
        spec.key,
        spec.left,
        spec.right,
        {change.name: change.after for change in described},
        bounded(counts[kind, name], _COUNTED),
        spec.open,
    )


def objects(
    session: Session,
    kind: str,
    type_name: str,
    *,
    filters: Sequence[Sequence[str]] = (),
    order: str | None = None,
    as_of: int | None = None,
    before: str | None = None,
    limit: int = PAGE,
    seconds: float = DEADLINE,
) -> Page[ObjectRow]:
    """A page of the objects of a type, in the order of their keys, now or as of a commit.

    Each filter is a path, an operator and, unless it tests for null, a value: see
    `ontologia.query.words`. `order` is `field` or `field:desc`; then a page costs those before it,
    too. Filters of fields without an index cost the objects that are looked at, and so do, as of a
    commit, anything that is filtered or ordered, and keys that came later; a page that takes longer than
    `seconds` raises ReadTimeoutError. NotFoundError if there is no such type.
    """
    stored = StoredTypes.of(session)
    cls = stored.entity(type_name) if kind == "entity" else stored.relation(type_name)
    shape: Shape = cls.__shape__
    words = Words(shape)
    asked = session.query()
    query: Any = asked.entities(cls) if kind == "entity" else asked.relations(cls)
    query = query.where(*(words.condition(*each) for each in filters))
    if as_of is not None:
        query = query.as_of(as_of)
    done, after = 0, None
    if order is not None:
        query = query.order_by(words.order(order))
        done = 0 if before is None else max(0, place(before, int)[0])
        query = query.offset(done)
    elif before is not None:
        after = place(before, *[str] * (1 if kind == "entity" else 3))
        query = query.where(after_key(shape, after))
    with reading_within(seconds):
        if as_of is not None and order is None and not filters:
            # A query of the past looks at every key of the type before its LIMIT.
            rows = _page_at(core_of(session), shape, as_of, after, limit + 1)
        else:
            rows = [_object(shape, each) for each in query.limit(limit + 1).collect()]
    if len(rows) <= limit:
        return Page(tuple(rows), None)
    last = rows[limit - 1]
    return Page(tuple(rows[:limit]), cursor(*last.key) if order is None else cursor(done + limit))


def object_(
    session: Session,
    kind: str,
    type_name: str,
    key: Any,
    *,
    as_of: int | None = None,
    relations: int = _RELATIONS,
    seconds: float = DEADLINE,
) -> ObjectDetail:
    """One object with what set each field, and the relations of an entity; now or as of a commit.

    Costs the versions of the object on the way back to the oldest change that still shows, 1,000 at
    most, a read for each commit that is named, and the relations shown; as of a commit, those at the
    right end cost the versions of their type, for `seconds` at most. NotFoundError if there was
    no such object by then.
    """
    core = core_of(session)
    stored = StoredTypes.of(session)
    cls = stored.entity(type_name) if kind == "entity" else stored.relation(type_name)
    shape: Shape = cls.__shape__
    with core.store.provenance.read() as trail:
        object_key, versions = _found(trail, shape, key, as_of)
        newest, setters = versions[0], _setters(versions)
        complete = len(versions) < _LOOKED_BACK
        wanted = [newest.commit_id, *(number for number, _ in setters.values())]
        made = makers(trail, wanted)
    values, as_stored = _fields(Explanations(core.store, core.versions), shape, object_key, newest)
    drawn = _drawn(versions[:_DRAWN], complete=len(versions) <= _DRAWN)
    fields = [
        FieldValue(
            name,
            value,
            name in shape.fields,
            _setter(setters.get(name), versions, made, complete),
            drawn.get(name, ()),
        )
        for name, value in values.items()
    ]
    related: tuple[RelationsOf, ...] = ()
    if kind == "entity":
        with reading_within(seconds):
            related = tuple(_relations(session, stored, type_name, object_key[0], as_of, relations))
    return ObjectDetail(
        kind,
        type_name,
        object_key,
        newest.fields is None,
        made.get(newest.commit_id),
        tuple(fields),
        related,
        newest.schema_version,
        as_stored,
        versions[:_DRAWN][-1].commit_id,
    )


def compared(
    session: Session, kind: str, type_name: str, key: Any, left: int, right: int
) -> Comparison:
    """An object after two commits, field by field, as it was stored.

    Costs two versions. NotFoundError if there was no such object by either.
    """
    stored = StoredTypes.of(session)
    cls = stored.entity(type_name) if kind == "entity" else stored.relation(type_name)
    with core_of(session).store.provenance.read() as trail:
        way, _ = _found(trail, cls.__shape__, key, max(left, right), most=1)
        sides: list[VersionAt] = []
        fields: list[dict[str, Any]] = []
        for at in (left, right):
            found = next(trail.versions(kind, type_name, way, before=at + 1), None)
            made = None if found is None else makers(trail, [found.commit_id])
            sides.append(
                VersionAt(at, None, False, 1)
                if found is None or made is None
                else VersionAt(
                    at, made.get(found.commit_id), found.fields is None, found.schema_version
                )
            )
            fields.append({} if found is None else _stored_fields(found))
    changed = differing(*fields)
    names = dict.fromkeys((*fields[0], *fields[1]))
    rows = ((n, fields[0].get(n), fields[1].get(n), n in changed) for n in names)
    return Comparison(sides[0], sides[1], tuple(rows))


def versions(
    session: Session,
    kind: str,
    type_name: str,
    key: Any,
    *,
    as_of: int | None = None,
    before: str | None = None,
    limit: int = PAGE,
) -> Page[VersionRow]:
    """A page of the versions of an object, the newest first, and what each of them changed.

    With `as_of`, those that there were after that commit.
    Fields are as they were stored then. Costs the page, and a read for each of its commits.
    """
    stored = StoredTypes.of(session)
    cls = stored.entity(type_name) if kind == "entity" else stored.relation(type_name)
    at = as_of if before is None else int(place(before, int)[0]) - 1
    with core_of(session).store.provenance.read() as trail:
        _, found = _found(trail, cls.__shape__, key, at, most=limit + 1)
        made = makers(trail, (each.commit_id for each in found[:limit]))
    texts = [_stored_fields(each) for each in found]
    older = [*found[1:], None]
    rows = tuple(
        VersionRow(
            made.get(version.commit_id),
            "deleted" if version.fields is None else _made_of(older[number]),
            differing(texts[number + 1] if number + 1 < len(texts) else {}, texts[number]),
            version.schema_version,
        )
        for number, version in enumerate(found[:limit])
    )
    return Page(rows, cursor(found[limit - 1].commit_id) if len(found) > limit else None)


# -- one object -----------------------------------------------------------------------------------


def _found(
    trail: Trail, shape: Shape, key: Any, as_of: int | None, *, most: int = _LOOKED_BACK
) -> tuple[ObjectKey, list[StoredVersion]]:
    """The key that is meant, and the last versions of its object; NotFoundError without any."""
    ways = keys_of(shape, key)
    before = {} if as_of is None else {"before": as_of + 1}
    for way in ways:
        found: list[StoredVersion] = []
        for version in trail.versions(shape.kind, shape.name, way, **before):
            found.append(version)
            if len(found) == most:
                break
        if found:
            return way, found
    shown = ":".join(part for part in ways[0] if part)
    when = "" if as_of is None else f" by commit {as_of}"
    raise NotFoundError(f"there was no {shape.name} {shown}{when}")


def _setters(found: list[StoredVersion]) -> dict[str, tuple[int, int]]:
    """Of each field of the newest version: the commit that gave it its value, and its place."""
    open_ = _stored_fields(found[0])
    texts = {name: codec.encode(value) for name, value in open_.items()}
    setters: dict[str, tuple[int, int]] = dict.fromkeys(texts, (found[0].commit_id, 0))
    for number, version in enumerate(found[1:], start=1):
        older = _stored_fields(version)
        if version.fields is None:
            break
        for name in list(texts):
            if name in older and codec.encode(older[name]) == texts[name]:
                setters[name] = (version.commit_id, number)
            else:
                del texts[name]
        if not texts:
            break
    return setters


def _made_of(before: StoredVersion | None) -> ChangeKind:
    """What a version makes of the one before."""
    return "created" if before is None or before.fields is None else "updated"


def _drawn(found: list[StoredVersion], *, complete: bool) -> dict[str, tuple[tuple[int, Any], ...]]:
    """Of each field, the commits in which it changed, and what it became; oldest first."""
    drawn: dict[str, list[tuple[int, Any]]] = {}
    before = {} if complete else _stored_fields(found[-1])
    for version in reversed(found if complete else found[:-1]):
        fields = _stored_fields(version)
        for name, (_, after) in differing(before, fields).items():
            drawn.setdefault(name, []).append((version.commit_id, after))
        before = fields
    return {name: tuple(changes) for name, changes in drawn.items()}


def _setter(
    at: tuple[int, int] | None,
    found: list[StoredVersion],
    made: dict[int, Maker],
    complete: bool,
) -> Maker | None:
    """Who set a field; a field that the stored version lacks has come with its schema."""
    number, position = (found[0].commit_id, 0) if at is None else at
    if not complete and position == len(found) - 1:
        return None
    return made.get(number)


def _stored_fields(version: StoredVersion) -> dict[str, Any]:
    return {} if version.fields is None else codec.decode_stored(version.fields)


# -- many objects ---------------------------------------------------------------------------------


def _object(shape: Shape, obj: Any) -> ObjectRow:
    meta = obj.meta()
    key = (
        (meta.key,)
        if shape.kind == "entity"
        else (meta.left_key, meta.right_key, meta.instance_key or "")
    )
    return ObjectRow(shape.kind, shape.name, key, meta.commit_id, plain(shape, obj.__dict__))


def _page_at(
    core: Core, shape: Shape, as_of: int, after: ObjectKey | None, most: int
) -> list[ObjectRow]:
    """The next objects of a type as of a commit. A seek for each, and for each key that came later."""
    with core.store.inventory.read() as contents:
        page = contents.page(shape.kind, shape.name, as_of, after, most, _ANY_SIZE)
    explanations = Explanations(core.store, core.versions)
    rows: list[ObjectRow] = []
    with core.store.provenance.read() as trail:
        for key in (each.key for each in page):
            version = next(trail.versions(shape.kind, shape.name, key, before=as_of + 1))
            fields, as_stored = _fields(explanations, shape, key, version)
            row = ObjectRow(shape.kind, shape.name, key, version.commit_id, fields, as_stored)
            rows.append(row)
    return rows


def _fields(
    explanations: Explanations, shape: Shape, key: ObjectKey, version: StoredVersion
) -> tuple[dict[str, Any], bool]:
    """The fields of a version, and whether they are as they were stored for want of an upgrader."""
    try:
        found = explanations.fields(shape, key, version)
    except MissingUpgraderError:
        return _stored_fields(version), True
    return ({} if found is None else plain(shape, found)), False


def _relations(
    session: Session,
    stored: StoredTypes,
    type_name: str,
    key: str,
    as_of: int | None,
    limit: int,
) -> list[RelationsOf]:
    found: list[RelationsOf] = []
    for cls in stored.relations():
        shape: Shape = cls.__shape__
        for end, other in _ENDS:
            here, there = shape.ends[end], shape.ends[other]
            if here is None or there is None or here.name != type_name:
                continue
            path = Path(shape.name, f"{end}_key", "text", column=_COLUMNS[end])
            query: Any = session.query().relations(cls).where(Compare(path, "==", key))
            if as_of is not None:
                query = query.as_of(as_of)
            try:
                rows = [_object(shape, each) for each in query.limit(limit + 1).collect()]
            except ReadTimeoutError:
                found.append(RelationsOf(shape.name, end, there.name, (), more=True))
                continue
            if rows:
                shown = tuple(rows[:limit])
                found.append(RelationsOf(shape.name, end, there.name, shown, len(rows) > limit))
    return found
