"""Adapters connect a transport to the loop, and the line protocol that all of ours speak.

An adapter turns input into messages and writes out what it is given; it knows nothing of actors. It
is written against these few calls:

    await adapter.start(loop)                        accept input from here on
    loop.receive(adapter, connection_id, message)    a message came in; never blocks
    loop.disconnected(adapter, connection_id)        a connection is gone, with all its requests
    loop.wake()                                      buffered or active went down
    adapter.deliver(connection_id, message)          write this out; never blocks, buffers
    await adapter.stop()                             write what is buffered, then close

`Message.from_json(line)` decodes a line, or raises InvalidValueError with a sentence for the client;
`message.to_json()` encodes one. The adapter itself answers input that is not a message, with
`invalid(text, line)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, runtime_checkable

import orjson

from ontologia import codec
from ontologia.actors.message import OUTCOMES, Message, expects_outcome, new_id
from ontologia.clock import now_ms
from ontologia.errors import InvalidValueError

LINE_LIMIT = 1024 * 1024
"""Bytes of a line, without its newline."""
MOST_IN_FLIGHT = 1000
"""Maximum messages of a client that actors have yet to handle, and of its pending requests. At
either limit nothing is read from the client: this bounds what it has in lanes and mailboxes."""
MOST_BYTES = 16 * 1024 * 1024
"""Maximum bytes of the lines that actors have yet to handle: a thousand lines may be long."""


class Ingress(Protocol):
    """The loop, as an adapter sees it. All of it must be called in the thread of the loop."""

    def receive(
        self,
        adapter: Adapter,
        connection_id: str,
        message: Message,
        handled: Callable[[], object] | None = None,
    ) -> None:
        """Accept a message of a client; it goes to the user lane.

        InvalidValueError if it is a `reply` or an `error`, which only actors send. `handled` is
        called once all its receivers have handled it: an adapter that counts knows when to read on.
        """
        ...

    def disconnected(self, adapter: Adapter, connection_id: str) -> None:
        """Abandon all requests of a connection, and cancel its timers."""
        ...

    def wake(self) -> None:
        """Check again whether anything keeps the loop alive."""
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
        """Whether messages may still come in; that keeps the loop alive."""
        ...

    @property
    def buffered(self) -> int:
        """Number of messages delivered and not yet written out; they keep the loop alive."""
        ...

    async def start(self, loop: Ingress) -> None:
        """Accept input. An exception ends the boot of the loop."""
        ...

    async def stop(self) -> None:
        """Write out what is buffered, as far as possible, and close."""
        ...

    def deliver(self, connection_id: str, message: Message) -> None:
        """Buffer a `reply` or `error` for a connection; ignores one that is gone."""
        ...


def invalid(text: str, line: bytes | str = b"", *, code: int = 400) -> Message:
    """The answer to a line that is not a message; its causation is the line's id, if readable."""
    metadata: dict[str, Any] = {"id": new_id(), "timestamp": now_ms()}
    line_id = _id_in(line)
    if line_id:
        metadata["causation"] = line_id
    data = {"code": code, "message": text}
    found = {"kind": "error", "type": "Sys.InvalidMessage", "data": data, "metadata": metadata}
    return Message.from_data(found)


def _id_in(line: bytes | str) -> str | None:
    try:
        found = orjson.loads(line)["metadata"]["id"]
    except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
        return None
    return found if isinstance(found, str) else None


# -- lines of JSON ----------------------------------------------------------------------------------


class Lines:
    """Splits a stream into lines; buffers at most one incomplete line."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """The lines that end in this piece; None for one that is too long, as soon as it is."""
        *ended, rest = piece.split(b"\n")
        for each in ended:
            if self._skipping:
                self._skipping = False
            elif len(self._rest) + len(each) > self.limit:
                self._rest.clear()
                yield None
            elif self._rest:
                line = bytes(self._rest + each)
                self._rest.clear()
                yield line
            else:
                yield each
        if self._skipping:
            return
        self._rest += rest
        if len(self._rest) > self.limit:
            self._rest.clear()
            self._skipping = True
            yield None

    def end(self) -> bytes:
        """What came after the last newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


class LineProtocol:
    """One client that sends and receives a message per line.

    Each line that is not a message gets one answer, and does not affect the next line.
    """

    def __init__(
        self,
        adapter: Adapter,
        connection_id: str,
        loop: Ingress,
        write: Callable[[bytes], object],
        resume: Callable[[], object],
        limit: int = LINE_LIMIT,
    ) -> None:
        self._adapter, self._id, self._loop, self._write = adapter, connection_id, loop, write
        self._resume = resume
        self._lines = Lines(limit)
        self.in_flight = 0
        """Requests without an outcome so far."""
        self._unhandled = self._unhandled_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached, so that the client must not be read from.

        When actors handle enough of its messages, `resume` is called.
        """
        return (
            self.in_flight >= MOST_IN_FLIGHT
            or self._unhandled >= MOST_IN_FLIGHT
            or self._unhandled_bytes >= MOST_BYTES
        )

    def feed(self, piece: bytes) -> None:
        """Take input as it comes in."""
        for line in self._lines.feed(piece):
            self._take(line)

    def end(self) -> None:
        """The input ended; the rest without a newline is refused."""
        rest = self._lines.end()
        if rest.strip():
            self._send(invalid("the last line has no newline at its end; it was left out", rest))

    def answer(self, message: Message) -> None:
        """Send the client the outcome of a request; messages of other kinds are dropped."""
        if message.kind in OUTCOMES:
            self.in_flight -= 1
            self._send(message)

    def _take(self, line: bytes | None) -> None:
        if line is None:
            text = f"a line has at most {self._lines.limit} bytes; this one is left out"
            self._send(invalid(text, code=413))
        elif line and not line.isspace():
            try:
                self._receive(line)
            except InvalidValueError as error:
                self._send(invalid(str(error.args[0]), line))

    def _receive(self, line: bytes) -> None:
        message = Message.from_json(line)
        if b"\\u0000" in line:  # an escaped NUL, which no store accepts, or text that looks like it
            codec.encode(message.data, where="data")
            codec.encode(message.metadata.wire(), where="metadata")
        # Counted before: the answer may come while it is received.
        is_request = expects_outcome(message)
        size = len(line)
        self.in_flight += is_request
        self._unhandled += 1
        self._unhandled_bytes += size
        try:
            self._loop.receive(self._adapter, self._id, message, partial(self._handled, size))
        except BaseException:
            self.in_flight -= is_request
            self._handled(size)
            raise

    def _handled(self, size: int) -> None:
        was_full = self.is_full
        self._unhandled -= 1
        self._unhandled_bytes -= size
        if was_full:
            self._resume()

    def _send(self, message: Message) -> None:
        self._write(message.to_json() + b"\n")
