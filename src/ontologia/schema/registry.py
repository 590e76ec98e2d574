"""The classes a session knows, by kind and name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from ontologia.errors import DefinitionError
from ontologia.schema.base import SchemaMeta
from ontologia.schema.shape import Shape


class Registry:
    """Shapes by (kind, name); one name means one class."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, str], Shape] = {}
        self._lock = threading.Lock()

    def add(self, cls: Any, kind: str | None = None) -> Shape:
        """Register a class. Again is nothing; another class of the same name is an error."""
        shape = shape_of(cls, kind)
        with self._lock:
            known = self._shapes.setdefault((shape.kind, shape.name), shape)
        if known is not shape:
            raise DefinitionError(
                f"two classes are called {shape.name}: {known.cls.__module__}."
                f"{known.cls.__qualname__} and {cls.__module__}.{cls.__qualname__}",
                hint="The name is what is stored, so it must mean one class within a session. "
                "If the class was defined again, open another session.",
            )
        return shape

    def find(self, kind: str, name: str) -> Shape | None:
        """The shape registered under this kind and name, if any."""
        return self._shapes.get((kind, name))

    def __len__(self) -> int:
        return len(self._shapes)

    def __iter__(self) -> Iterator[Shape]:
        return iter(list(self._shapes.values()))


def shape_of(cls: Any, kind: str | None = None) -> Shape:
    """The shape of an entity or relation class; DefinitionError for anything else."""
    shape: Shape | None = getattr(cls, "__shape__", None) if isinstance(cls, SchemaMeta) else None
    if shape is None or (shape.kind == "event" if kind is None else shape.kind != kind):
        raise DefinitionError(f"expected {kind or 'an entity or relation'} class, got {cls!r}")
    if shape.abstract:
        raise DefinitionError(f"{shape.name} is abstract and is never stored")
    return shape
