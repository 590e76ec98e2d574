"""Functions from the fields of one version of a type to those of the next."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from ontologia.errors import DefinitionError, MissingUpgraderError
from ontologia.schema.base import SchemaObject
from ontologia.schema.event import Event

Fields: TypeAlias = dict[str, Any]
Upgrader: TypeAlias = Callable[[Fields], Fields]
UpgraderKey: TypeAlias = tuple[str, int] | tuple[str, str, int]
"""(type name, from version), or (kind, type name, from version) where the name alone is not enough."""

F = TypeVar("F", bound=Upgrader)
_registered: dict[UpgraderKey, Upgrader] = {}


def upgrader(
    type_name: str | type[SchemaObject], *, from_version: int, kind: str | None = None
) -> Callable[[F], F]:
    """Register the decorated function as the step from `from_version` of a type to the next.

    The type is a class, or the name under which it is stored. The function gets the fields of a
    stored object, or of an event's payload, as JSON data and returns those of the next version. It
    may change the dict it is given. `kind` ("entity", "relation" or "event") is needed only where
    two of them have a type of this name, and it is given by name.
    """
    if isinstance(from_version, bool) or not isinstance(from_version, int) or from_version < 1:
        raise DefinitionError(f"from_version counts from 1, got {from_version!r}")
    if isinstance(type_name, type):
        kind, type_name = _named(type_name, from_version, kind)
    key: UpgraderKey = (
        (type_name, from_version) if kind is None else (kind, type_name, from_version)
    )

    def register(function: F) -> F:
        known = _registered.get(key)
        if known is not None and _origin(known) != _origin(function):
            raise DefinitionError(
                f"two upgraders for {type_name} from version {from_version}: "
                f"{_origin(known)} and {_origin(function)}"
            )
        _registered[key] = function
        return function

    return register


def _named(cls: type[Any], version: int, kind: str | None) -> tuple[str, str]:
    """The kind and the name under which a class is stored; DefinitionError if it has no such step."""
    shape = cls.__dict__.get("__shape__")
    if shape is None or shape.abstract:
        raise DefinitionError(
            f"an upgrader is for a class that is stored, or for a name, got {cls!r}"
        )
    if kind not in (None, shape.kind):
        raise DefinitionError(f"{cls.__name__} is of the kind {shape.kind}, and not {kind}")
    if not issubclass(cls, Event):
        return shape.kind, shape.name
    if version >= cls.__event_version__:
        raise beyond(cls, version)
    return "event", cls.__event_type__


def beyond(cls: type[Event], version: int) -> DefinitionError:
    """What to raise for an upgrader that leads past the version of an event class."""
    return DefinitionError(
        f"{cls.__name__} is version {cls.__event_version__}, and has an upgrader from version "
        f"{version}, which leads to version {version + 1}",
        hint=f"Write class {cls.__name__}(Event, version={version + 1}).",
    )


def load_upgraders(module: str) -> dict[UpgraderKey, Upgrader]:
    """Import a module; the upgraders it registers, by (type name, from version)."""
    importlib.import_module(module)
    return {key: fn for key, fn in _registered.items() if fn.__module__ == module}


def registered() -> dict[UpgraderKey, Upgrader]:
    """Every upgrader registered in this process."""
    return dict(_registered)


def find(
    registry: Mapping[UpgraderKey, Upgrader], kind: str, type_name: str, version: int
) -> Upgrader | None:
    """The step from `version` of a type, if there is one."""
    return registry.get((kind, type_name, version)) or registry.get((type_name, version))


def chain_upgraders(
    registry: Mapping[UpgraderKey, Upgrader],
    type_name: str,
    from_version: int,
    to_version: int,
    kind: str = "entity",
    formerly: Sequence[str] = (),
    *,
    keep: bool = True,
) -> Upgrader:
    """One function for all steps from one version to another; MissingUpgraderError names the gaps.

    Steps under a name that the type had `formerly` count, too. The fields that the function is given
    stay as they are, unless `keep` is false.
    """
    names = (type_name, *formerly)
    steps = [
        next((step for name in names if (step := find(registry, kind, name, v))), None)
        for v in range(from_version, to_version)
    ]
    missing = [from_version + i for i, step in enumerate(steps) if step is None]
    if missing:
        raise MissingUpgraderError(type_name, missing)

    def composed(fields: Fields) -> Fields:
        result = copy.deepcopy(fields) if keep else fields
        for step in steps:
            if step is not None:
                result = step(result)
        return result

    return composed


def _origin(function: Upgrader) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
