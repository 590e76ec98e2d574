"""From a time to a commit: the last one made by then, found by halves."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

import pytest

from ontologia.clock import to_text
from ontologia.errors import InvalidValueError, QueryError
from ontologia_conformance.shop import Customer

START = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds):
    return START + timedelta(seconds=seconds)


@pytest.fixture
def hourly(session, clock):
    """Commit n at n hours; the name of the customer tells which it was."""
    for number in range(1, 8):
        clock.advance(seconds=3_600)
        session.ensure(Customer(id="c1", name=f"after {number}"))
        session.commit()
    return session


@pytest.fixture
def dated(session, direct):
    """Commits with these numbers, made so many seconds after the start."""

    def write(seconds):
        for number, second in seconds.items():
            row = (number, to_text(after(second)))
            direct("INSERT INTO commits(id, created_at) VALUES (?, ?)", row)
        return session

    return write


# -- which commit it is ---------------------------------------------------------------------------


def test_the_commit_of_a_time_is_the_last_one_made_by_then(hourly):
    for number in range(1, 8):
        at = after(number * 3_600)
        tick = timedelta(microseconds=1)

        found = [hourly.commit_at(when) for when in (at - tick, at, at + tick)]

        assert found == [number - 1, number, number]


def test_before_the_first_commit_it_is_0_and_after_the_last_the_head(hourly):
    far = [datetime.min.replace(tzinfo=UTC), START, datetime.max.replace(tzinfo=UTC)]

    assert [hourly.commit_at(when) for when in far] == [0, 0, hourly.head]


def test_an_empty_store_has_no_commit_at_any_time(session):
    assert session.commit_at(START) == 0


def test_of_commits_made_in_the_same_instant_it_is_the_last(dated):
    session = dated({1: 0, 2: 10, 3: 10, 4: 10, 5: 20})

    assert [session.commit_at(after(second)) for second in (9, 10, 11)] == [1, 4, 4]


@pytest.mark.parametrize("hours", [-12, 0, 5.5, 14])
def test_an_instant_is_the_same_in_every_zone(hourly, hours):
    zone = timezone(timedelta(hours=hours))
    far = [datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)]

    assert hourly.commit_at(after(3 * 3_600).astimezone(zone)) == 3
    assert [hourly.commit_at(when) for when in far] == [0, 7]


@pytest.mark.req("SQL-028", "ONT-090")
def test_the_number_leads_to_the_state_the_history_and_the_difference_of_then(hourly):
    noon = hourly.commit_at(after(3.5 * 3_600))
    customers = hourly.query().entities(Customer)

    assert customers.as_of(noon).first().name == "after 3"
    assert customers.history_since(noon).first().name == "after 4"
    assert [each["id"] for each in hourly.list_commits(since=noon)] == [7, 6, 5, 4]
    [change] = hourly.diff(noon, hourly.head).updated
    assert change.fields == {"name": ("after 3", "after 7")}


# -- numbers that are missing, and times that do not rise -----------------------------------------


def test_numbers_that_are_missing_are_passed_over(dated):
    numbers = {3: 10, 4: 20, 90: 30, 1_000_000: 40, 1_000_003: 50}
    session = dated(numbers)

    found = [session.commit_at(after(second)) for second in range(0, 60, 10)]

    assert found == [0, *numbers]


@pytest.mark.parametrize("seed", range(5))
def test_where_clocks_disagree_it_is_a_commit_made_by_then_before_one_that_was_not(dated, seed):
    chance = random.Random(seed)
    numbers = sorted(chance.sample(range(1, 60), chance.randint(1, 30)))
    made = {number: chance.randint(0, 40) for number in numbers}
    session = dated(made)

    for second in range(-1, 42):
        found = session.commit_at(after(second))

        later = [number for number in numbers if number > found]
        assert found == 0 or made[found] <= second
        assert not later or made[later[0]] > second


# -- what is no time, and no number ---------------------------------------------------------------


class Nowhere(tzinfo):
    def utcoffset(self, when):
        return None


@pytest.mark.parametrize(
    "when",
    [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=Nowhere()), date(2026, 1, 1), "2026", 5, None],
    ids=["naive", "zone without offset", "date", "text", "number", "none"],
)  # fmt: skip
def test_what_is_no_aware_datetime_is_refused_with_what_helps(session, when):
    with pytest.raises(InvalidValueError, match="commit_at takes an aware datetime") as caught:
        session.commit_at(when)

    assert "tzinfo=UTC" in caught.value.hint
    assert ".astimezone()" in caught.value.hint


@pytest.mark.parametrize("when", [START, date(2026, 1, 1)], ids=["datetime", "date"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda session, when: session.query().entities(Customer).as_of(when),
        lambda session, when: session.query().entities(Customer).history_since(when),
        lambda session, when: session.list_commits(since=when),
        lambda session, when: session.get_commit(when),
        lambda session, when: session.list_commit_changes(when),
        lambda session, when: session.diff(when, 0),
        lambda session, when: session.diff(0, when),
    ],
    ids=["as_of", "history_since", "list_commits", "get_commit", "changes", "diff a", "diff b"],
)
def test_a_time_instead_of_a_number_is_told_the_way_to_the_number(session, ask, when):
    with pytest.raises(QueryError) as caught:
        ask(session, when)

    assert "session.commit_at(when)" in caught.value.hint


def test_what_is_neither_a_number_nor_a_time_is_not_sent_there(session):
    with pytest.raises(QueryError) as caught:
        session.query().entities(Customer).as_of("1")

    assert caught.value.hint is None
