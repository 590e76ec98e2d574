"""A memory, a counter of events, actors that misbehave, and an adapter without a transport."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Literal

from pydantic import BaseModel

from ontologia.actors import Actor, ActorLoop, Capability, Message


class SetData(BaseModel):
    key: str
    value: int


class MemorySet(Message):
    kind: Literal["command"]
    type: Literal["Memory.Set"]
    data: SetData


class KeyData(BaseModel):
    key: str


class MemoryGet(Message):
    kind: Literal["query"]
    type: Literal["Memory.Get"]
    data: KeyData


class MemoryChanged(Message):
    kind: Literal["event"]
    type: Literal["Memory.Changed"]
    data: SetData


class MemoryActor(Actor):
    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    async def handle(self, message: MemorySet | MemoryGet) -> None:
        if isinstance(message, MemorySet):
            self.kept[message.data.key] = message.data.value
            self.emit("Memory.Changed", message.data)
            self.reply(message, {"stored": True})
        elif message.data.key in self.kept:
            self.reply(message, {"value": self.kept[message.data.key]})
        else:
            self.fail(message, 404, f"there is no {message.data.key}")


MEMORY = Capability(
    "memory",
    "Remembers things",
    inbound=MemorySet | MemoryGet,
    outbound=MemoryChanged,
    subscribes=[],
    spawn=MemoryActor,
)


def set_(key="a", value=1, **more):
    return Message.command("Memory.Set", {"key": key, "value": value}, **more)


def get(key="a", **more):
    return Message.query("Memory.Get", {"key": key}, **more)


class Ear(Actor):
    """Keeps what it is told of."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self._more = asyncio.Event()

    async def handle(self, message: Message) -> None:
        self.heard.append(message)
        self._more.set()

    async def wait_for(self, count=1):
        while len(self.heard) < count:
            self._more.clear()
            await self._more.wait()
        return self.heard

    @property
    def types(self):
        return [each.type for each in self.heard]


class Nothing(Message):
    kind: Literal["command"]
    type: Literal["Ear.Nothing"]


class EarTwo(Message):
    kind: Literal["command"]
    type: Literal["Ear.Two"]


def ear(*types, actor=None, id="ear", inbound=Nothing):
    """An actor that listens to these types, and its capability."""
    actor = actor or Ear()
    return actor, Capability(
        id,
        "Listens",
        inbound=inbound,
        outbound=Message,
        subscribes=list(types),
        spawn=lambda: actor,
    )


def of(handle, *, kind="command", type="Do.It", outbound=Message, id="doer", subscribes=()):
    """A capability whose actor handles one type by this function of actor and message."""

    class It(Message):
        kind: Literal["command", "query", "event"]
        type: str

    narrowed = {"kind": Literal[kind], "type": Literal[type]}
    it = __import__("builtins").type("It", (Message,), {"__annotations__": narrowed})

    class Doer(Actor):
        async def handle(self, message):
            await handle(self, message)

    return Capability(
        id, "Does it", inbound=it, outbound=outbound, subscribes=list(subscribes), spawn=Doer
    )


class Desk:
    """An adapter whose connections are lists."""

    def __init__(self, id="desk", timeout=None) -> None:
        self.id, self.timeout, self.active, self.buffered = id, timeout, True, 0
        self.loop: Any = None
        self.stopped = False
        self.got: dict[str, list[Message]] = {}
        self._more = asyncio.Event()

    async def start(self, loop: Any) -> None:
        self.loop = loop

    async def stop(self) -> None:
        self.active, self.stopped = False, True

    def deliver(self, connection_id: str, message: Message) -> None:
        self.got.setdefault(connection_id, []).append(message)
        self._more.set()

    def send(self, message, connection_id="c1"):
        self.loop.receive(self, connection_id, message)

    def close(self, connection_id="c1"):
        self.loop.disconnected(self, connection_id)

    async def wait_for(self, count=1, connection_id="c1"):
        while len(self.got.get(connection_id, ())) < count:
            self._more.clear()
            await self._more.wait()
        return self.got[connection_id]

    async def ask(self, message, connection_id="c1"):
        self.send(message, connection_id)
        return (await self.wait_for(len(self.got.get(connection_id, ())) + 1, connection_id))[-1]


def run(story):
    """Tell a story, which must come to an end."""
    return asyncio.run(asyncio.wait_for(story, 20))


def beside(capabilities, story, adapters=()):
    """Tell `story(loop)` beside a running loop."""

    async def told():
        async with ActorLoop(capabilities, adapters=adapters) as loop:
            return await story(loop)

    return run(told())


async def never(self, message):
    """Handle a message, without an end."""
    await asyncio.Event().wait()


async def until(condition):
    """Let the others run until this holds; for what has no event of its own."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


async def calm(loop: ActorLoop):
    """Wait until nothing is in the lanes or in a mailbox."""
    await until(lambda: are_empty(loop) and not any(loop.metrics()["mailboxes"].values()))


def are_empty(loop: ActorLoop):
    """Whether nothing is in the lanes."""
    return not any(loop.metrics()["lanes"].values())


# -- in processes of their own ---------------------------------------------------------------------


class Die(Message):
    kind: Literal["command"]
    type: Literal["Risky.Die"]


class Sleep(Message):
    kind: Literal["command"]
    type: Literal["Risky.Sleep"]


class Who(Message):
    kind: Literal["query"]
    type: Literal["Risky.Who"]


class Relay(Message):
    kind: Literal["query"]
    type: Literal["Risky.Relay"]
    data: KeyData


class Raise(Message):
    kind: Literal["command"]
    type: Literal["Risky.Raise"]


class RiskyActor(Actor):
    async def handle(self, message: Die | Sleep | Who | Relay | Raise) -> None:
        if isinstance(message, Die):
            os._exit(3)
        elif isinstance(message, Sleep):
            time.sleep(3600)  # noqa: ASYNC251 - that is the point
        elif isinstance(message, Raise):
            raise ValueError("not today")  # noqa: TRY004
        elif isinstance(message, Relay):
            answer = await self.request(Message.query("Memory.Get", {"key": message.data.key}))
            self.reply(message, answer.data)
        else:
            self.emit("Risky.Asked", {"pid": os.getpid()})
            self.reply(message, {"pid": os.getpid()})


class UnbornActor(Actor):
    def __init__(self) -> None:
        raise OSError("no room")


def risky(spawn=RiskyActor):
    return Capability(
        "risky",
        "May die",
        inbound=Die | Sleep | Who | Relay | Raise,
        outbound=Message,
        subscribes=[],
        spawn=spawn,
        isolation="process",
    )
