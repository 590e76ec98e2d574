"""What an application has: its models, who handles what, and the hooks in between."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from ontologia.commands.api import Mark, marks_of
from ontologia.commands.model import DomainModel
from ontologia.errors import (
    CommandHandlerNotFound,
    ConfigError,
    ConfigTypeError,
    DefinitionError,
    DuplicateHandler,
    NotFoundError,
)
from ontologia.queues import DomainEvent

EventHandler: TypeAlias = Callable[[DomainEvent, Any], Any]
FIELD_CHANGED = "field_changed"


class CommandTarget(NamedTuple):
    """Where a command goes: a method of a model, called on a fresh instance."""

    model_cls: type[DomainModel]
    method_name: str

    def call(self, env: Any, *arguments: Any) -> Any:
        """Call it, on an instance of its own: nothing leaks from one call to the next."""
        made: Any = self.model_cls
        model = made()
        model.env = env
        return getattr(model, self.method_name)(*arguments)


class Registry:
    """Belongs to one `Env`. Registering the same thing again is nothing."""

    def __init__(self) -> None:
        self.models: dict[str, type[DomainModel]] = {}
        self.tracked: dict[str, frozenset[str]] = {}
        """The fields of each model whose changes are announced."""
        self._commands: dict[str, CommandTarget] = {}
        self._hooks: dict[str, list[CommandTarget]] = {}
        self._events: dict[str, list[EventHandler]] = {}
        self._known: set[tuple[object, str]] = set()

    # -- finding --------------------------------------------------------------------------------

    def resolve_command(self, name: str) -> CommandTarget:
        """Who carries out this command; CommandHandlerNotFound if nobody does."""
        target = self._commands.get(name)
        if target is None:
            known = ", ".join(sorted(self._commands)) or "none at all"
            raise CommandHandlerNotFound(
                f"no handler for the command {name!r}; there are {known}",
                hint="Is the module with its model given to Env(modules=[...])?",
            )
        return target

    @property
    def commands(self) -> dict[str, CommandTarget]:
        """Every command of the application with its handler, in the order of registration."""
        return dict(self._commands)

    def get_event_handlers(self, name: str) -> Sequence[EventHandler]:
        """Those who handle events of this name, in the order of registration."""
        return self._events.get(name, ())

    @property
    def event_names(self) -> list[str]:
        """Every event that somebody handles."""
        return list(self._events)

    def hooks(self, key: str) -> Sequence[CommandTarget]:
        """The hooks under this key, in the order of registration."""
        return self._hooks.get(key, ())

    def idle_hooks(self) -> list[tuple[str, str]]:
        """Keys of hooks that nothing calls, each with the method that waits for it."""
        verbs = ("create", "update", "delete")
        called = {f"{key}.{verb}" for key in ("ede", *self.models) for verb in verbs}
        called.update(self._commands)
        return [
            (key, f"{_place(target.model_cls)}.{target.method_name}")
            for key, targets in self._hooks.items()
            for target in targets
            if key.partition(".")[2] not in called
        ]

    def model(self, key: str) -> type[DomainModel]:
        """The model of this key; NotFoundError if there is none."""
        found = self.models.get(key)
        if found is None:
            known = ", ".join(sorted(self.models)) or "none at all"
            raise NotFoundError(
                f"there is no model {key!r}; there are {known}",
                hint="Is the module with it given to Env(modules=[...])?",
            )
        return found

    # -- registering ----------------------------------------------------------------------------

    def load_module(self, module: ModuleType | str) -> None:
        """Register every model and every marked function that a module shows."""
        loaded = _imported(module)
        for value in list(vars(loaded).values()):
            if isinstance(value, type):
                if issubclass(value, DomainModel):
                    if "__model_key__" in value.__dict__ and value is not DomainModel:
                        self.register_model(value)
                elif value.__module__ == loaded.__name__:
                    _refuse_marked_methods(value)
            elif marks := marks_of(value):
                self._register_function(value, marks)

    def register_model(self, cls: type[DomainModel]) -> None:
        """Register a model with its commands, hooks, event handlers and tracked fields."""
        model = isinstance(cls, type) and issubclass(cls, DomainModel)
        key = cls.__dict__.get("__model_key__") if model else None
        if key is None:
            raise DefinitionError(
                f"{cls!r} is no model", hint='Decorate it: @api.model("some.key").'
            )
        other = self.models.setdefault(key, cls)
        if other is not cls:
            raise DefinitionError(
                f"two models are called {key!r}: {_place(other)} and {_place(cls)}"
            )
        for name, function in _methods(cls):
            for mark in marks_of(function):
                if self._is_new(cls, name, mark):
                    self._register_method(cls, name, function, mark)

    def _register_method(
        self, cls: type[DomainModel], name: str, function: Any, mark: Mark
    ) -> None:
        _refuse_generator(function, f"{_place(cls)}.{name}")
        target = CommandTarget(cls, name)
        if mark.kind == "event":
            self._track(cls, name, mark)
            self._events.setdefault(mark.name, []).append(_bound(target, mark.track_fields))
            return
        if inspect.iscoroutinefunction(function):
            raise DefinitionError(
                f"{_place(cls)}.{name} is async, and commands and hooks are not: whoever dispatches "
                f"one has its result when it returns"
            )
        if mark.kind == "hook":
            self._hooks.setdefault(mark.name, []).append(target)
            return
        other = self._commands.setdefault(mark.name, target)
        if other != target:
            raise DuplicateHandler(
                f"the command {mark.name!r} has two handlers: "
                f"{_place(other.model_cls)}.{other.method_name} and {_place(cls)}.{name}",
                hint="A command is carried out once. What else should happen is a hook or an event.",
            )

    def _register_function(self, function: Any, marks: Sequence[Mark]) -> None:
        _refuse_generator(function, _place(function))
        for mark in marks:
            if mark.kind != "event":
                raise DefinitionError(
                    f"{_place(function)} is a {mark.kind} and must be a method of a DomainModel"
                )
            if mark.track_fields is not None:
                raise DefinitionError(
                    f"{_place(function)}: track_fields belongs on a method of the model"
                )
            if self._is_new(function, "", mark):
                self._events.setdefault(mark.name, []).append(function)

    def _is_new(self, owner: object, name: str, mark: Mark) -> bool:
        # Not whether the module was loaded: a module shows what it imports from others, too.
        place = (owner, f"{name}:{mark.kind}:{mark.name}")
        if place in self._known:
            return False
        self._known.add(place)
        return True

    def _track(self, cls: type[DomainModel], method: str, mark: Mark) -> None:
        if mark.track_fields is None:
            return
        key = cls.__model_key__ or ""
        if mark.name != f"{key}.{FIELD_CHANGED}":
            raise DefinitionError(
                f"{_place(cls)}.{method}: track_fields goes with the event "
                f"{key}.{FIELD_CHANGED}, not with {mark.name}"
            )
        unknown = sorted(mark.track_fields - set(cls.__shape__.fields))
        if unknown and not cls.__open__:
            raise DefinitionError(
                f"{_place(cls)}.{method} tracks {unknown[0]!r}, which is no field"
            )
        self.tracked[key] = self.tracked.get(key, frozenset()) | mark.track_fields


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The functions of a class and its bases, in the order in which they are written."""
    seen: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if inspect.isfunction(value):
                seen[name] = value
            elif marks_of(getattr(value, "__func__", None)):
                raise DefinitionError(
                    f"{_place(cls)}.{name} is marked, but is a {type(value).__name__}; what is "
                    f"called for a command, a hook or an event is a plain method"
                )
    yield from seen.items()


def _bound(target: CommandTarget, fields: frozenset[str] | None) -> EventHandler:
    def handle(event: DomainEvent, env: Any) -> Any:
        if fields is not None and event.payload.get("field") not in fields:
            return None
        return target.call(env, event, env)

    handle.__qualname__ = f"{target.model_cls.__qualname__}.{target.method_name}"
    handle.__module__ = target.model_cls.__module__
    return handle


def _refuse_generator(function: Any, place: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"{place} has a yield in it, so that calling it would do nothing",
            hint="Return a list.",
        )


def _refuse_marked_methods(cls: type) -> None:
    for name, value in vars(cls).items():
        if marks_of(value):
            raise DefinitionError(
                f"{_place(cls)}.{name} is marked, but {cls.__name__} is no DomainModel; "
                f"only methods of models and module-level functions can be registered"
            )


def _imported(module: ModuleType | str) -> ModuleType:
    if isinstance(module, ModuleType):
        return module
    if not isinstance(module, str):
        raise ConfigTypeError(f"a module is given by its name or as itself, got {module!r}")
    if module in sys.modules:
        return sys.modules[module]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise ConfigError(f"there is no module {module!r}") from error


def _place(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
