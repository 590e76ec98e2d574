"""Adapters for sockets: lines of JSON from programs in any language.

A Unix socket is for the programs of one user on one machine: the file says who may. TCP is for
those that have no Unix sockets, on this machine unless told otherwise, and asks for a token.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Unpack

from ontologia.actors.clients import BACKLOG, MOST_CLIENTS, SocketAdapter
from ontologia.actors.connection import Limits
from ontologia.errors import ConfigError


class UnixSocketAdapter(SocketAdapter):
    """Lines of JSON on a Unix socket, for programs of the same user.

    The file has mode 0600; a folder that is not there is made, with mode 0700. A file that an ended
    process left is replaced, one on which somebody listens is not. `timeout` is in seconds: a
    request without an outcome by then is answered with error 504; None for never. With
    `most_clients` connected another one is told so and let go.
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
            with _alone_in(self.path.parent):
                self._remove_stale()
                listener.bind(os.fspath(self.path))
                # Nobody can connect before listen().
                os.chmod(self.path, 0o600)
                found = os.lstat(self.path)
                self._made = (found.st_dev, found.st_ino)
                listener.listen(BACKLOG)
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


class TcpAdapter(SocketAdapter):
    """Lines of JSON over TCP; the first line of a client is `{"token": "..."}`.

    Only addresses of this machine, unless `anywhere` is true: what is sent is not encrypted. Port 0
    takes one that is free; `port` says which, once it listens. `timeout` and `most_clients` are as
    for a UnixSocketAdapter; a client counts before it has shown its token.
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
                (str(address[0]), self.port), family=family, backlog=BACKLOG
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


@contextlib.contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Keep others that start at the same moment from taking each other's socket for a stale one."""
    import fcntl  # where there are Unix sockets, there is this, too

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
