"""Several processes that drain one file: what they cost each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.measure import Amount, Figure, Ratio, progress, same
from bench.processes import Worker, start
from ontologia.bench import bare_queue
from ontologia.bench import bare_state as bare
from ontologia.bench.orders import NOTHING, build, copied

_EVENTS = 20_000
_NAPPING = 8_000  # so many that the start of eight processes is a small part
_PROCESSES = 8
_ROUNDS = 5
_NAPPING_ROUNDS = 3
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
    path = copied(source, "crowd-round.db")
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(what, path)) for _ in range(processes)]
        connection = stack.enter_context(bare.connected(path))
        started = start(workers)
        while connection.execute(_LEFT).get and workers[0].alive:
            time.sleep(_LOOK)
        elapsed = time.perf_counter() - started
        for worker in workers:
            worker.stop()
        reports = [worker.read() for worker in workers]
        count = sum(report["handled"] for report in reports)
        same("events handled", _EVENTS if what == "drain" else _NAPPING, count)
        wanted = {"waiting": 0, "claimed": 0, "acked": count}
        same("acknowledgements", wanted, bare_queue.states(connection))
    return elapsed, max(report["longest"] for report in reports)
