"""The base of the actors that answer from a store: a session used in threads, types by name, errors."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from ontologia.actors.actor import Actor
from ontologia.actors.message import Message, new_id
from ontologia.commands.problems import plain, status_of, told
from ontologia.errors import CommandHandlerNotFound, InvalidValueError, SessionClosedError
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.stored import StoredTypes
from ontologia.schema.shape import Shape

log = logging.getLogger("ontologia.actors")
CONCURRENCY = 4
"""Maximum messages that a capability answers at a time: a database has one writer, or few, and a
session 16 connections to a server."""
_THREADS = 4 * CONCURRENCY  # for state, events, commands and timers


class Data(BaseModel):
    """The data of a command or query: camelCase on the wire, undeclared fields are refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class StoreAccess:
    """A session, the threads in which it is used, and the types that are known by name."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._threads = ThreadPoolExecutor(_THREADS, "ontologia-actors")
        self._types: dict[tuple[str, str], type[Any]] = {}
        self._lock = threading.Lock()

    async def run(self, step: Callable[[], Any]) -> Any:
        """Run this in a thread. Cancelling the wait does not stop it."""
        host = asyncio.get_running_loop()
        return await asyncio.shield(host.run_in_executor(self._threads, step))

    def type(self, name: str) -> type[Any]:
        """The entity or relation of this name; NotFoundError if there is neither.

        The session's own class, else one made from the stored schema, the same each time.
        """
        for kind in ("entity", "relation"):
            registered = core_of(self.session).registry.find(kind, name)
            if registered is not None:
                found: type[Any] = registered.cls
                return found
        with self._lock:
            for kind in ("entity", "relation"):
                if (kind, name) in self._types:
                    return self._types[kind, name]
            made = StoredTypes.of(self.session).named(name)[0]
            shape: Shape = made.__shape__
            self._types[shape.kind, name] = made
            return made


class StoreActor(Actor):
    """An actor that replies to each message with what `answer` returns, in a thread.

    Queries run concurrently, up to `CONCURRENCY`, so that a slow one holds up no other. Writes run
    one after the other in the order of their messages, and queries behind them see what they wrote.
    """

    def __init__(self, store: StoreAccess) -> None:
        self.store = store
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def session(self) -> Session:
        """The session of the store."""
        return self.store.session

    @property
    def pending(self) -> int:
        """Number of messages in the mailbox, and of those answered concurrently."""
        return super().pending + len(self._tasks)

    async def handle(self, message: Message) -> None:
        """Answer, with an error if `answer` raises."""
        # Of two messages with the same id, the first of which was abandoned, the first must be
        # answered first: the loop tells their outcomes apart by that order.
        before = self._tasks.get(message.metadata.id)
        if not self.may_run_concurrently(message):
            await self._answer(message, before)
            return
        await self._slots.acquire()
        task = asyncio.create_task(self._answer(message, before), name=message.type)
        self._tasks[message.metadata.id] = task
        task.add_done_callback(functools.partial(self._ended, message))

    def may_run_concurrently(self, message: Message) -> bool:
        """Whether the messages behind this one need not wait for it."""
        return message.kind == "query"

    def answer(self, message: Any) -> dict[str, Any]:
        """The data of the reply; runs in a thread."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Cancel the answers; a step that runs in a thread comes to its end there."""
        await super().stop()
        for task in tuple(self._tasks.values()):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _answer(self, message: Message, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            self.reply(message, await self.store.run(lambda: self._in_thread(message)))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            self.emit(error_answer(message, error))

    def _ended(self, message: Message, task: asyncio.Task[None]) -> None:
        self._slots.release()
        if self._tasks.get(message.metadata.id) is task:
            del self._tasks[message.metadata.id]
        if self.on_done is not None:
            self.on_done(message)  # it may have been the last thing that kept the loop alive

    def _in_thread(self, message: Message) -> dict[str, Any]:
        try:
            return self.answer(message)
        except Exception:
            raise
        except BaseException as error:  # sys.exit() in a command does not end the loop
            raise RuntimeError(f"{message.type} raised {type(error).__name__}") from error


def error_answer(message: Message, error: Exception) -> Message:
    """The answer to a message that ended with this error: an HTTP status code, a sentence, a hint.

    An unexpected error gets code 500 and an id; the log has its details under that id.
    """
    code = _status(error)
    if code == 500:
        name = new_id()
        log.error("%s: %s failed: %s", name, message.type, type(error).__name__, exc_info=error)
        return message.error(code, f"{message.type} failed; the log has the error, as {name}")
    hint = getattr(error, "hint", None)
    context: dict[str, Any] = {} if hint is None else {"hint": plain(hint)}
    return message.error(code, plain(told(error)), **context)


def _status(error: Exception) -> int:
    if isinstance(error, CommandHandlerNotFound):
        return 404  # the name of the dispatched command, which nothing else checks
    return 503 if isinstance(error, SessionClosedError) else status_of(error)


def instant(milliseconds: float | None) -> datetime | None:
    """An instant, from milliseconds since 1970; InvalidValueError beyond the year 9999."""
    if milliseconds is None:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidValueError(
            f"dueAt={milliseconds:g} is further away than any calendar goes"
        ) from error
