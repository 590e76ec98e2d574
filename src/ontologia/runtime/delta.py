"""The difference between two states, with typed values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ontologia import codec
from ontologia.migration.versions import TypeVersions
from ontologia.schema.registry import Registry
from ontologia.store.rows import RawChange

ChangeKind: TypeAlias = Literal["created", "updated", "deleted"]


@dataclass(frozen=True, slots=True)
class Change:
    """How one object differs."""

    kind: Literal["entity", "relation"]
    type_name: str
    key: str | None
    """Key of an entity."""
    left_key: str | None
    right_key: str | None
    instance_key: str | None
    fields: dict[str, tuple[Any, Any]]
    """Before and after, for each field that differs; None on the side where there is nothing."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is created, updated and deleted between two states; false when nothing is."""

    created: list[Change] = field(default_factory=list[Change])
    updated: list[Change] = field(default_factory=list[Change])
    deleted: list[Change] = field(default_factory=list[Change])

    def __bool__(self) -> bool:
        return bool(self.created or self.updated or self.deleted)

    def __len__(self) -> int:
        return len(self.created) + len(self.updated) + len(self.deleted)


def change_type(change: RawChange) -> ChangeKind:
    """What happened to the object."""
    if change.before is None:
        return "created"
    return "deleted" if change.after is None else "updated"


class DeltaMaker:
    """Makes typed deltas from what a store says, for the types a session knows."""

    def __init__(self, registry: Registry, versions: TypeVersions) -> None:
        self._registry = registry
        self._versions = versions

    def make(self, changes: Iterable[RawChange]) -> Delta:
        """The changes, sorted by what happened; an object that is the same on both sides is none."""
        delta = Delta()
        for raw in changes:
            if raw.before is None and raw.after is None:
                continue  # came and went in between
            change = self._change(raw)
            if change.fields or change_type(raw) != "updated":
                getattr(delta, change_type(raw)).append(change)
        return delta

    def _change(self, raw: RawChange) -> Change:
        before, before_text = self._fields(raw, raw.before, raw.before_version)
        after, after_text = self._fields(raw, raw.after, raw.after_version)
        # Compared as text, as the store does: to Python, True is 1 and 1 is 1.0.
        fields = {
            name: (before.get(name), after.get(name))
            for name in dict.fromkeys((*before, *after))
            if before_text.get(name) != after_text.get(name)
        }
        entity = raw.kind == "entity"
        left, right, instance = (None, None, None) if entity else raw.key
        return Change(
            "entity" if entity else "relation",
            raw.type_name,
            raw.key[0] if entity else None,
            left,
            right,
            instance,
            fields,
        )

    def _fields(
        self, raw: RawChange, text: str | None, version: int | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """An object's fields, and the canonical text of each.

        Typed where the session knows the class, as JSON where it does not.
        """
        if text is None:
            return {}, {}
        stored: dict[str, Any] = codec.decode_stored(text)
        shape = self._registry.find(raw.kind, raw.type_name)
        if shape is None:
            filling = self._versions.filling_of((raw.kind, raw.type_name), version, _newer(raw))
            if filling is not None:
                stored = filling(stored)
            return stored, _texts(stored)
        # What is only wanted has no version yet: it is the program's own.
        load = self._versions.loader(shape, version) if version is not None else None
        if load is None:
            texts = _texts(stored)
            return shape.decode(stored), texts
        typed = load(raw.key, stored)
        undeclared = shape.undeclared(typed)
        typed = {name: typed[name] for name in shape.stored if name in typed}
        complete = len(typed) == len(shape.stored)
        typed |= undeclared
        return typed, _texts(shape.encode(typed) if complete else stored)


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    return {name: codec.encode(value) for name, value in fields.items()}


def _newer(raw: RawChange) -> int | None:
    """The later of the versions before and after."""
    return max(filter(None, (raw.before_version, raw.after_version)), default=None)
