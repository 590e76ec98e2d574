"""The types that lines of state are checked against, and written as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ontologia import codec
from ontologia.errors import InvalidValueError, OntologiaError, SchemaOutdatedError
from ontologia.runtime.transfer.lines import Header, Line
from ontologia.schema.diff import diff_specs
from ontologia.schema.registry import shape_of
from ontologia.schema.shape import Shape
from ontologia.schema.stored import class_of, unknown_entity
from ontologia.schema.typespec import TypeSpec, spec_of
from ontologia.store.protocol import Store, Transaction
from ontologia.store.rows import StoredType, TypeKey


class Targets:
    """Of each type the program's class, else what the store has, else what the file has."""

    def __init__(self, store: Store, models: Sequence[type[Any]]) -> None:
        self.generation = store.schema_generation()
        with store.inventory.read() as contents:
            types = contents.types()
        self._stored: dict[TypeKey, StoredType] = {(each.kind, each.name): each for each in types}
        self._specs = {
            key: TypeSpec.from_json(each.schema_json) for key, each in self._stored.items()
        }
        self._shapes: dict[TypeKey, Shape] = {}
        for cls in models:
            shape = shape_of(cls)
            self._shapes[shape.kind, shape.name] = shape
        self._differing: dict[TypeKey, str] = {}
        self._used: set[TypeKey] = set()

    def open(self, header: Header) -> None:
        """Take up the types of a file; SchemaOutdatedError if a class is not the store's."""
        outdated = [self._diff(key, spec_of(shape)) for key, shape in self._shapes.items()]
        if any(outdated):
            raise SchemaOutdatedError([diff for diff in outdated if diff is not None])
        self._specs |= {key: spec_of(shape) for key, shape in self._shapes.items()}
        for each in header.types:
            key = (each.spec.kind, each.spec.name)
            known = self._specs.setdefault(key, each.spec)
            if diff := diff_specs(each.spec, known, each.version):
                self._differing[key] = str(diff)
        for each in header.types:
            self._shape((each.spec.kind, each.spec.name))

    def _diff(self, key: TypeKey, spec: TypeSpec) -> Any:
        stored = self._stored.get(key)
        return stored and diff_specs(self._specs[key], spec, stored.version)

    def text(self, line: Line) -> str:
        """The fields of a line as they are stored; InvalidValueError if they do not fit."""
        type_key = (line.kind, line.type_name)
        shape = self._shape(type_key)
        self._used.add(type_key)
        try:
            _check_key(shape, line)
            return shape.dump(shape.revive(line.key, line.fields))
        except OntologiaError as error:
            raise InvalidValueError(error.args[0], hint=self._hint(type_key)) from error
        except (ValueError, TypeError, ArithmeticError) as error:  # text that is no date, or number
            raise InvalidValueError(f"{shape.name}: {error}", hint=self._hint(type_key)) from error

    def _hint(self, key: TypeKey) -> str | None:
        differing = self._differing.get(key)
        return differing and f"The file was written with another schema: {differing}."

    def _shape(self, key: TypeKey) -> Shape:
        if key not in self._shapes:
            spec = self._specs.get(key)
            if spec is None:
                raise InvalidValueError(
                    f"there is no {key[0]} type {key[1]}, neither in the store nor in the first line"
                )
            ends = (self._end(spec.left), self._end(spec.right))
            self._shapes[key] = shape_of(class_of(spec, *ends))
        return self._shapes[key]

    def _end(self, name: str | None) -> Any:
        """The class at an end of a relation."""
        if name is None:
            return None
        known = ("entity", name) in self._specs
        return self._shape(("entity", name)).cls if known else unknown_entity(name)

    @property
    def shapes(self) -> list[Shape]:
        """The types of the objects that were checked."""
        return [self._shapes[key] for key in sorted(self._used)]

    # -- registering ------------------------------------------------------------------------

    def missing(self, header: Header) -> list[TypeKey]:
        """The types of a file that the store does not have."""
        named = {(each.spec.kind, each.spec.name) for each in header.types} | self._used
        self._missing = sorted(named - self._stored.keys())
        return self._missing

    def register(self, tx: Transaction, owner_id: str) -> dict[TypeKey, int]:
        """Register what is missing; the version of every type."""
        versions = {key: each.version for key, each in self._stored.items()}
        for key in self._missing:
            text = self._specs[key].to_json()
            stored = tx.register_type(*key, text, runtime_id=owner_id, reason="import")
            versions[key] = stored.version
        return versions


def _check_key(shape: Shape, line: Line) -> None:
    """What a line says of its key, it says of its fields."""
    if shape.kind == "relation":
        if bool(line.key[2]) != (shape.instance_key is not None):
            word = "an" if shape.instance_key else "no"
            raise InvalidValueError(f"{shape.name} has {word} instance key")
    elif shape.key in line.fields:
        value = line.fields[shape.key or ""]
        if (value if isinstance(value, str) else str(value)) != line.key[0]:
            raise InvalidValueError(
                f"{shape.name}: the key is {line.key[0]!r}, and {shape.key} is "
                f"{codec.encode_checked(value)}"
            )
