"""What the actors over a store share: threads for the store, and types by their names."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from ontologia.actors.actor import Actor
from ontologia.actors.message import Message
from ontologia.actors.problems import problem
from ontologia.runtime.session import Session
from ontologia.runtime.stored import StoredTypes
from ontologia.schema.shape import Shape

AT_ONCE = 4
"""How many messages a capability answers at a time: a database has one writer, or few, and a session
16 connections to a server."""
_THREADS = 4 * AT_ONCE  # for state, events, commands and timers


class Data(BaseModel):
    """The data of a command or query: camelCase on the wire, and nothing that is not declared."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Place:
    """A session, the threads in which it is used, and the types that are known by name."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._threads = ThreadPoolExecutor(_THREADS, "ontologia-actors")
        self._made: dict[tuple[str, str], type[Any]] = {}
        self._lock = threading.Lock()

    async def run(self, step: Callable[[], Any]) -> Any:
        """Do this in a thread. Whoever stops waiting does not take back what has begun."""
        host = asyncio.get_running_loop()
        return await asyncio.shield(host.run_in_executor(self._threads, step))

    def type(self, name: str) -> type[Any]:
        """The entity or relation of this name; NotFoundError if there is neither.

        The session's own class, else one made from what is stored, the same each time.
        """
        for kind in ("entity", "relation"):
            registered = self.session._registry.find(kind, name)
            if registered is not None:
                found: type[Any] = registered.cls
                return found
        with self._lock:
            for kind in ("entity", "relation"):
                if (kind, name) in self._made:
                    return self._made[kind, name]
            made = StoredTypes.of(self.session).named(name)[0]
            shape: Shape = made.__shape__
            self._made[shape.kind, name] = made
            return made


class StoreActor(Actor):
    """An actor that answers each message with what `answer` gives, in a thread.

    A question is answered beside others, a few at a time: a slow one holds up nobody. What is
    written is written in the order in which it is asked for, and questions behind it see it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._room = asyncio.Semaphore(AT_ONCE)
        self._beside: dict[str, asyncio.Task[None]] = {}

    @property
    def session(self) -> Session:
        """The session of the store."""
        return self.place.session

    @property
    def pending(self) -> int:
        """The messages in the mailbox, and those that are answered beside it."""
        return super().pending + len(self._beside)

    async def handle(self, message: Message) -> None:
        """Answer, with an error if that is what comes of it."""
        # Of two with the same id, the first of which was given up, the first is answered first: by
        # that the loop tells whose an answer is.
        before = self._beside.get(message.metadata.id)
        if not self.may_run_beside(message):
            await self._answer(message, before)
            return
        await self._room.acquire()
        task = asyncio.create_task(self._answer(message, before), name=message.type)
        self._beside[message.metadata.id] = task
        task.add_done_callback(functools.partial(self._ended, message))

    def may_run_beside(self, message: Message) -> bool:
        """Whether what comes after this message need not wait for it."""
        return message.kind == "query"

    def answer(self, message: Any) -> dict[str, Any]:
        """What to reply; runs in a thread."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Wait for no answer any more; what has begun in a thread comes to its end there."""
        await super().stop()
        for task in tuple(self._beside.values()):
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside.values())

    async def _answer(self, message: Message, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            self.reply(message, await self.place.run(lambda: self._in_thread(message)))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            self.emit(problem(message, error))

    def _ended(self, message: Message, task: asyncio.Task[None]) -> None:
        self._room.release()
        if self._beside.get(message.metadata.id) is task:
            del self._beside[message.metadata.id]
        if self.on_done is not None:
            self.on_done(message)  # it may have been the last thing that the loop was alive for

    def _in_thread(self, message: Message) -> dict[str, Any]:
        try:
            return self.answer(message)
        except Exception:
            raise
        except BaseException as error:  # sys.exit() in a command is not the end of the loop
            raise RuntimeError(f"{message.type} raised {type(error).__name__}") from error
