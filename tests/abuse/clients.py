"""Clients that mean harm: each holds what it can of a server, and gives nothing back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.integration.running import PATIENCE, until
from tests.integration.web_world import TOKEN

Address = tuple[str, int]
_CARGO = (
    f"POST /commands/deck.cargo HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Content-Type: application/json\r\n"
)
_NOTHING = b'{"payload": {}}'


@contextmanager
def connected(
    address: Address, count: int, source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """So many connections from an address of this machine, which send nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(_connection(address, source)) for _ in range(count)]


def _connection(address: Address, source: str) -> socket.socket:
    made = socket.socket()
    made.bind((source, 0))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # it has room for little
    made.settimeout(PATIENCE)
    made.connect(address)
    return made


def never_read(connection: socket.socket, answer: int) -> None:
    """Ask for an answer of so many bytes, and do not read it."""
    body = f'{{"payload": {{"bytes": {answer}}}}}'
    connection.sendall(f"{_CARGO}Content-Length: {len(body)}\r\n\r\n{body}".encode())


def pipeline(connection: socket.socket) -> None:
    """Send requests without a token until the server takes no more, and read no answer."""
    requests = b"GET /openapi.json HTTP/1.1\r\nHost: h\r\n\r\n" * 1000
    connection.settimeout(1.0)
    with suppress(TimeoutError):
        while True:
            connection.sendall(requests)


def never_finish(connection: socket.socket, sent: int = 1) -> None:
    """Send the beginning of a body."""
    connection.sendall(f"{_CARGO}Content-Length: {sent + 1}\r\n\r\n".encode() + b" " * sent)


def begin_upload(connection: socket.socket) -> None:
    """Send a request but for the last byte of its body."""
    connection.sendall(f"{_CARGO}Content-Length: {len(_NOTHING)}\r\n\r\n".encode() + _NOTHING[:-1])


def end_upload(connection: socket.socket) -> None:
    """Send the last byte."""
    connection.sendall(_NOTHING[-1:])


def upload(address: Address, size: int) -> bytes:
    """Send a body of so many bytes; what was answered. b"-" if nothing was heard of it."""
    body = _NOTHING.ljust(size)
    with connected(address, 1) as [connection], suppress(ConnectionError):
        with suppress(ConnectionError):  # it need not be read to its end
            connection.sendall(f"{_CARGO}Content-Length: {size}\r\n\r\n".encode() + body)
        return connection.recv(65536) or b"-"
    return b"-"


def read(connection: socket.socket, count: int) -> None:
    """Read so many bytes."""
    while count > 0:
        piece = len(connection.recv(min(count, 65536)))
        assert piece, f"the connection was closed, and {count} bytes are missing"
        count -= piece


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection, whatever it said before; does not wait."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(PATIENCE)


def until_closed(connections: list[socket.socket]) -> None:
    """Wait until the server has closed all of these."""
    until(lambda: all(map(is_closed, connections)))
