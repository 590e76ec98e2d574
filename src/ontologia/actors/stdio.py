"""The adapter for a program that another program starts: lines of JSON on stdin and stdout.

Files, pipes and terminals are read and written in threads, since asyncio cannot wait for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading

from ontologia.actors.adapter import LINE_LIMIT, MOST_IN_FLIGHT, Ingress, LineProtocol
from ontologia.actors.message import Message

_CLIENT = "1"
_READ_SIZE = 65_536
_GRACE = 2.0  # seconds to write the rest at the end


class StdioAdapter:
    """Serves one client, the program that started this one. The loop may end when its input ends.

    Anything else that prints to stdout disturbs it; the log belongs on stderr.
    """

    id = "stdio"

    def __init__(
        self,
        *,
        timeout: float | None = 30.0,
        line_limit: int = LINE_LIMIT,
        input_fd: int = 0,
        output_fd: int = 1,
    ) -> None:
        self.timeout = timeout
        self._limit, self._input, self._output = line_limit, input_fd, output_fd
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._may_read = threading.Event()
        self._may_read.set()
        self.active = False
        self.buffered = 0

    async def start(self, loop: Ingress) -> None:
        """Read and write from here on."""
        self._loop, self._host = loop, asyncio.get_running_loop()
        self._protocol = LineProtocol(self, _CLIENT, loop, self._write, self._regulate, self._limit)
        self.active = True
        threading.Thread(target=self._read_all, name="stdin", daemon=True).start()
        self._writer = threading.Thread(target=self._write_all, name="stdout", daemon=True)
        self._writer.start()

    async def stop(self) -> None:
        """Write what is buffered."""
        self.active = False
        self._may_read.set()
        self._out.put(None)
        await asyncio.to_thread(self._writer.join, _GRACE)

    def deliver(self, connection_id: str, message: Message) -> None:
        """Write an outcome."""
        self._protocol.answer(message)
        self._regulate()

    def _feed(self, piece: bytes) -> None:
        if piece:
            self._protocol.feed(piece)
            self._regulate()
            return
        self.active = False
        self._protocol.end()
        self._loop.wake()

    def _write(self, line: bytes) -> None:
        self.buffered += 1
        self._out.put(line)

    def _written(self, broken: bool) -> None:
        self.buffered -= 1
        if broken and self.active:  # the client is gone
            self.active = False
            self._loop.disconnected(self, _CLIENT)
        self._regulate()
        self._loop.wake()

    def _regulate(self) -> None:
        if self._protocol.is_full or self.buffered >= MOST_IN_FLIGHT:
            self._may_read.clear()
        else:
            self._may_read.set()

    # -- in threads -------------------------------------------------------------------------------

    def _read_all(self) -> None:
        piece = b"-"
        while piece:
            self._may_read.wait()
            if not self.active:
                return
            try:
                piece = os.read(self._input, _READ_SIZE)
            except OSError:
                piece = b""
            self._pass_on(piece)

    def _pass_on(self, piece: bytes) -> None:
        """Feed a piece in the loop's thread, and wait for it: only then is it known to read on."""
        fed = threading.Event()

        def feed() -> None:
            try:
                self._feed(piece)
            finally:
                fed.set()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._host.call_soon_threadsafe(feed)
            while not fed.wait(1.0) and not self._host.is_closed():
                pass

    def _write_all(self) -> None:
        while (line := self._out.get()) is not None:
            broken = False
            try:
                while line:
                    line = line[os.write(self._output, line) :]
            except OSError:
                broken = True
            with contextlib.suppress(RuntimeError):
                self._host.call_soon_threadsafe(self._written, broken)
