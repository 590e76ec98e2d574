"""Questions answered with objects: rows from the store become instances of the user's classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import orjson

from ontologia import codec
from ontologia.errors import OntologiaError
from ontologia.migration.versions import TypeVersions
from ontologia.query import evaluate
from ontologia.query.question import Question, group_name
from ontologia.query.traversal import Path
from ontologia.runtime.intents import ABSENT, Intents, object_key
from ontologia.schema.base import SchemaObject
from ontologia.schema.expression import And, Compare, Condition, field_type_of, path_of
from ontologia.schema.fieldtype import FieldType
from ontologia.schema.registry import Registry
from ontologia.schema.shape import Shape
from ontologia.store.protocol import Store
from ontologia.store.rows import EndRow, EntityRow, ObjectKey, PathRow, RelationRow, Version

_Rows = TypeVar("_Rows")
_set_values = object.__setattr__
_set_origin = SchemaObject._origin.__set__  # type: ignore[attr-defined]  # pyright: ignore


class Reader:
    """Answers the questions of one session."""

    def __init__(self, store: Store, registry: Registry, versions: TypeVersions) -> None:
        self._store = store
        self._registry = registry
        self._versions = versions
        self._store_id = store.store_id

    # -- query.builder.Answers ------------------------------------------------------------------

    def objects(self, question: Question) -> list[Any]:
        self._register(question)
        if self._must_evaluate(question):
            return [item.payload for item in evaluate.answer(question, self._items(question))]
        if question.shape.kind == "entity":
            return self._settled(
                question, self._store.query_entities, partial(self._entities, question.shape)
            )
        return self._settled(
            question, self._store.query_relations, partial(self._relations, question.shape)
        )

    def paths(self, question: Question) -> list[Path[Any]]:
        self._register(question)
        if self._must_evaluate(question):
            return [item.payload for item in evaluate.answer(question, self._items(question))]
        return self._settled(question, self._store.query_paths, partial(self._paths, question))

    def groups(self, question: Question) -> list[dict[str, Any]]:
        self._register(question)
        if self._must_evaluate(question):
            rows = evaluate.groups(question, self._items(question))
        elif question.shape.kind == "entity":
            rows = self._store.aggregate_entities(self._filled(question))
        else:
            rows = self._store.aggregate_relations(self._filled(question))
        return self.named(question, rows)

    def named(self, question: Question, rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Rows of figures as dicts, each value in the type of its field."""
        names = [group_name(expr) for expr in question.group_by]
        kinds: list[FieldType | None] = [field_type_of(expr) for expr in question.group_by]
        names += [alias for alias, _ in question.aggregates]
        kinds += [
            aggregate.type if aggregate.function in ("min", "max") else None
            for _, aggregate in question.aggregates
        ]
        grouped = len(question.group_by)
        # Text and counts are what they are, and most columns are one of these.
        others = [
            (position, kind)
            for position, kind in enumerate(kinds)
            if kind is not None and (kind.kind != "text" or kind.decode is not None)
        ]

        def typed(row: tuple[Any, ...]) -> dict[str, Any]:
            values = list(row)
            for position, kind in others:
                values[position] = _typed(values[position], kind, as_json=position < grouped)
            return dict(zip(names, values, strict=True))

        return [typed(row) for row in rows]

    # -- by key -----------------------------------------------------------------------------------

    def get(self, shape: Shape, key: ObjectKey, as_of: int | None = None) -> Any:
        """The object with these key columns, or None."""
        found = self.objects(Question(shape, where=_is(shape, key), limit=1, as_of=as_of))
        return found[0] if found else None

    def queued(self, shape: Shape, key: ObjectKey, text: str | None, version: int | None) -> Any:
        """An object as a unit of work has queued it; None if it is to be deleted."""
        if text is None:
            return None
        obj = shape.cls.__new__(shape.cls)
        fields = shape.decode(orjson.loads(text))
        _set_values(obj, "__dict__", shape.keyed(fields, key))
        if version:
            _set_origin(obj, (version, 0, self._store_id))
        return obj

    # -- rows to objects --------------------------------------------------------------------------

    def _entities(self, shape: Shape, rows: Iterable[EntityRow]) -> list[Any]:
        """The hot loop: what is read was validated when it was written, and is not again."""
        cls, new, loads = shape.cls, shape.cls.__new__, orjson.loads
        decode = shape.decode if shape.decoders else None
        fitting: int | None = -1  # the version the class itself has; no row's version is -1
        store_id = self._store_id
        made: list[Any] = []
        for key, text, commit_id, version, deleted in rows:
            fields = loads(text)
            if version != fitting:
                loader = self._versions.loader(shape, version)
                if loader is not None:
                    fields = loader((key,), fields)
                else:
                    fitting = version
            if version == fitting and decode is not None:
                decode(fields)
            obj = new(cls)
            _set_values(obj, "__dict__", fields)
            _set_origin(obj, (commit_id, deleted, store_id))
            made.append(obj)
        return made

    def _relations(self, shape: Shape, rows: Iterable[RelationRow]) -> list[Any]:
        ends = _Ends(self, shape)
        made: list[Any] = []
        for version, left, right in rows:
            ends.add("left", version.key[0], left)
            ends.add("right", version.key[1], right)
            made.append(self._relation(shape, version, ends))
        return made

    def _relation(self, shape: Shape, row: Version, ends: _Ends) -> Any:
        fields = self._fields(shape, row.key, row.fields, row.schema_version)
        shape.keyed(fields, row.key)
        obj = shape.cls.__new__(shape.cls)
        _set_values(obj, "__dict__", fields)
        _set_origin(obj, (row.commit_id, row.deleted, self._store_id, ends))
        return obj

    def _paths(self, question: Question, rows: Iterable[PathRow]) -> list[Path[Any]]:
        all_ends = [_Ends(self, hop.relation) for hop in question.hops]
        sources: dict[str, Any] = {}
        made: list[Path[Any]] = []
        for row in rows:
            source = row.source[0]
            if source not in sources:
                [sources[source]] = self._entities(question.shape, [row.source])
            near = EndRow(*row.source[1:4])
            relations: list[Any] = []
            for hop, ends, (version, far) in zip(question.hops, all_ends, row.steps, strict=True):
                left_first = hop.near == "left"
                ends.add(hop.near, version.key[0 if left_first else 1], near)
                ends.add(hop.far, version.key[1 if left_first else 0], far)
                relations.append(self._relation(hop.relation, version, ends))
                near = far
            made.append(Path(sources[source], tuple(relations)))
        return made

    def end(self, shape: Shape, key: str, row: EndRow) -> Any:
        """The entity at a relation's end; None if nothing stands there."""
        if row.fields is None or row.commit_id is None:
            return None
        return self._entities(shape, [(key, row.fields, row.commit_id, row.schema_version, 0)])[0]

    def meet(self, shape: Shape, version: int | None) -> None:
        """A row of this version was read, of which an object is made when it is looked at."""
        self._versions.meet(shape, version)

    def _fields(
        self, shape: Shape, key: ObjectKey, text: str, version: int | None
    ) -> dict[str, Any]:
        fields: dict[str, Any] = orjson.loads(text)
        loader = self._versions.loader(shape, version)
        return loader(key, fields) if loader is not None else shape.decode(fields)

    # -- the past, across a change of schema --------------------------------------------------------

    def _must_evaluate(self, question: Question) -> bool:
        """Whether SQL would look at fields as they were before their upgraders."""
        # Keys are the same in every version, so what is asked of them alone is safe.
        fields = any(path.column == "fields" for path in question.paths)
        self._versions.refresh(fields=fields)
        if not fields:
            return False
        standings = map(self._versions.standing, _shapes(question))
        return any(s.behind or (s.mixed and question.historical) for s in standings)

    def _filled(self, question: Question) -> Question:
        """The question with what SQL is to put where objects lack a field, and where they are."""
        fills, settling = self._versions.fills, self._versions.settling
        if not fills and not settling:
            return question
        return question._replace(fills=fills, settling=settling)

    def _settled(
        self,
        question: Question,
        ask: Callable[[Question], _Rows],
        make: Callable[[_Rows], list[Any]],
    ) -> list[Any]:
        """The objects of the rows asked for.

        Rows of a version that was not met before may come from a migration that settles, of which
        the question knew nothing. Then it is asked once more, so that all objects are as before the
        migration, or all as after it.
        """
        known = self._versions.settling
        try:
            made = make(ask(self._filled(question)))
        except OntologiaError:
            if self._versions.settling == known:
                raise
        else:
            if self._versions.settling == known:
                return made
        return make(ask(self._filled(question)))

    def _items(self, question: Question) -> list[evaluate.Item]:
        """Everything in the state asked about, upgraded, as documents."""
        base = Question(
            question.shape,
            as_of=question.as_of,
            history=question.history,
            since=question.since,
            hops=question.hops,
        )
        if question.hops:
            return [self._path_item(question, path) for path in self.paths(base)]
        return [self.item(question, obj) for obj in self.objects(base)]

    def item(self, question: Question, obj: Any) -> evaluate.Item:
        """An object as something that a condition can be asked of."""
        shape = question.shape
        docs = self._docs(shape, obj) if shape.kind == "relation" else {}
        docs[shape.name, "own"] = own = _doc(shape, obj)
        keys = tuple(own.columns[name] for name in own.columns)
        version = (obj.meta().commit_id,) if question.history else ()
        return evaluate.Item(docs, (*version, *keys), obj)

    def _path_item(self, question: Question, path: Path[Any]) -> evaluate.Item:
        docs: dict[tuple[str, str], evaluate.Doc | None] = {}
        docs[question.shape.name, "own"] = source = _doc(question.shape, path.source)
        keys = [*source.columns.values()]
        for hop, relation in zip(question.hops, path.relations, strict=True):
            docs |= self._docs(hop.relation, relation)
            docs[hop.relation.name, "own"] = own = _doc(hop.relation, relation)
            keys += own.columns.values()
        return evaluate.Item(docs, tuple(keys), path)

    def _docs(self, shape: Shape, obj: Any) -> dict[tuple[str, str], evaluate.Doc | None]:
        """The documents at a relation's ends."""
        ends: _Ends = obj._read_from()[3]
        found: dict[tuple[str, str], evaluate.Doc | None] = {}
        for side, end in shape.ends.items():
            if end is not None:
                entity = ends.get(side, getattr(obj, f"{side}_key"))
                found[shape.name, side] = None if entity is None else _doc(end, entity)
        return found

    def _register(self, question: Question) -> None:
        shape = question.shape
        if self._registry.find(shape.kind, shape.name) is shape and not question.hops:
            return
        for shape in _shapes(question):
            self._registry.add(shape.cls)


noting: ContextVar[list[Callable[[], None]] | None] = ContextVar("ontologia_noting", default=None)
"""For a thread that reads for a task: the task calls these when it has the answer, or never."""


class CheckedReader:
    """A reader that notes the version of every object it gives, for a unit that checks its reads.

    What is read of the past is what it is, and aggregates are of no single object: neither is
    noted. Where `noting` has a list, the notes are put there instead.
    """

    def __init__(self, reader: Reader, intents: Intents) -> None:
        self._reader = reader
        self._intents = intents

    def objects(self, question: Question) -> list[Any]:
        found = self._reader.objects(question)
        if not question.historical:
            self._note(found, ends=any(path.side != "own" for path in question.paths))
        return found

    def paths(self, question: Question) -> list[Path[Any]]:
        found = self._reader.paths(question)
        if not question.historical:
            for path in found:
                self._note((path.source, *path.relations), ends=True)
        return found

    def groups(self, question: Question) -> list[dict[str, Any]]:
        return self._reader.groups(question)

    def _note(self, found: Iterable[Any], *, ends: bool) -> None:
        """Note objects; of relations also the ends, if the question was about them."""
        for obj in found:
            shape = type(obj).__shape__
            self._note_one(shape, object_key(obj, shape), obj._version[0])
            if shape.kind == "relation":
                self.note_ends(obj)
                for side, end in shape.ends.items() if ends else ():
                    if end is not None:
                        obj._version[3].get(side, getattr(obj, f"{side}_key"))

    def note_ends(self, relation: Any) -> None:
        """Note the entities at the ends of a relation when they are looked at."""
        relation._version[3].note = self._end

    def _end(self, shape: Shape, key: str, entity: Any) -> None:
        version = ABSENT if entity is None else entity._version[0]
        self._note_one(shape, (key,), version)

    def _note_one(self, shape: Shape, key: ObjectKey, version: int) -> None:
        notes = noting.get()
        if notes is None:
            self._intents.note(shape, key, version)
        else:
            notes.append(partial(self._intents.note, shape, key, version))


class _Ends:
    """The entities at the ends of the relations of one result: made once each, when looked at."""

    def __init__(self, reader: Reader, relation: Shape) -> None:
        self._reader = reader
        self._relation = relation
        self._rows: dict[tuple[str, str], EndRow] = {}
        self._made: dict[tuple[str, str], Any] = {}
        self._met: set[tuple[str, int | None]] = set()
        self.note: Callable[[Shape, str, Any], None] | None = None
        """Called with each end that is looked at: its type, its key, and the entity or None."""

    def add(self, side: str, key: str, row: EndRow) -> None:
        self._rows[side, key] = row
        met = (side, row.schema_version)
        if met not in self._met:
            self._met.add(met)
            shape = self._relation.ends[side]
            if shape is not None and row.fields is not None:
                self._reader.meet(shape, row.schema_version)

    def get(self, side: str, key: str) -> Any:
        place = (side, key)
        shape = self._relation.end(side)
        if place not in self._made:
            self._made[place] = self._reader.end(shape, key, self._rows[place])
        if self.note is not None:
            self.note(shape, key, self._made[place])
        return self._made[place]


def _shapes(question: Question) -> list[Shape]:
    """Every type a question touches."""
    shapes = [question.shape]
    if question.shape.kind == "entity" and not question.hops:
        return shapes
    relations = [hop.relation for hop in question.hops]
    if question.shape.kind == "relation":
        relations.append(question.shape)
    for relation in relations:
        shapes += [relation, *(end for end in relation.ends.values() if end is not None)]
    return list(dict.fromkeys(shapes))


def _doc(shape: Shape, obj: Any) -> evaluate.Doc:
    values = obj.__dict__
    columns = {name: values[name] for name in shape.columns}
    if shape.key is not None:
        columns = {"key": shape.key_text(values[shape.key])}
    elif shape.instance_key is not None:
        columns["instance_key"] = shape.key_text(values[shape.instance_key])
    return evaluate.Doc(shape.encode(values), columns)


def _is(shape: Shape, key: ObjectKey) -> Condition:
    """That an object has these key columns."""
    if shape.key is not None:
        value = key[0] if shape.keys_are_text else shape.key_value(key[0])
        return Compare(path_of(shape.expression(shape.key)), "==", value)
    names = [*shape.columns, *([shape.instance_key] if shape.instance_key else [])]
    parts = [
        Compare(
            path_of(shape.expression(name)),
            "==",
            shape.key_value(part) if name == shape.instance_key else part,
        )
        for name, part in zip(names, key, strict=False)
    ]
    return And(tuple(parts))


def _typed(value: Any, field_type: FieldType, *, as_json: bool) -> Any:
    """A value of a group or of min and max, in the type of its field."""
    if value is None:
        return value
    if field_type.kind == "json" and as_json:
        value = codec.decode_stored(value)
    elif field_type.kind == "bool":
        value = bool(value)
    if isinstance(value, float):
        value += 0.0  # zero has no sign here: 0.0 and -0.0 are one value, and not every store tells
    return field_type.decode(value) if field_type.decode is not None else value
