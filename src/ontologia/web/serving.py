"""The application behind a socket: uvicorn, with the settings that a server needs to last."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ontologia import OntologiaConfig
from ontologia.errors import ConfigError
from ontologia.web.connection import Connection, Connections

log = logging.getLogger(__name__)
_KEEP_ALIVE = 30  # seconds that a connection may be idle between two requests
_HEAD = 65_536  # bytes of a request's head that are waited for
_WAITING = 2048  # connections that the kernel keeps until they are accepted
_UNREAD = 131_072  # bytes that the kernel keeps of an answer; so few that what is read shows soon
_AT_ONCE = 8  # of them that are accepted before others have their turn
_PAUSE = 0.1  # seconds between two looks at who lets an ending server wait
_OTHER_FILES = 128  # descriptors that the database and the rest of the program may need
_COMPLAINING = (
    *("ontologia.web.app", "ontologia.web.connection", "ontologia.web.serving"),
    *("uvicorn.error", "asyncio"),
)
_NO_MORE = (errno.EMFILE, errno.ENFILE)


class Listener(socket.socket):
    """A socket that goes on listening when there is no descriptor left for a new connection.

    One is kept for that: the connection is accepted with it and closed at once. No client waits for it
    in vain then, and it does not wake the loop again and again.
    """

    starved: Callable[[], None] | None = None
    """Called when there was none left."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._spare: int | None = None

    def listen(self, backlog: int = _WAITING, /) -> None:
        """Listen. asyncio's `backlog` says also how many it accepts at once; here that is all."""
        super().listen(_WAITING)
        self._keep_spare()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError if there is none, or none that can be kept."""
        try:
            accepted = super().accept()
        except OSError as error:
            if error.errno not in _NO_MORE or self._spare is None:
                raise
        else:
            self._keep_spare()  # another thread may have taken the last one
            return accepted
        os.close(self._spare)
        self._spare = None
        with suppress(OSError):
            super().accept()[0].close()
        self._keep_spare()
        log.error("closed a new connection: this process has as many files open as it may have")
        if self.starved is not None:
            self.starved()
        raise BlockingIOError

    def close(self) -> None:
        """Close it. Idempotent."""
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)


class Server(uvicorn.Server):
    """A server that is stopped by `stop()`; signals are its owner's."""

    def __init__(self, app: ASGIApp, listener: Listener, config: OntologiaConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                loop="asyncio",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_AT_ONCE,
                timeout_keep_alive=_KEEP_ALIVE,
                h11_max_incomplete_event_size=_HEAD,
            )
        )
        self._listener = listener
        self._grace = config.shutdown_grace_ms / 1000
        self._command_grace = config.shutdown_command_grace_ms / 1000
        self.leave: Callable[[int], None] | None = None
        """Called with a number of commands that do not return in time; has to end the process."""
        self.on_shutdown: Callable[[], None] | None = None
        """Called when it begins to end; has to end the answers that end with nothing else."""
        most = min(config.max_connections, _descriptors())
        self._connections = Connections(most, config.max_connections_per_peer)
        self.server_state = self._connections
        listener.starved = self._connections.drop_one

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def serve_forever(self) -> None:
        """Serve until stopped; commands that run are answered before this returns.

        Clients have `shutdown_grace_ms` then to send the rest of a request, or read that of an answer, and
        commands `shutdown_command_grace_ms` more. A thread cannot be ended: for those that run still, `leave`
        is called, and without one they are waited for.
        """
        with _complaining_once_a_second():
            self.run(sockets=[self._listener])

    def stop(self) -> None:
        """Take no more requests. Any thread, or a signal, may call this."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: uvicorn waits until there are neither connections nor requests any more."""
        if self.on_shutdown is not None:
            self.on_shutdown()
        dropping = asyncio.create_task(self._drop_clients())
        await super().shutdown(sockets)
        dropping.cancel()

    async def _drop_clients(self) -> None:
        await asyncio.sleep(self._grace)
        end = asyncio.get_running_loop().time() + self._command_grace
        if self._connections.tasks:
            log.info(
                "waiting for commands that still run (%d), up to %g seconds",
                *(len(self._connections.tasks), self._command_grace),
            )
        while True:  # a command that is running is answered first
            self._connections.drop_waiting()
            await asyncio.sleep(_PAUSE)
            running = len(self._connections.tasks)
            if running and self.leave is not None and asyncio.get_running_loop().time() >= end:
                self.leave(running)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone: uvicorn would end the process by the signal that it was stopped by."""
        yield


class OnceASecond(logging.Filter):
    """Lets a log have the same complaint once a second: clients can have it made as often as they like.

    The next line says how many there were in between.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._told: dict[
            str, tuple[float, int]
        ] = {}  # by the first line of the message, unformatted

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the log is to have it."""
        complaint = str(record.msg).partition("\n")[0]
        now = self._monotonic()
        when, left_out = self._told.get(complaint, (-1.0, 0))
        if when >= 0 and now - when < 1:
            self._told[complaint] = when, left_out + 1
            return False
        self._told[complaint] = now, 0
        if left_out:
            record.msg = f"{record.msg} (and {left_out} times since the line before)"
        return True


@contextmanager
def _complaining_once_a_second() -> Generator[None]:
    """Bound what clients without a token can have written to the log."""
    complaints = OnceASecond()
    with ExitStack() as stack:
        for each in map(logging.getLogger, _COMPLAINING):
            each.addFilter(complaints)
            stack.callback(each.removeFilter, complaints)
        yield


def _descriptors() -> int:
    """How many connections the limit on open files of this process has room for."""
    try:
        import resource
    except ImportError:  # on Windows, where there is no such limit
        return 2**31
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if limit == resource.RLIM_INFINITY else limit - min(_OTHER_FILES, limit // 2)


def listen(host: str, port: int) -> Listener:
    """A socket that listens there; ConfigError if none can."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        made = socket.create_server(address[:2], family=family, backlog=_WAITING)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)  # of its connections
        return Listener(made.family, made.type, made.proto, made.detach())
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}",
            hint="Another program may have the port: --port 0 takes one that is free.",
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only programs of this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
