"""`ontologia call`: messages to a store that is served on a socket."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from ontologia.cli.call import Call, not_empty

if TYPE_CHECKING:
    from socket import socket as Socket

    from ontologia.actors import Message


def call(
    call: Call,
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE", help="One message; without it, lines of stdin."),
    ] = None,
    socket: Annotated[
        str | None,
        typer.Option(metavar="PATH", callback=not_empty, help="Where the store is served."),
    ] = None,
    tcp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            callback=not_empty,
            help="Where a TcpAdapter listens; its token is in ONTOLOGIA_TOKEN.",
        ),
    ] = None,
) -> None:
    """Send messages to a store that `ontologia serve --socket` serves, and print the answers.

    A message is a JSON object with kind, type and data; metadata.id and metadata.timestamp are
    filled in where they are missing. One is sent when the one before is answered. Answers are JSON,
    a line each. Events are not answered. The exit code is 1 if one of the answers is an error, or
    if a line is no message, which is said like an answer.

    Example: ontologia call --socket run/o.sock '{"kind": "query", "type": "System.Describe"}'
    """
    if (socket is None) == (tcp is None):
        raise typer.BadParameter("say where: --socket PATH, or --tcp HOST:PORT")
    failed, place = False, socket or tcp or ""
    with _unix(place) if tcp is None else _tcp(place) as stream:
        for line in sys.stdin if message is None else [message]:
            for answer in _answers(stream, line, place) if line.strip() else ():
                failed |= answer.kind == "error"
                typer.echo(answer.to_json().decode())
    if failed:
        raise typer.Exit(1)


def _answers(stream: IO[bytes], line: str, path: str) -> Generator[Message]:
    """Send a line; gives its answer, after those to lines before it that should have had none."""
    from ontologia.actors import Message
    from ontologia.actors.adapter import invalid
    from ontologia.actors.message import expects_outcome
    from ontologia.errors import ConnectionLostError, InvalidValueError

    try:
        message = _completed(line)
        encoded = message.to_json()
    except InvalidValueError as error:
        yield invalid(str(error.args[0]), line.encode("utf-8", "surrogateescape"))
        return
    waits = expects_outcome(message)
    try:
        stream.write(encoded + b"\n")
        stream.flush()
        while waits and (found := stream.readline()):
            answer = Message.from_json(found)
            # An event that is no message has an answer, too; of a line too long none knows the id.
            waits = answer.metadata.causation not in (message.metadata.id, None)
            yield answer
    except OSError as error:
        raise ConnectionLostError(f"the connection to {path} broke: {error}") from error
    if waits:
        raise ConnectionLostError(
            f"the program at {path} ended the connection before it answered",
            hint=f"Whether {message.type} was carried out is not known.",
        )


def _completed(line: str) -> Message:
    """The message in a line, with an id and a timestamp if it has none."""
    from ontologia import codec
    from ontologia.actors import Message
    from ontologia.actors.message import new_id
    from ontologia.clock import now_ms
    from ontologia.errors import InvalidValueError

    found: Any = codec.decode(line.encode("utf-8", "surrogateescape"))
    if not isinstance(found, dict):
        raise InvalidValueError(f"not a message: a message is a JSON object, got {line:.100}")
    given = found.get("metadata", {})
    if isinstance(given, dict):
        found["metadata"] = {"id": new_id(), "timestamp": now_ms(), **given}
    return Message.from_data(found)


@contextmanager
def _unix(path: str) -> Generator[IO[bytes]]:
    """A stream of lines to whoever listens there."""
    import socket

    from ontologia.errors import NotFoundError

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise NotFoundError(
                f"nobody listens at {path}: {error.strerror or error}",
                hint=f"ontologia serve --socket {path} does.",
            ) from error
        with _stream(connection) as stream:
            yield stream


@contextmanager
def _tcp(place: str) -> Generator[IO[bytes]]:
    """The same over TCP, with the token as the first line."""
    import os
    import socket

    import orjson

    from ontologia.errors import ConfigError, NotFoundError

    host, _, port = place.rpartition(":")
    token = os.environ.get("ONTOLOGIA_TOKEN")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"an address is written HOST:PORT, got {place}")
    if not token:
        raise ConfigError(
            f"there is no token for {place}", hint="Set ONTOLOGIA_TOKEN to the TcpAdapter's token."
        )
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)))
    except OSError as error:
        raise NotFoundError(f"nobody listens at {place}: {error.strerror or error}") from error
    with connection, _stream(connection) as stream:
        stream.write(orjson.dumps({"token": token}) + b"\n")
        yield stream


@contextmanager
def _stream(connection: Socket) -> Generator[IO[bytes]]:
    stream = cast(IO[bytes], connection.makefile("rwb"))
    try:
        yield stream
    finally:
        with suppress(OSError):
            stream.close()
