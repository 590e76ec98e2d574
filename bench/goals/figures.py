"""Rounds, ratios and verdicts.

Rounds alternate (bare, ours, bare, ours ...), so that whatever else the machine does falls on
both. The verdict goes by the ratio of the medians; the ratio of the best rounds stands beside it
and tells how much of the difference is noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.measure import quantile, seconds

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
HEADINGS = f"{'figure':<58}{'bare, median (best)':>20}{'ours, median (best)':>21}{'ratio (best)':>15}  goal"


@dataclass
class Ratio:
    """One figure: how long both take, and how many times longer ours may take."""

    title: str
    goal: float | None = None
    per: int = 1
    """How many operations one round holds; times are shown for one."""
    slack: float | None = None
    """Seconds an operation that may take longer in any case: either is enough."""
    share: float = 0.5
    """Which of the rounds in order of time counts: the median, unless the title says otherwise."""
    bare: list[float] = field(default_factory=list[float])
    ours: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        return self._quotient(self._typical(self.bare), self._typical(self.ours))

    @property
    def missed(self) -> bool:
        if self.goal is None or self.ratio <= self.goal:
            return False
        more = (self._typical(self.ours) - self._typical(self.bare)) / self.per
        return self.slack is None or more > self.slack

    @property
    def allowed(self) -> str:
        more = "" if self.slack is None else f"or +{self.slack * 1e6:.0f} µs "
        return "" if self.goal is None else f"{self.goal:<5g}{more}"

    def __str__(self) -> str:
        best = self._quotient(min(self.bare), min(self.ours))
        ratio = f"{self.ratio:.2f} ({best:.2f})"
        return _line(self, self._times(self.bare), self._times(self.ours), ratio)

    def _quotient(self, bare: float, ours: float) -> float:
        return ours / bare

    def _typical(self, rounds: list[float]) -> float:
        return quantile(rounds, self.share)

    def _times(self, rounds: list[float]) -> str:
        typical, best = self._typical(rounds) / self.per, min(rounds) / self.per
        size, unit = next((u for u in _UNITS if typical >= u[0]), _UNITS[-1])
        return f"{typical / size:.3g} ({best / size:.3g}) {unit}"


@dataclass
class Speed(Ratio):
    """The same, told as operations a second: ours must do at least `goal` times those of bare.

    What stands in the place of bare may be any other; then the title says what.
    """

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.ratio < self.goal

    @property
    def allowed(self) -> str:
        return "" if self.goal is None else f"≥{self.goal:<4g}"

    def _quotient(self, bare: float, ours: float) -> float:
        return bare / ours

    def _times(self, rounds: list[float]) -> str:
        typical, best = self.per / self._typical(rounds), self.per / min(rounds)
        return f"{typical:,.0f} ({best:,.0f}) /s"


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

    @property
    def allowed(self) -> str:
        return "" if self.goal is None else f"{self.goal:<5g}"

    def __str__(self) -> str:
        return _line(self, "", f"{self.count:,}", self.detail)


@dataclass
class Amount:
    """One figure that has a unit, and how great it may be."""

    title: str
    amount: float
    unit: str
    goal: float | None = None
    detail: str = ""

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.amount > self.goal

    @property
    def allowed(self) -> str:
        return "" if self.goal is None else f"{self.goal:<5g}"

    def __str__(self) -> str:
        digits = f"{self.amount:,.0f}" if self.amount >= 100 else f"{self.amount:.3g}"
        return _line(self, "", f"{digits} {self.unit}", self.detail)


@dataclass
class Note:
    """A line of words among the figures; also of what could not be measured."""

    text: str
    missed: bool = False

    def __str__(self) -> str:
        return f"\n{self.text}"


Figure = Ratio | Count | Amount | Note


def _line(figure: Ratio | Count | Amount, bare: str, ours: str, ratio: str) -> str:
    verdict = "-"
    if figure.allowed:
        verdict = f"{figure.allowed}{'MISSED' if figure.missed else 'ok'}"
    return f"{figure.title:<58}{bare:>20}{ours:>21}{ratio:>15}  {verdict}"


def compare(
    figure: Ratio, bare: Callable[[], object], ours: Callable[[], object], *, rounds: int
) -> Ratio:
    """Fill in a figure: one round of each to warm up, then `rounds` of each in turn."""
    bare()
    ours()
    for _ in range(rounds):
        figure.bare.append(seconds(bare))
        figure.ours.append(seconds(ours))
    return figure
