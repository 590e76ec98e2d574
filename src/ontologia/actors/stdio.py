"""The adapter for a program that is started by another one: lines of JSON on stdin and stdout.

Files, pipes and terminals are read and written in threads, since not all of them can be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading

from ontologia.actors.adapter import Ingress
from ontologia.actors.message import Message
from ontologia.actors.ndjson import LINE_LIMIT, MOST_IN_FLIGHT, Dialog

_CLIENT = "1"
_PIECE = 65_536
_GRACE = 2.0  # seconds to write what is left at the end


class StdioAdapter:
    """One client: whoever started this program. The loop may end when its input has ended.

    Whatever else prints to stdout disturbs it; the log belongs on stderr.
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
        self._dialog = Dialog(self, _CLIENT, loop, self._write, self._regulate, self._limit)
        self.active = True
        threading.Thread(target=self._read_all, name="stdin", daemon=True).start()
        self._writer = threading.Thread(target=self._write_all, name="stdout", daemon=True)
        self._writer.start()

    async def stop(self) -> None:
        """Write what is left."""
        self.active = False
        self._may_read.set()
        self._out.put(None)
        await asyncio.to_thread(self._writer.join, _GRACE)

    def deliver(self, connection_id: str, message: Message) -> None:
        """Write an outcome."""
        self._dialog.answer(message)
        self._regulate()

    def _hear(self, piece: bytes) -> None:
        if piece:
            self._dialog.hear(piece)
            self._regulate()
            return
        self.active = False
        self._dialog.end()
        self._loop.wake()

    def _write(self, line: bytes) -> None:
        self.buffered += 1
        self._out.put(line)

    def _written(self, gone: bool) -> None:
        self.buffered -= 1
        if gone and self.active:  # nobody reads what we would answer
            self.active = False
            self._loop.disconnected(self, _CLIENT)
        self._regulate()
        self._loop.wake()

    def _regulate(self) -> None:
        if self._dialog.is_full or self.buffered >= MOST_IN_FLIGHT:
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
                piece = os.read(self._input, _PIECE)
            except OSError:
                piece = b""
            self._tell(piece)

    def _tell(self, piece: bytes) -> None:
        """Hand a piece over, and wait until it was taken: whether to read on is known then."""
        taken = threading.Event()

        def take() -> None:
            try:
                self._hear(piece)
            finally:
                taken.set()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._host.call_soon_threadsafe(take)
            while not taken.wait(1.0) and not self._host.is_closed():
                pass

    def _write_all(self) -> None:
        while (line := self._out.get()) is not None:
            gone = False
            try:
                while line:
                    line = line[os.write(self._output, line) :]
            except OSError:
                gone = True
            with contextlib.suppress(RuntimeError):
                self._host.call_soon_threadsafe(self._written, gone)
