"""The surface of a Worker: messages go in by `post_message` and come out as events.

The names of the Web (`postMessage`, `onmessage`, `addEventListener`) are there as well, and the
loop takes any object that has either spelling.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from ontologia.actors.message import Message, Sealed, opened


class MessageEvent:
    """What a listener of `"message"` is given; `data` is the message."""

    __slots__ = ("said",)

    type: Literal["message"] = "message"

    def __init__(self, said: Message | Sealed) -> None:
        self.said = said
        """The message, or its JSON while nobody needs more."""

    @property
    def data(self) -> Message:
        """The message."""
        if isinstance(self.said, Sealed):
            self.said = opened(self.said)
        return self.said


@dataclass(slots=True)
class ErrorEvent:
    """What a listener of `"error"` or `"messageerror"` is given."""

    error: str
    cause: Message | None = None
    """The message that was being handled."""
    traceback: str = ""
    type: Literal["error", "messageerror"] = "error"


Listener = Callable[[Any], object]


class Worker:
    """The outgoing half, which every kind of actor shares."""

    on_message: Listener | None = None

    # Two underscores here and in Actor: names with one are those of the actors that users write.
    __listeners: dict[str, list[Listener]]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Here and not in __init__, which is the user's: to forget super().__init__() is harmless.
        self = super().__new__(cls)
        self.__listeners = {"message": [], "error": [], "messageerror": []}
        return self

    def post_message(self, message: Message) -> None:
        """Hand over a message; returns at once, whatever the actor is doing."""
        raise NotImplementedError

    def add_event_listener(self, type: str, listener: Listener) -> None:
        """Call `listener(event)` for each event of this type: `message`, `error`, `messageerror`."""
        # A new list each time: one may be added while the others are being called.
        self.__listeners[type] = [*self.__listeners.get(type, ()), listener]

    def remove_event_listener(self, type: str, listener: Listener) -> None:
        """Undo `add_event_listener`; nothing happens if it was not added."""
        self.__listeners[type] = [
            each for each in self.__listeners.get(type, ()) if each != listener
        ]

    def dispatch(self, event: MessageEvent | ErrorEvent) -> None:
        """Give an event to all who listen."""
        if event.type == "message" and self.on_message is not None:
            self.on_message(event)
        for listener in self.__listeners[event.type]:
            listener(event)

    @property
    def onmessage(self) -> Listener | None:
        """The same as `on_message`."""
        return self.on_message

    @onmessage.setter
    def onmessage(self, listener: Listener | None) -> None:
        self.on_message = listener

    def postMessage(self, message: Message) -> None:
        """The same as `post_message`."""
        self.post_message(message)

    def addEventListener(self, type: str, listener: Listener) -> None:
        """The same as `add_event_listener`."""
        self.add_event_listener(type, listener)


def post_to(worker: Any) -> Callable[[Message], object]:
    """How to hand a message to an object that is shaped like a Worker; AttributeError if it is not."""
    method = getattr(worker, "post_message", None) or worker.postMessage
    if not callable(method):
        raise TypeError("post_message cannot be called")
    return method  # type: ignore[no-any-return]


def listen_to(worker: Any, heard: Listener, failed: Listener) -> None:
    """Hear what an object that is shaped like a Worker says, by whichever way it offers."""
    add = getattr(worker, "add_event_listener", None) or getattr(worker, "addEventListener", None)
    if add is None:
        setattr(worker, "on_message" if hasattr(worker, "on_message") else "onmessage", heard)
        return
    add("message", heard)
    for optional in ("error", "messageerror"):
        with contextlib.suppress(Exception):  # an actor may have no such events
            add(optional, failed)
