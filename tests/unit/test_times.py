"""Commits as they are named on the command line: digits are a number, all else is a time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
import typer

from ontologia.cli.times import commit_or_time
from ontologia.runtime.views.times import CommitOrTime


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), (" 7 ", 7), ("20261116", 20_261_116), (str(2**70), 2**70)],
)
def test_digits_are_the_number_of_a_commit(text, number):
    assert commit_or_time(text) == CommitOrTime(number)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-11-16", datetime(2026, 11, 16, tzinfo=UTC)),
        ("2026-11-16T18:30", datetime(2026, 11, 16, 18, 30, tzinfo=UTC)),
        ("2026-11-16 18:30:05", datetime(2026, 11, 16, 18, 30, 5, tzinfo=UTC)),
        ("2026-11-16T18:30:05.5Z", datetime(2026, 11, 16, 18, 30, 5, 500_000, tzinfo=UTC)),
        ("2026-11-16T18:30+05:30", datetime(2026, 11, 16, 13, tzinfo=UTC)),
        ("20261116T183000", datetime(2026, 11, 16, 18, 30, tzinfo=UTC)),
        ("0001-01-01", datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise_and_a_date_is_its_beginning(text, when):
    found = commit_or_time(text).named

    assert found == when
    assert found.utcoffset() is not None


def test_the_zone_of_the_machine_does_not_matter(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert commit_or_time("2026-11-16").named.utcoffset() == timedelta(0)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "1.5", "tomorrow", "7d", "2026-11", "2026-13-01", "18:00", "²", "9" * 5_000],
)
def test_anything_else_is_a_usage_error_that_shows_both_forms(text):
    with pytest.raises(typer.BadParameter) as caught:
        commit_or_time(text)

    said = caught.value.message
    assert "neither the number of a commit, from 0 on, nor a time" in said
    assert "write 12, 2026-11-16, " in said
    assert len(said) < 300
