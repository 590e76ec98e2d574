"""One client of a socket.

While something that was written to a client waits for it to be read, nothing is read from that
client. One that reads nothing for a while, or for which too much waits, is cut off: what it costs
is bounded, and the others do not notice.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import select
import socket
from collections.abc import Callable
from typing import Any, TypedDict, Unpack, cast

import orjson

from ontologia.actors.adapter import Adapter, Ingress, invalid
from ontologia.actors.message import Message
from ontologia.actors.ndjson import LINE_LIMIT, Dialog

log = logging.getLogger("ontologia.actors")
MOST_WAITING = 16 * 1024 * 1024
"""Bytes that may wait for a client to read them."""
STALL = 30.0
"""Seconds that a client may read nothing of what waits for it, and that it has to show a token."""
_LOOK = 1.0  # seconds between two looks whether a client that sends no more is still there
_HUNG_UP = getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)


class Limits(TypedDict, total=False):
    """What a client may cost."""

    line_limit: int
    """Bytes of a line; 1 MiB."""
    most_waiting: int
    """Bytes that may wait for a client to read them; 16 MiB."""
    stall: float
    """Seconds that it may read nothing of what waits for it; 30."""


class Connection(asyncio.Protocol):
    """One client, from its connection to its end."""

    def __init__(
        self,
        adapter: Adapter,
        connection_id: str,
        loop: Ingress,
        over: Callable[[Connection], object],
        *,
        token: bytes | None = None,
        **limits: Unpack[Limits],
    ) -> None:
        self.id = connection_id
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = 0
        """How many answers were given to the transport and are not all written."""
        self._adapter, self._loop, self._over = adapter, loop, over
        longest = limits.get("line_limit", LINE_LIMIT)
        self._dialog = Dialog(adapter, connection_id, loop, self._write, self._regulate, longest)
        self._most_waiting = limits.get("most_waiting", MOST_WAITING)
        self._stall = limits.get("stall", STALL)
        self._token = token
        self._head = b""
        self._transport: asyncio.Transport
        self._written = 0
        self._guard: asyncio.TimerHandle | None = None
        self._congested = self._reading_paused = self._ended = False

    # -- from the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)
        # So we are told as soon as the client does not keep up, and when it has caught up.
        self._transport.set_write_buffer_limits(high=0)
        if self._token is not None:
            self._arm(self._refuse)

    def data_received(self, data: bytes) -> None:
        """It said something."""
        if self._token is not None:
            data = self._checked(data)
        if data:
            self._dialog.hear(data)
            self._regulate()

    def eof_received(self) -> bool:
        """It says no more, but may wait for answers; whether it does."""
        self._ended = True
        if self._token is None:
            self._dialog.end()
        self._watch_end()
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self._congested = True
        self._arm(self._cut_if_stalled, self._flushed())
        self._regulate()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._congested, self.waiting = False, 0
        self._disarm()
        self._regulate()
        self._loop.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._disarm()
        self.waiting = 0
        self._over(self)
        self._loop.disconnected(self._adapter, self.id)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- from the adapter -------------------------------------------------------------------------

    def answer(self, message: Message) -> None:
        """Write the outcome of a request; never waits."""
        self._dialog.answer(message)
        self._regulate()
        if self._ended and not self._dialog.in_flight:
            self._transport.close()

    def close(self) -> None:
        """End when what waits is written."""
        self._transport.close()

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    # -- inside -----------------------------------------------------------------------------------

    def _write(self, line: bytes) -> None:
        if self._transport.is_closing():
            return
        # Before it is written: one answer may be as large as it is, for a client that reads.
        if self._transport.get_write_buffer_size() > self._most_waiting:
            self._cut(f"more than {self._most_waiting} bytes wait for it to be read")
            return
        self._written += len(line)
        self._transport.write(line)
        self.waiting += self._congested

    def _regulate(self) -> None:
        """Read from the client, or not."""
        pause = self._congested or self._dialog.is_full
        if pause is self._reading_paused or self._ended or self._transport.is_closing():
            return
        self._reading_paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _flushed(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def _cut_if_stalled(self, flushed_before: int) -> None:
        flushed = self._flushed()
        if flushed > flushed_before:
            self._arm(self._cut_if_stalled, flushed)
        else:
            self._cut(f"it read nothing for {self._stall:g} s")

    def _cut(self, why: str) -> None:
        waits = self._transport.get_write_buffer_size()
        log.warning(
            "%s: connection %s is cut off: %s; %d bytes were not delivered",
            *(self._adapter.id, self.id, why, waits),
        )
        self.abort()

    def _watch_end(self) -> None:
        """After its end a client waits for answers, or is gone; of the latter not all tell."""
        if self._transport.is_closing():
            return
        if not self._dialog.in_flight:
            self._transport.close()
        elif _hung_up(self._transport.get_extra_info("socket")):
            self.abort()
        else:
            asyncio.get_running_loop().call_later(_LOOK, self._watch_end)

    def _arm(self, step: Callable[..., object], *args: Any) -> None:
        self._disarm()
        self._guard = asyncio.get_running_loop().call_later(self._stall, step, *args)

    def _disarm(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None

    # -- the token --------------------------------------------------------------------------------

    def _checked(self, data: bytes) -> bytes:
        """What comes after the line with the token; nothing while that is not complete."""
        self._head += data
        line, newline, rest = self._head.partition(b"\n")
        if len(line) > _LONGEST_HEAD or (newline and not self._is_token(line)):
            self._refuse()
        elif newline:
            self._token, self._head = None, b""
            self._disarm()
            return rest
        return b""

    def _is_token(self, line: bytes) -> bool:
        try:
            given = orjson.loads(line)["token"].encode()
        except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
            return False
        return hmac.compare_digest(given, self._token or b"")

    def _refuse(self) -> None:
        if not self._transport.is_closing():
            said = 'the first line must be {"token": "..."}, with the token of this server'
            self._transport.write(invalid(said, code=401).to_json() + b"\n")
            self._transport.close()


_LONGEST_HEAD = 4096


def _hung_up(sock: socket.socket | None) -> bool:
    """Whether the other side has closed both ways. Of TCP that is not known before writing."""
    if sock is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _HUNG_UP)
    return bool(poll.poll(0))
