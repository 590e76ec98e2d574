"""Whatever is sent to the socket: each line is answered once, nothing crashes, and it goes on.

`ONTOLOGIA_FUZZ_LINES` says how many lines; the default is for every day.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.actor_world import Client, connected, echoing, line, serving

LINES = int(os.environ.get("ONTOLOGIA_FUZZ_LINES", "5000"))
LIMIT = 20_000
_BATCH = 50


def _cut(draw: random.Random, whole: bytes) -> bytes:
    return whole[: draw.randrange(1, len(whole))]


def _bytes(draw: random.Random, whole: bytes) -> bytes:
    changed = bytearray(whole)
    for _ in range(draw.randrange(1, 6)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _noise(draw: random.Random, _: bytes) -> bytes:
    return draw.randbytes(draw.randrange(1, 200))


def _long(draw: random.Random, whole: bytes) -> bytes:
    return whole + b"x" * draw.randrange(LIMIT, 3 * LIMIT)


def _deep(draw: random.Random, whole: bytes) -> bytes:
    depth = draw.choice([100, 199, 200, 254, 255, 1_000, 9_000])
    inside = draw.choice([b"[" * depth + b"]" * depth, b'{"a":' * (depth // 5) + b"["])
    return whole.replace(b"{}", inside, 1)


def _twice(draw: random.Random, whole: bytes) -> bytes:
    return whole + whole


def _moved(draw: random.Random, whole: bytes) -> bytes:
    """A part of the line somewhere else."""
    first, second = sorted((draw.randrange(len(whole)), draw.randrange(len(whole))))
    return whole[first:second] + whole[:first] + whole[second:]


def _value(draw: random.Random, whole: bytes) -> bytes:
    """Valid JSON of the wrong shape."""
    message = json.loads(whole)
    odd: list[Any] = [None, True, 0, -1, 2**64, 1e300, "", "x", [], [1], {}, {"id": 7}]
    place = draw.choice(["kind", "type", "data", "metadata", "id", "timestamp", "causation"])
    inside = message if place in message else message["metadata"]
    inside[place] = draw.choice(odd)
    if draw.random() < 0.2:
        del inside[place]
    return json.dumps(message).encode()


WAYS = [_cut, _bytes, _noise, _deep, _twice, _moved, _value]


def _lines(draw: random.Random, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        way = _long if draw.random() < 0.01 else draw.choice(WAYS)
        made = way(draw, line(data={}).rstrip()).replace(b"\n", b"")
        # Events are not answered; nor are blank lines.
        if made.strip() and b"event" not in made:
            found.append(made)
    return found


async def _pieces(client: Client, draw: random.Random, text: bytes) -> None:
    """Send a text in pieces that know nothing of its lines."""
    at = 0
    while at < len(text):
        step = draw.choice([1, 10, 1_000, 100_000])
        client.writer.write(text[at : at + step])
        at += step
        await asyncio.sleep(0)
    await client.writer.drain()


async def _one_client(path: Any, seed: int, count: int) -> Counter[str]:
    draw = random.Random(seed)
    said: Counter[str] = Counter()
    async with connected(path) as client:
        for _ in range(0, count, _BATCH):
            lines = _lines(draw, _BATCH)
            await _pieces(client, draw, b"\n".join(lines) + b"\n")
            answers = [await client.read() for _ in lines]
            rest = await client.answers_before(line(data={"n": 1}))
            assert rest == [], (lines, rest)
            assert {each["kind"] for each in answers} <= {"error", "reply"}
            said.update(each["type"] for each in answers)
    return said


@pytest.mark.req("CQR-074", "CQR-078")
@pytest.mark.parametrize("seed", range(5))
def test_every_line_has_one_answer_whatever_is_in_it(tmp_path, seed):
    path = tmp_path / "o.sock"

    async def main() -> Counter[str]:
        _, echo = echoing()
        async with serving(path, [echo], line_limit=LIMIT) as (loop, _):
            share = LINES // 20
            found = await asyncio.gather(
                *(_one_client(path, 4 * seed + n, share) for n in range(4))
            )
            assert loop.metrics()["signals"].get("Sys.LoopFault", 0) == 0
            return sum(found, Counter())

    said = asyncio.run(main())

    assert said["Sys.InvalidMessage"] > LINES // 10, said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["command", "query", "reply", "error", "wish"]) | JSON,
        "type": st.sampled_from(["Echo.Ask", "No.Such", "Sys.Thing", "echo"]) | JSON,
        "data": JSON,
        "metadata": st.fixed_dictionaries(
            {}, optional={"id": st.text() | JSON, "timestamp": st.integers() | JSON}
        )
        | JSON,
        "more": JSON,
    },
).map(lambda value: json.dumps(value).encode())
ANY = (SHAPED | JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=300)).map(
    lambda text: text.replace(b"\n", b"")
)


@pytest.mark.req("CQR-074")
def test_every_line_that_hypothesis_thinks_of_has_one_answer(tmp_path):
    path = tmp_path / "o.sock"

    async def main() -> None:
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            host = asyncio.get_running_loop()

            @settings(
                max_examples=max(30, LINES // 100),
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            @given(st.lists(ANY, max_size=10))
            def each(lines: list[bytes]) -> None:
                asyncio.run_coroutine_threadsafe(check(lines), host).result(60)

            async def check(lines: list[bytes]) -> None:
                sent = [each for each in lines if each.strip() and b"event" not in each]
                await client.send(*[each + b"\n" for each in sent])
                answers = [await client.read() for _ in sent]
                assert {answer["kind"] for answer in answers} <= {"error", "reply"}
                assert await client.answers_before(line()) == []

            await asyncio.to_thread(each)

    asyncio.run(main())
