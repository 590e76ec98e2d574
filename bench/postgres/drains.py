"""A backlog, handled by one, two and four processes, and how fast an idle process wakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg

from bench import latency
from bench.measure import Amount, Figure, Speed, progress, same
from bench.postgres.contenders import Bare, Contender, Ours, fill
from bench.postgres.server import Databases
from bench.processes import Worker, start
from ontologia.bench.orders import make_orders

_EVENTS = 20_000
_PROCESSES = (1, 2, 4)
_ROUNDS = 5
_NAPPING = 3_000
_NAPPING_ROUNDS = 3
_LOOK = 0.02
_PATIENCE = 30.0
"""Seconds: whoever is slower is stopped, and what it did until then is taken for its rate."""


def figures(databases: Databases) -> Iterator[Figure]:
    yield from _doing_nothing(databases)
    yield _napping(databases)
    yield from latency.waking(databases.uri(databases.made(make_orders)), goal=10.0)


def _doing_nothing(databases: Databases) -> Iterator[Figure]:
    contenders: Sequence[Contender] = (Bare(), Ours())
    with progress(f"{_EVENTS:,} events for each of {len(contenders)}"):
        filled = {each.name: databases.made(_filling(each, _EVENTS)) for each in contenders}
    gained: list[Speed] = []
    for processes in _PROCESSES:
        times: dict[str, list[float]] = {each.name: [] for each in contenders}
        for number in range(_ROUNDS):
            for each in contenders:
                with (
                    progress(f"{each.name}, {_counted(processes)}, round {number + 1}"),
                    databases.copied(filled[each.name]) as uri,
                ):
                    workers = [each.worker] * processes
                    times[each.name].append(_drained(each, uri, workers, _EVENTS))
        title = f"{_EVENTS:,} events, handler does nothing, {_counted(processes)}"
        figure = Speed(title, per=_EVENTS, bare=times[Bare.name], ours=times[Ours.name])
        gained.append(figure)
        yield figure
    one, two = gained[:2]
    title = "what two processes gain: bare's gain, of ours"
    yield Amount(title, one.ratio / two.ratio, "x", 1.0)


def _napping(databases: Databases) -> Speed:
    ours = Ours()
    filled = databases.made(_filling(ours, _NAPPING))
    figure = Speed("handler sleeps 2 ms, 2 processes (ours) beside 1 (bare)", 1.8, per=_NAPPING)
    for number in range(_NAPPING_ROUNDS):
        for processes, times in ((1, figure.bare), (2, figure.ours)):
            with (
                progress(f"a handler that sleeps, {_counted(processes)}, round {number + 1}"),
                databases.copied(filled) as uri,
            ):
                times.append(_drained(ours, uri, [_napper] * processes, _NAPPING))
    return figure


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _napper(uri: str) -> Worker:
    return Worker("nap", uri)


def _filling(contender: Contender, count: int) -> Callable[[str], None]:
    return lambda uri: fill(contender, uri, count)


def _drained(
    contender: Contender, uri: str, workers: Sequence[Callable[[str], Worker]], count: int
) -> float:
    """Seconds from a common start until everything is acknowledged."""
    with ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(uri, autocommit=True))
        running = [stack.enter_context(worker(uri)) for worker in workers]
        started = start(running)
        while (
            (left := _answer(connection, contender.left))
            and time.perf_counter() < started + _PATIENCE
            and any(worker.alive for worker in running)
        ):
            time.sleep(_LOOK)
        elapsed = time.perf_counter() - started
        share = max(1, _answer(connection, contender.finished)) / count if left else 1
        for worker in running:
            worker.stop()
        handled = sum(worker.read()["handled"] for worker in running)
        if not left:
            same(f"events that {contender.name} handled", count, handled)
        finished = _answer(connection, contender.finished)
        same(f"events that {contender.name} finished", handled, finished)
    return elapsed / share


def _answer(connection: psycopg.Connection[Any], question: str) -> Any:
    [[answer]] = connection.execute(question).fetchall()
    return answer
