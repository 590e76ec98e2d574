"""The difference between the stored schema of a type and the class in the program."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.errors import InvalidValueError
from ontologia.schema.describe import type_words
from ontologia.schema.shape import Shape
from ontologia.schema.typespec import TypeSpec

_UNIQUE = " (unique)"
_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TypeDiff:
    """What changed in one type, and the version it changed from."""

    kind: str
    name: str
    from_version: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[tuple[str, Any, Any], ...] = ()
    """Field or part, before, after; `(key)`, `(left)`, `(right)`, `(open)` stand for the type's own,
    `name (unique)` for whether the values of a field are unique."""
    fills: dict[str, Any] = field(default_factory=dict[str, Any])
    """What new fields are in objects of the older version: their defaults, as JSON."""
    schema_hash: str = ""
    """The hash of the schema that it leads to."""
    breaking: tuple[tuple[str, str], ...] = ()
    """What stored objects do not fit without an upgrader: field or part, and why."""

    @property
    def compatible(self) -> bool:
        """Whether objects of the older version can be read as they are, with defaults filled in."""
        return not self.breaking

    def verdict(self, name: str) -> str:
        """Whether the change of one field or part is compatible, in words."""
        for changed, reason in self.breaking:
            if changed == name:
                return f"breaking: {reason}"
        if name in self.fills:
            return f"compatible: {codec.encode(self.fills[name])} in objects that lack it"
        return "compatible"

    @property
    def leaves_objects(self) -> bool:
        """Whether objects stay as they are: they may have more fields, or values are unique or not."""
        rest = [change for change in self.reshaped if change != ("(open)", False, True)]
        return not (self.added or self.removed or rest)

    @property
    def reshaped(self) -> list[tuple[str, Any, Any]]:
        """What changes but for uniqueness, which is no part of an object."""
        return [change for change in self.changed if not change[0].endswith(_UNIQUE)]

    @property
    def made_unique(self) -> list[str]:
        """The fields whose values become unique."""
        return [
            n.removesuffix(_UNIQUE) for n, _, now in self.changed if n.endswith(_UNIQUE) and now
        ]

    def __str__(self) -> str:
        parts = [f"+{name}" for name in self.added] + [f"-{name}" for name in self.removed]
        parts += [f"{name}: {_short(old)} → {_short(new)}" for name, old, new in self.changed]
        return f"{self.kind} {self.name} (stored version {self.from_version}): {', '.join(parts)}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else codec.encode(value)


def diff_specs(
    stored: TypeSpec,
    current: TypeSpec,
    from_version: int,
    *,
    shape: Shape | None = None,
    earlier: Collection[str] = (),
) -> TypeDiff | None:
    """What must happen to objects of `stored` to fit `current`; None if nothing.

    `shape` is the class of `current`: it knows the defaults of new fields, without which they are
    breaking. `earlier` names the fields of versions before `stored`.
    """
    added = tuple(sorted(current.fields.keys() - stored.fields.keys()))
    removed = tuple(sorted(stored.fields.keys() - current.fields.keys()))
    changed: list[tuple[str, Any, Any]] = []
    for name in sorted(current.fields):
        known, described = stored.fields.get(name), current.fields[name]
        if known is not None and _type(known) != _type(described):
            changed.append((name, _type(known), _type(described)))
        if is_unique(known) != is_unique(described):
            changed.append((f"{name}{_UNIQUE}", is_unique(known), is_unique(described)))
    for part in ("key", "left", "right", "open"):
        before, after = getattr(stored, part), getattr(current, part)
        if before != after:
            changed.append((f"({part})", before, after))
    if not (added or removed or changed):
        return None
    fills, breaking = _filled(added, current, shape, earlier)
    for name, before, after in changed:
        if reason := _breaks(name, before, after, current.key):
            breaking.append((name, reason))
    return TypeDiff(
        *(current.kind, current.name, from_version, added, removed, tuple(changed)),
        *(fills, current.hash, tuple(breaking)),
    )


def _filled(
    added: Collection[str], current: TypeSpec, shape: Shape | None, earlier: Collection[str]
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What new fields are in older objects; and those of which that cannot be said, with the reason."""
    fills: dict[str, Any] = {}
    breaking: list[tuple[str, str]] = []
    for name in added:
        if name in earlier:
            breaking.append((name, "an earlier version had a field of this name"))
        elif shape is None or shape.fields[name].required:
            if "null" in _choices(_type(current.fields[name])):
                fills[name] = None
            else:
                breaking.append((name, "a new field without a default"))
        else:
            try:
                fills[name] = shape.stored_default(name)
                same = fills[name] == shape.stored_default(name)
            except InvalidValueError:
                breaking.append((name, "its default does not pass the validators of the class"))
                continue
            if not same:
                breaking.append((name, "its default_factory gives another value each time"))
            elif fills[name] is not None and shape.fields[name].unique:
                breaking.append((name, "all objects would have the same value of a unique field"))
    for name, _ in breaking:
        fills.pop(name, None)
    return fills, breaking


def _breaks(name: str, before: Any, after: Any, key: str | None) -> str | None:
    """Why stored objects may not fit this change; None if they do."""
    if name.endswith(_UNIQUE) or (name == "(open)" and after):
        return None  # whether values are unique is looked at when it is applied
    if name == "(open)":
        return "objects may have fields that the type does not declare"
    if name.startswith("("):
        return "it says which object it is"
    if name == key:
        return "the type of a key"
    if widens(before, after):
        return None
    return f"{type_words(before)} may not fit {type_words(after)}"


def widens(before: Any, after: Any) -> bool:
    """Whether every value of one type, as `describe` gives it, is stored as the other stores it."""
    if before == after or after == "any":
        return True
    if (parts := _choices(before)) != [before]:
        return all(widens(part, after) for part in parts)
    if (parts := _choices(after)) != [after]:
        return any(widens(before, part) for part in parts)
    if (before, after) == ("int", "float"):
        return True
    if (values := _values(before)) is not None:
        if isinstance(after, str):
            return all(_is_scalar(value, after) for value in values)
        others = _values(after)
        return others is not None and all(value in others for value in values)
    return any(
        isinstance(before, dict)
        and isinstance(after, dict)
        and before.keys() == after.keys() == {container}
        and len(before[container]) == len(after[container])
        and all(map(widens, before[container], after[container]))
        for container in ("list", "dict")
    )


def _choices(described: Any) -> list[Any]:
    """The types a value may have."""
    if isinstance(described, dict) and isinstance(described.get("any_of"), list):
        found: list[Any] = described["any_of"]
        return found
    return [described]


def _values(described: Any) -> list[str] | None:
    """The values of an enum or a literal, each as JSON; None of another type."""
    if isinstance(described, dict):
        for how in ("enum", "literal"):
            if isinstance(described.get(how), list):
                return [codec.encode(value) for value in described[how]]
    return None


def _is_scalar(text: str, scalar: str) -> bool:
    value = codec.decode_stored(text)
    kinds = _SCALARS.get(scalar, ())
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def _type(described: Any) -> Any:
    """The type in a field's description; one that was stored by something else is shown as it is."""
    return described.get("type") if isinstance(described, dict) else described


def serialize_diff(diff: TypeDiff) -> dict[str, Any]:
    """The diff as JSON data, the form a migration plan is hashed in."""
    filled = {"fills": diff.fills} if diff.fills else {}
    return filled | {
        "kind": diff.kind,
        "name": diff.name,
        "from_version": diff.from_version,
        "schema_hash": diff.schema_hash,
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": [list(change) for change in diff.changed],
    }


def is_unique(described: Any) -> bool:
    """Whether the description of a field says that its values are unique."""
    return isinstance(described, dict) and described.get("unique") is True


def compare_alike(before: Any, after: Any) -> bool:
    """Whether SQL compares the values of two descriptions of a field in the same way."""
    return bool(_comparison(_type(before)) == _comparison(_type(after)))


def _comparison(described: Any) -> Any:
    rest = [part for part in _choices(described) if part != "null"]
    if len(rest) != 1:
        return described
    if (values := _values(rest[0])) is not None:
        for scalar in ("str", "int", "float"):
            if all(_is_scalar(value, scalar) for value in values):
                return "number" if scalar != "str" else scalar
    return "number" if rest[0] in ("int", "float") else rest[0]


class FieldChange(NamedTuple):
    """One field that two versions of a type do not share; None on the side that does not have it."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.name}: {self.after}"
        if self.after is None:
            return f"- {self.name}: {self.before}"
        return f"~ {self.name}: {self.before} → {self.after}"


def field_changes(before: TypeSpec | None, after: TypeSpec | None) -> list[FieldChange]:
    """What changed from one version to the next, for readers; None is a type that is not there.

    `(key)`, `(left)`, `(right)` and `(open)` stand for the type's own.
    """
    old, new = _parts(before), _parts(after)
    return [
        FieldChange(name, old.get(name), new.get(name))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _parts(spec: TypeSpec | None) -> dict[str, str]:
    if spec is None:
        return {}
    fields = {
        name: type_words(_type(described)) + (", unique" if is_unique(described) else "")
        for name, described in spec.fields.items()
    }
    ends = {f"({part})": getattr(spec, part) for part in ("key", "left", "right")}
    own = {part: name for part, name in ends.items() if name is not None}
    return fields | own | ({"(open)": "yes"} if spec.open else {})
