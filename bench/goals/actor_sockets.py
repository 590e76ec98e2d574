"""Requests over a Unix socket, beside a bare server that reads lines of JSON and sends them back.

One client in the same process asks, waits for the answer, and asks again. The loop checks each
message, finds who answers it, hands it over and brings the answer back; the bare server does
nothing but decode and encode. A timeout, which is the default, costs a request a timer only if it is
not answered within a moment.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson

from bench.goals.figures import Amount, Figure, Speed, compare
from ontologia.actors import Actor, ActorLoop, Capability, Message, UnixSocketAdapter

_REQUESTS = 3_000
_ROUNDS = 7


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.sock"
        yield compare(
            Speed("actors: requests on a Unix socket (bare: an echo)", 0.3, per=_REQUESTS),
            lambda: asyncio.run(_bare(path)),
            lambda: asyncio.run(_round(path)),
            rounds=_ROUNDS,
        )
        yield compare(
            Speed("actors: the same without timeouts", per=_REQUESTS),
            lambda: asyncio.run(_bare(path)),
            lambda: asyncio.run(_served(UnixSocketAdapter(path, timeout=None), path)),
            rounds=_ROUNDS,
        )
        times = [each for _ in range(3) for each in asyncio.run(_round(path))]
        median = statistics.median(times) * 1000
        yield Amount("actors: round trip on a Unix socket, median", median, "ms", 1.0)


class SocketAsk(Message):
    kind: Literal["query"]
    type: Literal["Bench.SocketAsk"]
    data: dict[str, Any]


class Answerer(Actor):
    async def handle(self, message: SocketAsk) -> None:
        self.reply(message, message.data)


async def _round(path: Path) -> list[float]:
    return await _served(UnixSocketAdapter(path), path)


async def _served(adapter: UnixSocketAdapter, path: Path) -> list[float]:
    capability = Capability(
        "answerer", "", inbound=SocketAsk, outbound=SocketAsk, subscribes=[], spawn=Answerer
    )
    async with ActorLoop([capability], adapters=[adapter]):
        return await _client(path)


async def _bare(path: Path) -> list[float]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = orjson.loads(line)
            message["kind"] = "reply"
            writer.write(orjson.dumps(message) + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        return await _client(path)
    finally:
        server.close()
        os.unlink(path)


async def _client(path: Path) -> list[float]:
    """How long each request took."""
    reader, writer = await asyncio.open_unix_connection(path)
    times: list[float] = []
    for n in range(_REQUESTS):
        started = time.perf_counter()
        metadata = {"id": f"r{n}", "timestamp": 1767910000000}
        message = {"kind": "query", "type": "Bench.SocketAsk", "data": {"n": n}}
        writer.write(orjson.dumps({**message, "metadata": metadata}) + b"\n")
        answer = orjson.loads(await reader.readline())
        assert answer["data"]["n"] == n
        times.append(time.perf_counter() - started)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.01)  # the server sees its end
    return times
