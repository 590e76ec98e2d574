"""A way to a PostgreSQL server that can be cut at any message, in either direction.

What a client sends and what the server answers are messages with a length, so one of them can be
held back while all before it have arrived: then the connection is gone for both sides. A request
that is held back was never made; an answer that is held back was given, and nobody knows.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Literal, Self

Direction = Literal["requests", "answers"]
# What a server acts on, and what it is done with: a query, "execute", the end of a batch; and that
# it is ready for the next one. Between two of them nothing begins or ends.
_TURNS = {"requests": b"QES", "answers": b"Z"}
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own for a server on another."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._lock = threading.Lock()
        self._cut: tuple[Direction, int, bool] | None = None
        self.seen: Counter[Direction] = Counter()
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def uri(self) -> str:
        """The server's database, through here; without encryption, which would hide messages."""
        port = self._listener.getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown ends an accept that waits; close alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut_at(self, direction: Direction, number: int, *, half: bool = False) -> None:
        """Hold the n-th turn from now on back, or half of it, and end its connection."""
        with self._lock:
            self._cut = direction, number, half
            self.seen.clear()
            self.cuts = 0

    def heal(self) -> None:
        """Hold nothing back any more."""
        with self._lock:
            self._cut = None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                client.close()
                continue
            for each in (client, server):  # a message is not to wait for the answer to the last
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for direction, source, target in (
                ("requests", client, server),
                ("answers", server, client),
            ):
                threading.Thread(
                    target=self._forward, args=(direction, source, target), daemon=True
                ).start()

    def _forward(self, direction: Direction, source: socket.socket, target: socket.socket) -> None:
        try:
            # The first word of a client has no type before its length.
            for message in _messages(source, typed=direction == "answers"):
                kept = self._kept(direction, message)
                target.sendall(message if kept is None else kept)
                if kept is not None:
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
        except OSError:
            pass  # the other direction has ended it
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        source.close()

    def _kept(self, direction: Direction, message: bytes) -> bytes | None:
        """What of a message that is to be held back still arrives; None if it is not."""
        if message[0] not in _TURNS[direction]:
            return None
        with self._lock:
            self.seen[direction] += 1
            if self._cut is None or self._cut[:2] != (direction, self.seen[direction]):
                return None
            half = self._cut[2]
            self._cut = None
            self.cuts += 1
            return message[: len(message) // 2] if half else b""


def _messages(source: socket.socket, *, typed: bool) -> Iterator[bytes]:
    buffer = b""
    while data := source.recv(65_536):
        buffer += data
        while len(buffer) >= 4 + typed:
            length = int.from_bytes(buffer[typed : 4 + typed]) + typed
            if len(buffer) < length:
                break
            yield buffer[:length]
            buffer, typed = buffer[length:], True
