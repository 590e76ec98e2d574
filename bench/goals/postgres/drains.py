"""A backlog, handled by one, two and four processes, and how fast an idle process wakes."""

from __future__ import annotations

from collections.abc import Iterator

from bench.beside.harness import Harness, harness
from bench.goals import latency
from bench.goals.figures import Amount, Figure, Speed
from bench.measure import progress
from bench.orders import make_orders
from bench.stores import Databases

_BARE, _OURS = "bare-postgres-synced", "ontologia-postgres"
_EVENTS = 20_000
_PROCESSES = (1, 2, 4)
_ROUNDS = 5
_NAPPING = 3_000
_NAPPING_ROUNDS = 3


def figures(databases: Databases) -> Iterator[Figure]:
    with harness(databases) as stores:
        yield from _doing_nothing(stores)
        yield _napping(stores)
        stores.clear()
    yield from latency.waking(databases.made(make_orders), goal=10.0)


def _doing_nothing(stores: Harness) -> Iterator[Figure]:
    gained: list[Speed] = []
    for processes in _PROCESSES:
        title = f"{_EVENTS:,} events, handler does nothing, {_counted(processes)}"
        figure = Speed(title, per=_EVENTS)
        for number in range(_ROUNDS):
            for key, times in ((_BARE, figure.bare), (_OURS, figure.ours)):
                with progress(f"{key}, {_counted(processes)}, round {number + 1}"):
                    times.append(_drained(stores, key, "nothing", _EVENTS, processes))
        gained.append(figure)
        yield figure
    one, two = gained[:2]
    title = "what two processes gain: bare's gain, of ours"
    yield Amount(title, one.ratio / two.ratio, "x", 1.0)


def _napping(stores: Harness) -> Speed:
    figure = Speed("handler sleeps 2 ms, 2 processes (ours) beside 1 (bare)", 1.8, per=_NAPPING)
    for number in range(_NAPPING_ROUNDS):
        for processes, times in ((1, figure.bare), (2, figure.ours)):
            with progress(f"a handler that sleeps, {_counted(processes)}, round {number + 1}"):
                times.append(_drained(stores, _OURS, "nap", _NAPPING, processes))
    return figure


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _drained(stores: Harness, key: str, kind: str, count: int, processes: int) -> float:
    """Seconds for all events; of who takes too long, at the rate that it had until then."""
    with stores.filled(key, count) as where:
        drained = stores.drained(key, where, kind, count, processes=processes)
    return drained.seconds * count / max(1, drained.handled)
