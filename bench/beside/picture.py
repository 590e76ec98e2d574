"""The picture: a small panel for each figure, a bar for each contender, the longer the better.

SVG that is written by hand here, so that it needs nothing and can be read in a diff.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from html import escape

from bench.beside.contenders.contender import BARE, OURS
from bench.beside.results import Figure, shown
from bench.beside.table import title

_PANELS = 3  # beside each other
_WIDTH, _NAME, _BAR = 330, 112, 120
_LINE, _HEAD, _GAP, _MARGIN, _TOP = 15, 22, 14, 16, 46
_COLOURS = {OURS: "#0b7a75", BARE: "#ffffff"}
_OTHERS = "#b9bfc7"
_EDGES = {BARE: "#8a9099"}


def drawn(figures: Iterable[Figure]) -> str:
    """The figures in which somebody else took part, as SVG."""
    chosen = [figure for figure in figures if OURS in figure.rounds and len(figure.rounds) > 1]
    rows = [chosen[first : first + _PANELS] for first in range(0, len(chosen), _PANELS)]
    parts: list[str] = [_legend()]
    top = _TOP
    for row in rows:
        for place, figure in enumerate(row):
            parts.append(_panel(figure, _MARGIN + place * _WIDTH, top))
        top += _HEAD + _GAP + _LINE * max(len(figure.rounds) for figure in row)
    width, height = 2 * _MARGIN + _PANELS * _WIDTH, top + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11" '
        f'fill="#24292f">\n<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _legend() -> str:
    entries = ((OURS, OURS), (BARE, "bare loop"), ("", "others"), ("→", "longer is better"))
    parts: list[str] = []
    for number, (name, words) in enumerate(entries):
        left = _MARGIN + number * 120
        mark = _rect(name, left, 14, 14) if name != "→" else _text("→", left, 25)
        parts.append(mark + _text(words, left + 20, 25))
    return "".join(parts)


def _panel(figure: Figure, left: int, top: int) -> str:
    head = f"{title(figure)} ({'PostgreSQL' if figure.database == 'PostgreSQL' else 'SQLite'})"
    parts = [_text(head, left, top + 12, weight="bold")]
    goodness = {name: _goodness(figure, rounds) for name, rounds in figure.rounds.items()}
    best = max(goodness.values())
    for number, (name, good) in enumerate(_ordered(goodness)):
        line = top + _HEAD + number * _LINE
        length = max(1.5, _BAR * good / best)
        value = shown(statistics.median(figure.rounds[name]), figure.unit)
        parts.append(_text(name, left + _NAME - 6, line + 9, anchor="end"))
        parts.append(_rect(name, left + _NAME, line, length))
        parts.append(_text(value, left + _NAME + length + 5, line + 9))
    return "".join(parts)


def _ordered(goodness: dict[str, float]) -> Sequence[tuple[str, float]]:
    """Ours first, bare last, and the others from the best to the worst."""
    place = {OURS: 0, BARE: 2}
    return sorted(goodness.items(), key=lambda each: (place.get(each[0], 1), -each[1]))


def _goodness(figure: Figure, rounds: list[float]) -> float:
    median = max(statistics.median(rounds), 1e-9)
    return median if figure.more_is_better else 1 / median


def _rect(name: str, left: float, top: float, width: float) -> str:
    fill = _COLOURS.get(name, _OTHERS)
    edge = f' stroke="{_EDGES[name]}"' if name in _EDGES else ""
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="11" fill="{fill}"{edge}/>'
    )


def _text(
    words: str, left: float, top: float, *, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
