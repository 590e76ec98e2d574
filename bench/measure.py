"""Rounds, ratios and verdicts.

Rounds alternate (bare, ours, bare, ours ...), so that whatever else the machine does falls on
both. The verdict goes by the ratio of the medians; the ratio of the best rounds stands beside it
and tells how much of the difference is noise.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
HEADINGS = f"{'figure':<58}{'bare, median (best)':>20}{'ours, median (best)':>21}{'ratio (best)':>15}  goal"


@dataclass
class Ratio:
    """One figure: how long both take, and how many times longer ours may take."""

    title: str
    goal: float | None = None
    per: int = 1
    """How many operations one round holds; times are shown for one."""
    bare: list[float] = field(default_factory=list[float])
    ours: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.bare)

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.ratio > self.goal

    def __str__(self) -> str:
        best = min(self.ours) / min(self.bare)
        ratio = f"{self.ratio:.2f} ({best:.2f})"
        return _line(self, self._times(self.bare), self._times(self.ours), ratio)

    def _times(self, rounds: list[float]) -> str:
        median, best = statistics.median(rounds) / self.per, min(rounds) / self.per
        size, unit = next((u for u in _UNITS if median >= u[0]), _UNITS[-1])
        return f"{median / size:.3g} ({best / size:.3g}) {unit}"


@dataclass
class Count:
    """One figure that is a number, and how great it may be."""

    title: str
    count: int
    goal: float | None = None
    detail: str = ""

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.count > self.goal

    def __str__(self) -> str:
        return _line(self, "", f"{self.count:,}", self.detail)


Figure = Ratio | Count


def _line(figure: Figure, bare: str, ours: str, ratio: str) -> str:
    verdict = "-"
    if figure.goal is not None:
        verdict = f"{figure.goal:<5g}{'MISSED' if figure.missed else 'ok'}"
    return f"{figure.title:<58}{bare:>20}{ours:>21}{ratio:>15}  {verdict}"


def compare(
    figure: Ratio, bare: Callable[[], object], ours: Callable[[], object], *, rounds: int
) -> Ratio:
    """Fill in a figure: one round of each to warm up, then `rounds` of each in turn."""
    bare(), ours()
    for _ in range(rounds):
        figure.bare.append(seconds(bare))
        figure.ours.append(seconds(ours))
    return figure


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes. Its result is freed after the clock has stopped.

    The garbage collector runs as it does for a user, but does not see what the benchmark holds.
    """
    gc.collect()
    gc.freeze()
    try:
        started = time.perf_counter()
        result = work()
        elapsed = time.perf_counter() - started
    finally:
        gc.unfreeze()
    del result
    return elapsed


def same(what: str, bare: object, ours: object) -> None:
    """Stop here if the two sides do not give the same answer: their times would mean nothing."""
    if bare != ours:
        shown = f"{str(bare)[:300]}\n{str(ours)[:300]}"
        raise SystemExit(f"{what}: bare and ours differ, nothing was measured\n{shown}")


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on stderr what is being done, and how long it took."""
    print(f"  {what} ...", end="", file=sys.stderr, flush=True)
    started = time.perf_counter()
    yield
    print(f" {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
