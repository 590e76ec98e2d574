"""What is made of the rounds of a benchmark: medians, ratios, margins, and a picture of them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from bench.beside.picture import drawn
from bench.beside.results import Figure, margin_of, shown
from bench.beside.table import absent_rows, rows


def figure(unit="/s", **rounds):
    found = Figure("drain", "", unit, "SQLite")
    found.rounds.update(rounds)
    return found


def test_the_median_counts_and_ratios_are_of_time():
    speeds = figure(ontologia=[50, 100, 400], bare=[200, 200, 200], huey=[25, 20, 10])

    assert speeds.median("ontologia") == 100
    assert speeds.to_bare("ontologia") == 2  # half the speed: twice the time
    assert (speeds.best_rival, speeds.margin) == ("huey", 5)


def test_of_times_the_least_is_best():
    times = figure("ms", ontologia=[3.0], bare=[1.0], huey=[6.0], dbos=[9.0])

    assert times.to_bare("ontologia") == 3
    assert (times.best_rival, times.margin) == ("huey", 2)


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ({"ontologia": [190], "huey": [100], "dbos": [1]}, "1.9 x huey"),
        ({"ontologia": [50], "huey": [100]}, "0.5 x huey behind"),
        ({"ontologia": [50], "bare": [100]}, ""),
        ({"huey": [100]}, ""),
    ],
)
def test_the_margin_names_the_best_rival_and_who_is_behind(rounds, said):
    assert margin_of(figure(**rounds)) == said


def test_the_table_has_a_row_for_each_and_the_reason_of_those_left_out():
    speeds = figure(ontologia=[50, 100, 150], bare=[200, 200, 200])
    speeds.left_out["huey"] = "it cannot"

    shown_rows = list(rows([speeds]))

    assert [each["contender"] for each in shown_rows] == ["ontologia", "bare", "huey"]
    assert shown_rows[0]["median"] == "100 /s"
    assert shown_rows[0]["spread"] == "50 to 150"
    assert shown_rows[0]["to_bare"] == "2.00 x"
    assert shown_rows[2]["note"] == "left out: it cannot"
    assert next(absent_rows({"dbos": "no"}))["what"] == "every scenario"


def test_records_have_every_round_and_the_margin():
    [ours, huey] = figure(ontologia=[4.0, 2.0], huey=[1.0, 1.0]).records()

    assert ours["rounds"] == [4.0, 2.0]
    assert (ours["min"], ours["median"], ours["max"]) == (2.0, 3.0, 4.0)
    assert (ours["margin"], ours["best_rival"]) == (3.0, "huey")
    assert huey["margin"] is None


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234 /s"), (12.34, "12.3 /s"), (0.01234, "0.0123 /s")]
)
def test_figures_have_three_digits(value, text):
    assert shown(value, "/s") == text


def test_in_the_picture_the_better_has_the_longer_bar_and_ours_its_own_colour():
    bars = _bars(figure("ms", ontologia=[2.0], huey=[8.0], bare=[1.0]))

    assert [fill for fill, _ in bars] == ["#0b7a75", "#b9bfc7", "#ffffff"]
    ours, huey, bare = (width for _, width in bars)
    assert bare == pytest.approx(2 * ours) == pytest.approx(8 * huey)


def test_a_figure_without_anybody_else_is_not_drawn():
    assert _bars(figure(ontologia=[2.0])) == []
    assert _bars(figure(huey=[2.0], bare=[1.0])) == []


def _bars(one):
    """Colours and lengths of the bars, without the paper and the legend."""
    rects = ElementTree.fromstring(drawn([one])).iter("{http://www.w3.org/2000/svg}rect")  # noqa: S314
    return [(each.get("fill"), float(each.get("width"))) for each in rects][4:]
