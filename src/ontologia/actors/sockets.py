"""Adapters for sockets: lines of JSON from programs in any language.

A Unix socket serves the programs of one user on one machine: file permissions decide who connects.
TCP serves programs without Unix sockets, on this machine unless told otherwise, and requires a token.

A client costs a bounded amount. While output waits for a client to read it, nothing is read from
that client; one that reads nothing for a while, or for which too much waits, is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import math
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import orjson

from ontologia.actors.adapter import LINE_LIMIT, Adapter, Ingress, LineProtocol, invalid
from ontologia.actors.message import Message
from ontologia.errors import ConfigError

log = logging.getLogger("ontologia.actors")
MOST_CLIENTS = 256
"""Maximum connections at a time. The usual limit of a process is 1024 open files, and the store needs
some of them."""
MOST_WAITING = 16 * 1024 * 1024
"""Maximum bytes that wait for a client to read them."""
STALL = 30.0
"""Seconds that a client may read nothing of what waits for it, and that it has to send its token."""
_BACKLOG = 1024
_GRACE = 2.0  # seconds for clients to read the rest at the end
_HANG_UP_INTERVAL = 1.0  # seconds between two checks whether a half-closed client is still there
_HUNG_UP = getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)
_TOKEN_LINE_LIMIT = 4096  # bytes
_LOCK_PATIENCE = (
    3.0  # seconds to wait for the lock of a folder; an adapter holds it for one at most
)
_LOCK_INTERVAL = 0.02


class Limits(TypedDict, total=False):
    """What a client may cost."""

    line_limit: int
    """Bytes of a line; 1 MiB."""
    most_waiting: int
    """Bytes that may wait for a client to read them; 16 MiB."""
    stall: float
    """Seconds that it may read nothing of what waits for it; 30."""


class Complaints:
    """Logs complaints that clients can cause as often as they like: at most one line a second."""

    def __init__(self, adapter_id: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._adapter_id, self._monotonic = adapter_id, monotonic
        self._next = -math.inf
        self._left_out = 0

    def log(self, text: str) -> None:
        """Log this, with the number of those that were left out since the line before."""
        now = self._monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more since the line before)" if self._left_out else ""
        self._next, self._left_out = now + 1, 0
        log.warning("%s: %s%s", self._adapter_id, text, more)


# -- adapters ---------------------------------------------------------------------------------------


class SocketAdapter:
    """The connections of a listening socket."""

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
        """Number of clients so far."""
        self._connections: dict[str, Connection] = {}
        """The oldest first."""
        self._complaints = Complaints(id)
        self._rejected: set[RejectedClient] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {len(self._connections)} clients>"

    @property
    def active(self) -> bool:
        """Whether messages may still come in."""
        return self._server is not None

    @property
    def buffered(self) -> int:
        """Number of answers that wait for clients to read them."""
        return sum(each.waiting for each in self._connections.values())

    @property
    def clients(self) -> int:
        """Number of connected clients."""
        return len(self._connections)

    async def start(self, loop: Ingress) -> None:
        """Listen. ConfigError if that is not possible."""
        host = asyncio.get_running_loop()
        listener = self._listen()

        def connected() -> asyncio.Protocol:
            if len(self._connections) >= self._most and not self._evict():
                return RejectedClient(self._full(), self._rejected, self._most)
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

        self._server = await host.create_server(connected, sock=listener, backlog=_BACKLOG)

    async def stop(self) -> None:
        """Accept no more clients, give the others a moment to read, and close."""
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
        for rejected in self._rejected:
            rejected.abort()
        if left:
            await asyncio.wait([each.closed for each in left], timeout=_GRACE)

    def deliver(self, connection_id: str, message: Message) -> None:
        """Write an outcome to a client; ignores one that is gone."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.answer(message)

    def _full(self) -> Message:
        text = f"{self._most} clients are connected, and no more are taken; try again later"
        self._complaints.log(f"a client is turned away: {text}")
        return invalid(text, code=503)

    def _evict(self) -> bool:
        """Disconnect the client that has sent no token for the longest; False if there is none."""
        found = next((each for each in self._connections.values() if each.awaits_token), None)
        if found is None:
            return False
        text = f"{self._most} clients are connected, and this one has not sent its token"
        self._complaints.log(f"a client is disconnected: {text}")
        del self._connections[found.id]
        # Clients that are accepted together exist before the first of them has its transport.
        asyncio.get_running_loop().call_soon(found.refuse, text, 503)
        return True

    def _listen(self) -> socket.socket:
        raise NotImplementedError

    def _cleanup(self) -> None:
        pass


class UnixSocketAdapter(SocketAdapter):
    """Lines of JSON on a Unix socket, for programs of the same user.

    The file has mode 0600; a missing folder is made with mode 0700. A file that an ended process
    left is replaced, one on which a program listens is not. `timeout` is in seconds: a request
    without an outcome by then is answered with error 504; None for never. With `most_clients`
    connected another one is answered with error 503 and disconnected.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = 30.0,
        most_clients: int = MOST_CLIENTS,
        **limits: Unpack[Limits],
    ) -> None:
        self.path = Path(path)
        super().__init__(f"unix:{self.path}", timeout=timeout, most_clients=most_clients, **limits)
        self._made: tuple[int, int] | None = None

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not self.path.parent.is_dir():
                self.path.parent.mkdir(mode=0o700, parents=True)
            with _locked(self.path.parent):
                self._remove_stale()
                _bind_privately(listener, os.fspath(self.path))
                found = os.lstat(self.path)
                self._made = (found.st_dev, found.st_ino)
                listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen at {self.path}: {error.strerror or error}",
                hint="The path of a Unix socket has at most about 100 bytes, in a folder that "
                "this user may write to.",
            ) from error
        except ConfigError:
            listener.close()
            raise
        listener.setblocking(False)
        return listener

    def _remove_stale(self) -> None:
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(
                f"{self.path} is a file, and no socket; it was left as it is",
                hint="Choose another path.",
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(os.fspath(self.path))
            except ConnectionRefusedError:
                os.unlink(self.path)
                return
            except TimeoutError:
                pass  # it listens, and is busy
        raise ConfigError(
            f"another program listens at {self.path}; nothing was changed",
            hint="Stop it, or choose another path.",
        )

    def _cleanup(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._made:
                os.unlink(self.path)


def _bind_privately(listener: socket.socket, path: str) -> None:
    """Make the file of a socket, with mode 0600 from the beginning or before anybody can connect.

    By its path alone, the mode could be set of what another user has put there meanwhile.
    """
    if sys.platform == "linux":
        os.fchmod(listener.fileno(), 0o600)  # bind gives the file the mode of the socket
        listener.bind(path)
    else:
        listener.bind(path)
        os.chmod(path, 0o600, follow_symlinks=False)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Lock a folder, so that adapters starting together do not remove each other's socket as stale.

    Any user who may read the folder can lock it, so this does not wait for long: ConfigError then.
    """
    import fcntl  # exists wherever Unix sockets do

    handle = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + _LOCK_PATIENCE
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise ConfigError(
                        f"another program has locked the folder {folder}; nothing was changed",
                        hint="Choose a folder that no other user can read (chmod 700).",
                    ) from error
                time.sleep(_LOCK_INTERVAL)
        yield
    finally:
        os.close(handle)


class TcpAdapter(SocketAdapter):
    """Lines of JSON over TCP; the first line of a client is `{"token": "..."}`.

    Only addresses of this machine, unless `anywhere` is true: nothing is encrypted. Port 0 takes a
    free one; `port` is the actual one once it listens. `timeout` and `most_clients` are as for a
    UnixSocketAdapter, but a client that has not sent its token makes room for another one.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str,
        anywhere: bool = False,
        timeout: float | None = 30.0,
        most_clients: int = MOST_CLIENTS,
        **limits: Unpack[Limits],
    ) -> None:
        if not isinstance(token, str) or not token:
            raise ConfigError("a TcpAdapter needs a token, a text that its clients know")
        self.host, self.port, self._anywhere = host, port, anywhere
        super().__init__(
            f"tcp:{host}:{port}",
            timeout=timeout,
            most_clients=most_clients,
            token=token.encode(),
            **limits,
        )

    def _listen(self) -> socket.socket:
        try:
            [(family, _, _, _, address), *_] = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            loopback = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
            if not loopback and not self._anywhere:
                raise ConfigError(
                    f"{self.host} can be reached from other machines, and what is sent is not "
                    f"encrypted",
                    hint="Listen at 127.0.0.1, or give anywhere=True.",
                )
            listener = socket.create_server(
                (str(address[0]), self.port), family=family, backlog=_BACKLOG
            )
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigError(
                f"cannot listen at {self.host}, port {self.port}: "
                f"{getattr(error, 'strerror', None) or error}",
                hint="Another program may have the port: port=0 takes one that is free.",
            ) from error
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        return listener


# -- clients ----------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One client of a socket."""

    def __init__(
        self,
        adapter: Adapter,
        connection_id: str,
        loop: Ingress,
        on_lost: Callable[[Connection], object],
        *,
        token: bytes | None = None,
        **limits: Unpack[Limits],
    ) -> None:
        self.id = connection_id
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = 0
        """Number of answers given to the transport since it last had written everything."""
        self._adapter, self._loop, self._on_lost = adapter, loop, on_lost
        self._protocol = LineProtocol(
            *(adapter, connection_id, loop, self._write, self._regulate),
            limits.get("line_limit", LINE_LIMIT),
        )
        self._most_waiting = limits.get("most_waiting", MOST_WAITING)
        self._stall = limits.get("stall", STALL)
        self._token = token
        self._token_line = b""
        self._transport: asyncio.Transport
        self._written = 0
        self._timer: asyncio.TimerHandle | None = None
        self._congested = self._reading_paused = self._ended = False

    # -- from the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)
        # Call pause_writing as soon as anything waits, and resume_writing when nothing does.
        self._transport.set_write_buffer_limits(high=0)
        if self._token is not None:
            self._start_timer(self._refuse_token)

    def data_received(self, data: bytes) -> None:
        """The client sent this."""
        if self._token is not None:
            data = self._after_token(data)
        if data:
            self._protocol.feed(data)
            self._regulate()

    def eof_received(self) -> bool:
        """The client sends no more; True if the connection stays open for answers."""
        self._ended = True
        if self._token is None:
            self._protocol.end()
        self._close_when_answered()
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The client reads more slowly than answers come."""
        self._congested = True
        self._start_timer(self._cut_if_stalled, self._flushed())
        self._regulate()

    def resume_writing(self) -> None:
        """The client has read everything."""
        self._congested, self.waiting = False, 0
        self._stop_timer()
        self._regulate()
        self._loop.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        self.waiting = 0
        self._on_lost(self)
        self._loop.disconnected(self._adapter, self.id)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- from the adapter -------------------------------------------------------------------------

    @property
    def awaits_token(self) -> bool:
        """Whether the client has to send its token first."""
        return self._token is not None

    def answer(self, message: Message) -> None:
        """Write the outcome of a request. Never blocks."""
        self._protocol.answer(message)
        self._regulate()
        if self._ended and not self._protocol.in_flight:
            self._transport.close()

    def refuse(self, text: str, code: int) -> None:
        """Tell the client why, and close."""
        if not self._transport.is_closing():
            self._transport.write(invalid(text, code=code).to_json() + b"\n")
            self._transport.close()

    def close(self) -> None:
        """Close when everything is written."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # -- inside -----------------------------------------------------------------------------------

    def _write(self, line: bytes) -> None:
        if self._transport.is_closing():
            return
        # Checked before writing: a client that reads may get an answer of any size.
        if self._transport.get_write_buffer_size() > self._most_waiting:
            self._cut(f"more than {self._most_waiting} bytes wait for it to be read")
            return
        self._written += len(line)
        self._transport.write(line)
        self.waiting += self._congested

    def _regulate(self) -> None:
        """Pause or resume reading from the client."""
        pause = self._congested or self._protocol.is_full
        if pause is self._reading_paused or self._ended or self._transport.is_closing():
            return
        self._reading_paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _flushed(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def _cut_if_stalled(self, flushed_before: int) -> None:
        flushed = self._flushed()
        if flushed > flushed_before:
            self._start_timer(self._cut_if_stalled, flushed)
        else:
            self._cut(f"it read nothing for {self._stall:g} s")

    def _cut(self, why: str) -> None:
        undelivered = self._transport.get_write_buffer_size()
        log.warning(
            "%s: connection %s is cut off: %s; %d bytes were not delivered",
            *(self._adapter.id, self.id, why, undelivered),
        )
        self.abort()

    def _close_when_answered(self) -> None:
        """After its end of input a client waits for answers, or is gone without a notice."""
        if self._transport.is_closing():
            return
        if not self._protocol.in_flight:
            self._transport.close()
        elif _hung_up(self._transport.get_extra_info("socket")):
            self.abort()
        else:
            host = asyncio.get_running_loop()
            host.call_later(_HANG_UP_INTERVAL, self._close_when_answered)

    def _start_timer(self, step: Callable[..., object], *args: Any) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(self._stall, step, *args)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the token --------------------------------------------------------------------------------

    def _after_token(self, data: bytes) -> bytes:
        """What follows the line with the token; b"" until that line is complete."""
        self._token_line += data
        line, newline, rest = self._token_line.partition(b"\n")
        if len(line) > _TOKEN_LINE_LIMIT or (newline and not self._is_token(line)):
            self._refuse_token()
        elif newline:
            self._token, self._token_line = None, b""
            self._stop_timer()
            return rest
        return b""

    def _is_token(self, line: bytes) -> bool:
        try:
            given = orjson.loads(line)["token"].encode()
        except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
            return False
        return hmac.compare_digest(given, self._token or b"")

    def _refuse_token(self) -> None:
        self.refuse('the first line must be {"token": "..."}, with the token of this server', 401)


def _hung_up(sock: socket.socket | None) -> bool:
    """Whether the other side has closed both directions. TCP does not show that before a write."""
    if sock is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _HUNG_UP)
    return bool(poll.poll(0))


class RejectedClient(asyncio.Protocol):
    """A client above the limit: it is told why, and disconnected.

    It may have written already, and closing a socket with unread input discards what was written to
    it last. So its input is read and ignored until it closes or a moment has passed, for at most
    `most` rejected clients at a time.
    """

    def __init__(self, reason: Message, rejected: set[RejectedClient], most: int) -> None:
        self._reason, self._rejected, self._most = reason, rejected, most
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._reason.to_json() + b"\n")
        if len(self._rejected) >= self._most:
            self._transport.close()
            return
        self._rejected.add(self)
        self._transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(_GRACE, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._rejected.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
