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

_THREADS = 4


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
    """An actor that answers each message with what `answer` gives, in a thread."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def session(self) -> Session:
        """The session of the store."""
        return self.place.session

    async def handle(self, message: Message) -> None:
        """Answer, with an error if that is what comes of it."""
        try:
            found = await self.place.run(functools.partial(self._in_thread, message))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            self.emit(problem(message, error))
        else:
            self.reply(message, found)

    def answer(self, message: Any) -> dict[str, Any]:
        """What to reply; runs in a thread."""
        raise NotImplementedError

    def _in_thread(self, message: Message) -> dict[str, Any]:
        try:
            return self.answer(message)
        except Exception:
            raise
        except BaseException as error:  # sys.exit() in a command is not the end of the loop
            raise RuntimeError(f"{message.type} raised {type(error).__name__}") from error
