"""Actors: a mailbox, and one message at a time.

An actor is a task of the asyncio loop. It yields between messages, but what blocks inside `handle`
blocks everything: such an actor belongs in a process of its own (`isolation="process"`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self, overload

from ontologia.actors.message import (
    OUTCOMES,
    REQUESTS,
    TIMEOUT_TYPE,
    ErrorData,
    Message,
    timeout_of,
)
from ontologia.actors.worker import ErrorEvent, MessageEvent, Worker

TIMEOUT = 30.0
"""Seconds that a command or query waits for its outcome, unless it says otherwise."""

_handling: ContextVar[Message | None] = ContextVar("handling", default=None)


@dataclass(slots=True)
class _Asked:
    """A command or query of this actor's own, without an outcome so far."""

    future: asyncio.Future[Message] | None
    guard: asyncio.TimerHandle | None


class Actor(Worker):
    """The base of actors: write `handle`, and answer each command and query in it once."""

    on_done: Callable[[Message], object] | None = None
    """Called after each message that was handled."""

    _mailbox: deque[Message]
    _asked: dict[str, _Asked]
    _worker: asyncio.Task[None] | None = None
    _asleep: asyncio.Future[None] | None = None
    _in_hand: Message | None = None
    _answered = False
    _stopped = False

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self._mailbox, self._asked = deque(), {}
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
    def emit(self, message: str, data: object = None, /) -> Message: ...
    def emit(self, message: Message | str, data: object = None, /) -> Message:
        """Send a message, or an event by its type and data; gives what was sent.

        It is a consequence of the message at hand, unless it names another cause.
        """
        if not isinstance(message, str):
            return self._send(message, None, TIMEOUT)
        event = Message.event(message, data, cause=_handling.get())
        self.dispatch(MessageEvent(event))
        return event

    def reply(self, message: Message, data: object = None) -> None:
        """Answer a command or query."""
        self._send(message.reply(data))

    def fail(
        self, message: Message, code: int, text: str, *, cause: Message | ErrorData | None = None
    ) -> None:
        """Answer a command or query with an error; codes are those of HTTP, 400 to 599."""
        self._send(message.error(code, text, cause=cause))

    async def request(
        self,
        message: Message,
        *,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109 - it ends as an error of the loop
    ) -> Message:
        """Send a command or query and wait for its outcome, a `reply` or an `error`.

        An actor that asks itself waits until the time is up: it handles one message at a time.
        """
        if message.kind not in REQUESTS:
            raise ValueError(f"only commands and queries are answered, got {message.kind}")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        sent = self._send(message, future, timeout)
        try:
            return await future
        finally:
            self._forget(sent.metadata.id)

    # -- for the loop -----------------------------------------------------------------------------

    def post_message(self, message: Message) -> None:
        """Put a message into the mailbox; an outcome that is waited for is given at once."""
        if self._stopped:
            return
        if message.kind in OUTCOMES and not self._is_for_outcome(message):
            return
        self._mailbox.append(message)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=f"actor {type(self).__name__}")
        elif self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    @property
    def pending(self) -> int:
        """How many messages are in the mailbox or being handled."""
        return len(self._mailbox) + (self._in_hand is not None)

    async def stop(self) -> None:
        """End: what is being handled is cancelled, and the mailbox forgotten."""
        self._stopped = True
        self._mailbox.clear()
        for request_id in tuple(self._asked):
            self._forget(request_id)
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        while True:
            if not self._mailbox:
                await asyncio.sleep(0)  # where one message comes the next is often near
            if not self._mailbox:
                self._asleep = asyncio.get_running_loop().create_future()
                await self._asleep
                self._asleep = None
            self._in_hand = message = self._mailbox.popleft()
            self._answered = False
            _handling.set(message)
            try:
                await (self.outcome if message.kind in OUTCOMES else self.handle)(message)
            except BaseException as error:
                # sys.exit() and a cancellation inside are the handler's, not the loop's.
                contained = isinstance(error, Exception | SystemExit | asyncio.CancelledError)
                if self._stopped or not contained:
                    raise
                self._fault(message, error)
            self._in_hand = None
            if self.on_done is not None:
                self.on_done(message)
            if self._mailbox:
                await asyncio.sleep(0)  # a full mailbox must not keep the others waiting

    def _fault(self, message: Message, error: BaseException) -> None:
        said = f"{type(error).__name__}: {error}"
        if message.kind in REQUESTS and not self._answered:
            self._send(message.error(500, f"{message.type} failed: {said}"))
        told = "".join(traceback.format_exception(error))
        self.dispatch(ErrorEvent(said, cause=message, traceback=told))

    def _send(
        self,
        message: Message,
        future: asyncio.Future[Message] | None = None,
        timeout: float | None = None,
    ) -> Message:
        cause = _handling.get()
        if cause is not None and message.metadata.causation is None:
            message = message.caused_by(cause)
        if message.kind in REQUESTS and message.type != TIMEOUT_TYPE:
            self._guard(message, future, timeout)
        self.dispatch(MessageEvent(message))
        in_hand = self._in_hand
        if (
            in_hand is not None
            and message.kind in OUTCOMES
            and message.metadata.causation == in_hand.metadata.id
        ):
            self._answered = True
        return message

    def _guard(
        self, message: Message, future: asyncio.Future[Message] | None, timeout: float | None
    ) -> None:
        guard = None
        if timeout is not None:
            guard = asyncio.get_running_loop().call_later(timeout, self._give_up, message)
        self._asked[message.metadata.id] = _Asked(future, guard)

    def _give_up(self, message: Message) -> None:
        self.dispatch(MessageEvent(timeout_of(message.metadata.id)))

    def _is_for_outcome(self, message: Message) -> bool:
        """Whether it goes to `outcome`: not if `request` waits for it, or waits no longer."""
        asked = self._forget(message.metadata.causation or "")
        if asked is not None and asked.future is not None and not asked.future.done():
            asked.future.set_result(message)
        return asked is not None and asked.future is None

    def _forget(self, request_id: str) -> _Asked | None:
        asked = self._asked.pop(request_id, None)
        if asked is not None and asked.guard is not None:
            asked.guard.cancel()
        return asked
