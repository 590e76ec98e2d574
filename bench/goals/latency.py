"""Two processes, one of them idle: how fast it wakes, and what it costs the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.goals.figures import Amount, Figure, Ratio
from bench.goals.worker import launch
from bench.measure import progress, quantile, same, seconds
from bench.orders import Order, build, open_orders, placed
from bench.processes import Worker, stopped
from bench.workload import NOTHING
from ontologia import Session

_SAMPLES = 150
_WARM = 10
_REST = 12.0
_FINISHED = 100_000
_BLOCK = 25
_BLOCKS = 12
_SETTLE = 0.5


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    yield from waking(build(folder / "waking.db", 0, handler=NOTHING), goal=3.0)
    yield _beside(build(folder / "beside.db", 0, handler=NOTHING, finished=_FINISHED))


def waking(where: str | Path, *, goal: float) -> Iterator[Figure]:
    """From the commit in this process to the start of the handler in the other.

    Both read the monotonic clock, which the processes of a machine share.
    """
    random = Random(7)
    since_return: list[float] = []
    since_call: list[float] = []
    with open_orders(where) as session, stopped(launch("listen", where)) as worker:
        for number in range(-_WARM, _SAMPLES):
            called = time.monotonic_ns()
            session.commit(event=placed(abs(number)))
            returned = time.monotonic_ns()
            started, _, order = worker.read()
            same("the event", f"o{abs(number):06d}", order)
            if number >= 0:
                since_return.append((started - returned) / 1e6)
                since_call.append((started - called) / 1e6)
            time.sleep(random.uniform(0.02, 0.05))
        idle = _processor_time(session, worker)
    title = "commit to the start of a handler in another process"
    for what, samples, most in (
        (title, since_return, goal),
        ("  with the commit itself", since_call, None),
    ):
        detail = f"p99 {quantile(samples, 0.99):.2f} ms"
        yield Amount(what, quantile(samples, 0.5), "ms", most, detail)
    yield Amount("processor time of the idle process, of one core", idle, "%", 0.5)


def _processor_time(session: Session, worker: Worker) -> float:
    """Percent of one core between two events that are far apart; one of them counts."""
    times: list[tuple[int, int]] = []
    with progress(f"two processes rest for {_REST:.0f} s"):
        for number in (1, 2):
            session.commit(event=placed(number))
            started, used, _ = worker.read()
            times.append((started, used))
            time.sleep(_REST if number == 1 else 0)
    (first, before), (last, after) = times
    return 100 * (after - before) / (last - first)


def _beside(path: Path) -> Ratio:
    """Commits of one entity, in blocks: an idle process beside (ours), and none (bare)."""
    title = f"p95 of a commit, an idle process beside, {_FINISHED:,} finished"
    figure = Ratio(title, 1.5, share=0.95)
    version = 0
    with open_orders(path) as session, progress(f"{2 * _BLOCKS} blocks of {_BLOCK} commits"):
        for _ in range(_BLOCKS):
            time.sleep(_SETTLE)
            version += 1
            figure.bare += _block(session, version)
            with stopped(launch("listen", path)) as worker:
                session.commit(event=placed(version))
                worker.read()
                time.sleep(_SETTLE)
                version += 1
                figure.ours += _block(session, version)
    return figure


def _block(session: Session, version: int) -> list[float]:
    times: list[float] = []
    for number in range(_BLOCK):
        session.ensure(Order(id=f"o{number:06d}", customer="c1", total=version + 0.5))
        times.append(seconds(session.commit))
    return times
