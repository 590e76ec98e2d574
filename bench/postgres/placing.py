"""Storing events: one a transaction, and many at once. What each promises then is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import psycopg

from bench.measure import Figure, Speed, progress, same, seconds
from bench.postgres.contenders import Bare, Contender, Ours, Producer
from bench.postgres.server import Databases

_SINGLES = 100
_BULK = 5_000
_ROUNDS = 9


def figures(databases: Databases) -> Iterator[Figure]:
    yield from _stored(
        databases, "one event a transaction", lambda some: some.each(range(_SINGLES)), _SINGLES
    )
    yield from _stored(
        databases, f"{_BULK:,} events at once", lambda some: some.together(range(_BULK)), _BULK
    )


def _stored(
    databases: Databases, title: str, work: Callable[[Producer], None], count: int
) -> Iterator[Speed]:
    contenders: tuple[Contender, ...] = (Bare(), Ours())
    times: dict[str, list[float]] = {each.name: [] for each in contenders}
    uris = {each.name: databases.uri(databases.made(each.make)) for each in contenders}
    with ExitStack() as stack, progress(f"{title}, {_ROUNDS} rounds"):
        producers = {
            each.name: stack.enter_context(each.producing(uris[each.name])) for each in contenders
        }
        for number in range(_ROUNDS + 1):
            for name, producer in producers.items():
                elapsed = seconds(partial(work, producer))
                if number:  # the first is to warm up
                    times[name].append(elapsed)
    for each in contenders:
        with psycopg.connect(uris[each.name]) as connection:
            [[stored]] = connection.execute(each.stored).fetchall()
        same(f"events that {each.name} stored", (_ROUNDS + 1) * count, stored)
    yield Speed(f"storing {title}", per=count, bare=times[Bare.name], ours=times[Ours.name])
