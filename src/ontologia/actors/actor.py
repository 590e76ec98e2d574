"""Actors: a mailbox, and one message at a time.

An actor is a task of the asyncio loop. It yields between messages, but what blocks inside `handle`
blocks everything: such an actor belongs in a process of its own (`isolation="process"`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, overload

from ontologia.actors.mailbox import Mailbox, at_hand
from ontologia.actors.message import OUTCOMES, Message, Sealed, caused, is_answered, timeout_of
from ontologia.actors.parts import ErrorData
from ontologia.actors.worker import MessageEvent, Worker
from ontologia.errors import InvalidValueError

TIMEOUT = 30.0
"""Seconds that a command or query waits for its outcome, unless it says otherwise."""


@dataclass(slots=True)
class _Asked:
    """A command or query of this actor's own, without an outcome so far."""

    future: asyncio.Future[Message] | None
    guard: asyncio.TimerHandle | None


class Actor(Worker):
    """The base of actors: write `handle`, and answer each command and query in it once."""

    on_done: Callable[[Message], object] | None = None
    """Called after each message that was handled."""

    __mailbox: Mailbox
    __asked: dict[str, _Asked]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self.__mailbox, self.__asked = Mailbox(self), {}
        return self

    # -- for those who write actors ---------------------------------------------------------------

    async def handle(self, message: Any) -> None:
        """Handle one message; the next one waits until this is done."""
        raise NotImplementedError(f"{type(self).__name__} has no handle(self, message)")

    async def outcome(self, message: Message) -> None:
        """Called with the outcome of a command or query that was sent with `emit`."""

    async def start(self) -> None:
        """Called once, before the first message."""

    @overload
    def emit(self, message: Message, /) -> Message: ...
    @overload
    def emit(self, message: str, data: object = None, /) -> None: ...
    def emit(self, message: Message | str, data: object = None, /) -> Message | None:
        """Send a message, and get it as it was sent; or an event, by its type and data.

        It is a consequence of the message at hand, unless it names another cause.
        """
        if not isinstance(message, str):
            return self.__send(message, None, TIMEOUT)
        self.__say("event", message, data, at_hand.get())
        return None

    def reply(self, message: Message, data: object = None) -> None:
        """Answer a command or query."""
        self.__say("reply", message.type, data, message)
        self.__mailbox.note_answer(message.metadata.id)

    def fail(
        self, message: Message, code: int, text: str, *, cause: Message | ErrorData | None = None
    ) -> None:
        """Answer a command or query with an error; codes are those of HTTP, 400 to 599."""
        self.__send(message.error(code, text, cause=cause))

    async def request(
        self,
        message: Message,
        *,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109 - it ends as an error of the loop
    ) -> Message:
        """Send a command or query and wait for its outcome, a `reply` or an `error`.

        An actor that asks itself waits until the time is up: it handles one message at a time.
        """
        if not is_answered(message):
            raise ValueError(f"the {message.kind} {message.type} has no outcome to wait for")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        sent = self.__send(message, future, timeout)
        try:
            return await future
        finally:
            self.__forget(sent.metadata.id)

    # -- for the loop -----------------------------------------------------------------------------

    def post_message(self, message: Message) -> None:
        """Put a message into the mailbox; an outcome that is waited for is given at once."""
        if self.__mailbox.stopped:
            return
        if message.kind not in OUTCOMES or self.__is_for_outcome(message):
            self.__mailbox.put(message)

    @property
    def pending(self) -> int:
        """How many messages are in the mailbox or being handled."""
        return len(self.__mailbox)

    async def stop(self) -> None:
        """End: what is being handled is cancelled, and the mailbox forgotten."""
        for request_id in tuple(self.__asked):
            self.__forget(request_id)
        await self.__mailbox.stop()

    # -- what it sends ----------------------------------------------------------------------------

    def __say(self, kind: str, type: str, data: object, cause: Message | None) -> None:
        try:
            said: Message | Sealed = Sealed(kind, type, data, cause)
        except InvalidValueError:
            said = caused(kind, type, data, cause)  # if only its data is wrong the loop says so
        self.dispatch(MessageEvent(said))

    def __send(
        self,
        message: Message,
        future: asyncio.Future[Message] | None = None,
        timeout: float | None = None,
    ) -> Message:
        cause = at_hand.get()
        if cause is not None and message.metadata.causation is None:
            message = message.caused_by(cause)
        if is_answered(message):
            guard = None
            if timeout is not None:
                host = asyncio.get_running_loop()
                guard = host.call_later(timeout, self.__give_up, message.metadata.id)
            self.__asked[message.metadata.id] = _Asked(future, guard)
        self.dispatch(MessageEvent(message))
        if message.kind in OUTCOMES:
            self.__mailbox.note_answer(message.metadata.causation)
        return message

    def __give_up(self, request_id: str) -> None:
        self.dispatch(MessageEvent(timeout_of(request_id)))

    def __is_for_outcome(self, message: Message) -> bool:
        """Whether it goes to `outcome`: not if `request` waits for it, or waits no longer."""
        asked = self.__forget(message.metadata.causation or "")
        if asked is not None and asked.future is not None and not asked.future.done():
            asked.future.set_result(message)
        return asked is not None and asked.future is None

    def __forget(self, request_id: str) -> _Asked | None:
        asked = self.__asked.pop(request_id, None)
        if asked is not None and asked.guard is not None:
            asked.guard.cancel()
        return asked
