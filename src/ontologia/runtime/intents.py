"""What should be true, queued until a commit makes it so."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ontologia.errors import DefinitionError, InvalidValueError
from ontologia.schema.base import SchemaObject
from ontologia.schema.entity import Entity
from ontologia.schema.registry import Registry
from ontologia.schema.relation import Relation, instance_key_of
from ontologia.schema.shape import Shape
from ontologia.store.rows import Batch, ObjectKey


class Intents:
    """A queue with one place per object: the last word on it counts.

    An object is written down as canonical JSON when it is queued. What is wrong with it is said
    there and then, and changing it afterwards changes nothing.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._batch: Batch = {}
        self._lock = threading.Lock()
        self._refused: Batch = {}

    def __len__(self) -> int:
        with self._lock:
            return _size(self._batch)

    def add(self, objects: object, *, delete: bool = False) -> None:
        """Queue one object or an iterable of them: all of them, or none if one is wrong."""
        queued: Batch = {}
        for cls, group in groupby(_each(objects), type):
            shape = self._registry.add(cls)
            wanted = queued.setdefault((shape.kind, shape.name), {})
            for obj in group:
                wanted[object_key(obj, shape)] = None if delete else shape.dump(obj.__dict__)
        with self._lock:
            if self._refused:
                self._refused = _without(self._refused, queued, whatever=True)
            self._merge(queued)

    def snapshot(self) -> Batch:
        """What is queued at this moment; it stays queued until `settle`."""
        with self._lock:
            return {type_key: dict(wanted) for type_key, wanted in self._batch.items()}

    def settle(self, batch: Batch) -> None:
        """Take out what was carried out. What was queued for the same key since then stays."""
        with self._lock:
            self._refused = _without(self._refused, batch)
            self._batch = {} if self._batch == batch else _without(self._batch, batch)

    def refuse(self, batch: Batch) -> None:
        """Note that a commit failed to write this, until it is written or said again.

        To write it later would part it from the event that was to announce it, and from what it
        was to depend on.
        """
        with self._lock:
            self._refused = batch

    def drop_refused(self) -> int:
        """Take out what a commit failed to write; how many objects that was."""
        with self._lock:
            before, self._batch = self._batch, _without(self._batch, self._refused)
            self._refused = {}
            return _size(before) - _size(self._batch)

    def clear(self) -> int:
        """Take out everything; how many objects that was."""
        with self._lock:
            dropped, self._batch, self._refused = self._batch, {}, {}
        return _size(dropped)

    def _merge(self, newer: Batch) -> None:
        for type_key, wanted in newer.items():
            known = self._batch.setdefault(type_key, wanted)
            if known is not wanted:
                known.update(wanted)


def _size(batch: Batch) -> int:
    return sum(map(len, batch.values()))


def _without(batch: Batch, other: Batch, *, whatever: bool = False) -> Batch:
    """What is not in the other one with the same word, or with whatever word."""
    left: Batch = {}
    for type_key, wanted in batch.items():
        theirs = other.get(type_key, {})
        kept = {
            key: word
            for key, word in wanted.items()
            if key not in theirs or not (whatever or theirs[key] == word)
        }
        if kept:
            left[type_key] = kept
    return left


def object_key(obj: Any, shape: Shape) -> ObjectKey:
    """The key columns of an object."""
    values = obj.__dict__
    if shape.keys_are_text:
        return (values[shape.key],)
    if shape.key is not None:
        return (shape.key_text(values[shape.key]),)
    return (values["left_key"], values["right_key"], instance_key_of(obj))


def _each(objects: object) -> Iterable[Any]:
    if isinstance(objects, Entity | Relation):
        yield objects
        return
    if isinstance(objects, str | bytes | dict | SchemaObject) or not isinstance(objects, Iterable):
        raise InvalidValueError(
            f"expected an entity, a relation or several of them, got {objects!r}"
        )
    for obj in objects:
        if not isinstance(obj, Entity | Relation):
            if isinstance(obj, type):
                raise DefinitionError(f"{obj!r} is a class; pass an instance of it")
            raise InvalidValueError(f"expected an entity or a relation, got {obj!r}")
        yield obj
