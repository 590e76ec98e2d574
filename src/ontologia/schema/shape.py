"""The shape of a class: its fields with their types, how to validate, store and read them back.

Built once per class. What needs the types themselves is done at first use, so that defining a
class costs little and its annotations may name classes that are defined later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias, get_args
from uuid import UUID

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic.dataclasses import dataclass as validated
from pydantic_core import SchemaSerializer, core_schema

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
from ontologia.schema.validators import validators_of

VERSION = "$version"
"""Beside the fields of an event: the version of the class that wrote it, if that is not 1.

No field has this name, which is no identifier.
"""
TypeKind: TypeAlias = Literal["entity", "relation", "event"]
ENDS: tuple[Literal["left", "right"], ...] = ("left", "right")
_PYDANTIC = {"model_copy", "model_dump", "model_json_schema", "model_validate"}
_RESERVED = {
    "entity": {"meta", *_PYDANTIC},
    "relation": {"meta", "left", "right", "left_key", "right_key", "instance_key", *_PYDANTIC},
    "event": {
        *("id", "created_at", "priority", "root_event_id", "chain_depth"),
        *_PYDANTIC,
    },
}
# A signalling NaN raises InvalidOperation where pydantic looks whether an enum has it.
UNFIT = (ValidationError, InvalidOperation)
"""What pydantic raises for a value that does not fit."""
_INT64 = (Ge(-(2**63)), Le(2**63 - 1))
_KEY = field_type(str)
_LONGEST_NAME = 200
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_IMMUTABLE = (str, int, float, bool, bytes, type(None), Decimal, date, time, timedelta, UUID)
_JSON_FIELDS = SchemaSerializer(core_schema.dict_schema(core_schema.str_schema()))
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
        self,
        cls: Any,
        fields: dict[str, Field[Any]],
        abstract: bool,
        names: dict[str, Any],
        name: str | None = None,
    ) -> None:
        self.cls = cls
        self.kind: TypeKind = cls.__kind__
        self.name: str = cls.__name__ if name is None else name
        """The name under which objects are stored: `name=` of the class statement, or the class's."""
        self.fields = fields
        self.abstract = abstract
        self.open: bool = cls.__open__
        """Whether objects may have JSON fields beside those that are declared."""
        self.version = 1
        """What the version of an event class is; it is in the payload unless it is 1."""
        self.columns = ("left_key", "right_key") if self.kind == "relation" else ()
        """The keys an instance has beside its fields."""
        self.key: str | None = None
        """Name of the primary key (entities)."""
        self.instance_key: str | None = None
        """Name of the field that tells relations between the same ends apart, if there is one."""
        self.unique = tuple(name for name, field in fields.items() if field.unique)
        """The fields of which no two current objects have the same value."""
        self._expressions: dict[tuple[str, str, str | None], Expr[Any]] = {}
        self._check_definition()
        named = (*self.columns, self.key, self.instance_key)
        self.keys: frozenset[str] = frozenset(name for name in named if name is not None)
        """The names of the fields that say which object it is."""
        self._validators = validators_of(cls, (*self.columns, *fields))
        self._assigning = threading.local()
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
        for name in self.unique:
            if self.fields[name].primary_key or self.fields[name].instance_key:
                raise DefinitionError(
                    f"{self.name}.{name}: a key is not marked unique",
                    hint="A primary key is unique as it is; remove unique=True.",
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
            return resolve_fields(self.cls, self._names | {self.cls.__name__: self.cls})
        except NameError as error:
            raise DefinitionError(
                f"{self.name}: an annotation names {error.name!r}, which is not defined"
            ) from error

    @functools.cached_property
    def types(self) -> dict[str, FieldType]:
        """The storage type of each field."""
        types = {name: field_type(self.annotations[name]) for name in self.fields}
        for name, annotation in self.annotations.items():
            for embedded in _objects_in(annotation):
                raise DefinitionError(
                    f"{self.name}.{name} would hold a copy of a {embedded.__name__}",
                    hint="Keep its key, or connect the two by a Relation.",
                )
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
    def model(self) -> Any:
        """A pydantic dataclass of the same fields, with the @field_validators of the class."""
        fields: list[Any] = [(name, self._end_type(name)) for name in self.columns]
        fields += [(n, self._checked(n), _default(f)) for n, f in self.fields.items()]
        made = dataclasses.make_dataclass(
            self.cls.__name__, fields, kw_only=True, namespace=dict(self._validators.fields)
        )
        # JSON schemas tell classes of one name apart by these.
        made.__module__, made.__qualname__ = self.cls.__module__, self.cls.__qualname__
        config = ConfigDict(
            extra="allow" if self.open else "forbid",
            allow_inf_nan=False,
            validate_default=True,
            json_schema_extra=self._described,
        )
        try:
            model: Any = validated(made, config=config)
        except Exception as error:  # pydantic has many ways to say that it does not know a type
            raise DefinitionError(
                f"{self.name} has a field that cannot be validated: {error}"
            ) from error
        self._check_defaults(model)
        return model

    @functools.cached_property
    def _validator(self) -> Any:
        """pydantic's validator of a new instance: what it makes has the fields in its __dict__."""
        if self._validators.model:
            return TypeAdapter(self._annotated).validator
        return self.model.__pydantic_validator__

    @functools.cached_property
    def _annotated(self) -> Any:
        """The class for pydantic: made from the model, then seen by the @model_validators."""
        made = AfterValidator(lambda model: self._restored(self._complete(model.__dict__)))
        whole = WrapValidator(self._whole)
        return Annotated[(self.model, made, *self._validators.model, whole)]

    def _checked(self, name: str) -> Any:
        annotation = self.annotations[name]
        if self.types[name].whole:
            return Annotated[(annotation, *_INT64)]
        return annotation

    def _end_type(self, name: str) -> Any:
        return Annotated[
            str, BeforeValidator(functools.partial(self.end_key, name.removesuffix("_key")))
        ]

    def _check_defaults(self, model: Any) -> None:
        own = self._validators.names
        for name, field in self.fields.items():
            # The program's own validators may look at other fields: they run when there are any.
            if field.default is not MISSING and name not in own and "*" not in own:
                try:
                    _assign(model, name, field.default, {})
                except ValidationError as error:
                    raise DefinitionError(
                        f"{self.name}.{name}: the default {field.default!r} does not fit: "
                        f"{error.errors()[0]['msg']}"
                    ) from error

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields of a new instance, converted and complete; InvalidValueError otherwise."""
        try:
            return self.checked(values)
        except UNFIT as error:
            raise self.invalid(error) from error

    def checked(self, values: dict[str, Any]) -> dict[str, Any]:
        """The same, with pydantic's ValidationError where pydantic finds that a value does not fit."""
        if self.abstract:
            raise DefinitionError(f"{self.name} is abstract and has no instances")
        fields: dict[str, Any] = self._validator.validate_python(values).__dict__
        return fields if self._validators.model else self._complete(fields)

    def construct(self, obj: Any, values: dict[str, Any]) -> None:
        """Give a new instance its fields, as `checked` makes them."""
        if self.abstract or self._validators.model:
            object.__setattr__(obj, "__dict__", self.checked(values))
        else:  # pydantic sets them, without an instance of the model in between
            self._validator.validate_python(values, self_instance=obj)
            if self.open or self.keys:
                self._complete(obj.__dict__)

    def _complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """Check what pydantic does not: the key, and the fields that an open class lets in."""
        if self.open:
            for name, value in values.items():
                if not self._declares(name):
                    self._undeclared(name, value)
        key = self.key or self.instance_key
        if key is not None:
            self.key_text(values[key])
        return values

    def _restored(self, values: dict[str, Any]) -> Any:
        made = self.cls.__new__(self.cls)
        object.__setattr__(made, "__dict__", values)
        return made

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

    def validate_one(self, name: str, value: Any, values: Mapping[str, Any] | None = None) -> Any:
        """One field's new value, converted; InvalidValueError if it does not fit.

        `values` are the object's fields, for validators that look at others.
        """
        if name not in self.fields and name not in self.columns:
            if self.open:
                return self._undeclared(name, value)
            known = ", ".join(self.fields)
            raise AttributeError(f"{self.name} has no field {name!r}; it has {known}")
        try:
            checked = _assign(self.model, name, value, values if self._validators.fields else None)
        except UNFIT as error:
            raise self.invalid(error) from error
        if name == self.key or name == self.instance_key:
            self.key_text(checked)
        return checked

    @property
    def has_validators(self) -> bool:
        """Whether the class has any, its own or inherited."""
        return bool(self._validators.model or self._validators.fields)

    def stored_default(self, name: str) -> Any:
        """A field's default as it is stored."""
        value = self.validate_one(name, self.fields[name].new_default())
        encode = self.types[name].encode
        stored = value if encode is None or value is None else self._encoded(name, encode, value)
        codec.check(stored, f"{self.name}.{name}")
        return codec.decode_stored(codec.encode(stored))

    def widened(self, name: str, value: Any) -> Any:
        """A value of a field that had a narrower type: 5 in a field of floats is 5.0."""
        return self._fitting(name, value)

    # -- validators of the whole object ---------------------------------------------------------

    def assigned(self, values: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
        """New values for fields of an object that has `values`, converted.

        The @model_validators of the class run once, on a copy with all the new values; what they
        change is in the answer, too. They do not run for what they assign themselves.
        InvalidValueError if a value does not fit.
        """
        if not self._validators.model or getattr(self._assigning, "now", None) is not None:
            checked: dict[str, Any] = {}
            if len(updates) > 1:  # in the order of the class, as when an object is made
                names = (*self.columns, *self.fields)
                updates = {n: updates[n] for n in names if n in updates} | {**updates}
            for name, value in updates.items():
                others = {**values, **checked} if self._validators.fields else None
                checked[name] = self.validate_one(name, value, others)
            return checked
        names = (*self.columns, *self.fields)
        given = {name: values[name] for name in names if name in values}
        with self._busy((values, updates)):
            try:
                found = self._assigner.validate_python(
                    given | self.undeclared(values) | {**updates}
                )
            except UNFIT as error:
                raise self.invalid(error) from error
        return {
            name: value
            for name, value in found.__dict__.items()
            if name in updates or name not in values or value is not values[name]
        }

    @functools.cached_property
    def _assigner(self) -> Any:
        """As `_annotated`, for an object that is there: only what changes is validated again."""
        whole = WrapValidator(self._whole)
        chain = (PlainValidator(self._assigned), *self._validators.model, whole)
        return TypeAdapter(Annotated[(Any, *chain)]).validator

    def _assigned(self, given: Any) -> Any:
        values, updates = self._assigning.now
        new = dict(values)
        for name, value in dict(given).items():
            if name in updates or name not in values or value is not values[name]:
                new[name] = self.validate_one(name, value, new)
        return self._restored(new)

    def _whole(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        """Around all validators of an object; one that is there already passes as it is."""
        if isinstance(value, self.cls):
            return value
        with self._busy(getattr(self._assigning, "now", None) or ()):
            made = validate(value)
        if not isinstance(made, self.cls):
            raise TypeError(
                f"{self.name}: a @model_validator returned {shown(made)}; it returns the object"
            )
        return made

    @contextlib.contextmanager
    def _busy(self, what: Any) -> Generator[None]:
        before = getattr(self._assigning, "now", None)
        self._assigning.now = what
        try:
            yield
        finally:
            self._assigning.now = before

    # -- as pydantic sees the class -----------------------------------------------------------------

    def core_schema(self, handler: Any) -> Any:
        """pydantic's schema of the class: takes an instance as it is, or a mapping of its fields."""
        if self.abstract:
            raise DefinitionError(f"{self.name} is abstract and has no instances")
        schema = handler.generate_schema(self._annotated)
        schema["serialization"] = core_schema.wrap_serializer_function_ser_schema(
            self._serialized, info_arg=True, schema=handler.generate_schema(self.model)
        )
        return schema

    def _serialized(self, obj: Any, serialize: Callable[[Any], Any], info: Any) -> Any:
        if not isinstance(obj, self.cls):
            return serialize(obj)
        return serialize(self._as_model(obj)) | self._dump_undeclared(
            obj, include=info.include, exclude=info.exclude, exclude_none=info.exclude_none
        )

    def model_dump(self, obj: Any, **options: Any) -> dict[str, Any]:
        """An instance's fields as pydantic dumps them; `options` are its own."""
        found: dict[str, Any] = self.model.__pydantic_serializer__.to_python(
            self._as_model(obj), **options
        )
        options.pop("mode", None)  # what is not declared is JSON
        return found | self._dump_undeclared(obj, **options)

    def _dump_undeclared(
        self, obj: Any, *, include: Any, exclude: Any, exclude_none: bool
    ) -> dict[str, Any]:
        undeclared = self.undeclared(obj.__dict__)
        if not undeclared:
            return undeclared
        if exclude_none:
            undeclared = {name: value for name, value in undeclared.items() if value is not None}
        found: dict[str, Any] = _JSON_FIELDS.to_python(undeclared, include=include, exclude=exclude)
        return found

    def _as_model(self, obj: Any) -> Any:
        model = object.__new__(self.model)
        model.__dict__ = {name: getattr(obj, name) for name in (*self.columns, *self.fields)}
        return model

    def _described(self, schema: dict[str, Any]) -> None:
        """The docstring of the class in its JSON schema."""
        if self.cls.__dict__.get("__doc__"):
            schema["description"] = inspect.cleandoc(self.cls.__doc__)

    def invalid(self, error: ValidationError | InvalidOperation) -> InvalidValueError:
        """What pydantic found, as our own error."""
        if isinstance(error, InvalidOperation):
            return InvalidValueError(f"{self.name}: a signalling NaN is no value of any field")
        problems = error.errors(include_url=False)
        first = problems[0].get("ctx", {}).get("error")
        if len(problems) == 1 and isinstance(first, InvalidValueError):
            return first
        hint = None
        missing = {problem["loc"][-1] for problem in problems if problem["type"] in _MISSING}
        for side in ENDS:
            given = [p for p in problems if p["loc"] == (side,)]
            if given and f"{side}_key" in missing:
                hint = f"Give the entity's key as {side}_key=..., not the entity."
        return InvalidValueError(self.explain(error), hint=hint)

    def explain(self, error: ValidationError, *, values: bool = True) -> str:
        """What pydantic found, in one line; without `values` the same for whatever does not fit alike."""
        problems: list[str] = []
        for problem in error.errors(include_url=False):
            place = ".".join(
                str(part) if values or isinstance(part, str) else "*" for part in problem["loc"]
            )
            if problem["type"] in _MISSING:
                problems.append(f"{place} is missing")
            elif problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
                problems.append(f"{place} is not a field (it has {', '.join(self.fields)})")
            else:
                told = f"{place}: {problem['msg']}" if place else problem["msg"]
                problems.append(f"{told}, got {shown(problem['input'])}" if values else told)
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
    def keys_are_text(self) -> bool:
        """Whether an entity's key is the text of its column, without conversion."""
        return self.key is not None and self.annotations[self.key] is str

    @functools.cached_property
    def _storing(self) -> tuple[Any, Any, Any]:
        """The names, the encoders and the free fields, looked up once for each object."""
        free = tuple(name for name in self.stored if self.types[name].free)
        return self.stored, self._encoders, free

    @functools.cached_property
    def decoders(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        """The fields whose stored value is not yet what Python should see."""
        return tuple((n, t.decode) for n in self.stored if (t := self.types[n]).decode is not None)

    def dump(self, values: dict[str, Any]) -> str:
        """An instance's fields as canonical JSON text; an event's with the version of its class."""
        stored = self.encode(values)
        if self.version != 1:
            stored = stored | {VERSION: self.version}
        return codec.encode_checked(stored, where=self.name)

    def encode(self, values: dict[str, Any]) -> dict[str, Any]:
        """An instance's fields as they are stored, every part checked but text."""
        # An instance may hold more than its fields: the values of cached properties, for one.
        names, encoders, free = self._storing
        exact = len(values) == len(names) and not encoders and self.kind != "relation"
        stored = values if exact else {name: values[name] for name in names}
        if self.open and not exact:
            undeclared = self.undeclared(values)
            if not codec.storable(undeclared):
                codec.check(undeclared, self.name)
            stored |= undeclared
        for name, encode in encoders:
            if stored[name] is not None:
                stored[name] = self._encoded(name, encode, stored[name])
        for name in free:
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
            # Validators may look at other fields, which are known inside the transaction only.
            declared = name in self.fields and bool(self._validators.fields)
            stored[name] = (
                self._fitting(name, value) if declared else self.validate_one(name, value)
            )
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
        """Set some fields of an instance to what `encode_some` made of them, as JSON text.

        The validators of the class see all of them; InvalidValueError if one refuses.
        """
        some = self._decode_some(codec.decode_stored(patch))
        if self.has_validators:
            some = self.assigned(obj.__dict__, some)
        obj.__dict__.update(some)

    def patched(self, stored: dict[str, Any], patch: str, key: tuple[str, ...]) -> str:
        """Stored fields with some set to what `encode_some` made of them, as canonical JSON.

        The validators of the class see all of them; InvalidValueError if one refuses.
        """
        some: dict[str, Any] = codec.decode_stored(patch)
        if self.has_validators:
            values = self.keyed(self._decode_some(dict(stored)), key)
            return self.dump(values | self.assigned(values, self._decode_some(some)))
        return codec.encode_checked(stored | some, where=self.name)

    def keyed(self, fields: dict[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
        """A relation's fields with its key, which is not stored among them; an entity's as they are."""
        if self.kind == "relation":
            fields["left_key"], fields["right_key"] = key[0], key[1]
            if self.instance_key is not None:
                fields[self.instance_key] = self.key_value(key[2])
        return fields

    def _fitting(self, name: str, value: Any) -> Any:
        """A value converted to the type of a field, without the validators of the class."""
        try:
            return self._adapters[name].validate_python(value)
        except UNFIT as error:
            if isinstance(error, InvalidOperation):
                raise self.invalid(error) from error
            problem = error.errors(include_url=False)[0]
            raise InvalidValueError(
                f"{self.name}: {name}: {problem['msg']}, got {shown(value)}"
            ) from error

    @functools.cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(self._checked(name)) for name in self.fields}

    def _decode_some(self, stored: dict[str, Any]) -> dict[str, Any]:
        for name, decode in self.decoders:
            if stored.get(name) is not None:
                stored[name] = decode(stored[name])
        return stored

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
                adapted[name] = self.validate_one(name, field.new_default(), adapted)
        return adapted

    def narrowed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Decode fields of a version whose types may be wider, without names the class does not know.

        InvalidValueError for a value that fits no type of the class, or a field that it must have.
        """
        values = self.adapt(fields)
        for name in self.stored:
            if name not in values:
                raise InvalidValueError(f"{self.name}: {name} is missing")
            value = values[name]
            fitting = self._fitting(name, value)
            # pydantic takes "5" and True for an int.
            if fitting != value or isinstance(fitting, bool) != isinstance(value, bool):
                raise InvalidValueError(f"{self.name}: {name} does not fit, got {shown(value)}")
            values[name] = fitting
        return values

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


def _assign(model: Any, name: str, value: Any, values: Mapping[str, Any] | None) -> Any:
    scratch = object.__new__(model)
    names = model.__dataclass_fields__
    scratch.__dict__.update({n: values.get(n) for n in names} if values else dict.fromkeys(names))
    model.__pydantic_validator__.validate_assignment(scratch, name, value)
    return scratch.__dict__[name]


def _default(field: Field[Any]) -> Any:
    if field.required:
        return dataclasses.field()
    if type(field.default) in _IMMUTABLE or isinstance(field.default, Enum):
        return dataclasses.field(default=field.default)  # this one a JSON schema can show
    return dataclasses.field(default_factory=field.new_default)


def _objects_in(annotation: Any) -> Iterator[type]:
    """The entities, relations and events in an annotation."""
    if isinstance(annotation, type) and isinstance(getattr(annotation, "__shape__", None), Shape):
        yield annotation
    for part in get_args(annotation):
        yield from _objects_in(part)
