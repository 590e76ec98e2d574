"""One connection, and all of them: uvicorn's, which wait for clients for ever, with an end to it.

Requests that are not HTTP are answered here as well: no application sees them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ontologia.web.problems import MALFORMED, MEDIA_TYPE, SLOW, UNAVAILABLE, Problem

log = logging.getLogger(__name__)
HEAD_TIMEOUT = 15.0  # seconds from the beginning of a request, or of the connection
WRITE_TIMEOUT = 30.0  # seconds in which a client reads something of what it is sent
_LINGER = 1.0  # seconds for a client that is refused to stop sending, and to read why
ACTIVE = 1.0  # seconds since a client with the token sent something, or was answered
_AT_ONCE = 16_384  # bytes that are read before other connections have their turn
_MOST_LINES = 256  # of a head or trailer: its length bounds them too late, parsing one takes 5 µs
_SMALL_CHUNK = 64  # bytes; parsing a chunk takes 30 µs, whatever its length
_MOST_SMALL_CHUNKS = 1_000
_NO_ROOM = "there are as many connections as there may be; nothing was done"


class Connections(ServerState):
    """The open connections of a server, at most `most` and, unless it is 0, `per_peer` of one peer.

    Past that, a new one takes the place of one that waits for its client: first of those without the
    token, then of the peer with the most connections, then of the one that has waited the longest.
    If none may be dropped, the new one is refused: a connection keeps its place while its request is
    carried out, and with the token also while its client is active.
    """

    def __init__(self, most: int, per_peer: int) -> None:
        super().__init__()
        self._most, self._per_peer = most, per_peer
        self._let_in: set[Connection] = set()
        self._of_peers: defaultdict[str, set[Connection]] = defaultdict(set)

    def enter(self, new: Connection) -> bool:
        """Let a connection in; False if there is no room for it."""
        of_peer = self._of_peers[new.peer]
        if self._per_peer and len(of_peer) >= self._per_peer:
            log.warning(
                "%s has %d connections, max_connections_per_peer, and opens another one; 0 lifts "
                "the limit for a proxy",
                *(new.peer, self._per_peer),
            )
            if not self._drop_one_of(each for each in of_peer if each.may_make_room):
                return False
        if len(self._let_in) >= self._most:
            log.warning("%d connections are open, max_connections, and one more comes", self._most)
            if not self._drop_one_of(each for each in self._let_in if each.may_make_room):
                return False
        self._let_in.add(new)
        self._of_peers[new.peer].add(new)  # its set may have been dropped meanwhile
        return True

    def leave(self, gone: Connection) -> None:
        """Have room for another one. Idempotent."""
        self._let_in.discard(gone)
        of_peer = self._of_peers[gone.peer]
        of_peer.discard(gone)
        if not of_peer:
            del self._of_peers[gone.peer]

    def drop_one(self) -> None:
        """Drop a connection that waits for its client, if there is one."""
        self._drop_one_of(each for each in self._let_in if each.waits_for_client)

    def drop_waiting(self) -> None:
        """Drop every connection that waits for its client."""
        for each in list(self.connections):
            if cast("Connection", each).waits_for_client:
                each.transport.abort()

    def _drop_one_of(self, waiting: Iterable[Connection]) -> bool:
        dropped = min(waiting, key=self._rank, default=None)
        if dropped is None:
            return False
        self.leave(dropped)
        dropped.drop()
        return True

    def _rank(self, one: Connection) -> tuple[bool, int, float]:
        """The lowest one is dropped."""
        return one.has_token, -len(self._of_peers[one.peer]), one.since


class _Received(ReceiveBuffer):
    """What a client has sent, and the parser has not read."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines of a head, or of the trailer after the last chunk; None if they are not complete."""
        lines = super().maybe_extract_lines()
        if lines is not None and len(lines) > _MOST_LINES:
            raise h11.RemoteProtocolError(f"a head or a trailer has at most {_MOST_LINES} lines")
        return lines


class _Parser(h11.Connection):
    """Refuses requests that are divided into so many parts that the loop would do nothing else."""

    _small_chunks = 0

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._receive_buffer = _Received()

    def next_event(self) -> Any:
        """The next event; h11.RemoteProtocolError if the client does not keep to HTTP, or to this."""
        if self.their_state is h11.IDLE:
            self._small_chunks = 0
        event = super().next_event()
        if isinstance(event, h11.Data) and event.chunk_start and event.chunk_end:
            self._small_chunks += len(event.data) < _SMALL_CHUNK
            if self._small_chunks > _MOST_SMALL_CHUNKS:
                raise h11.RemoteProtocolError(f"more than {_MOST_SMALL_CHUNKS} chunks are small")
        return event


class Connection(H11Protocol):
    """A client has some seconds for the head of a request, however it divides it, and to read."""

    server_state: Connections
    peer = ""
    """The address of the client, or of its network: a machine may have 2**64 addresses of IPv6."""
    since = 0.0
    """When the connection was made, the client last sent something, or was answered; the loop's clock."""
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _ending: asyncio.TimerHandle | None = None
    _unsent = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = _Parser(self.config.h11_max_incomplete_event_size or _AT_ONCE)

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to send a request, or to read the answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    @property
    def has_token(self) -> bool:
        """Whether the request that is here, or else the last one, came with the token."""
        return self.scope is not None and bool(self.scope.get("state", {}).get("known"))

    @property
    def may_make_room(self) -> bool:
        """Whether it waits for its client, unless that has the token and is active."""
        active = self.has_token and self.loop.time() - self.since < ACTIVE
        return self.waits_for_client and not active

    def drop(self) -> None:
        """Make room for another one; a client in between two requests may read 503."""
        if self.conn.our_state is h11.IDLE:
            self._refuse(Problem(UNAVAILABLE, _NO_ROOM))
        self.transport.abort()  # `close` waits until the client has read the rest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self.peer = peer_of(self.client[0]) if self.client else ""
        # asyncio does so for sockets that say they are TCP; those of a listener that was made without
        # naming the protocol do not. Head and body of an answer are two writes, and without this
        # the second one waits until the client has acknowledged the first: 40 ms on Linux.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Tell `pause_writing` of every byte that the client does not take.
        transport.set_write_buffer_limits(high=0)
        transport.max_size = _AT_ONCE  # type: ignore[attr-defined]  # pyright: ignore - asyncio's 256 KiB
        if self.server_state.enter(self):
            self._look()
        else:
            self._refuse(Problem(UNAVAILABLE, _NO_ROOM))

    def data_received(self, data: bytes) -> None:
        """Go on, or end, to wait."""
        if self._ending is not None:
            return
        self.since = self.loop.time()
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self.server_state.leave(self)
        self._stop_waiting()
        self._stop_watching()
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait until the client has read what it was sent."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Wait no more."""
        self._stop_watching()
        super().resume_writing()

    def shutdown(self) -> None:
        """Close as soon as the request that is being carried out, if there is one, is answered."""
        with suppress(h11.LocalProtocolError):  # it is being closed already
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer to what is no HTTP, and read what the client still sends, or it may not see why."""
        self._answer(Problem(MALFORMED, msg))
        if self.transport.is_closing():
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._ending = self.loop.call_later(_LINGER, self.transport.abort)

    def _look(self) -> None:
        if self.conn.their_state is not h11.IDLE or self._ending is not None:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            self._refuse(Problem(SLOW, f"no request came within {HEAD_TIMEOUT:g} seconds"))

    def _watch_reading(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(WRITE_TIMEOUT, self._check_reading)

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _check_reading(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_reading()
        else:
            log.warning("%s has read nothing for %g seconds", self.peer, WRITE_TIMEOUT)
            self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        """Answer in place of the application, and close."""
        self._answer(problem)
        self.transport.close()

    def _answer(self, problem: Problem) -> None:
        """Answer in place of the application, which can answer no more."""
        body = problem.content()
        headers: list[tuple[str, str]] = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
            *problem.headers.items(),
        ]
        events: list[Any] = [
            h11.Response(status_code=problem.kind.status, headers=headers, reason=b""),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        with suppress(h11.LocalProtocolError):  # an answer is on its way already
            self.transport.write(b"".join(self.conn.send(each) or b"" for each in events))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def peer_of(address: str) -> str:
    """Whose connections are counted together: an address of IPv4, a network (/64) of IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip, 64), strict=False))
