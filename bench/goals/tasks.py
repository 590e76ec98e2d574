"""Asyncio: many tasks that commit at once, beside one that commits one object after the other."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator

from bench.goals.figures import Figure, Speed
from bench.measure import progress, same
from ontologia import AsyncSession, Entity, Field

_TASKS = 100
_EACH = 10
_ROUNDS = 5


class BenchSlot(Entity):
    """What a task writes."""

    id: Field[str]
    number: Field[int]


def figures() -> Iterator[Figure]:
    """On SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        yield commits(f"sqlite:///{folder}/tasks.db")


def commits(uri: str) -> Figure:
    """One object a commit, in a store that is there, or can be made."""
    title = f"{_TASKS} tasks (ours) that commit one object each, beside one"
    figure = Speed(title, goal=3, per=_TASKS * _EACH)
    with progress(title):
        asyncio.run(_rounds(uri, figure))
    return figure


async def _rounds(uri: str, figure: Speed) -> None:
    async with AsyncSession(uri, entity_types=[BenchSlot]) as session:
        await _commit(session, "first", 1)
        for _ in range(_ROUNDS):
            head = await session.head
            started = time.perf_counter()
            await _commit(session, "alone", _TASKS * _EACH)
            figure.bare.append(time.perf_counter() - started)
            started = time.perf_counter()
            await asyncio.gather(*(_commit(session, f"s{n}", _EACH) for n in range(_TASKS)))
            figure.ours.append(time.perf_counter() - started)
            same("commits", 2 * _TASKS * _EACH, await session.head - head)


async def _commit(session: AsyncSession, id: str, times: int) -> None:
    for _ in range(times):
        session.ensure(BenchSlot(id=id, number=time.perf_counter_ns()))
        await session.commit()
