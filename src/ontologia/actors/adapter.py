"""What an adapter is: the glue between a transport and the loop.

An adapter turns what comes in into messages and writes out what it is given; it knows nothing of
actors. It is written against these few calls:

    await adapter.start(loop)                        accept input from here on
    loop.receive(adapter, connection_id, message)    a message came in; never waits
    loop.disconnected(adapter, connection_id)        a connection is gone, with all it asked for
    loop.wake()                                      buffered or active went down
    adapter.deliver(connection_id, message)          write this out; never waits, buffers
    await adapter.stop()                             write what is buffered, then close

`Message.from_json(line)` makes a message of a line, or raises InvalidValueError with a sentence for
the client; `message.to_json()` is the way back. What is not a message the adapter answers itself,
with `invalid(text, line)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import orjson

from ontologia.actors.message import Message
from ontologia.actors.parts import new_id
from ontologia.clock import now_ms


class Ingress(Protocol):
    """The loop, as an adapter sees it. All of it must be called in the thread of the loop."""

    def receive(
        self,
        adapter: Adapter,
        connection_id: str,
        message: Message,
        handled: Callable[[], object] | None = None,
    ) -> None:
        """Take a message of a client; it goes to the user lane.

        InvalidValueError if it is a `reply` or an `error`, which only actors give. `handled` is
        called once all who got it are done with it: an adapter that counts knows when to read on.
        """
        ...

    def disconnected(self, adapter: Adapter, connection_id: str) -> None:
        """Forget what a connection asked for: nobody is there to be answered."""
        ...

    def wake(self) -> None:
        """Look again whether there is anything left to be alive for."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """A transport. `id` is unique among the adapters of a loop."""

    @property
    def id(self) -> str:
        """The name of this adapter, in the log and in metrics."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds after which a request is answered with error 504; None for never."""
        ...

    @property
    def active(self) -> bool:
        """Whether messages may still come in; the loop is alive while they may."""
        ...

    @property
    def buffered(self) -> int:
        """How many messages were delivered and are not written out; the loop is alive for them."""
        ...

    async def start(self, loop: Ingress) -> None:
        """Accept input. Whatever raises here ends the boot of the loop."""
        ...

    async def stop(self) -> None:
        """Write out what is buffered, as far as that goes, and close."""
        ...

    def deliver(self, connection_id: str, message: Message) -> None:
        """Buffer a `reply` or `error` for a connection; one that is gone is no error."""
        ...


def invalid(text: str, line: bytes | str = b"", *, code: int = 400) -> Message:
    """The answer to a line that is no message; it names the line's id, if one can be read."""
    metadata: dict[str, Any] = {"id": new_id(), "timestamp": now_ms()}
    named = _id_in(line)
    if named:
        metadata["causation"] = named
    data = {"code": code, "message": text}
    found = {"kind": "error", "type": "Sys.InvalidMessage", "data": data, "metadata": metadata}
    return Message.from_data(found)


def _id_in(line: bytes | str) -> str | None:
    try:
        named = orjson.loads(line)["metadata"]["id"]
    except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
        return None
    return named if isinstance(named, str) else None
