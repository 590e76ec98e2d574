"""Charts: what is drawn is what the table says, and stored text is text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia.web.console.charts import (
    HEIGHT,
    WIDTH,
    Line,
    chart,
    charts_of,
    count,
    length,
    sparkline,
)
from ontologia.web.console.sampler import Figures, Series
from ontologia_conformance.tiers import examples
from tests.unit.test_console_graph import HOSTILE, Page

pytestmark = pytest.mark.req("NEW-242")
START = datetime(2026, 11, 19, 20, 7, tzinfo=UTC)


def times(number: int) -> list[datetime]:
    return [START + timedelta(minutes=each) for each in range(number)]


def series(number: int, handler: str | None = None) -> Series:
    made = [Figures(at, 6, 4, 1, 30.0, 0.2, None) for at in times(number)]
    return Series(handler, START, tuple(made))


values = st.lists(st.none() | st.floats(0, 1e12), min_size=1, max_size=70)


@examples(200)
@given(
    values, st.sampled_from(["line", "dashed", "area", "bars"]), st.sampled_from([count, length])
)
def test_everything_is_drawn_within_the_frame(values, shape, said) -> None:
    found = chart("x", times(len(values)), [Line("a", "good", values, shape)], said=said)

    drawn = re.sub(r"<title>.*?</title>|<desc>.*?</desc>", "", str(found.svg))
    for moves in re.findall(r' d="([^"]*)"', drawn):
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", moves):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
        assert all(0 <= float(y) <= HEIGHT for y in re.findall(r"V(-?[\d.]+)", moves))
    assert "nan" not in drawn
    assert "style" not in drawn
    expected = [("–" if each is None else said(each)) for each in values]  # noqa: RUF001
    assert [row[1] for row in reversed(found.rows)] == expected


@examples(100)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_labels_at_the_end_do_not_overlap(ends: list[float]) -> None:
    lines = [Line(f"l{number}", "good", [end]) for number, end in enumerate(ends)]

    svg = str(chart("x", times(1), lines, said=count).svg)

    heights = [float(y) for y in re.findall(r'class="end good" x="[\d.]+" y="(-?[\d.]+)"', svg)]
    assert len(heights) == len(ends)
    assert all(after - before >= 12.9 for before, after in pairwise(heights))
    assert all(0 < each <= HEIGHT for each in heights)


def test_the_charts_of_a_series_say_its_figures() -> None:
    events, oldest, took = charts_of(series(60, "ship"))

    assert events.columns == ("UTC", "done", "failed", "came")
    assert len(events.rows) == 59  # the last minute is not over
    assert events.rows[0] == ("2026-11-19 21:05", "4", "1", "6")
    assert oldest.rows[0] == ("2026-11-19 21:06", "30 s")
    assert took.rows[0] == ("2026-11-19 21:06", "–", "200 ms")  # noqa: RUF001
    assert (events.title, events.note) == ("Events of ship", "a minute, since 20:07 UTC")
    assert "<desc>At the end: done 4, failed 1, came 6.</desc>" in events.svg


def test_a_day_has_as_many_points_as_can_be_told_apart() -> None:
    events, oldest, _ = charts_of(series(1440))

    assert len(oldest.rows) == 120
    assert {row[1:] for row in events.rows} == {("4", "1", "6")}  # a minute, still
    assert re.findall(r'class="axis x"[^>]*>([^<]*)<', str(events.svg)) == [
        *("00:00", "06:00", "12:00", "18:00"),
    ]


def test_nothing_is_drawn_of_nothing() -> None:
    empty = chart("x", [], [Line("a", "good", [])], said=count)

    assert (empty.rows, "–" in empty.svg) == ((), True)  # noqa: RUF001
    assert 'd=""' in sparkline("x", [])
    assert 'd="M2 18h0"' in sparkline("x", [0])


def test_a_gap_is_a_gap_and_a_value_alone_is_a_dot() -> None:
    found = sparkline("x", [1, 1, None, 1])

    [path] = re.findall(r' d="([^"]*)"', found)
    assert path == "M2 2L32.7 2M94 2h0"


@pytest.mark.parametrize("text", HOSTILE)
def test_stored_text_is_text(text: str) -> None:
    made = [
        *charts_of(series(3, text)),
        chart(text, times(1), [Line(text, "bad", [1])], said=count),
    ]

    page = Page("".join(each.__html__() for each in [*made, sparkline(text, [1, 2])]))

    assert not {"img", "script", "b"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert any(text in each for each in page.texts)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0"), (0.0123, "12 ms"), (3.21, "3.2 s"), (59.9, "60 s"), (90, "1.5 min"), (9e3, "2.5 h"), (3e5, "3.47 d")],
)  # fmt: skip
def test_lengths_are_said_in_their_unit(seconds: float, said: str) -> None:
    assert length(seconds) == said


@pytest.mark.parametrize(("number", "said"), [(0.25, "0.2"), (3, "3"), (1234.4, "1,234")])
def test_counts_are_whole_from_a_hundred_on(number: float, said: str) -> None:
    assert count(number) == said
