"""What entities, relations and events have in common: a class whose fields are declared."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, dataclass_transform

from pydantic import TypeAdapter

from ontologia.errors import DefinitionError, InvalidValueError, MetadataUnavailableError
from ontologia.schema.annotations import is_class_variable, is_field, own_annotations
from ontologia.schema.field import Field
from ontologia.schema.shape import UNFIT, Shape


@dataclass(frozen=True, slots=True)
class Meta:
    """What the store knows of an object that was read from it, beside its fields."""

    type_name: str
    commit_id: int
    """The commit that wrote this version."""
    key: str | None = None
    """Of an entity; None for a relation."""
    left_key: str | None = None
    right_key: str | None = None
    instance_key: str | None = None
    """Of a relation, '' where its class has none; None for an entity."""
    deleted: bool = False
    """True for a deletion in `with_history()`; the fields are those before it."""


def computed(*, init: Literal[False] = False, default: Any = None) -> Any:
    """An attribute that the store fills: readable and assignable, but no constructor argument."""
    return default


@dataclass_transform(kw_only_default=True, field_specifiers=(Field, computed))
class SchemaMeta(type):
    """Collects the fields of a class when it is defined, and complains at once if it cannot be."""

    __shape__: Shape

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        /,
        *,
        abstract: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> SchemaMeta:
        of_events = options.keys() & {"version", "formerly"}
        if of_events and not any(getattr(base, "__kind__", "") == "event" for base in bases):
            raise DefinitionError(
                f"{class_name}: {min(of_events)}= is for events",
                hint="The store counts the versions of entities and relations itself; a class that "
                'was renamed keeps its type with name="...".',
            )
        cls = super().__new__(mcls, class_name, bases, namespace, **options)
        if namespace.get("__root__"):
            return cls
        inherited = _inherited(cls)
        fields = inherited | _declared(cls, namespace, inherited)
        # The names around the class statement, for annotations that are text.
        around = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage] - no public name gives it
        cls.__shape__ = cls._shape(fields, abstract, around, name)
        cls._defined()
        return cls

    def _shape(
        cls, fields: dict[str, Field[Any]], abstract: bool, names: dict[str, Any], name: str | None
    ) -> Shape:
        """The shape of a new class; `name` is what the class statement says it is stored under."""
        if name is not None and not isinstance(name, str):
            raise DefinitionError(f"{cls.__name__}: name= is text, got {name!r:.300}")
        return Shape(cls, fields, abstract, names, name)

    def _defined(cls) -> None:
        """Called when a class and its shape are complete, for what a kind adds to its classes."""

    if not TYPE_CHECKING:  # to a type checker it would mean that a class has any attribute

        def __getattr__(cls, name: str) -> Any:
            """On an open class, a field that it does not declare is an expression too."""
            shape = cls.__dict__.get("__shape__")
            if shape is None or not shape.open or name.startswith("_"):
                said = f"type object {cls.__name__!r} has no attribute {name!r}"
                raise AttributeError(said, name=name, obj=cls)
            return shape.expression(name)

    def __repr__(cls) -> str:
        return f"<class {cls.__module__}.{cls.__qualname__}>"


def _inherited(cls: type) -> dict[str, Field[Any]]:
    fields: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        shape = base.__dict__.get("__shape__")
        if isinstance(shape, Shape):
            fields |= shape.fields
        elif not isinstance(base, SchemaMeta):
            _refuse_loose_fields(cls, base)
    return fields


def _refuse_loose_fields(cls: type, base: type) -> None:
    for name, value in base.__dict__.items():
        if isinstance(value, Field):
            raise DefinitionError(
                f"{cls.__name__} inherits {name} from {base.__name__}, which is no entity or relation",
                hint=f"Write class {base.__name__}(Entity, abstract=True).",
            )


def _declared(
    cls: type, namespace: dict[str, Any], inherited: dict[str, Field[Any]]
) -> dict[str, Field[Any]]:
    annotations = own_annotations(cls)
    fields: dict[str, Field[Any]] = {}
    for name, annotation in annotations.items():
        if is_class_variable(annotation):
            continue
        if name.startswith("_"):
            if is_field(annotation):
                raise DefinitionError(f"{cls.__name__}.{name}: a field's name has no _ in front")
            continue
        if (
            name == "priority"
            and getattr(cls, "__kind__", "") == "event"
            and not is_field(annotation)
        ):
            continue  # a plain attribute: how urgent events of this class are
        if not is_field(annotation):
            written = annotation if isinstance(annotation, str) else _written(annotation)
            raise DefinitionError(
                f"{cls.__name__}.{name} is annotated {written}, which says nothing to the store",
                hint=f"Write {name}: Field[{written}], or ClassVar[{written}] if it is no field.",
            )
        given = namespace.get(name, Field())
        # A copy: one declaration may be written for two names.
        field = copy.copy(given) if isinstance(given, Field) else Field(default=given)
        field.name = name
        setattr(cls, name, field)
        fields[name] = field
    if "model_config" in namespace and "model_config" not in fields:
        raise DefinitionError(
            f"{cls.__name__}.model_config has no effect here, so it is refused",
            hint="Say it in the type of a field: Field[Annotated[str, StringConstraints(...)]].",
        )
    for name, value in namespace.items():
        if name not in annotations and (isinstance(value, Field) or name in inherited):
            raise DefinitionError(
                f"{cls.__name__}.{name} has no type", hint=f"Write {name}: Field[...] = Field(...)."
            )
    return fields


def _written(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


Names: TypeAlias = set[str] | Mapping[str, Any]
"""Names of fields, or a mapping that says what of each, as pydantic takes it."""


class _DataclassFields:
    """The fields as `dataclasses` has them, made when somebody asks.

    To a type checker the classes are dataclasses; so are they to `dataclasses.asdict`, and to
    FastAPI, which takes a dataclass from the body of a request, and anything else from its query.
    """

    def __get__(self, _instance: object, owner: Any) -> Any:
        shape = owner.__dict__.get("__shape__")
        if shape is None:
            raise AttributeError("__dataclass_fields__")
        return shape.model.__dataclass_fields__


def _shape_of(cls: Any) -> Shape:
    shape: Shape | None = cls.__dict__.get("__shape__")
    if shape is None:
        raise DefinitionError(f"{cls.__name__} is a base of classes and has no fields")
    return shape


class SchemaObject(metaclass=SchemaMeta):
    """Base of Entity, Relation and Event: plain objects whose fields were validated."""

    # The fields are the instance's __dict__ and nothing else is. `_origin` is the version that the
    # object was read or written at: (commit, whether it says "deleted", store id), and the ends of
    # a relation that was read. Not set on an object that was constructed and not committed.
    # `_others` are the versions it was written at in other stores, by their ids.
    __slots__ = ("__dict__", "__weakref__", "_origin", "_others")
    __root__: ClassVar[bool] = True
    __open__: ClassVar[bool] = False
    """`__open__ = True` in a class: objects may have any JSON fields beside those declared."""
    __shape__: ClassVar[Shape]

    def __init_subclass__(cls, *, abstract: bool = False, name: str | None = None) -> None:
        super().__init_subclass__()

    def __init__(self, /, *positional: Any, **values: Any) -> None:
        if positional:
            name, fields = type(self).__name__, ", ".join(type(self).__shape__.fields)
            raise TypeError(f"{name} takes no positional arguments; its fields are {fields}")
        shape = type(self).__shape__
        try:
            shape.construct(self, values)
        except UNFIT as error:
            raise shape.invalid(error) from error

    if not TYPE_CHECKING:  # to a type checker it would mean that any name can be assigned

        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(getattr(type(self), name, None), property):
                object.__setattr__(self, name, value)
            else:
                self._assign({name: value})

        __dataclass_fields__ = _DataclassFields()

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return _shape_of(cls).core_schema(handler)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        shape, mine, theirs = type(self).__shape__, self.__dict__, other.__dict__
        same = all(mine.get(n) == theirs.get(n) for n in (*shape.columns, *shape.fields))
        return same and (not shape.open or shape.undeclared(mine) == shape.undeclared(theirs))

    __hash__ = None  # type: ignore[assignment]  # its fields can change

    def __repr__(self) -> str:
        values, shape = self.__dict__, type(self).__shape__
        names = [*shape.columns, *shape.fields, *shape.undeclared(values)]
        inside = ", ".join(f"{name}={values[name]!r}" for name in names if name in values)
        return f"{type(self).__name__}({inside})"

    # A copy is the same version of the same object.

    def __copy__(self) -> Any:
        return _restore(type(self), dict(self.__dict__), self._version, self._elsewhere)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        values = copy.deepcopy(dict(self.__dict__), memo)
        return _restore(type(self), values, self._version, self._elsewhere)

    def __reduce__(self) -> Any:
        version = self._version and self._version[:3]  # the ends of a relation stay behind
        return _restore, (type(self), dict(self.__dict__), version, self._elsewhere)

    @property
    def _version(self) -> tuple[Any, ...] | None:
        """Where the object was read from or written to; None if it was only constructed."""
        return getattr(self, "_origin", None)

    @property
    def _elsewhere(self) -> dict[str, int] | None:
        return getattr(self, "_others", None)

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: Names | None = None,
        exclude: Names | None = None,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """The fields as a dict, as pydantic dumps them: models inside are dicts as well.

        A relation's have `left_key` and `right_key` among them. What the store knows of the object
        is not part of it. `mode="json"` gives what JSON has: text for a datetime, a list for a set.
        """
        return type(self).__shape__.model_dump(
            self, mode=mode, include=include, exclude=exclude, exclude_none=exclude_none
        )

    @classmethod
    def model_validate(cls, data: Mapping[str, Any] | Self) -> Self:
        """The object with these fields, validated as by the constructor; an instance as it is."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise TypeError(
                f"{cls.__name__} is made from a mapping of its fields, got {data!r:.200}"
            )
        return cls(**data)

    @classmethod
    def model_json_schema(
        cls, *, mode: Literal["validation", "serialization"] = "validation"
    ) -> dict[str, Any]:
        """The JSON schema of what `model_validate` takes, or of what `model_dump` gives."""
        return TypeAdapter(cls).json_schema(mode=mode)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, of the same version, with some fields assigned together: all are validated."""
        made = copy.deepcopy(self) if deep else copy.copy(self)
        if update:
            made._assign(update)
        return made

    def _assign(self, updates: Mapping[str, Any]) -> None:
        """Assign fields: all of them, or none if one does not fit."""
        shape, values = type(self).__shape__, vars(self)
        checked = shape.assigned(values, updates)
        for name in shape.keys & checked.keys():
            if self._version and checked[name] != values.get(name):
                raise InvalidValueError(
                    f"{shape.name}.{name} is the key of a stored object and cannot change from "
                    f"{values.get(name)!r} to {checked[name]!r}",
                    hint="Construct another object with the new key, and delete this one.",
                )
        values.update(checked)

    def _lacks(self, name: str) -> str:
        """Why there is no value of a field that the class has."""
        return (
            f"this {type(self).__name__} was stored without {name!r}, and the field has no default"
        )

    def _read_from(self) -> Any:
        """What the reader left with an object it made; MetadataUnavailableError if there is none."""
        origin = self._version
        if origin is None:
            raise MetadataUnavailableError(f"{self!r} was neither read from a store nor committed")
        return origin


def _restore(
    cls: type[SchemaObject],
    values: dict[str, Any],
    version: tuple[Any, ...] | None = None,
    elsewhere: dict[str, int] | None = None,
) -> SchemaObject:
    made = cls.__new__(cls)
    object.__setattr__(made, "__dict__", values)
    if version is not None:
        object.__setattr__(made, "_origin", version)
    if elsewhere is not None:
        object.__setattr__(made, "_others", elsewhere)
    return made
