"""The difference between the stored schema of a type and the class in the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.schema.describe import type_words
from ontologia.schema.typespec import TypeSpec

_UNIQUE = " (unique)"


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


def diff_specs(stored: TypeSpec, current: TypeSpec, from_version: int) -> TypeDiff | None:
    """What must happen to objects of `stored` to fit `current`; None if nothing."""
    added = tuple(sorted(current.fields.keys() - stored.fields.keys()))
    removed = tuple(sorted(stored.fields.keys() - current.fields.keys()))
    changed: list[tuple[str, Any, Any]] = []
    for name in sorted(current.fields):
        known, described = stored.fields.get(name), current.fields[name]
        if known is not None and _type(known) != _type(described):
            changed.append((name, _type(known), _type(described)))
        if _is_unique(known) != _is_unique(described):
            changed.append((f"{name}{_UNIQUE}", _is_unique(known), _is_unique(described)))
    for part in ("key", "left", "right", "open"):
        before, after = getattr(stored, part), getattr(current, part)
        if before != after:
            changed.append((f"({part})", before, after))
    if not (added or removed or changed):
        return None
    return TypeDiff(current.kind, current.name, from_version, added, removed, tuple(changed))


def _type(described: Any) -> Any:
    """The type in a field's description; one that was stored by something else is shown as it is."""
    return described.get("type") if isinstance(described, dict) else described


def serialize_diff(diff: TypeDiff) -> dict[str, Any]:
    """The diff as JSON data, the form a migration plan is hashed in."""
    return {
        "kind": diff.kind,
        "name": diff.name,
        "from_version": diff.from_version,
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": [list(change) for change in diff.changed],
    }


def _is_unique(described: Any) -> bool:
    return isinstance(described, dict) and described.get("unique") is True


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
        name: type_words(_type(described)) + (", unique" if _is_unique(described) else "")
        for name, described in spec.fields.items()
    }
    ends = {f"({part})": getattr(spec, part) for part in ("key", "left", "right")}
    own = {part: name for part, name in ends.items() if name is not None}
    return fields | own | ({"(open)": "yes"} if spec.open else {})
