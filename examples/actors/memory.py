"""A capability of one's own: it remembers things, for programs in any language.

Run by itself it serves, asks and ends. With a path it serves there until it is stopped:

    python memory.py run/memory.sock

and, in another terminal,

    ontologia call --socket run/memory.sock \
        '{"kind": "command", "type": "Memory.Set", "data": {"name": "color", "value": "red"}}'
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, JsonValue

from ontologia.actors import Actor, ActorLoop, Capability, Message, UnixSocketAdapter


class SetData(BaseModel):
    name: str
    value: JsonValue


class GetData(BaseModel):
    name: str


class MemorySet(Message):
    kind: Literal["command"]
    type: Literal["Memory.Set"]
    data: SetData


class MemoryGet(Message):
    kind: Literal["query"]
    type: Literal["Memory.Get"]
    data: GetData


class MemoryChanged(Message):
    kind: Literal["event"]
    type: Literal["Memory.Changed"]
    data: GetData


class MemoryActor(Actor):
    """Handles one message at a time, so that it needs no locks."""

    def __init__(self) -> None:
        self._known: dict[str, JsonValue] = {}

    async def handle(self, message: MemorySet | MemoryGet) -> None:
        name = message.data.name
        if isinstance(message, MemorySet):
            self._known[name] = message.data.value
            self.emit("Memory.Changed", {"name": name})
            self.reply(message)
        elif name in self._known:
            self.reply(message, {"value": self._known[name]})
        else:
            self.fail(message, 404, f"nothing is known of {name}")


memory = Capability(
    "memory",
    "Remembers things",
    inbound=MemorySet | MemoryGet,
    outbound=MemoryChanged,
    subscribes=[],
    spawn=MemoryActor,
)


async def show(path: Path) -> None:
    """Serve, and ask as a client would."""
    async with ActorLoop([memory], adapters=[UnixSocketAdapter(path)]):
        print("serving", memory.id, "at", path.name)
        reader, writer = await asyncio.open_unix_connection(path)
        for message in (
            Message.command("Memory.Set", {"name": "color", "value": "red"}),
            Message.query("Memory.Get", {"name": "color"}),
            Message.query("Memory.Get", {"name": "sound"}),
        ):
            writer.write(message.to_json() + b"\n")
            answer = Message.from_json(await reader.readline())
            print(message.type, "->", answer.kind, answer.data)
        writer.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            asyncio.run(ActorLoop([memory], adapters=[UnixSocketAdapter(sys.argv[1])]).run())
        except KeyboardInterrupt:
            print("stopped")
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(show(Path(folder) / "memory.sock"))
