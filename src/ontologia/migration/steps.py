"""Steps between versions of a type that write no object anew, and what they fill in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ontologia import codec
from ontologia.schema.diff import compare_alike, diff_specs, is_unique
from ontologia.schema.typespec import TypeSpec
from ontologia.store.rows import StoredType

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filling:
    """How stored fields of one version become those of a later one."""

    spec: TypeSpec
    """The later version."""
    fills: tuple[tuple[str, Any, str | None], ...]
    """What is put where a field is missing: name, value, and its JSON if each object needs its own."""
    removed: bool
    """Whether fields were removed in between."""
    widened: tuple[str, ...]
    """Fields whose type was widened."""

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return bool(self.fills or self.removed or self.widened)

    def __call__(self, fields: Fields) -> Fields:
        """The fields of the later version. The dict that is given may be changed."""
        for name, value, own in self.fills:
            if name not in fields:
                fields[name] = value if own is None else codec.decode_stored(own)
        if self.removed:
            fields = {name: value for name, value in fields.items() if name in self.spec.fields}
        return fields


class Steps:
    """The steps of one type, by the version they start from: what the new fields of each hold."""

    def __init__(self, versions: Sequence[StoredType]) -> None:
        self._versions = versions
        self._specs = {
            each.version: TypeSpec.from_json(each.schema_json)
            for each in versions
            if not each.dropped
        }
        self.fills: dict[int, Mapping[str, Any]] = {}
        for before, after in pairwise(versions):
            if after.fills is not None:
                self.fills[before.version] = after.fills

    def leaving(self) -> Iterable[int]:
        """Steps of before fills were written down that changed no object, either."""
        for before, after in pairwise(self._versions):
            if before.version in self.fills or before.dropped or after.dropped:
                continue
            diff = diff_specs(
                self._specs[before.version], self._specs[after.version], before.version
            )
            if diff is not None and diff.leaves_objects:
                yield before.version

    def has(self, version: int) -> bool:
        """Whether there is this version, and it does not say that the type was dropped."""
        return version in self._specs

    def earlier_fields(self) -> set[str]:
        """The names of all fields that any version had since the type was last dropped."""
        names: set[str] = set()
        for each in self._versions:
            names = set() if each.dropped else names | self._specs[each.version].fields.keys()
        return names

    def covers(self, first: int, last: int) -> bool:
        """Whether all steps from one version to another write no object anew."""
        return first <= last and self.fills.keys() >= set(range(first, last))

    def unknown_to(self, version: int) -> set[str] | None:
        """The fields that later versions have and this one does not; None if they may have any."""
        later = [spec for number, spec in self._specs.items() if number > version]
        if any(spec.open for spec in later):
            return None
        names = {name for spec in later for name in spec.fields}
        return names - self._specs[version].fields.keys()

    def made_unique(self, version: int) -> bool:
        """Whether values of a field that this version has became unique after it."""
        fields = self._specs[version].fields
        return any(
            is_unique(spec.fields.get(name)) and not is_unique(described)
            for number, spec in self._specs.items()
            if number > version
            for name, described in fields.items()
        )

    def compare_alike(self, version: int) -> bool:
        """Whether SQL compares the fields of this version in rows of later ones as it does its own."""
        fields = self._specs[version].fields
        return all(
            name in spec.fields and compare_alike(described, spec.fields[name])
            for number, spec in self._specs.items()
            if number > version
            for name, described in fields.items()
        )

    def filling(self, first: int, last: int) -> Filling:
        """How objects of one version are read as those of a later one; see `covers`."""
        before, after = self._specs[first], self._specs[last]
        merged: dict[str, Any] = {}
        for version in range(first, last):
            merged |= self.fills[version]
        return Filling(
            after,
            tuple(
                (name, value, codec.encode(value) if isinstance(value, list | dict) else None)
                for name, value in merged.items()
                if name in after.fields
            ),
            not after.open and bool(before.fields.keys() - after.fields.keys()),
            tuple(
                name
                for name, described in after.fields.items()
                if name in before.fields and before.fields[name] != described
            ),
        )
