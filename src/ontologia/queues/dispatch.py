"""Calling the handlers of an event, and what a worker has to know to do so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ontologia.queues.protocol import DomainEvent, EventQueue
from ontologia.runtime.coroutines import Coroutines

_LAST_WORDS = 1.0  # seconds a cancelled coroutine has to clean up

EventHandler = Callable[[DomainEvent, Any], Any]


class HandlerRegistry(Protocol):
    """Who knows the handlers."""

    def get_event_handlers(self, name: str) -> Sequence[EventHandler]:
        """Those of an event, in the order in which they are to be called."""
        ...


class WorkerEnv(Protocol):
    """What a worker needs of an environment; handlers are given all of it."""

    @property
    def queue(self) -> EventQueue | None:
        """Where events are."""
        ...

    @property
    def registry(self) -> HandlerRegistry:
        """Who handles them."""
        ...


class EventDispatcher:
    """Calls the handlers of an event, `def` or `async def`, one after the other."""

    def __init__(self) -> None:
        self._coroutines = Coroutines()

    def dispatch(self, event: DomainEvent, env: WorkerEnv) -> None:
        """Call each handler. The first that raises ends it: those after it are not called."""
        for handler in env.registry.get_event_handlers(event.name):
            result = handler(event, env)
            if result is not None and inspect.isawaitable(result):
                self._coroutines.run(result)

    def close(self, patience: float = _LAST_WORDS) -> None:
        """End the event loop of coroutines, if there is one."""
        self._coroutines.close(patience)
