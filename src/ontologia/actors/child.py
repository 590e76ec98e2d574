"""The other side of an actor in a process of its own.

Started with a JSON object that says what to do: `path` (where modules are found), `argv`, `main`
(the script of the program, if anything is defined in it), `spawn` and `inbound` (names), and `fd`
(the connection).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from functools import reduce
from operator import or_
from typing import Any

import orjson

from ontologia.actors.actor import Actor
from ontologia.actors.imported import named, run_again
from ontologia.actors.message import Message, encode
from ontologia.actors.parts import told
from ontologia.actors.schema import Schema, decode
from ontologia.actors.worker import ErrorEvent, MessageEvent

LONGEST = 64 * 1024 * 1024
"""Bytes of a line; between two processes of one program there is no reason for a narrow limit."""

_GRACE = 5.0  # seconds for an actor to end by itself; the other side kills it sooner, if it lives

beginning = False
"""Whether this process is one that has not made its actor yet: it must not start others."""


def main(job: dict[str, Any]) -> None:
    """Run an actor until the connection ends."""
    # Ctrl-C goes to all processes of a terminal; the program decides, and closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=job["fd"])
    connection.set_inheritable(False)
    _end_with(connection.dup())
    sys.argv[:] = job["argv"]
    with contextlib.suppress(ConnectionError):
        found = _prepared(job)
        if isinstance(found, Exception):
            connection.sendall(_failed(found))
        else:
            asyncio.run(_serve(connection, *found))


def _end_with(connection: socket.socket) -> None:
    """End this process soon after the other side is gone, also while its actor blocks."""
    if not hasattr(select, "poll"):
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, 0)  # of all there is to know, only that it was closed
        poll.poll()
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="the other side", daemon=True).start()


def _prepared(job: dict[str, Any]) -> tuple[Any, Any] | Exception:
    """What makes the actor, and the messages it takes."""
    global beginning
    beginning = True
    try:
        if job["main"] is not None:
            run_again(job["main"])
        return named(job["spawn"]), reduce(or_, map(named, job["inbound"]))
    except Exception as error:  # noqa: BLE001 - modules of the user's may raise anything
        return error
    except SystemExit as error:
        return RuntimeError(f"the program ended while it was imported ({error})")
    finally:
        beginning = False


async def _serve(connection: socket.socket, spawn: Any, inbound: Any) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST)

    def send(frame: dict[str, Any]) -> None:
        writer.write(orjson.dumps(frame) + b"\n")

    def heard(event: MessageEvent) -> None:
        writer.write(b'{"message":' + encode(event.said) + b"}\n")

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
        writer.write(_failed(error))
        await writer.drain()
        return
    send({"ready": True})
    decoders = Schema(inbound, open_allowed=False).decoders
    while line := await reader.readline():
        head = decode(line)
        actor.post_message(decoders.get((head.kind, head.type), decode)(line))
    await actor.stop()


def _failed(error: Exception) -> bytes:
    return orjson.dumps({"failed": told(error)}) + b"\n"
