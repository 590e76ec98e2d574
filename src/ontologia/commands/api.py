"""The decorators: they mark what a registry will find, and do nothing else.

@api.model("logistics.shipment")
class Shipment(DomainModel):
    @api.on_command("shipment.confirm")
    def confirm(self, cmd: Command) -> dict: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

from ontologia.commands.model import DomainModel
from ontologia.errors import DefinitionError
from ontologia.schema.event import Event

M = TypeVar("M", bound=DomainModel)
F = TypeVar("F", bound=Callable[..., Any])
_MARKS = "__ontologia_marks__"


class Mark(NamedTuple):
    """What one decorator said of a function."""

    kind: Literal["command", "event", "hook"]
    name: str
    track_fields: frozenset[str] | None = None


def marks_of(function: object) -> tuple[Mark, ...]:
    """What the decorators said of this; () of anything else."""
    return getattr(function, _MARKS, ()) if callable(function) else ()


def model(key: str) -> Callable[[type[M]], type[M]]:
    """Give a model its key: the name under which its records are stored and addressed.

    A key is one or more identifiers with dots between, as in `logistics.shipment`.
    """
    _check_name("a model's key", key)
    if key.split(".")[0] == "ede":
        raise DefinitionError(f"the model key {key!r} begins with ede, which is taken")

    def name(cls: type[M]) -> type[M]:
        if not (isinstance(cls, type) and issubclass(cls, DomainModel)):
            raise DefinitionError(
                f"api.model({key!r}) is for classes that derive from DomainModel, got {cls!r}"
            )
        if cls.__dict__.get("__model_key__") not in (None, key):
            raise DefinitionError(f"{cls.__name__} is the model {cls.__model_key__!r} already")
        if cls.__shape__.name not in (cls.__name__, key):
            raise DefinitionError(
                f"{cls.__name__} has name={cls.__shape__.name!r} and is the model {key!r}; give one"
            )
        cls.__shape__.rename(key)
        cls.__model_key__ = key
        return cls

    return name


def on_command(name: str) -> Callable[[F], F]:
    """Carry out commands of this name: on a method `(self, cmd)` of a model. One per name."""
    _check_name("a command's name", name)
    if name.split(".")[0] == "ede":
        raise DefinitionError(
            f"{name} cannot have a handler: commands that begin with ede. are built in",
            hint=f"Call it something else, or react to it: @api.hook('post.{name}').",
        )
    return _marking(Mark("command", name))


def on_event(name: str, *, track_fields: Iterable[str] | None = None) -> Callable[[F], F]:
    """Handle events of this name, in a worker: on a function `(event, env)`.

    On a model's method it is `(self, event, env)`. There, with the name
    `<model key>.field_changed`, `track_fields` says which fields' changes are announced, and only
    those are given to the method.
    """
    _refuse_class(name)
    _check_name("an event's name", name)
    if isinstance(track_fields, str):
        raise DefinitionError(f"track_fields takes a list of fields; write [{track_fields!r}]")
    tracked = None if track_fields is None else frozenset(track_fields)
    return _marking(Mark("event", name, tracked))


def hook(key: str) -> Callable[[F], F]:
    """Be called before (`pre.`) or after (`post.`) a command: on a method `(self, cmd)` of a model.

    `pre.shipment.confirm` is about the command of that name; `pre.logistics.shipment.update`
    about every update of a record of that model, `pre.ede.update` about every update at all.
    Raising in either takes the whole command back.
    """
    _check_name("a hook's key", key)
    if not key.startswith(("pre.", "post.")):
        raise DefinitionError(
            f"{key!r} is no key of a hook", hint=f"It begins with pre. or post.: 'pre.{key}'."
        )
    return _marking(Mark("hook", key))


def _marking(mark: Mark) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        if not callable(function) or isinstance(function, type | staticmethod):
            raise DefinitionError(f"{mark.name}: only functions are decorated, got {function!r}")
        setattr(function, _MARKS, (*marks_of(function), mark))
        return function

    return decorate


def _refuse_class(given: Any) -> None:
    if isinstance(given, type) and issubclass(given, Event):
        raise DefinitionError(
            f"api.on_event takes the name of an event, got the class {given.__name__}; handlers of "
            f"Event classes are made with ontologia.on_event",
            hint=f"from ontologia import on_event, and @on_event({given.__name__}).",
        )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise DefinitionError(f"{what} is text of 1 to 200 characters, got {name!r:.300}")
