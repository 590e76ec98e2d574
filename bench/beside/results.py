"""What was measured, and what it means: medians, spread, beside bare, beside the best rival."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.beside.contenders.contender import BARE, OURS, Database


@dataclass
class Figure:
    """One line of a scenario, for one database: a value for each contender and round."""

    scenario: str
    title: str
    unit: str
    database: Database
    rounds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Who did not take part, and why."""

    @property
    def more_is_better(self) -> bool:
        return self.unit.endswith("/s")

    def median(self, contender: str) -> float | None:
        rounds = self.rounds.get(contender)
        return statistics.median(rounds) if rounds else None

    def to_bare(self, contender: str) -> float | None:
        """How many times the time, or memory, that bare needs."""
        return self._times(contender, BARE)

    @property
    def best_rival(self) -> str | None:
        """The best of all but bare and ours."""
        rivals = [name for name in self.rounds if name not in (OURS, BARE)]
        medians = {name: statistics.median(self.rounds[name]) for name in rivals}
        if not medians:
            return None
        return (max if self.more_is_better else min)(medians, key=lambda name: medians[name])

    @property
    def margin(self) -> float | None:
        """How many times as good ours is as the best rival: below 1 it is behind."""
        rival = self.best_rival
        return None if rival is None else self._times(rival, OURS)

    def _times(self, contender: str, other: str) -> float | None:
        mine, others = self.median(contender), self.median(other)
        if not mine or not others:
            return None
        return others / mine if self.more_is_better else mine / others

    def records(self) -> Iterator[dict[str, Any]]:
        """A value for each contender, for programs."""
        about = {"scenario": self.scenario, "figure": self.title, "database": self.database}
        for name, rounds in self.rounds.items():
            yield about | {
                "contender": name,
                "unit": self.unit,
                "median": statistics.median(rounds),
                "min": min(rounds),
                "max": max(rounds),
                "rounds": rounds,
                "to_bare": self.to_bare(name),
                "margin": self.margin if name == OURS else None,
                "best_rival": self.best_rival if name == OURS else None,
            }
        for name, why in self.left_out.items():
            yield about | {"contender": name, "left_out": why}


def shown(value: float, unit: str) -> str:
    """Three digits and the unit: `1,230 /s`, `0.412 ms`."""
    digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{digits} {unit}"


def margin_of(figure: Figure) -> str:
    """`1.9 x huey`; where the rival is ahead that is said."""
    if figure.margin is None:
        return ""
    behind = " behind" if figure.margin < 1 else ""
    return f"{figure.margin:.3g} x {figure.best_rival}{behind}"
