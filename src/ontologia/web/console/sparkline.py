"""Small drawings of how a field changed, as SVG without styles or script."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from markupsafe import Markup

from ontologia import codec
from ontologia.web.console.rendering import visible

_WIDTH, _HEIGHT, _EDGE = 120, 22, 3
_LONGEST = 60  # characters of a value

Changes = Sequence[tuple[int, Any]]


def sparkline(changes: Changes, first: int, last: int, *, hidden: bool = False) -> Markup:
    """A mark for each change, from commit `first` to `last`; of numbers a line through them.

    With `hidden` it shows when it changed, and not what it became.
    """
    if not changes:
        return Markup("")
    length = max(1, last - first)
    across = [
        _EDGE + (_WIDTH - 2 * _EDGE) * max(0, number - first) / length for number, _ in changes
    ]
    numbers = None if hidden else _numbers(changes)
    ups = [_HEIGHT / 2] * len(changes) if numbers is None else _heights(numbers)
    parts = [
        Markup('<path class="line" d="{}"/>').format(_steps(across, ups)),
        *(
            Markup('<circle cx="{}" cy="{}" r="2.5"><title>{}</title></circle>').format(
                f"{x:.1f}", f"{y:.1f}", _said(number, value, hidden=hidden)
            )
            for (number, value), x, y in zip(changes, across, ups, strict=True)
        ),
    ]
    times = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
    label = f"{times}, the last in commit {changes[-1][0]}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, Markup("").join(parts))


def _said(number: int, value: Any, *, hidden: bool) -> str:
    if hidden:
        return f"commit {number}"
    text = str(value) if isinstance(value, str | Decimal) else codec.encode_checked(value)
    text = visible(text)
    return f"commit {number}: {text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}"


def _numbers(changes: Changes) -> list[int | float | Decimal] | None:
    """The values, if there are several and all of them are numbers."""
    values = [value for _, value in changes]
    fits = all(
        isinstance(each, int | float | Decimal) and not isinstance(each, bool) for each in values
    )
    return values if fits and len(values) > 1 else None


def _heights(values: list[int | float | Decimal]) -> list[float]:
    low, high = min(values), max(values)
    room = _HEIGHT - 2 * _EDGE
    if low == high:
        return [_HEIGHT / 2] * len(values)
    # Exact: whole numbers of 64 bits may differ by less than a float can tell.
    base, width = Fraction(low), Fraction(high) - Fraction(low)
    return [_EDGE + room * (1 - float((Fraction(each) - base) / width)) for each in values]


def _steps(across: list[float], ups: list[float]) -> str:
    """A value stays until the next change."""
    path = f"M{across[0]:.1f} {ups[0]:.1f}"
    for x, y in zip(across[1:], ups[1:], strict=True):
        path += f"H{x:.1f}V{y:.1f}"
    return f"{path}H{_WIDTH - _EDGE}"
