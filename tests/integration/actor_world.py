"""A loop on real sockets, and clients that talk to it in lines, for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Literal

from ontologia.actors import Actor, ActorLoop, Capability, Message, UnixSocketAdapter
from tests.integration.running import PATIENCE

_ids = count(1)


class EchoAsk(Message):
    """Answered with its own data; with `size`, with that many letters; never, if `held`."""

    kind: Literal["query"]
    type: Literal["Echo.Ask"]
    data: dict[str, Any]


class EchoSet(Message):
    kind: Literal["command"]
    type: Literal["Echo.Set"]
    data: dict[str, Any]


class EchoActor(Actor):
    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.seen: list[Message] = []

    async def handle(self, message: EchoAsk | EchoSet) -> None:
        self.seen.append(message)
        if message.data.get("held"):
            await self.go.wait()
        if isinstance(message, EchoSet):
            self.emit("Echo.Changed", message.data)
        if "size" in message.data:
            self.reply(message, {"text": "x" * message.data["size"]})
        elif not message.data.get("silent"):
            self.reply(message, message.data)


class Listener(Actor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    async def handle(self, message: Message) -> None:
        self.heard.append(message)


class Deaf(Message):
    kind: Literal["event"]
    type: Literal["Deaf.Ear"]


def listening(*types: str) -> tuple[Listener, Capability]:
    listener = Listener()
    named = f"listener-{next(_ids)}"
    return listener, Capability(
        named, "", inbound=Deaf, outbound=Message, subscribes=types, spawn=lambda: listener
    )


def echoing() -> tuple[EchoActor, Capability]:
    actor = EchoActor()
    return actor, Capability(
        "echo",
        "Says the same",
        inbound=EchoAsk | EchoSet,
        outbound=Message,
        subscribes=(),
        spawn=lambda: actor,
    )


def line(
    type: str = "Echo.Ask", data: Any = None, *, kind: str = "query", **metadata: Any
) -> bytes:
    found = {"id": f"t{next(_ids)}", "timestamp": 1767910000000, **metadata}
    message = {"kind": kind, "type": type, "data": data or {}, "metadata": found}
    return json.dumps(message).encode() + b"\n"


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))
        await self.writer.drain()

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            found = await self.reader.readline()
        assert found.endswith(b"\n"), found
        return json.loads(found)

    async def ended(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read() == b""

    async def ask(self, type: str = "Echo.Ask", data: Any = None, **more: Any) -> dict[str, Any]:
        await self.send(line(type, data, **more))
        return await self.read()

    async def answers_before(self, mark: bytes) -> list[dict[str, Any]]:
        """What is said until the answer to `mark`, a line that was just sent or is now."""
        wanted = json.loads(mark)["metadata"]["id"]
        await self.send(mark)
        found: list[dict[str, Any]] = []
        while (answer := await self.read())["metadata"].get("causation") != wanted:
            found.append(answer)
        assert answer["kind"] == "reply"
        return found

    async def close(self) -> None:
        if self.writer.transport.get_write_buffer_size():
            self.writer.transport.abort()  # nobody reads it, and to wait for that would be for ever
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def serving(
    path: Any, capabilities: list[Capability], **options: Any
) -> AsyncIterator[tuple[ActorLoop, UnixSocketAdapter]]:
    adapter = UnixSocketAdapter(path, **options)
    async with ActorLoop(capabilities, adapters=[adapter]) as loop:
        yield loop, adapter


@asynccontextmanager
async def connected(path: Any, limit: int = 2**26) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_unix_connection(path, limit=limit))
    try:
        yield client
    finally:
        await client.close()


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what another task or thread does."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it may be a thread's, or a database's
            await asyncio.sleep(0.001)
