"""Actors: a mailbox, and one message at a time.

A `Worker` is the surface that the loop sees: messages go in by `post_message` and come out as
events. The names of the Web (`postMessage`, `onmessage`, `addEventListener`) work as well, and the
loop takes any object that has either spelling.

An `Actor` is a Worker that runs as a task of the asyncio loop. It yields between messages, but code
that blocks inside `handle` blocks the whole loop: such an actor needs `isolation="process"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
import types
from collections import deque
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

from ontologia.actors.message import (
    OUTCOMES,
    REQUESTS,
    EncodedMessage,
    ErrorData,
    Message,
    decoded,
    describe_exception,
    escape_surrogates,
    expects_outcome,
    new_message,
    timeout_command,
)
from ontologia.errors import InvalidValueError

TIMEOUT = 30.0
"""Seconds that a command or query waits for its outcome by default."""

_cause: ContextVar[Message | None] = ContextVar("ontologia_actor_message", default=None)
"""The message being handled in this context, also in tasks that its handler started."""


@types.coroutine
def yield_once() -> Generator[None]:
    """Let all other tasks that are ready run.

    The same as `asyncio.sleep(0)` without its coroutine: this is done twice per message.
    """
    yield


# -- Worker -----------------------------------------------------------------------------------------


class MessageEvent:
    """The argument of `"message"` listeners; `data` is the message."""

    __slots__ = ("content",)

    type: Literal["message"] = "message"

    def __init__(self, content: Message | EncodedMessage) -> None:
        self.content = content
        """The message; encoded until `data` is read."""

    @property
    def data(self) -> Message:
        """The message."""
        self.content = decoded(self.content)
        return self.content


@dataclass(slots=True)
class ErrorEvent:
    """The argument of `"error"` and `"messageerror"` listeners."""

    error: str
    cause: Message | None = None
    """The message that was being handled."""
    traceback: str = ""
    type: Literal["error", "messageerror"] = "error"


Listener = Callable[[Any], object]


class Worker:
    """The outgoing half, which every kind of actor shares."""

    on_message: Listener | None = None

    # Two underscores here and in Actor: single-underscore names belong to the user's subclasses.
    __listeners: dict[str, list[Listener]]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__, which is the user's and may not call super().__init__().
        self = super().__new__(cls)
        self.__listeners = {"message": [], "error": [], "messageerror": []}
        return self

    def post_message(self, message: Message) -> None:
        """Deliver a message to the actor. Never blocks."""
        raise NotImplementedError

    def add_event_listener(self, type: str, listener: Listener) -> None:
        """Call `listener(event)` for each event of this type: `message`, `error`, `messageerror`."""
        # A new list each time: a listener may add another while `dispatch` iterates.
        self.__listeners[type] = [*self.__listeners.get(type, ()), listener]

    def remove_event_listener(self, type: str, listener: Listener) -> None:
        """Undo `add_event_listener`. Idempotent."""
        self.__listeners[type] = [
            each for each in self.__listeners.get(type, ()) if each != listener
        ]

    def dispatch(self, event: MessageEvent | ErrorEvent) -> None:
        """Call all listeners of this type of event."""
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


def post_method(worker: Any) -> Callable[[Message], object]:
    """The method that takes messages, under either name; AttributeError or TypeError without one."""
    method = getattr(worker, "post_message", None) or worker.postMessage
    if not callable(method):
        raise TypeError("post_message cannot be called")
    return method  # type: ignore[no-any-return]


def listen_to(worker: Any, on_message: Listener, on_error: Listener) -> None:
    """Add listeners to a Worker, or to an object that has only some of its methods."""
    add = getattr(worker, "add_event_listener", None) or getattr(worker, "addEventListener", None)
    if add is None:
        setattr(worker, "on_message" if hasattr(worker, "on_message") else "onmessage", on_message)
        return
    add("message", on_message)
    for optional in ("error", "messageerror"):
        with contextlib.suppress(Exception):  # an actor may have no such events
            add(optional, on_error)


# -- Actor ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    """A command or query that this actor sent, without an outcome so far."""

    future: asyncio.Future[Message] | None
    timeout: asyncio.TimerHandle | None


class Actor(Worker):
    """The base of actors: write `handle`, and answer each command and query in it once."""

    on_done: Callable[[Message], object] | None = None
    """Called after each message that was handled."""

    __mailbox: Mailbox
    __requests: dict[str, _Request]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self.__mailbox, self.__requests = Mailbox(self), {}
        return self

    # -- for those who write actors ---------------------------------------------------------------

    async def handle(self, message: Any) -> None:
        """Handle one message; the next one waits until this returns."""
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
        """Send a message, and return it as it was sent; or an event, by its type and data.

        Its causation is the message being handled, unless it names another one.
        """
        if not isinstance(message, str):
            return self.__send(message, None, TIMEOUT)
        self.__send_new("event", message, data, _cause.get())
        return None

    def reply(self, message: Message, data: object = None) -> None:
        """Answer a command or query."""
        self.__send_new("reply", message.type, data, message)
        self.__mailbox.note_outcome(message.metadata.id)

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

        A request to the actor itself times out: it handles one message at a time.
        """
        if not expects_outcome(message):
            raise ValueError(f"the {message.kind} {message.type} has no outcome to wait for")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        sent = self.__send(message, future, timeout)
        try:
            return await future
        finally:
            self.__forget(sent.metadata.id)

    # -- for the loop -----------------------------------------------------------------------------

    def post_message(self, message: Message) -> None:
        """Put a message into the mailbox; the outcome of a `request` goes to its caller instead."""
        if self.__mailbox.stopped:
            return
        if message.kind not in OUTCOMES or self.__is_for_outcome(message):
            self.__mailbox.put(message)

    @property
    def pending(self) -> int:
        """Number of messages in the mailbox, including the one being handled."""
        return len(self.__mailbox)

    async def stop(self) -> None:
        """Cancel the message being handled, and drop the mailbox."""
        for request_id in tuple(self.__requests):
            self.__forget(request_id)
        await self.__mailbox.stop()

    # -- sending ----------------------------------------------------------------------------------

    def __send_new(self, kind: str, type: str, data: object, cause: Message | None) -> None:
        try:
            message: Message | EncodedMessage = EncodedMessage(kind, type, data, cause)
        except InvalidValueError:
            message = new_message(kind, type, data, cause)  # the loop reports data that is not JSON
        self.dispatch(MessageEvent(message))

    def __send(
        self,
        message: Message,
        future: asyncio.Future[Message] | None = None,
        timeout: float | None = None,
    ) -> Message:
        cause = _cause.get()
        if cause is not None and message.metadata.causation is None:
            message = message.caused_by(cause)
        if expects_outcome(message):
            handle = None
            if timeout is not None:
                host = asyncio.get_running_loop()
                handle = host.call_later(timeout, self.__give_up, message.metadata.id)
            self.__requests[message.metadata.id] = _Request(future, handle)
        self.dispatch(MessageEvent(message))
        if message.kind in OUTCOMES:
            self.__mailbox.note_outcome(message.metadata.causation)
        return message

    def __give_up(self, request_id: str) -> None:
        self.dispatch(MessageEvent(timeout_command(request_id)))

    def __is_for_outcome(self, message: Message) -> bool:
        """Whether it goes to `outcome`: not if a `request` waits for it, or did."""
        request = self.__forget(message.metadata.causation or "")
        if request is not None and request.future is not None and not request.future.done():
            request.future.set_result(message)
        return request is not None and request.future is None

    def __forget(self, request_id: str) -> _Request | None:
        request = self.__requests.pop(request_id, None)
        if request is not None and request.timeout is not None:
            request.timeout.cancel()
        return request


class Mailbox:
    """The queue of an actor, and the task that handles its messages one at a time."""

    __slots__ = ("_actor", "_answered", "_current", "_idle", "_messages", "_task", "stopped")

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._messages: deque[Message] = deque()
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._current: Message | None = None
        self._answered = False
        self.stopped = False

    def __len__(self) -> int:
        """Number of messages that wait or are being handled."""
        return len(self._messages) + (self._current is not None)

    def put(self, message: Message) -> None:
        """Add a message. Never blocks."""
        self._messages.append(message)
        if self._task is None:
            name = f"actor {type(self._actor).__name__}"
            self._task = asyncio.create_task(self._run(), name=name)
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def note_outcome(self, request_id: str | None) -> None:
        """The actor answered this request, which may be the one being handled."""
        if self._current is not None and self._current.metadata.id == request_id:
            self._answered = True

    async def stop(self) -> None:
        """Cancel the message being handled, and drop the rest."""
        self.stopped = True
        self._messages.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        actor, messages = self._actor, self._messages
        while True:
            if not messages:
                await yield_once()  # after one message the next is often on its way
            if not messages:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
                self._idle = None
            self._current = message = messages.popleft()
            self._answered = False
            _cause.set(message)
            try:
                handling = (actor.outcome if message.kind in OUTCOMES else actor.handle)(message)
                if handling is not None:  # a plain def returns None, and has ended by now
                    await handling
            except BaseException as error:
                # sys.exit() and a cancellation inside end the handler, not the loop.
                contained = isinstance(error, Exception | SystemExit | asyncio.CancelledError)
                if self.stopped or not contained:
                    raise
                self._fault(message, error)
            self._current = None
            if actor.on_done is not None:
                actor.on_done(message)
            if messages:
                await yield_once()  # a full mailbox must not keep the others waiting

    def _fault(self, message: Message, error: BaseException) -> None:
        text = describe_exception(error)
        if message.kind in REQUESTS and not self._answered:
            answer = message.error(500, f"{message.type} failed: {text}")
            self._actor.dispatch(MessageEvent(answer))
        frames = escape_surrogates("".join(traceback.format_exception(error)))
        self._actor.dispatch(ErrorEvent(text, cause=message, traceback=frames))
