"""What an annotation means for storage: its kind in JSON, and the way there and back.

Most types are JSON already and pass through untouched. Those that JSON does not carry have a pair
of functions, chosen once per field:

    datetime   fixed-width UTC text (a naive one without offset), so text order is time order
    Decimal    text, exact; filters and sorts as a number
    timedelta  seconds, a number
    date, time, UUID   text
    bytes      hexadecimal text, so text order is byte order
    Enum       its value

Everything else (models, dataclasses, tuples, sets, nested containers of the types above) goes
through pydantic.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin
from uuid import UUID

import orjson
from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from ontologia import codec
from ontologia.errors import InvalidValueError, QueryTypeError, shown

Kind: TypeAlias = Literal["text", "number", "bool", "decimal", "json"]
"""How a value compares: as text, as a number, as a truth value, as an exact decimal, or by the
type that each stored value turns out to have (`json`)."""

Convert: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FieldType:
    """One field's type, seen from the store."""

    annotation: Any
    kind: Kind
    nullable: bool = False
    encode: Convert | None = None
    """Python value to JSON value; None where it is JSON already. Never called with None."""
    decode: Convert | None = None
    """The way back."""
    accepts: tuple[type, ...] = ()
    """The Python types a filter may compare this field with."""
    whole: bool = False
    """A whole number, which must fit in 64 bits and may be a key."""
    free: bool = False
    """Holds JSON of any shape, which must be checked part by part before it is stored."""

    def literal(self, value: Any, label: object) -> Any:
        """The JSON scalar that stands for `value` in a filter on the field called `label`."""
        if isinstance(value, bool) and self.kind not in ("bool", "json"):
            raise _wrong(label, self, value)
        if not isinstance(value, self.accepts):
            raise _wrong(label, self, value)
        if isinstance(value, datetime) and datetime not in self.accepts:
            raise _wrong(
                label, self, value
            )  # to Python it is a date, with a time that would be lost
        if isinstance(value, Enum) and self.encode is None:
            value = value.value
        try:
            stored = self.encode(value) if self.encode is not None else value
            codec.check(stored, label)
        except (ValueError, OverflowError, ArithmeticError) as error:
            raise QueryTypeError(
                f"{label} cannot be compared with {shown(value)}: {error}"
            ) from error
        return stored


def _wrong(label: object, field_type: FieldType, value: Any) -> QueryTypeError:
    if isinstance(value, dict | list | tuple | set):
        return QueryTypeError(
            f"{label} cannot be compared with a {type(value).__name__}",
            hint=f'Compare a part of it: {label}.path("a.b") or {label}["a"]; '
            f"for one of several values use in_([...]).",
        )
    return QueryTypeError(
        f"{label} is {name_of(field_type.annotation)} and cannot be compared with "
        f"{type(value).__name__} {shown(value)}"
    )


def name_of(annotation: Any) -> str:
    """The annotation as a person would write it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _datetime_to_text(value: datetime) -> str:
    moment = value if value.tzinfo is None else value.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")


def _decimal_to_text(value: Decimal) -> str:
    if not value.is_finite():
        raise InvalidValueError(f"{value} is not a number that can be stored")
    return str(value)


def _timedelta_to_seconds(value: timedelta) -> float:
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:
        raise InvalidValueError(f"{value!r} has more digits than a number of seconds can hold")
    return seconds


_NUMBERS = (int, float, Decimal)
SCALARS: dict[Any, FieldType] = {
    str: FieldType(str, "text", accepts=(str,)),
    int: FieldType(int, "number", accepts=(int, float), whole=True),
    float: FieldType(float, "number", accepts=(int, float)),
    bool: FieldType(bool, "bool", accepts=(bool,)),
    Decimal: FieldType(
        Decimal,
        "decimal",
        encode=lambda v: _decimal_to_text(v if isinstance(v, Decimal) else Decimal(str(v))),
        decode=Decimal,
        accepts=_NUMBERS,
    ),
    datetime: FieldType(
        datetime,
        "text",
        encode=_datetime_to_text,
        decode=datetime.fromisoformat,
        accepts=(datetime,),
    ),
    date: FieldType(
        date, "text", encode=date.isoformat, decode=date.fromisoformat, accepts=(date,)
    ),
    time: FieldType(
        time,
        "text",
        encode=lambda v: v.isoformat(timespec="microseconds"),
        decode=time.fromisoformat,
        accepts=(time,),
    ),
    timedelta: FieldType(
        timedelta,
        "number",
        encode=_timedelta_to_seconds,
        decode=lambda v: timedelta(seconds=v),
        accepts=(timedelta,),
    ),
    UUID: FieldType(UUID, "text", encode=str, decode=UUID, accepts=(UUID,)),
    bytes: FieldType(
        bytes,
        "text",
        encode=bytes.hex,
        decode=bytes.fromhex,
        accepts=(bytes,),
    ),
}
_JSONSCALARS = (str, int, float, bool)
ANY = FieldType(Any, "json", nullable=True, accepts=_JSONSCALARS, free=True)
"""A value inside free JSON: whatever it turns out to be."""


def field_type(annotation: Any) -> FieldType:
    """The storage type of an annotation (the `X` of `Field[X]`)."""
    bare = unwrap(annotation)
    choices, nullable = _without_none(bare)
    found = _single(choices[0], annotation) if len(choices) == 1 else _several(choices, annotation)
    return replace(found, annotation=annotation, nullable=nullable or found.nullable)


def _single(bare: Any, annotation: Any) -> FieldType:
    if bare in SCALARS:
        return SCALARS[bare]
    if isinstance(bare, type) and issubclass(bare, Enum):
        return _enum(bare)
    if get_origin(bare) is Literal:
        return _literal(get_args(bare))
    if _is_free(bare):
        return FieldType(annotation, "json", accepts=_JSONSCALARS, free=True)
    return _structured(annotation, bare)


def _several(choices: tuple[Any, ...], annotation: Any) -> FieldType:
    if all(choice in (str, int, float, bool) or _is_free(choice) for choice in choices):
        return FieldType(annotation, "json", accepts=_JSONSCALARS, free=True)
    return _structured(annotation, annotation)


def _enum(enum: type[Enum]) -> FieldType:
    scalar = _literal(tuple(member.value for member in enum))
    return FieldType(
        enum, scalar.kind, encode=lambda m: m.value, decode=enum, accepts=(enum,), free=scalar.free
    )


def _literal(values: tuple[Any, ...]) -> FieldType:
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return FieldType(Literal, "text", accepts=(str,))
    if kinds <= {int, float}:
        # Checked when stored if one of them would not fit.
        free = not all(map(codec.storable, values))
        return FieldType(Literal, "number", accepts=(int, float), free=free)
    if kinds == {bool}:
        return FieldType(Literal, "bool", accepts=(bool,))
    return FieldType(Literal, "json", accepts=_JSONSCALARS, free=True)


def _is_free(bare: Any) -> bool:
    """Whether values of this type are JSON as they stand."""
    if bare in (Any, object, dict, list, None, type(None), str, int, float, bool):
        return True
    origin, args = get_origin(bare), tuple(unwrap(arg) for arg in get_args(bare))
    if origin is list:
        return _is_free(args[0])
    if origin is dict:
        return args[0] is str and _is_free(args[1])
    if origin in (Union, types.UnionType):
        return all(map(_is_free, args))
    return False


def _structured(annotation: Any, bare: Any) -> FieldType:
    @functools.cache
    def adapter() -> TypeAdapter[Any]:
        config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        try:
            return TypeAdapter(annotation, config=config)
        except PydanticUserError:  # a model has its own configuration
            return TypeAdapter(annotation)

    def encode(value: Any) -> Any:
        dump = functools.partial(adapter().dump_python, value, by_alias=True, round_trip=True)
        stored = _settled(dump(), dump(mode="json"))
        # A model may hide, rename or compute what it shows; what would not come back is refused.
        if decode(stored) != value:
            raise InvalidValueError("it would not be read back as it is")
        return stored

    def decode(value: Any) -> Any:
        return adapter().validate_json(orjson.dumps(value))

    return FieldType(annotation, "json", encode=encode, decode=decode, free=True)


def _settled(value: Any, stored: Any) -> Any:
    """What is stored of `value`, with the elements of sets in order.

    A set has none, and text that changes with the hash seed would be a new version each time.
    """
    if isinstance(value, set | frozenset):
        return sorted(map(_settled, value, stored), key=codec.encode)
    if isinstance(value, dict) and isinstance(stored, dict):
        parts = zip(value.values(), stored.items(), strict=True)
        return {name: _settled(part, kept) for part, (name, kept) in parts}
    if isinstance(value, list | tuple) and isinstance(stored, list):
        return list(map(_settled, value, stored))
    return stored


def unwrap(annotation: Any) -> Any:
    """Without Annotated, NewType and type aliases around it."""
    while True:
        if get_origin(annotation) is typing.Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def _without_none(bare: Any) -> tuple[tuple[Any, ...], bool]:
    if get_origin(bare) not in (Union, types.UnionType):
        return (bare,), False
    args = tuple(unwrap(arg) for arg in get_args(bare))
    rest = tuple(arg for arg in args if arg is not type(None))
    return rest, len(rest) < len(args)
