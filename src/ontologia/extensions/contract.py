"""What an extension and its host know of each other: the event, and who may stand on either side.

Everything here but `Event` is a shape. An extension fits it by having the methods, and imports
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from ontologia.extensions.context import ExtensionContext


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a handler is given it. It can be read like a dict, too: `event["topic"]`.

    Every handler has a payload of its own: changing it changes nothing for anybody else.
    """

    id: int
    """Its number in the journal."""
    topic: str
    source: str
    """The id of the extension that published it, or whoever else did."""
    payload: dict[str, Any]
    created_at: float
    """Unix seconds."""
    correlation_id: str | None = None
    status: str = "processing"

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """What is called that; `default` if an event has nothing of that name."""
        return self[name] if name in _NAMES else default

    def keys(self) -> tuple[str, ...]:
        """The names of what can be read, so that `dict(event)` works."""
        return _NAMES


_NAMES = ("id", "topic", "source", "payload", "created_at", "correlation_id", "status")

Handler: TypeAlias = Callable[[Event], Awaitable[None]]
"""`async def handler(event)`."""


@runtime_checkable
class Channel(Protocol):
    """A way to the user."""

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Give the user this text, in that place of the channel if it has several."""
        ...


@runtime_checkable
class AgentProvider(Protocol):
    """An extension that answers events."""

    async def run(self, event: Event) -> str:
        """The answer for the user."""
        ...


@runtime_checkable
class Extension(Protocol):
    """What the entry point of a manifest names: a class without arguments that has this.

    Beside it there may be `async def start()`, called when all extensions are initialized,
    `async def stop()`, and `def health() -> dict`.
    """

    async def initialize(self, context: ExtensionContext) -> None:
        """Take the context, and subscribe to what is of interest."""
        ...
