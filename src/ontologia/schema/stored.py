"""Classes made from stored schemas, for programs that have none of their own.

The command line, a dashboard or an extension knows a type by its name. `class_of` gives it a class
that can be queried and written like one from a program, and whose schema is the stored one, to the
letter: using it changes nothing in the store.

What a schema does not say is not there: defaults, indexes but of unique fields, constraints, methods. Values that are
JSON, dates, decimals and UUIDs have their own type; of a model, a dataclass, a set or an enum the
class holds what is stored of it. So what is read and written again is the same text, whatever
class it came from.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from ontologia.errors import DefinitionError
from ontologia.schema.entity import Entity
from ontologia.schema.field import Field
from ontologia.schema.fieldtype import SCALARS
from ontologia.schema.relation import Relation
from ontologia.schema.shape import Shape
from ontologia.schema.typespec import TypeSpec

_SCALARS = {scalar.__name__: scalar for scalar in SCALARS} | {"any": Any, "null": None}
_Field, _list, _dict = cast("tuple[Any, Any, Any]", (Field, list, dict))  # made at run time
_FREE = ("str", "int", "float", "bool", "any", "null")
"""What is in Python as it is in JSON."""


def class_of(
    spec: TypeSpec, left: type[Entity] | None = None, right: type[Entity] | None = None
) -> type[Any]:
    """An entity or relation class with this schema; `left` and `right` are a relation's ends.

    DefinitionError for a schema that no class has.
    """
    if spec.kind == "entity":
        return _made(spec, Entity, primary_key=True)
    if spec.kind == "relation":
        ends = (left, right)
        if [end.__shape__.name if end else None for end in ends] != [spec.left, spec.right]:
            raise DefinitionError(
                f"{spec.name} connects {spec.left} and {spec.right}, got {left!r} and {right!r}"
            )
        base: Any = Relation if left is None or right is None else Relation[left, right]  # type: ignore[valid-type]
        return _made(spec, base, instance_key=True)
    raise DefinitionError(f"{spec.name!r} is stored as {spec.kind!r}, and no class is that")


def plain(shape: Shape, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object as they are stored, in the order of its class, keys included."""
    found: dict[str, Any] = {}
    for name in shape.fields:
        value = values.get(name)
        encode = shape.types[name].encode
        found[name] = value if value is None or encode is None else encode(value)
    return found | shape.undeclared(values)


def unknown_entity(name: str) -> type[Entity]:
    """Stands at the end of a relation for a type of which nothing was ever stored."""
    return _made(TypeSpec("entity", name, {"id": {"type": "str"}}, key="id"), Entity)


def _made(spec: TypeSpec, base: Any, **key: bool) -> type[Any]:
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {
        "__module__": "ontologia.stored",
        "__doc__": f"The {spec.kind} {spec.name}, as it is stored.",
        "__annotations__": annotations,
        "__spec__": spec,
        "__open__": spec.open,
    }
    for name, described in spec.fields.items():
        annotation = annotation_of(_type(spec, name, described))
        annotations[name] = _Field[annotation]
        unique = isinstance(described, dict) and described.get("unique") is True
        body[name] = Field(**key) if name == spec.key else Field(unique=unique)
    return types.new_class(spec.name, (base,), exec_body=lambda namespace: namespace.update(body))


def _type(spec: TypeSpec, name: str, described: Any) -> Any:
    if not isinstance(described, dict) or "type" not in described:
        raise DefinitionError(
            f"the stored schema of {spec.name}.{name} is {described!r}, and was not written by "
            f"Ontologia"
        )
    return described["type"]


def annotation_of(described: Any) -> Any:
    """The annotation for what `describe` says of one: "str" → str, {"list": ["int"]} → list[int]."""
    match described:
        case str():
            return _SCALARS.get(described, Any)
        case {"literal": [_, *_] as values} | {"enum": [_, *_] as values}:
            return _literal(values)
        case {"any_of": [*parts]}:
            return _union(parts)
        case {"list": [part]} if _is_free(part):
            return _list[annotation_of(part)]
        case {"dict": ["str", part]} if _is_free(part):
            return _dict[str, annotation_of(part)]
        case _:
            return Any


def _literal(values: Sequence[Any]) -> Any:
    if all(isinstance(value, str | int | float | bool | None) for value in values):
        return Literal[tuple(values)]
    return Any


def _union(parts: list[Any]) -> Any:
    """Of several types a value could be read as another one than it was written as; not of JSON's."""
    rest = [part for part in parts if part != "null"]
    if not rest or (len(rest) > 1 and not all(map(_is_free, rest))):
        return Any
    whole: Any = functools.reduce(operator.or_, map(annotation_of, rest))
    return whole if len(rest) == len(parts) else whole | None


def _is_free(described: Any) -> bool:
    match described:
        case str():
            return described in _FREE
        case {"list": [part]} | {"dict": ["str", part]}:
            return _is_free(part)
        case {"any_of": [*parts]}:
            return all(map(_is_free, parts))
        case _:
            return False
