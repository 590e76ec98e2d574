"""Drawings of how a field changed."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from ontologia.web.console.sparkline import sparkline


def heights(drawn: str) -> list[float]:
    return [float(each) for each in re.findall(r'cy="([\d.]+)"', drawn)]


def test_numbers_are_drawn_by_their_size() -> None:
    low, high, middle = heights(sparkline([(1, 0), (5, 10), (9, 5)], 1, 9))

    assert low > middle > high


def test_numbers_that_a_float_cannot_tell_apart_are() -> None:
    first, second = heights(sparkline([(1, 2**63 - 1), (2, 2**63 - 2)], 1, 2))

    assert first < second


@pytest.mark.parametrize(
    "values",
    [[1.7e308, -1.7e308], [Decimal(1), Decimal("1.5")], [3, 3], [True, False], ["a", None], [1]],
)
def test_any_values_can_be_drawn(values: list[object]) -> None:
    drawn = sparkline(list(enumerate(values, start=1)), 1, len(values))

    assert len(heights(drawn)) == len(values)
    assert "style" not in drawn


def test_a_mark_stands_where_the_commit_is() -> None:
    drawn = sparkline([(100, "a"), (150, "b"), (200, "c")], 100, 200)

    first, middle, last = (float(each) for each in re.findall(r'cx="([\d.]+)"', drawn))
    assert middle == pytest.approx((first + last) / 2)
    assert "3 changes, the last in commit 200" in drawn


def test_what_is_hidden_is_not_said_and_what_is_said_is_text() -> None:
    hidden = sparkline([(1, 1), (2, 9)], 1, 2, hidden=True)
    shown = sparkline([(1, "<b>\u202e")], 1, 2)

    assert len(set(heights(hidden))) == 1
    assert "9</title>" not in hidden
    assert "commit 1: &lt;b&gt;\\u202e" in shown
    assert sparkline([], 1, 2) == ""
