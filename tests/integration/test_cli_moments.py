"""Times where a commit is named on the command line: the last commit made by then is meant."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from tests.integration.commands import invoke
from tests.integration.explained import Buys, Customer, Product


@pytest.fixture
def days(session, clock):
    """Commits 1, 2, 3 at the beginnings of the second, third and fourth of January."""
    for name in ("one", "two", "three"):
        clock.advance(seconds=86_400)
        session.ensure(Customer(id="c1", name=name))
        session.commit()
    return session


@pytest.fixture
def ask(uri, days):
    def answers(*words):
        done = invoke(*words, "--json", "--datastore-uri", uri)
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return answers


NAMES = {
    "0": [],
    "2026-01-01": [],
    "2026-01-01T23:59:59.999999": [],
    "2026-01-02": ["one"],
    "2026-01-02T18:00": ["one"],
    "2026-01-03 00:30+01:00": ["one"],
    "2026-01-03T01:00+01:00": ["two"],
    "2026-01-03T00:00Z": ["two"],
    "2": ["two"],
    "2036-01-01": ["three"],
}


@pytest.mark.req("SQL-028")
@pytest.mark.parametrize(("then", "names"), NAMES.items(), ids=NAMES)
def test_a_question_is_asked_of_the_state_at_a_time(ask, then, names):
    found = ask("query", "entities", "Customer", "--as-of", then)

    assert [each["fields"]["name"] for each in found] == names


def test_a_history_begins_after_a_time(ask):
    asked = ("query", "entities", "Customer", "--history-since")

    assert [each["fields"]["name"] for each in ask(*asked, "2026-01-02T12:00")] == ["two", "three"]
    assert [each["commit_id"] for each in ask(*asked, "2026-01-03")] == [3]


def test_relations_and_ways_are_asked_for_at_a_time_like_entities(ask, days, clock):
    for pieces in (4, 5):
        days.ensure(
            [Product(number=9, price=Decimal(1)), Buys(left_key="c1", right_key="9", pieces=pieces)]
        )
        days.commit()
        clock.advance(seconds=86_400)

    [then] = ask("query", "relations", "Buys", "--as-of", "2026-01-04T12:00")
    both = ask("query", "relations", "Buys", "--history-since", "2026-01-03")
    [way] = ask("query", "traverse", "Customer", "--via", "Buys", "--as-of", "2026-01-04T12:00")

    assert then["fields"] == {"pieces": 4}
    assert [each["fields"]["pieces"] for each in both] == [4, 5]
    assert way["relations"][0]["fields"] == {"pieces": 4}
    assert ask("query", "traverse", "Customer", "--via", "Buys", "--as-of", "2026-01-03") == []


def test_commits_are_listed_from_a_time_on(ask):
    assert [each["id"] for each in ask("commits", "--since", "2026-01-02T12:00")] == [3, 2]
    assert [each["id"] for each in ask("commits", "--since", "2026-01-01")] == [3, 2, 1]
    assert ask("commits", "--since", "2026-01-04") == []
    for beyond in (99, 2**63, 2**70):  # a number that no commit has yet, or ever will
        assert ask("commits", "--since", str(beyond)) == []


def test_a_difference_is_shown_between_two_times(ask):
    [change] = ask("diff", "2026-01-02", "2026-01-05")
    [created] = ask("diff", "2025-12-24", "2026-01-02T12:00")

    assert change["fields"] == {"name": {"before": "one", "after": "three"}}
    assert created["fields"]["name"] == {"before": None, "after": "one"}
    assert ask("diff", "1", "2026-01-02T12:00") == []


def test_the_state_at_a_time_is_exported(uri, days):
    done = invoke("export", "--as-of", "2026-01-03T12:00", "--datastore-uri", uri)

    head, customer = map(json.loads, done.stdout.splitlines())
    assert (head["head"], customer["fields"]["name"]) == (2, "two")


@pytest.mark.parametrize(
    "words",
    [
        ("query", "entities", "Customer", "--as-of", "yesterday"),
        ("query", "entities", "Customer", "--history-since", "yesterday"),
        ("commits", "--since", "yesterday"),
        ("export", "--as-of", "yesterday"),
        ("diff", "yesterday", "1"),
        ("diff", "1", "yesterday"),
    ],
    ids=" ".join,
)
def test_what_is_neither_a_number_nor_a_time_is_not_understood(uri, days, words):
    done = invoke(*words, "--datastore-uri", uri)

    assert done.exit_code == 2
    assert "'yesterday' is neither the number of a commit" in done.stderr
    assert done.stdout == ""
