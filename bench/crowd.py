"""Several processes that drain one file: what they cost each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import bare, bare_queue
from bench.measure import Amount, Figure, Ratio, progress, same
from bench.orders import NOTHING, build, copied
from bench.processes import Worker, start

_EVENTS = 20_000
_PROCESSES = 8
_ROUNDS = 5
_LOOK = 0.005
_LEFT = (
    "SELECT EXISTS (SELECT 1 FROM incoming) OR EXISTS (SELECT 1 FROM ready) "
    "OR EXISTS (SELECT 1 FROM event_claims WHERE due_at IS NOT NULL)"
)


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    source = build(folder / "crowd.db", _EVENTS, handler=NOTHING)
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


def _round(source: Path, processes: int) -> tuple[float, float]:
    """From a common start until everything is acknowledged, and the longest claim."""
    path = copied(source, "crowd-round.db")
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("drain", path)) for _ in range(processes)]
        connection = stack.enter_context(bare.connected(path))
        started = start(workers)
        while connection.execute(_LEFT).get and workers[0].alive:
            time.sleep(_LOOK)
        elapsed = time.perf_counter() - started
        for worker in workers:
            worker.stop()
        reports = [worker.read() for worker in workers]
        same("events handled", _EVENTS, sum(report["handled"] for report in reports))
        wanted = {"waiting": 0, "claimed": 0, "acked": _EVENTS}
        same("acknowledgements", wanted, bare_queue.states(connection))
    return elapsed, max(report["longest"] for report in reports)
