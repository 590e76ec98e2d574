"""An annotation as plain data, for the stored schema of a type.

The words are ours and not pydantic's, whose JSON Schema may change between releases: a library
update must not look like a change of the user's types.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ontologia import codec
from ontologia.schema.fieldtype import SCALARS, unwrap

_CONTAINERS = {list: "list", set: "set", frozenset: "set", tuple: "tuple", dict: "dict"}


def describe(annotation: Any, inside: tuple[Any, ...] = ()) -> Any:
    """`str` → "str", `list[int] | None` → {"any_of": ["null", {"list": ["int"]}]}, and so on."""
    bare = unwrap(annotation)
    if bare is None or bare is type(None):
        return "null"
    if bare in (Any, object):
        return "any"
    if bare in SCALARS:
        return bare.__name__
    origin = get_origin(bare)
    if origin in (Union, types.UnionType):
        return {"any_of": sorted((describe(a, inside) for a in get_args(bare)), key=codec.encode)}
    if origin is Literal:
        return {"literal": sorted(map(_value, get_args(bare)), key=_order)}
    container = origin or bare
    if container in _CONTAINERS:
        parts = ["..." if a is Ellipsis else describe(a, inside) for a in get_args(bare)]
        return {_CONTAINERS[container]: parts or ["any"]}
    if isinstance(bare, type) and issubclass(bare, Enum):
        return {"enum": sorted((_value(member.value) for member in bare), key=_order)}
    return _object(bare, inside)


def _value(value: Any) -> Any:
    return value if codec.storable(value) else repr(value)


def _order(value: Any) -> str:
    return codec.encode(_value(value))


def _object(bare: Any, inside: tuple[Any, ...]) -> Any:
    """A class with fields of its own; one that contains itself is named there."""
    if bare in inside:
        return {"ref": bare.__name__}
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        parts = {name: info.annotation for name, info in bare.model_fields.items()}
    elif dataclasses.is_dataclass(bare) or typing.is_typeddict(bare):
        parts = typing.get_type_hints(bare)
    else:
        return f"{bare.__module__}.{bare.__qualname__}" if isinstance(bare, type) else str(bare)
    return {"object": {name: describe(part, (*inside, bare)) for name, part in parts.items()}}


def type_words(described: Any) -> str:
    """What `describe` said, for readers: {"any_of": ["null", {"list": ["int"]}]} → list[int] | null."""
    match described:
        case str():
            return described
        case {"any_of": [*parts]}:
            rest = [part for part in parts if part != "null"]
            return " | ".join(map(type_words, rest + ["null"] * (len(rest) < len(parts))))
        case {"literal": [*values]} | {"enum": [*values]}:
            return " | ".join(map(codec.encode, values))
        case {"object": {**named}}:
            return f"{{{', '.join(f'{name}: {type_words(part)}' for name, part in named.items())}}}"
        case {"ref": str(name)}:
            return name
        case {"list": [*of]} | {"set": [*of]} | {"tuple": [*of]} | {"dict": [*of]}:
            return f"{next(iter(described))}[{', '.join(map(type_words, of))}]"
        case _:
            return codec.encode(described)
