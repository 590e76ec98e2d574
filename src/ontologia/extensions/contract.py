"""The contract between an extension and its host: events, handlers, channels, agents, extensions.

Everything here but `Event` is a protocol. An extension implements one by having its methods, and
imports nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from ontologia.extensions.context import ExtensionContext


@dataclass(frozen=True, slots=True)
class Event:
    """An event, as a handler gets it. It can be read like a dict, too: `event["topic"]`.

    Every handler has its own copy of the payload.
    """

    id: int
    """Its number in the journal."""
    topic: str
    source: str
    """The id of the extension that published it, or the name of another publisher."""
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
        """The attribute of this name; `default` if there is none."""
        return self[name] if name in _NAMES else default

    def keys(self) -> tuple[str, ...]:
        """The names of all attributes, so that `dict(event)` works."""
        return _NAMES


_NAMES = ("id", "topic", "source", "payload", "created_at", "correlation_id", "status")

Handler: TypeAlias = Callable[[Event], Awaitable[None]]
"""`async def handler(event)`."""


@runtime_checkable
class Channel(Protocol):
    """A connection to the user."""

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Send the user this text, to that address if the channel has several."""
        ...


@runtime_checkable
class AgentProvider(Protocol):
    """An extension that answers events."""

    async def run(self, event: Event) -> str:
        """The answer for the user."""
        ...


@runtime_checkable
class Extension(Protocol):
    """The entry point of a manifest is a class without arguments whose instances have this.

    Optional: `async def start()`, called when all extensions are initialized, `async def stop()`,
    and `def health() -> dict`.
    """

    async def initialize(self, context: ExtensionContext) -> None:
        """Keep the context, and subscribe to topics."""
        ...
