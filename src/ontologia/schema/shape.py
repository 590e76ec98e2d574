"""The shape of a class: its fields with their types, how to validate, store and read them back.

Built once per class. What needs the types themselves is done at first use, so that defining a
class costs little and its annotations may name classes that are defined later.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Le
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated

from ontologia import codec
from ontologia.errors import (
    DefinitionError,
    InvalidTypeError,
    InvalidValueError,
    QueryError,
    shown,
)
from ontologia.schema.annotations import resolve_fields
from ontologia.schema.expression import Column, Expr, Path, Side
from ontologia.schema.field import MISSING, Field
from ontologia.schema.fieldtype import ANY, FieldType, field_type, name_of

TypeKind: TypeAlias = Literal["entity", "relation", "event"]
ENDS: tuple[Literal["left", "right"], ...] = ("left", "right")
_RESERVED = {
    "entity": {"meta"},
    "relation": {"meta", "left", "right", "left_key", "right_key", "instance_key"},
    "event": {
        *("id", "created_at", "priority", "root_event_id", "chain_depth"),
        *("model_dump", "model_validate"),
    },
}
_INT64 = (Ge(-(2**63)), Le(2**63 - 1))
_KEY = field_type(str)
_LONGEST_NAME = 200
_STORED: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "decimal": (str,),
    "number": (int, float),
    "bool": (bool,),
    "json": (str, int, float, bool, list, dict),
}


class Shape:
    """Everything the rest of the system asks of a class."""

    def __init__(
        self, cls: Any, fields: dict[str, Field[Any]], abstract: bool, names: dict[str, Any]
    ) -> None:
        self.cls = cls
        self.kind: TypeKind = cls.__kind__
        self.name: str = cls.__name__
        self.fields = fields
        self.abstract = abstract
        self.open: bool = cls.__open__
        """Whether objects may have JSON fields beside those that are declared."""
        self.columns = ("left_key", "right_key") if self.kind == "relation" else ()
        """The keys an instance has beside its fields."""
        self.key: str | None = None
        """Name of the primary key (entities)."""
        self.instance_key: str | None = None
        """Name of the field that tells relations between the same ends apart, if there is one."""
        self._expressions: dict[tuple[str, str, str | None], Expr[Any]] = {}
        self._check_definition()
        self.keys = frozenset((*self.columns, self.key, self.instance_key)) - {None}
        """The names of the fields that say which object it is."""
        self._names: dict[str, Any] = {}
        try:
            self.annotations = resolve_fields(cls, names)
        except NameError:
            self._names = dict(names)  # a class named here comes later: try again at first use

    def __repr__(self) -> str:
        return f"<shape of {self.kind} {self.name}>"

    def rename(self, name: str) -> None:
        """Be stored under another name than the class has; only before it is used."""
        self.name = name
        self._expressions.clear()
        self._check_definition()

    # -- the definition ---------------------------------------------------------------------

    def _check_definition(self) -> None:
        # An entity's name may have dots, as `logistics.shipment` has.
        parts = self.name.split(".") if self.kind == "entity" else [self.name]
        for name in (*parts, *self.fields):
            if not name.isidentifier() or max(len(name), len(self.name)) > _LONGEST_NAME:
                raise DefinitionError(
                    f"{self.name!r:.300} names something {name!r:.300}; names are identifiers "
                    f"of at most {_LONGEST_NAME} characters"
                )
        for name in self.fields:
            if name in _RESERVED.get(self.kind, ()):
                raise DefinitionError(
                    f"{self.name}.{name}: the name is taken by every {self.kind}",
                    hint=f"Call the field something else, for example {name}_.",
                )
        primary = [name for name, field in self.fields.items() if field.primary_key]
        instance = [name for name, field in self.fields.items() if field.instance_key]
        if self.kind == "entity":
            self._check_entity(primary, instance)
        elif self.kind == "relation":
            self._check_relation(primary, instance)
        else:
            self._check_event()

    def _check_entity(self, primary: list[str], instance: list[str]) -> None:
        if instance:
            raise DefinitionError(f"{self.name}.{instance[0]}: only relations have an instance_key")
        if len(primary) > 1:
            raise DefinitionError(
                f"{self.name} has {len(primary)} primary keys: {', '.join(primary)}",
                hint="Mark one; join several values into one text if the key has parts.",
            )
        self.key = primary[0] if primary else "id" if "id" in self.fields else None
        if self.key is None and not self.abstract:
            raise DefinitionError(
                f"{self.name} has no primary key",
                hint="Mark one field with Field(primary_key=True) or call it id; "
                f"a base class that is never stored is class {self.name}(Entity, abstract=True).",
            )

    def _check_relation(self, primary: list[str], instance: list[str]) -> None:
        if primary:
            raise DefinitionError(
                f"{self.name}.{primary[0]}: a relation is named by its two ends",
                hint="Use Field(instance_key=True) to allow several between the same two.",
            )
        if len(instance) > 1:
            raise DefinitionError(f"{self.name} has {len(instance)} instance keys; one is enough")
        self.instance_key = instance[0] if instance else None

    def _check_event(self) -> None:
        if self.open:
            raise DefinitionError(
                f"{self.name}: an event has the fields it declares, and no others"
            )
        for name, field in self.fields.items():
            if field.primary_key or field.instance_key or field.index:
                raise DefinitionError(
                    f"{self.name}.{name}: an event has no keys and no indexes",
                    hint="The store gives each event an id; dedup_key= of commit and emit names one.",
                )

    # -- types, at first use ------------------------------------------------------------------

    @functools.cached_property
    def annotations(self) -> dict[str, Any]:
        """The `X` of each `Field[X]`, by name."""
        try:
            return resolve_fields(self.cls, self._names | {self.name: self.cls})
        except NameError as error:
            raise DefinitionError(
                f"{self.name}: an annotation names {error.name!r}, which is not defined"
            ) from error

    @functools.cached_property
    def types(self) -> dict[str, FieldType]:
        """The storage type of each field."""
        types = {name: field_type(self.annotations[name]) for name in self.fields}
        for name, field in self.fields.items():
            if field.index and types[name].kind == "json":
                raise DefinitionError(
                    f"{self.name}.{name}: an index needs single values of one type, "
                    f"not {name_of(types[name].annotation)}"
                )
        key = self.key or self.instance_key
        if key is not None:
            found = types[key]
            if not (found.kind == "text" or found.whole) or found.nullable:
                raise DefinitionError(
                    f"{self.name}.{key}: a key is text, a whole number or a UUID, "
                    f"not {name_of(found.annotation)}"
                )
        return types

    @functools.cached_property
    def stored(self) -> tuple[str, ...]:
        """The fields kept in fields_json: all but the instance key, which has a column."""
        return tuple(name for name in self.fields if name != self.instance_key)

    @functools.cached_property
    def ends(self) -> dict[str, Shape | None]:
        """The shapes at both ends of a relation; None where the class does not say."""
        left, right = self.cls.__endpoints__()
        return {"left": left and left.__shape__, "right": right and right.__shape__}

    def end(self, side: str) -> Shape:
        """The shape at one end; an error where the relation does not say what stands there."""
        found = self.ends[side]
        if found is None:
            raise QueryError(
                f"{self.name} does not say what its {side} end is",
                hint=f"Write class {self.name}(Relation[Left, Right]).",
            )
        return found

    # -- values in ------------------------------------------------------------------------------

    @functools.cached_property
    def _validator(self) -> tuple[type, Any]:
        """A dataclass of the same fields, and pydantic's validator of it."""
        made = dataclasses.make_dataclass(
            self.name,
            [(name, self._checked(name), _default(field)) for name, field in self.fields.items()],
            kw_only=True,
        )
        config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)
        try:
            model: Any = validated(made, config=config)
        except Exception as error:  # pydantic has many ways to say that it does not know a type
            raise DefinitionError(
                f"{self.name} has a field that cannot be validated: {error}"
            ) from error
        self._check_defaults(model)
        return model, model.__pydantic_validator__

    def _checked(self, name: str) -> Any:
        annotation = self.annotations[name]
        if self.types[name].whole:
            return Annotated[(annotation, *_INT64)]
        return annotation

    def _check_defaults(self, model: Any) -> None:
        for name, field in self.fields.items():
            if field.default is not MISSING:
                try:
                    _assign(model, name, field.default)
                except ValidationError as error:
                    raise DefinitionError(
                        f"{self.name}.{name}: the default {field.default!r} does not fit: "
                        f"{error.errors()[0]['msg']}"
                    ) from error

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields of a new instance, converted and complete; InvalidValueError otherwise."""
        if self.abstract:
            raise DefinitionError(f"{self.name} is abstract and has no instances")
        ends: dict[str, str] = {}
        if self.kind == "relation":
            values, ends = self._take_ends(values)
        undeclared = self._take_undeclared(values) if self.open else {}
        if undeclared:
            values = {name: value for name, value in values.items() if name not in undeclared}
        try:
            checked: dict[str, Any] = self._validator[1].validate_python(values).__dict__
        except ValidationError as error:
            raise InvalidValueError(self.explain(error)) from error
        key = self.key or self.instance_key
        if key is not None:
            self.key_text(checked[key])
        return checked | undeclared | ends if self.open or ends else checked

    def checked(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields of a new event, converted and complete; pydantic's ValidationError otherwise."""
        if self.abstract:
            raise DefinitionError(f"{self.name} is abstract and has no instances")
        fields: dict[str, Any] = self._validator[1].validate_python(values).__dict__
        return fields

    def restored(self, stored: dict[str, Any]) -> dict[str, Any]:
        """The fields of an event that was stored; what the class does not know is left out."""
        if stored.keys() - self.fields.keys():
            stored = {name: value for name, value in stored.items() if name in self.fields}
        for name, decode in self.decoders:
            # What has the stored form is decoded; anything else is for the validator to convert.
            if isinstance(stored.get(name), _STORED[self.types[name].kind]):
                try:
                    stored[name] = decode(stored[name])
                except (ValueError, TypeError, ArithmeticError) as error:
                    raise InvalidValueError(f"{self.name}.{name}: {error}") from error
        return self.checked(stored)

    def _take_undeclared(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields that an open class lets in unseen, each found to be JSON."""
        return {
            name: self._undeclared(name, value)
            for name, value in values.items()
            if name not in self.fields
        }

    def _undeclared(self, name: str, value: Any) -> Any:
        if not isinstance(name, str) or not name:
            raise InvalidValueError(f"{self.name}: a field's name is text, got {name!r}")
        if any(name in base.__dict__ for base in self.cls.__mro__):
            raise InvalidValueError(
                f"{self.name}.{name}: the name is taken by the class itself",
                hint=f"Call the field something else, for example {name}_.",
            )
        codec.check(name, f"{self.name}: a field's name")
        codec.check(value, f"{self.name}.{name}")
        return value

    def _take_ends(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        rest, ends = dict(values), dict[str, str]()
        for side in ENDS:
            name = f"{side}_key"
            if name not in rest:
                hint = (
                    f"Give the entity's key as {name}=..., not the entity."
                    if side in rest
                    else None
                )
                raise InvalidValueError(f"{self.name}: {name} is missing", hint=hint)
            ends[name] = self.end_key(side, rest.pop(name))
        return rest, ends

    def end_key(self, side: str, value: Any) -> str:
        """The text of an endpoint's key, from the text or from the typed key itself."""
        text = value
        if not isinstance(value, str):
            end = self.ends[side]
            typed = end is not None and type(value) in end.types[end.key or ""].accepts
            if end is None or not typed:
                raise InvalidValueError(
                    f"{self.name}.{side}_key is the text of a key, got {value!r}",
                    hint=f"Give the key itself, as in {side}_key=thing.id.",
                )
            text = end.key_text(end.validate_one(end.key or "", value))
        elif (end := self.ends[side]) is not None and end.key and not end.keys_are_text:
            text = end.key_text(self._parsed_key(end, side, value))
        codec.check(text, f"{self.name}.{side}_key")
        if not text:
            raise InvalidValueError(f"{self.name}.{side}_key is empty")
        return str(text)

    def _parsed_key(self, end: Shape, side: str, text: str) -> Any:
        try:
            return end.key_value(text)
        except ValueError as error:
            raise InvalidValueError(
                f"{self.name}.{side}_key: {text!r} is no key of {end.name}"
            ) from error

    def validate_one(self, name: str, value: Any) -> Any:
        """One field's new value, converted; InvalidValueError if it does not fit."""
        if self.kind == "relation" and name in ("left_key", "right_key"):
            return self.end_key(name.removesuffix("_key"), value)
        if name not in self.fields:
            if self.open:
                return self._undeclared(name, value)
            known = ", ".join(self.fields)
            raise AttributeError(f"{self.name} has no field {name!r}; it has {known}")
        try:
            checked = _assign(self._validator[0], name, value)
        except ValidationError as error:
            raise InvalidValueError(self.explain(error)) from error
        if name == self.key or name == self.instance_key:
            self.key_text(checked)
        return checked

    def explain(self, error: ValidationError) -> str:
        """What pydantic found, in one line."""
        problems: list[str] = []
        for problem in error.errors(include_url=False):
            place = ".".join(map(str, problem["loc"]))
            if problem["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
                problems.append(f"{place} is missing")
            elif problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
                problems.append(f"{place} is not a field (it has {', '.join(self.fields)})")
            else:
                problems.append(f"{place}: {problem['msg']}, got {shown(problem['input'])}")
        return f"{self.name}: " + "; ".join(problems)

    # -- values out and back ----------------------------------------------------------------------

    def key_text(self, value: Any) -> str:
        """A key's value as the text of its column."""
        name = self.key or self.instance_key or "key"
        found = self.types[name]
        stored = found.encode(value) if found.encode is not None else value
        text = stored if isinstance(stored, str) else str(stored)
        if not text:
            raise InvalidValueError(f"{self.name}.{name}: a key cannot be empty")
        codec.check(text, f"{self.name}.{name}")
        return text

    def key_parts(self, key: Any) -> tuple[str, ...]:
        """The key columns of an object, from what a caller gives as its key.

        Of a relation that is `(left, right)` or `(left, right, instance)`.
        """
        if self.kind == "entity":
            if self.keys_are_text:
                if not isinstance(key, str):
                    raise InvalidTypeError(f"the key of {self.name} is text, got {shown(key):.200}")
                return (self.key_text(key),)
            return (self.key_text(self.validate_one(self.key or "", key)),)
        size = 2 if self.instance_key is None else 3
        if not isinstance(key, tuple | list) or len(key) != size:
            parts = "left, right" if size == 2 else f"left, right, {self.instance_key}"
            raise InvalidTypeError(
                f"{shown(key):.200} is no key of {self.name}", hint=f"Give its parts: ({parts})."
            )
        ends = (self.end_key("left", key[0]), self.end_key("right", key[1]))
        if self.instance_key is None:
            return (*ends, "")
        return (*ends, self.key_text(self.validate_one(self.instance_key, key[2])))

    def key_value(self, text: str) -> Any:
        """The typed value of a key column's text."""
        found = self.types[self.key or self.instance_key or ""]
        if found.whole:
            return int(text)
        return found.decode(text) if found.decode is not None else text

    @functools.cached_property
    def _encoders(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        return tuple((n, t.encode) for n in self.stored if (t := self.types[n]).encode is not None)

    @functools.cached_property
    def _copies(self) -> bool:
        """Whether what is stored is not just what an instance holds."""
        return bool(self._encoders) or self.kind == "relation"

    @functools.cached_property
    def keys_are_text(self) -> bool:
        """Whether an entity's key is the text of its column, without conversion."""
        return self.key is not None and self.annotations[self.key] is str

    @functools.cached_property
    def _free(self) -> tuple[str, ...]:
        return tuple(name for name in self.stored if self.types[name].free)

    @functools.cached_property
    def decoders(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        """The fields whose stored value is not yet what Python should see."""
        return tuple((n, t.decode) for n in self.stored if (t := self.types[n]).decode is not None)

    def dump(self, values: dict[str, Any]) -> str:
        """An instance's fields as canonical JSON text."""
        return codec.encode_checked(self.encode(values), where=self.name)

    def encode(self, values: dict[str, Any]) -> dict[str, Any]:
        """An instance's fields as they are stored, every part checked but text."""
        # An instance may hold more than its fields: the values of cached properties, for one.
        exact = not self._copies and len(values) == len(self.stored)
        stored = values if exact else {name: values[name] for name in self.stored}
        if self.open and not exact:
            undeclared = self.undeclared(values)
            if not codec.storable(undeclared):
                codec.check(undeclared, self.name)
            stored |= undeclared
        for name, encode in self._encoders:
            if stored[name] is not None:
                stored[name] = self._encoded(name, encode, stored[name])
        for name in self._free:
            if not codec.storable(stored[name]):
                codec.check(stored[name], f"{self.name}.{name}")
        return stored

    def encode_some(self, values: dict[str, Any]) -> dict[str, Any]:
        """Some fields as they are stored, each validated; keys cannot be among them."""
        stored: dict[str, Any] = {}
        for name, value in values.items():
            if name in self.keys:
                raise InvalidValueError(
                    f"{self.name}.{name} is the key of an object and cannot change",
                    hint="Construct another object with the new key, and delete this one.",
                )
            if not self.has(name):
                raise InvalidValueError(
                    f"{self.name}: {name!r} is not a field (it has {', '.join(self.fields)})"
                )
            stored[name] = self.validate_one(name, value)
        for name, encode in self._encoders:
            if stored.get(name) is not None:
                stored[name] = self._encoded(name, encode, stored[name])
        for name, value in stored.items():
            if (name not in self.types or self.types[name].free) and not codec.storable(value):
                codec.check(value, f"{self.name}.{name}")
        return stored

    def undeclared(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What an object of an open class holds beside its declared fields; {} of any other."""
        if not self.open:
            return {}
        return {
            name: value
            for name, value in values.items()
            if name not in self.fields and name not in self.columns and name not in self._cached
        }

    @functools.cached_property
    def _cached(self) -> frozenset[str]:
        """What the class computes and keeps with an instance's fields."""
        found = (base.__dict__.items() for base in self.cls.__mro__)
        return frozenset(
            name
            for items in found
            for name, value in items
            if isinstance(value, functools.cached_property)
        )

    def _encoded(self, name: str, encode: Callable[[Any], Any], value: Any) -> Any:
        try:
            return encode(value)
        except Exception as error:  # pydantic and datetime have many ways to fail
            raise InvalidValueError(
                f"{self.name}.{name}: {value!r} cannot be stored: {error}"
            ) from error

    def decode(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields as they are stored, in place, to fields as Python sees them."""
        for name, decode in self.decoders:
            value = fields[name]
            if value is not None:
                fields[name] = decode(value)
        return fields

    def patch(self, obj: Any, patch: str) -> None:
        """Set some fields of an instance to what `encode_some` made of them, as JSON text."""
        stored = codec.decode(patch)
        for name, decode in self.decoders:
            if stored.get(name) is not None:
                stored[name] = decode(stored[name])
        obj.__dict__.update(stored)

    def adapt(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Decode fields that another version of the program wrote.

        Names the class does not know are left out, unless it is open, and a missing one gets its
        default.
        """
        adapted = {name: fields[name] for name in self.stored if name in fields}
        adapted |= self.undeclared(fields)
        for name, decode in self.decoders:
            if adapted.get(name) is not None:
                adapted[name] = decode(adapted[name])
        for name in self.stored:
            field = self.fields[name]
            if name not in adapted and not field.required:
                adapted[name] = self.validate_one(name, field.new_default())
        return adapted

    def revive(self, key: tuple[str, ...], fields: dict[str, Any]) -> dict[str, Any]:
        """Fields that an upgrader made, validated like a new instance's, under the old key."""
        for name, decode in self.decoders:
            # What has the stored form is decoded; anything else is for the validator to convert.
            if isinstance(fields.get(name), _STORED[self.types[name].kind]):
                fields[name] = decode(fields[name])
        if self.kind == "entity":
            values = self.validate(fields)
            if self.key_text(values[self.key or ""]) != key[0]:
                raise InvalidValueError(f"{self.name}: an upgrade cannot change the key {key[0]!r}")
            return values
        if bool(key[2]) != (self.instance_key is not None):
            raise InvalidValueError(
                f"{self.name}: an upgrade cannot add or remove the instance key"
            )
        ends = {"left_key": key[0], "right_key": key[1]}
        keyed = {self.instance_key: self.key_value(key[2])} if self.instance_key else {}
        return self.validate(fields | ends | keyed)

    # -- the class as a question ------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether objects have, or may have, a field of this name."""
        return name in self.fields or self.open

    def expression(self, name: str, side: Side = "own", owner: str | None = None) -> Expr[Any]:
        """The field `name` as something to filter by; `side` when seen from a relation."""
        if self.open and not self._declares(name):
            # Not kept: there is no end to the names that may be asked for.
            return Expr(Path(owner or self.name, "", "json", side), ANY)[name]
        place = (name, side, owner)
        if place not in self._expressions:
            self._expressions[place] = self._expression(name, side, owner or self.name)
        return self._expressions[place]

    def _declares(self, name: str) -> bool:
        return name in self.fields or name in self.columns

    def _expression(self, name: str, side: Side, owner: str) -> Expr[Any]:
        if self.kind == "relation" and name in ("left_key", "right_key"):
            column: Column = "left_key" if name == "left_key" else "right_key"
            return Expr(Path(self.name, name, "text", column=column), _KEY)
        if name not in self.fields:
            raise QueryError(
                f"{self.name} has no field {name!r}", hint=f"It has {', '.join(self.fields)}."
            )
        found = self.types[name]
        column = "fields"
        if name == self.key:
            column = "key"
        elif name == self.instance_key:
            column = "instance_key"
        return Expr(Path(owner, name, found.kind, side, column), found)


def _assign(model: Any, name: str, value: Any) -> Any:
    scratch = object.__new__(model)
    scratch.__dict__.update(dict.fromkeys(model.__dataclass_fields__))
    model.__pydantic_validator__.validate_assignment(scratch, name, value)
    return scratch.__dict__[name]


def _default(field: Field[Any]) -> Any:
    if field.required:
        return dataclasses.field()
    return dataclasses.field(default_factory=field.new_default)
