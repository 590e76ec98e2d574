"""A harbour over HTTP: its commands raise, wait and pack crates as tests ask them to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from pydantic import BaseModel

from ontologia import Field
from ontologia.commands import Command, DomainModel, Env, api
from ontologia.errors import (
    ConnectionLostError,
    HeadMismatchError,
    LockContentionError,
    NotFoundError,
    StandbyError,
    StateConflictError,
)
from ontologia.web import create_app
from ontologia.web.serving import Server, listen
from tests.integration.running import PATIENCE

TOKEN = "open-sesame"  # noqa: S105
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


class Weight(BaseModel):
    kilos: int


ERRORS: dict[str, Any] = {
    "value": lambda: ValueError("too heavy"),
    "permission": lambda: PermissionError("not yours"),
    "file": lambda: PermissionError(13, "Permission denied", "/etc/secret"),
    "key": lambda: KeyError("secret"),
    "type": lambda: TypeError("secret"),
    "busy": lambda: LockContentionError("session 7 of db.internal", 5000),
    "lost": lambda: ConnectionLostError("lost the server at db.internal:5432, database app"),
    "standby": lambda: StandbyError("db.internal:5432 is a standby"),
    "conflict": lambda: StateConflictError("docks.crate", "c1"),
    "head": lambda: HeadMismatchError(expected=1, actual=2),
    "missing": lambda: NotFoundError("there is no crane 7"),
    "exit": lambda: SystemExit(3),
    "stop": lambda: StopIteration("secret"),
    "odd text": lambda: ValueError("\ud800 and \0"),
    "long": lambda: ValueError("x" * 10_000),
}
HELD = threading.Event()
"""Set while a command waits for GO."""
GO = threading.Event()


@api.model("docks.crate")
class DockCrate(DomainModel):
    ref: Field[str]
    status: Field[str] = "open"

    @api.on_command("crate.pack")
    def pack(self, cmd: Command) -> Any:
        """Pack a crate.

        Its `ref` is in the payload.
        """
        [crate] = self.env.models["docks.crate"].create({"ref": cmd.payload.get("ref", "")})
        self.env.emit("crate.packed", {"crate": crate.id})
        return crate.read()[0]

    @api.on_command("crate.seal")
    def seal(self, cmd: Command) -> Any:
        cmd.record.write({"status": "sealed"})
        return cmd.record.read()[0]

    @api.hook("pre.crate.seal")
    def only_once(self, cmd: Command) -> None:
        if cmd.record.read()[0]["status"] == "sealed":
            raise ValueError("it is sealed already")

    @api.on_command("crate.fail")
    def fail(self, cmd: Command) -> None:
        self.env.models["docks.crate"].create({"ref": "never"})
        self.env.emit("crate.packed", {"crate": "never"})
        if cmd.payload["error"] == "kilos":
            Weight.model_validate({"kilos": "many"})
        if cmd.payload["error"] == "command":
            self.env.dispatch(Command("crate.unknown", {}))
        raise ERRORS[cmd.payload["error"]]()

    @api.on_command("crate.watch")
    def watch(self, cmd: Command) -> None:
        self.env.models["docks.crate"].create({"ref": "never"})

    @api.hook("post.crate.watch")
    def refuse(self, cmd: Command) -> None:
        raise ERRORS[cmd.payload["error"]]()

    @api.on_command("crate.odd")
    def odd(self, cmd: Command) -> Any:
        self.env.models["docks.crate"].create({"ref": "never"})
        return threading.Lock() if cmd.payload.get("lock") else {"big": 2**70}

    @api.on_command("crate.hold")
    def hold(self, cmd: Command) -> str:
        HELD.set()
        assert GO.wait(PATIENCE)
        return self.env.models["docks.crate"].create({"ref": "held"}).id

    @api.on_command("crate/with spaces {and} more?")
    def strange(self, cmd: Command) -> dict[str, Any]:
        return {"payload": cmd.payload, "model_key": cmd.model_key, "model_id": cmd.model_id}


@contextmanager
def served(env: Env, *, token: str | None = TOKEN, **options: Any) -> Iterator[Server]:
    """A real server, in a thread."""
    listener = listen("127.0.0.1", 0)
    server = Server(create_app(env, token=token, **options), listener, env.session.config)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        GO.set()
        server.stop()
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def client(server: Server, **options: Any) -> Iterator[httpx.Client]:
    """A real client, with the token unless it is given other headers."""
    given = {"headers": AUTHORIZED, "timeout": PATIENCE} | options
    with httpx.Client(base_url=server.url, **given) as made:
        yield made


@contextmanager
def plain_socket(server: Server) -> Iterator[socket.socket]:
    """A client that sends whatever the test does."""
    address = server._listener.getsockname()
    with socket.create_connection(address, timeout=PATIENCE) as made:
        yield made


def heard(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def crates(env: Env) -> list[str]:
    return [each["ref"] for each in env.models["docks.crate"].search([]).read()]


def events(env: Env) -> list[str]:
    listed = env.session.event_store.list_events(env.session.namespace, limit=1000)
    return [each["type"] for each in listed]
