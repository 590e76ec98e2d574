"""The other side of an actor in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import Any

import orjson

from ontologia.actors.actor import Actor
from ontologia.actors.message import Message, encode
from ontologia.actors.schema import Schema, decode
from ontologia.actors.worker import ErrorEvent, MessageEvent

LONGEST = 64 * 1024 * 1024
"""Bytes of a line; between two processes of one program there is no reason for a narrow limit."""


def main(connection: socket.socket, spawn: Callable[[], object], inbound: Any) -> None:
    """Run an actor until the connection ends."""
    # Ctrl-C goes to all processes of a terminal; the program decides, and closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve(connection, spawn, inbound))


async def _serve(connection: socket.socket, spawn: Callable[[], object], inbound: Any) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST)

    def send(frame: dict[str, Any]) -> None:
        writer.write(orjson.dumps(frame) + b"\n")

    def heard(event: MessageEvent) -> None:
        writer.write(b'{"message":' + encode(event.data) + b"}\n")

    def failed(event: ErrorEvent) -> None:
        send({"fault": {"error": event.error, "traceback": event.traceback}})

    def done(message: Message) -> None:
        send({"done": message.metadata.id})

    try:
        actor = spawn()
        if not isinstance(actor, Actor):
            raise TypeError(f"an actor in a process must derive from Actor, got {actor!r}")
        actor.add_event_listener("message", heard)
        actor.add_event_listener("error", failed)
        actor.on_done = done
        await actor.start()
    except Exception as error:  # noqa: BLE001 - an actor may raise anything
        send({"failed": f"{type(error).__name__}: {error}"})
        await writer.drain()
        return
    send({"ready": True})
    decoders = Schema(inbound, open_allowed=False).decoders
    while line := await reader.readline():
        head = decode(line)
        actor.post_message(decoders.get((head.kind, head.type), decode)(line))
    await actor.stop()
