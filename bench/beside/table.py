"""The table: a row for each contender of each figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from bench.beside.contenders.contender import OURS
from bench.beside.results import Figure, margin_of, shown

COLUMNS = ("SCENARIO", "DATABASE", "CONTENDER", "MEDIAN", "SPREAD", "OF BARE", "NOTE")
NAMES = ("what", "database", "contender", "median", "spread", "to_bare", "note")
EVERY = "every scenario"


def rows(figures: Iterable[Figure]) -> Iterator[dict[str, Any]]:
    """What is shown, all of it text; who was left out comes with the reason."""
    for figure in figures:
        about = {"what": title(figure), "database": figure.database}
        for name, rounds in figure.rounds.items():
            to_bare = figure.to_bare(name)
            yield about | {
                "contender": name,
                "median": shown(statistics.median(rounds), figure.unit),
                "spread": f"{_digits(min(rounds))} to {_digits(max(rounds))}",
                "to_bare": "" if to_bare is None else f"{to_bare:.2f} x",
                "note": margin_of(figure) if name == OURS else "",
            }
        for name, why in figure.left_out.items():
            yield about | _left_out(name, why)


def absent_rows(absent: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Those who take part in nothing."""
    for name, why in absent.items():
        yield {"what": EVERY, "database": ""} | _left_out(name, why)


def title(figure: Figure) -> str:
    return f"{figure.scenario}, {figure.title}" if figure.title else figure.scenario


def _left_out(name: str, why: str) -> dict[str, Any]:
    empty = {"median": "", "spread": "", "to_bare": ""}
    return {"contender": name, **empty, "note": f"left out: {why}"}


def _digits(value: float) -> str:
    return shown(value, "").strip()
