"""Two actors that send each other messages through the loop, beside two tasks and bare queues.

Both copy each message by way of JSON. A bare queue does nothing else; the loop also checks each
message at both ends, finds who gets it, and yields after each.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any, Literal

import orjson
from pydantic import BaseModel

from bench.goals import actor_sockets
from bench.goals.figures import Figure, Speed, compare
from bench.workload import fields
from ontologia.actors import Actor, ActorLoop, Capability, Message

_STREAM = 20_000
_ROUND_TRIPS = 10_000
_ROUNDS = 7
_TOTAL = sum(n + 0.5 for n in range(_STREAM))


def figures() -> Iterator[Figure]:
    title = "actors: events from one to another (bare: a queue)"
    yield compare(
        Speed(title, 0.25, per=_STREAM),
        lambda: asyncio.run(_bare_stream()),
        lambda: asyncio.run(_stream()),
        rounds=_ROUNDS,
    )
    title = "actors: one asks, the other answers (bare: two queues)"
    yield compare(
        Speed(title, 0.25, per=2 * _ROUND_TRIPS),
        lambda: asyncio.run(_bare_round_trips()),
        lambda: asyncio.run(_round_trips()),
        rounds=_ROUNDS,
    )
    yield from actor_sockets.figures()


class Order(BaseModel):
    order_id: str
    customer: str
    total: float
    items: list[str]


class Begin(Message):
    kind: Literal["command"]
    type: Literal["Bench.Begin"]


class Placed(Message):
    kind: Literal["event"]
    type: Literal["Bench.Placed"]
    data: Order


class Ask(Message):
    kind: Literal["query"]
    type: Literal["Bench.Ask"]
    data: Order


# -- through the loop -----------------------------------------------------------------------------


class Source(Actor):
    async def handle(self, message: Begin) -> None:
        for n in range(_STREAM):
            self.emit("Bench.Placed", fields(n))
        self.reply(message)


class Sink(Actor):
    def __init__(self) -> None:
        self.total = 0.0

    async def handle(self, message: Placed) -> None:
        self.total += message.data.total


async def _stream() -> None:
    sink = Sink()
    source = Capability("source", "", inbound=Begin, outbound=Placed, subscribes=[], spawn=Source)
    heard = ["Bench.Placed"]
    to = Capability(
        "sink", "", inbound=Placed, outbound=Placed, subscribes=heard, spawn=lambda: sink
    )
    loop = ActorLoop([source, to])
    loop.enqueue(Message.command("Bench.Begin"))
    await loop.run()
    assert sink.total == _TOTAL


class Asker(Actor):
    async def handle(self, message: Begin) -> None:
        for n in range(_ROUND_TRIPS):
            answer = await self.request(Message.query("Bench.Ask", fields(n)))
            assert answer.data["total"] == n + 0.5
        self.reply(message)


class Answerer(Actor):
    async def handle(self, message: Ask) -> None:
        self.reply(message, message.data)


async def _round_trips() -> None:
    asker = Capability("asker", "", inbound=Begin, outbound=Ask, subscribes=[], spawn=Asker)
    other = Capability("other", "", inbound=Ask, outbound=Ask, subscribes=[], spawn=Answerer)
    loop = ActorLoop([asker, other])
    loop.enqueue(Message.command("Bench.Begin"))
    await loop.run()


# -- bare -----------------------------------------------------------------------------------------


def _copied(n: int) -> Any:
    metadata = {"id": f"{n:025x}", "timestamp": 1767910000000, "causation": f"{n:025x}"}
    kind = {"kind": "event", "type": "Bench.Placed", "data": fields(n), "metadata": metadata}
    return orjson.loads(orjson.dumps(kind))


async def _bare_stream() -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def source() -> None:
        for n in range(_STREAM):
            await queue.put(_copied(n))

    async def sink() -> float:
        return math.fsum([(await queue.get())["data"]["total"] for _ in range(_STREAM)])

    _, total = await asyncio.gather(source(), sink())
    assert total == _TOTAL


async def _bare_round_trips() -> None:
    asked: asyncio.Queue[Any] = asyncio.Queue()
    answered: asyncio.Queue[Any] = asyncio.Queue()

    async def asker() -> None:
        for n in range(_ROUND_TRIPS):
            await asked.put(_copied(n))
            assert (await answered.get())["data"]["total"] == n + 0.5

    async def other() -> None:
        for _ in range(_ROUND_TRIPS):
            message = await asked.get()
            await answered.put(_copied(int(message["data"]["total"])))

    await asyncio.gather(asker(), other())
