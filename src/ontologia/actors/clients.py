"""The clients of a socket: as many as there may be, and those that are one too many."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Unpack, cast

from ontologia.actors.adapter import Ingress, invalid
from ontologia.actors.connection import Connection, Limits
from ontologia.actors.message import Message
from ontologia.errors import ConfigError

log = logging.getLogger("ontologia.actors")
MOST_CLIENTS = 256
"""How many may be connected at a time. A process may have 1024 files open, as systems are set up,
and the store has some of them."""
BACKLOG = 1024
_GRACE = 2.0  # seconds for clients to read what is left at the end


class SocketAdapter:
    """What the adapters for sockets share: connections."""

    def __init__(
        self,
        id: str,
        *,
        timeout: float | None,
        most_clients: int,
        token: bytes | None = None,
        **limits: Unpack[Limits],
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"timeout is seconds, more than 0, or None for none, got {timeout!r}")
        if most_clients < 1:
            raise ConfigError(f"most_clients must be 1 or more, got {most_clients!r}")
        self.id, self.timeout, self._most = id, timeout, most_clients
        self._token, self._limits = token, limits
        self.served = 0
        """How many clients there were so far."""
        self._connections: dict[str, Connection] = {}
        self._leaving: set[TurnedAway] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {len(self._connections)} clients>"

    @property
    def active(self) -> bool:
        """Whether messages may still come in."""
        return self._server is not None

    @property
    def buffered(self) -> int:
        """How many answers wait for clients to read them."""
        return sum(each.waiting for each in self._connections.values())

    @property
    def clients(self) -> int:
        """How many are connected."""
        return len(self._connections)

    async def start(self, loop: Ingress) -> None:
        """Listen. ConfigError if that is not possible."""
        host = asyncio.get_running_loop()
        listener = self._listen()

        def connected() -> asyncio.Protocol:
            if len(self._connections) >= self._most:
                return TurnedAway(self._full(), self._leaving, self._most)
            self.served += 1
            name = str(self.served)
            connection = self._connections[name] = Connection(
                self,
                name,
                loop,
                lambda gone: self._connections.pop(gone.id, None),
                token=self._token,
                **self._limits,
            )
            return connection

        self._server = await host.create_server(connected, sock=listener, backlog=BACKLOG)

    async def stop(self) -> None:
        """Take no more clients, give those that are there a moment to read, and close."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self._cleanup()
        left = list(self._connections.values())
        for each in left:
            each.close()
        if left:
            await asyncio.wait([each.closed for each in left], timeout=_GRACE)
        for each in left:
            each.abort()
        for gone in self._leaving:
            gone.abort()
        if left:
            await asyncio.wait([each.closed for each in left], timeout=_GRACE)

    def deliver(self, connection_id: str, message: Message) -> None:
        """Write an outcome to a client; one that is gone is no error."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.answer(message)

    def _full(self) -> Message:
        said = f"{self._most} clients are connected, and no more are taken; try again later"
        log.warning("%s: a client is turned away: %s", self.id, said)
        return invalid(said, code=503)

    def _listen(self) -> socket.socket:
        raise NotImplementedError

    def _cleanup(self) -> None:
        pass


class TurnedAway(asyncio.Protocol):
    """A client for which there is no room: it is told why, and let go.

    It may have written already, and a socket that is closed with something unread drops what it has
    said last. So this one is read, and not listened to, until the client has ended or a moment has
    passed; `most` may have that moment at a time.
    """

    def __init__(self, why: Message, leaving: set[TurnedAway], most: int) -> None:
        self._why, self._leaving, self._most = why, leaving, most
        self._guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._why.to_json() + b"\n")
        if len(self._leaving) >= self._most:
            self._transport.close()
            return
        self._leaving.add(self)
        self._transport.write_eof()
        self._guard = asyncio.get_running_loop().call_later(_GRACE, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._leaving.discard(self)
        if self._guard is not None:
            self._guard.cancel()

    def abort(self) -> None:
        """End now."""
        self._transport.abort()
