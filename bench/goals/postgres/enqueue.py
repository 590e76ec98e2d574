"""Storing events: one a transaction, and many at once. What each promises then is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import psycopg

from bench.beside.contenders.bare_postgres import BareOnPostgres
from bench.beside.contenders.contender import Producer
from bench.beside.contenders.ours import OursOnPostgres
from bench.goals.figures import Figure, Speed
from bench.measure import progress, same, seconds
from bench.stores import Databases
from bench.workload import fields

_SINGLES = 100
_BULK = 5_000
_ROUNDS = 9


def figures(databases: Databases) -> Iterator[Figure]:
    singles = [fields(number) for number in range(_SINGLES)]
    bulk = [fields(number) for number in range(_BULK)]
    yield _stored(databases, "one event a transaction", lambda some: some.each(singles), _SINGLES)
    yield _stored(databases, f"{_BULK:,} events at once", lambda some: some.together(bulk), _BULK)


def _stored(
    databases: Databases, title: str, work: Callable[[Producer], None], count: int
) -> Speed:
    figure = Speed(f"storing {title}", per=count)
    sides = [(BareOnPostgres(), figure.bare), (OursOnPostgres(), figure.ours)]
    uris = [databases.made(contender.make) for contender, _ in sides]
    with ExitStack() as stack, progress(f"{title}, {_ROUNDS} rounds"):
        producers = [
            stack.enter_context(contender.producing(uri))
            for (contender, _), uri in zip(sides, uris, strict=True)
        ]
        for number in range(_ROUNDS + 1):
            for producer, (_, times) in zip(producers, sides, strict=True):
                elapsed = seconds(partial(work, producer))
                if number:  # the first is to warm up
                    times.append(elapsed)
    for uri in uris:
        with psycopg.connect(uri) as connection:
            [[stored]] = connection.execute("SELECT COUNT(*) FROM ontologia.incoming").fetchall()
        same("events that were stored", (_ROUNDS + 1) * count, stored)
    return figure
