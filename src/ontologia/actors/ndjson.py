"""Lines of JSON: one message a line, in both directions.

What is the same over every transport: finding the lines, making messages of them, and answering
what is no message. A line is answered once, whatever is in it, and the next line is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ontologia import codec
from ontologia.actors.adapter import Adapter, Ingress, invalid
from ontologia.actors.message import OUTCOMES, Message, is_answered
from ontologia.errors import InvalidValueError

LINE_LIMIT = 1024 * 1024
"""Bytes of a line, without its newline."""
MOST_IN_FLIGHT = 1000
"""Messages of a client with which the actors are not done, and its requests without an outcome.
With as many of either nothing is read from it: so no more of it waits in lanes and mailboxes."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of the lines with which the actors are not done, likewise: a thousand may be long ones."""


class Lines:
    """Finds the lines in what comes in pieces, and holds at most one line that has no end yet."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """The lines that end in this piece; None for one that is too long, said at once."""
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


class Dialog:
    """What one client says and is told, line by line."""

    def __init__(
        self,
        adapter: Adapter,
        connection_id: str,
        loop: Ingress,
        write: Callable[[bytes], object],
        eased: Callable[[], object],
        limit: int = LINE_LIMIT,
    ) -> None:
        self._adapter, self._id, self._loop, self._write = adapter, connection_id, loop, write
        self._eased = eased
        self._lines = Lines(limit)
        self.in_flight = 0
        """Requests without an outcome so far."""
        self._unhandled = self._unhandled_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more is to be read from the client for now; `eased` is called when that ends."""
        return (
            self.in_flight >= MOST_IN_FLIGHT
            or self._unhandled >= MOST_IN_FLIGHT
            or self._unhandled_bytes >= MOST_BYTES
        )

    def hear(self, piece: bytes) -> None:
        """Take what came in."""
        for line in self._lines.feed(piece):
            self.take(line)

    def take(self, line: bytes | None) -> None:
        """Take one line; None is one that was too long."""
        if line is None:
            text = f"a line has at most {self._lines.limit} bytes; this one is left out"
            self._say(invalid(text, code=413))
        elif line and not line.isspace():
            try:
                self._receive(line)
            except InvalidValueError as error:
                self._say(invalid(str(error.args[0]), line))

    def end(self) -> None:
        """No more is coming. A line without an end is no line."""
        rest = self._lines.end()
        if rest.strip():
            self._say(invalid("the last line has no newline at its end; it was left out", rest))

    def answer(self, message: Message) -> None:
        """Tell the client the outcome of a request; it is told nothing else."""
        if message.kind in OUTCOMES:
            self.in_flight -= 1
            self._say(message)

    def _receive(self, line: bytes) -> None:
        message = Message.from_json(line)
        if b"\\u0000" in line:  # no store keeps it; or it is text that only looks so
            codec.encode(message.data, where="data")
            codec.encode(message.metadata.wire(), where="metadata")
        # Counted before: the answer may come while it is received.
        asks = is_answered(message)
        size = len(line)
        self.in_flight += asks
        self._unhandled += 1
        self._unhandled_bytes += size
        try:
            self._loop.receive(self._adapter, self._id, message, partial(self._handled, size))
        except BaseException:
            self.in_flight -= asks
            self._handled(size)
            raise

    def _handled(self, size: int) -> None:
        was_full = self.is_full
        self._unhandled -= 1
        self._unhandled_bytes -= size
        if was_full:
            self._eased()

    def _say(self, message: Message) -> None:
        self._write(message.to_json() + b"\n")
