"""Several processes that drain one file: what they cost each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.bare import sqlite_queue as bare_queue
from bench.bare import sqlite_state as bare
from bench.goals.figures import Amount, Figure, Ratio
from bench.goals.worker import launch
from bench.measure import progress, same
from bench.orders import build
from bench.processes import drain
from bench.stores import copied
from bench.workload import NOTHING

_EVENTS = 20_000
_NAPPING = 8_000  # so many that the start of eight processes is a small part
_PROCESSES = 8
_ROUNDS = 5
_NAPPING_ROUNDS = 3
_PATIENCE = 300.0  # seconds; only a hang takes that long


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    source = build(folder / "contended.db", _EVENTS, handler=NOTHING)
    figure = Ratio(f"{_EVENTS:,} events, {_PROCESSES} processes (ours) beside 1 (bare)", 1.45)
    waits: list[float] = []
    for number in range(_ROUNDS):
        with progress(f"1 process and {_PROCESSES}, round {number + 1} of {_ROUNDS}"):
            alone, _ = _round(source, 1)
            together, longest = _round(source, _PROCESSES)
        figure.bare.append(alone)
        figure.ours.append(together)
        waits.append(longest)
    yield figure
    yield Amount(f"  the longest claim of any of the {_PROCESSES}", max(waits) * 1e3, "ms", 250)
    yield _napping(build(folder / "napping.db", _NAPPING, handler=NOTHING))


def _napping(source: Path) -> Ratio:
    """A handler that takes 2 ms: eight processes should need an eighth of the time of one."""
    figure = Ratio(f"{_NAPPING:,} of 2 ms, {_PROCESSES} processes (all their time) beside 1", 1.1)
    for number in range(_NAPPING_ROUNDS):
        with progress(f"handlers that take 2 ms, round {number + 1} of {_NAPPING_ROUNDS}"):
            figure.bare.append(_round(source, 1, "nap")[0])
            figure.ours.append(_round(source, _PROCESSES, "nap")[0] * _PROCESSES)
    return figure


def _round(source: Path, processes: int, what: str = "drain") -> tuple[float, float]:
    """From a common start until everything is acknowledged, and the longest claim."""
    path = copied(source, "contended-round.db")
    with ExitStack() as stack:
        workers = [stack.enter_context(launch(what, path)) for _ in range(processes)]
        connection = stack.enter_context(bare.connected(path))
        drained = drain(
            workers, lambda: connection.execute(bare_queue.LEFT).get, patience=_PATIENCE
        )
        count = sum(report["handled"] for report in drained.reports)
        same("events handled", _EVENTS if what == "drain" else _NAPPING, count)
        bare_queue.check_all_acked(connection, count)
    return drained.seconds, max(report["longest"] for report in drained.reports)
