"""The application behind a socket: uvicorn, with the settings that a server needs to last."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from ontologia.errors import ConfigError
from ontologia.web.connection import Connection

_KEEP_ALIVE = 30  # seconds that a connection may be idle between two requests
_GRACE = 40  # seconds for requests that run at the end: more than a body may take to arrive
_HEAD = 65_536  # bytes of a request's head


class Server(uvicorn.Server):
    """A server that is stopped by `stop()`; signals are its owner's."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
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
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=_GRACE,
                h11_max_incomplete_event_size=_HEAD,
            )
        )
        self._listener = listener

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def serve_forever(self) -> None:
        """Serve until stopped; requests that run are answered before this returns."""
        self.run(sockets=[self._listener])

    def stop(self) -> None:
        """Take no more requests. Any thread, or a signal, may call this."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone: uvicorn would end the process by the signal that it was stopped by."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; ConfigError if none can."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}",
            hint="Another program may have the port: --port 0 takes one that is free.",
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only programs of this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
