"""What a module has for a store: its types, its handlers and its schedules, found by looking.

Whatever can be seen in the module counts, also what it imported: `models/__init__.py` may only
gather what its parts define.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ontologia.delivery.schedule import Schedule
from ontologia.errors import ConfigError, NotFoundError, OntologiaError
from ontologia.runtime.handlers import MARK, Handler
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.relation import Relation

_SCHEDULES = "schedules"


@dataclass
class Contents:
    """What was found."""

    name: str
    entity_types: list[type[Entity]] = field(default_factory=list[type[Entity]])
    relation_types: list[type[Relation[Any, Any]]] = field(
        default_factory=list[type[Relation[Any, Any]]]
    )
    event_types: dict[str, type[Event]] = field(default_factory=dict[str, type[Event]])
    """Event classes, by the type they are stored as."""
    handlers: list[Callable[..., Any]] = field(default_factory=list[Callable[..., Any]])
    schedules: list[Schedule] = field(default_factory=list[Schedule])

    def lost_handlers(self) -> Iterator[tuple[Handler, Handler]]:
        """Handlers that are not here since another took their name in the module, which is here."""
        for function in self.handlers:
            handler: Handler = getattr(function, MARK)
            while handler.replaced is not None and handler.replaced not in self.handlers:
                lost: Handler = getattr(handler.replaced, MARK)
                yield lost, handler
                handler = lost

    def event_type(self, name: str) -> type[Event]:
        """The class of an event, by its stored type or its own name; NotFoundError if none has it."""
        by_class = {cls.__name__: cls for cls in self.event_types.values()}
        found = self.event_types.get(name) or by_class.get(name)
        if found is None:
            known = sorted(self.event_types)
            close = difflib.get_close_matches(name, known, n=1)
            raise NotFoundError(
                f"{self.name} has no event type {name!r}",
                hint=f"Did you mean {close[0]}?"
                if close
                else f"It has {', '.join(known) or 'no events at all'}.",
            )
        return found


def load_module(target: str) -> Contents:
    """Import `MODULE`, or `MODULE:ATTR`, and see what is in it.

    With an attribute, which is a handler or a list of handlers and schedules, only those of it run.
    NotFoundError if the module or the attribute is not there, ConfigError if importing fails.
    """
    name, _, attribute = target.partition(":")
    module = _imported(name)
    found = Contents(target)
    for value in vars(module).values():
        _sort_type(found, value)
    if attribute:
        if not hasattr(module, attribute):
            raise NotFoundError(f"module {name} has no {attribute}")
        _sort_work(found, getattr(module, attribute), target)
    else:
        for value in vars(module).values():
            if _is_handler(value) or isinstance(value, Schedule):
                _sort_work(found, value, target)
        _sort_work(found, getattr(module, _SCHEDULES, ()), f"{name}:{_SCHEDULES}")
    return found


def together(contents: Sequence[Contents]) -> Contents:
    """What several modules have, each thing once."""
    found = Contents(" ".join(each.name for each in contents))
    for each in contents:
        for value in (*each.entity_types, *each.relation_types, *each.event_types.values()):
            _sort_type(found, value)
        _sort_work(found, each.handlers, each.name)
        _sort_work(found, each.schedules, each.name)
    return found


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error  # it is there, and lacks something itself
        hint = (
            f"Write the name of a module, with dots: {name[:-3].replace('/', '.')}."
            if name.endswith(".py")
            else "It is looked for in the working directory, and where Python looks."
        )
        raise NotFoundError(f"there is no module {name}", hint=hint) from None
    except (ValueError, TypeError) as error:
        if not name or name.startswith("."):
            raise NotFoundError(f"{name!r} is no name of a module") from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigError:
    said, hint = str(error), None
    if isinstance(error, OntologiaError):
        said, hint = error.args[0], error.hint
    return ConfigError(
        f"module {name} cannot be imported: {type(error).__name__}: {said}",
        hint=hint or "--debug shows where.",
    )


def _sort_type(found: Contents, value: Any) -> None:
    shape = getattr(value, "__shape__", None) if isinstance(value, type) else None
    if shape is None or shape.abstract:
        return
    if issubclass(value, Event):
        found.event_types[value.__event_type__] = value
    elif issubclass(value, Entity):
        if value not in found.entity_types:
            found.entity_types.append(value)
    elif issubclass(value, Relation) and value not in found.relation_types:
        found.relation_types.append(value)


def _sort_work(found: Contents, value: Any, where: str) -> None:
    """Handlers and schedules, each once, in the order they are found."""
    if isinstance(value, Schedule):
        if value.key not in [each.key for each in found.schedules]:
            found.schedules.append(value)
    elif _is_handler(value):
        if value not in found.handlers:
            found.handlers.append(value)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for each in value:
            _sort_work(found, each, where)
    else:
        raise ConfigError(
            f"{where} has {value!r:.200}, which is neither a handler nor a schedule",
            hint="Decorate handlers with @on_event(SomeEvent).",
        )


def _is_handler(value: Any) -> bool:
    return callable(value) and not isinstance(value, type) and hasattr(value, MARK)
