"""`Event`: something that happened, told to whoever subscribed to it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ontologia import codec
from ontologia.errors import DefinitionError, InvalidTypeError, InvalidValueError, shown
from ontologia.schema.base import SchemaObject, computed
from ontologia.schema.field import Field
from ontologia.schema.shape import Shape

METADATA = ("id", "created_at", "priority", "root_event_id", "chain_depth")
"""What the store knows of an event beside its fields; columns of their own."""
_LONGEST_TYPE = 200
_HIGHEST_VERSION = 2**31 - 1


class _PydanticModel:
    """A pydantic model of an event's fields, for those who want one; made when it is asked for."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[type, type[BaseModel]] = weakref.WeakKeyDictionary()

    def __get__(self, _instance: object, owner: Any) -> type[BaseModel]:
        if owner not in self._made:
            shape = owner.__shape__
            fields: dict[str, Any] = {
                name: (shape.annotations[name], ... if field.required else field.new_default())
                for name, field in shape.fields.items()
            }
            config = ConfigDict(extra="forbid", protected_namespaces=())
            self._made[owner] = create_model(f"_{owner.__name__}Model", __config__=config, **fields)
        return self._made[owner]


def derive_event_type(class_name: str) -> str:
    """`UserCreated` is `user.created`, `HTTPRequest` is `http.request`."""
    spaced = re.sub("(.)([A-Z][a-z]+)", r"\1.\2", class_name)
    return re.sub("([a-z0-9])([A-Z])", r"\1.\2", spaced).lower()


class Event(SchemaObject):
    """Base of the events a program announces and reacts to.

    Fields are declared as those of an entity are. The type under which an event is stored comes
    from the name of the class (`OrderPlaced` is `order.placed`); `class OrderPlaced(Event,
    name="...")` says otherwise, and so does `__event_type__ = "..."` in the class body. Higher priorities are handled first: `priority: int = 200` in the
    class, or `priority=` of the constructor, beats the default of 100.

    After a change that stored payloads do not fit, the class has another version: `class
    OrderPlaced(Event, version=2)`, with an `upgrader` from version 1. A payload says which version
    it has, if that is not 1. With `formerly=["order.created"]` the class also reads what is stored
    under types that it had before, and its handlers are given that, too.
    """

    __slots__ = ()
    __root__: ClassVar[bool] = True
    __kind__: ClassVar[Literal["event"]] = "event"
    __event_type__: ClassVar[str]
    __event_fields__: ClassVar[tuple[str, ...]]
    __event_version__: ClassVar[int] = 1
    __event_formerly__: ClassVar[tuple[str, ...]] = ()
    _field_definitions: ClassVar[dict[str, Field[Any]]]

    # Set by the store. They may be assigned, but only `priority` is the program's to choose.
    id: str | None = computed(default=None)
    created_at: str | None = computed(default=None)
    priority: int = 100
    root_event_id: str | None = computed(default=None)
    chain_depth: int = computed(default=0)

    if not TYPE_CHECKING:
        _pydantic_model = _PydanticModel()

        def __init__(self, /, *positional: Any, priority: int | None = None, **values: Any) -> None:
            if type(self) is Event:
                raise TypeError("Event is the base of event classes; define one with its fields")
            if positional:
                SchemaObject.__init__(self, *positional)
            type(self).__shape__.construct(self, values)
            if priority is not None:
                self.__dict__["priority"] = _checked_priority(priority)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in METADATA:
                self.__dict__[name] = value
            else:
                super().__setattr__(name, value)

    def __init_subclass__(
        cls,
        *,
        abstract: bool = False,
        name: str | None = None,
        version: int = 1,
        formerly: Sequence[str] = (),
    ) -> None:
        super().__init_subclass__()
        # Its own: a class that inherits fields is another type of event.
        cls.__event_version__ = _checked_version(cls, version)
        cls.__event_formerly__ = _checked_formerly(cls, formerly)

    @classmethod
    def _shape(
        cls, fields: dict[str, Field[Any]], abstract: bool, names: dict[str, Any], name: str | None
    ) -> Shape:
        if name is not None:
            if cls.__dict__.get("__event_type__", name) != name:
                raise DefinitionError(f"{cls.__name__}: name= and __event_type__ differ; give one")
            cls.__event_type__ = name
        return Shape(cls, fields, abstract, names)

    @classmethod
    def _defined(cls) -> None:
        cls.__event_fields__ = tuple(cls.__shape__.fields)
        cls._field_definitions = cls.__shape__.fields
        _checked_priority(cls.priority)
        cls.__event_type__ = _checked_type(cls, cls.__dict__.get("__event_type__"))
        cls.__shape__.version = cls.__event_version__
        _remember(_classes, cls.__event_type__, cls)
        for former in cls.__event_formerly__:
            if former == cls.__event_type__:
                raise DefinitionError(
                    f"{cls.__name__} is stored as {former!r} now; formerly has its other types"
                )
            _remember(_successors, former, cls)

    _derive_event_type = staticmethod(derive_event_type)


def payload_of(event: Event) -> str:
    """The event's fields as canonical JSON, with the version of its class unless that is 1.

    InvalidValueError if they cannot be stored.
    """
    return type(event).__shape__.dump(vars(event))


def event_of(cls: type[Event], payload: str | bytes) -> Event:
    """The event of this class that was stored as `payload`, by the same version of the class.

    Validated again, since another program may have written it: fields the class does not know are
    left out, and InvalidValueError says what is missing or does not fit.
    """
    return event_with(cls, fields_in(cls, payload))


def fields_in(cls: type[Event], payload: str | bytes) -> dict[str, Any]:
    """The JSON object that a payload is, with its version; InvalidValueError if it is none."""
    stored = codec.decode_stored(payload)
    if not isinstance(stored, dict):
        raise InvalidValueError(f"{cls.__name__}: the payload is no JSON object")
    return stored


def event_with(cls: type[Event], stored: dict[str, Any]) -> Event:
    """The event with these fields, as JSON data; what the class does not know is left out."""
    shape = cls.__shape__
    try:
        fields = shape.restored(stored)
    except ValidationError as error:
        raise InvalidValueError(shape.explain(error)) from error
    event = cls.__new__(cls)
    object.__setattr__(event, "__dict__", fields)
    return event


_References: TypeAlias = dict[str, list[weakref.ref[type[Event]]]]
_classes: _References = {}
_successors: _References = {}
"""Classes by the types that they had before."""


def _remember(known: _References, event_type: str, cls: type[Event]) -> None:
    others = [each for each in known.get(event_type, []) if each() is not None]
    known[event_type] = [*others, weakref.ref(cls)]


def _newest(known: _References, event_type: str) -> type[Event] | None:
    alive = (each() for each in reversed(known.get(event_type, [])))
    return next((cls for cls in alive if cls is not None), None)


def event_class(event_type: str) -> type[Event] | None:
    """The class that was last defined for a stored type in this process, and still is."""
    return _newest(_classes, event_type)


def reading_class(event_type: str) -> type[Event] | None:
    """The class that reads events of a stored type: that of the type, or one that had it before."""
    return _newest(_classes, event_type) or _newest(_successors, event_type)


def types_of(cls: type[Event]) -> tuple[str, ...]:
    """The types under which events of a class may be stored: its own, then those it had before."""
    return (cls.__event_type__, *cls.__event_formerly__)


def former_types(event_type: str) -> tuple[str, ...]:
    """The types that the class of a type had before; () if this process knows none."""
    cls = event_class(event_type)
    return () if cls is None else cls.__event_formerly__


def _checked_type(cls: type[Event], declared: Any) -> str:
    name = derive_event_type(cls.__name__) if declared is None else declared
    return _checked_name(cls, name, "__event_type__")


def _checked_name(cls: type[Event], name: Any, where: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_TYPE or name == "*":
        raise DefinitionError(
            f"{cls.__name__}: an event type is text of 1 to {_LONGEST_TYPE} characters and not *, "
            f"got {name!r:.300}"
        )
    codec.check(name, f"{cls.__name__}.{where}")
    return name


def _checked_version(cls: type[Event], version: Any) -> int:
    if type(version) is not int or not 1 <= version <= _HIGHEST_VERSION:
        raise DefinitionError(
            f"{cls.__name__}: version= is a whole number from 1 on, got {shown(version)}"
        )
    return version


def _checked_formerly(cls: type[Event], formerly: Any) -> tuple[str, ...]:
    if isinstance(formerly, str) or not isinstance(formerly, Sequence):
        raise DefinitionError(
            f"{cls.__name__}: formerly= is a list of event types, got {shown(formerly)}",
            hint="Write formerly=['order.created'].",
        )
    return tuple(dict.fromkeys(_checked_name(cls, each, "formerly") for each in formerly))


def _checked_priority(priority: Any) -> int:
    if (
        isinstance(priority, bool)
        or not isinstance(priority, int)
        or not -(2**31) <= priority < 2**31
    ):
        raise (InvalidValueError if type(priority) is int else InvalidTypeError)(
            f"priority is a whole number of 32 bits, got {shown(priority)}"
        )
    return priority
