"""`ontologia commits` and `diff`: what was written, when, by whom, and what it changed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ontologia.cli.main import app
from tests.integration.explained import Customer, fill
from tests.integration.test_cli_explain import on_a_terminal

ONTOLOGIA = [sys.executable, "-m", "ontologia"]


@pytest.fixture
def run(uri):
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [*words, "--datastore-uri", uri])


@pytest.fixture
def shop(session, clock):
    fill(session, clock)
    return session


def numbers(done):
    assert done.exit_code == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def test_commits_are_listed_newest_first(shop, uri):
    done = subprocess.run(
        [*ONTOLOGIA, "commits", "--datastore-uri", uri], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[0] == ["commit", "created", "handler", "event", "metadata"]
    assert [row[0] for row in rows[1:]] == ["3", "2", "1"]
    assert rows[1][1:3] == ["2026-01-01 00:01:00", "ship"]
    assert rows[3][2:4] == ["-", "-"]


def test_commits_are_chosen_by_number_and_metadata(run, shop):
    event = shop.get_commit(2)["metadata"]["event_id"]

    assert numbers(run("commits", "--last", "2", "--json")) == [3, 2]
    assert numbers(run("commits", "--since", "1", "--json")) == [3, 2]
    assert numbers(run("commits", "--since", "1", "--last", "1", "--json")) == [3]
    assert numbers(run("commits", "--meta", "handler_id=pay", "--json")) == [2]
    assert numbers(run("commits", "--meta", "attempt=2", "--json")) == [2]
    assert numbers(run("commits", "--meta", f"event_id={event}", "--json")) == [2]
    assert numbers(run("commits", "--meta", f"event_id={event}", "--since", "2", "--json")) == []
    assert (
        numbers(run("commits", "--meta", "attempt=2", "--meta", "handler_id=ship", "--json")) == []
    )
    assert numbers(run("commits", "--meta", "namespace=default", "--json")) == [3, 2, 1]


def test_twenty_commits_are_shown_and_more_if_asked_for(run, session):
    for number in range(600):
        session.ensure(Customer(id="c", name=str(number)))
        session.commit()

    assert numbers(run("commits", "--json")) == list(range(600, 580, -1))
    assert numbers(run("commits", "--since", "0", "--json")) == list(range(600, 0, -1))


def test_metadata_that_is_none_is_a_usage_error(run, shop):
    done = run("commits", "--meta", "pay")

    assert done.exit_code == 2
    assert "--meta" in done.stderr


def test_a_commit_is_shown_with_what_it_changed(run, shop):
    lines = run("commits", "show", "2").stdout.splitlines()

    assert lines[0] == "commit 2 of 2026-01-01 00:01:00 UTC"
    assert "    handler_id: pay" in lines
    assert lines[-3:] == ["~ Customer c1", '    tier: "standard" → "gold"', "1 updated"]


def test_a_commit_in_json_is_a_line_and_each_change_another(run, shop):
    commit, change = map(json.loads, run("commits", "show", "3", "--json").stdout.splitlines())

    assert (commit["id"], commit["metadata"]["handler_id"]) == (3, "ship")
    assert change == {
        "change": "updated",
        "kind": "relation",
        "type": "Buys",
        "left": "c1",
        "right": "10",
        "instance": None,
        "fields": {"pieces": {"before": 1, "after": 7}},
    }


def test_options_may_stand_before_the_command_of_a_group(uri, shop):
    done = CliRunner().invoke(app, ["commits", "--datastore-uri", uri, "--json", "show", "3"])

    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["id"] == 3


@pytest.mark.parametrize("number", ["0", "99"])
def test_a_commit_that_is_not_there_is_exit_code_4(run, shop, number):
    done = run("commits", "show", number)

    assert done.exit_code == 4
    assert done.stderr == f"error: there is no commit {number}\n  hint: The last one is 3.\n"


# -- diff -----------------------------------------------------------------------------------------


@pytest.mark.req("NEW-043")
def test_a_difference_is_shown_per_field(shop, uri):
    shop.delete(Customer(id="c2", name=""))
    shop.ensure(Customer(id="c3", name="Cy"))
    shop.commit()

    done = subprocess.run(
        [*ONTOLOGIA, "diff", "2", "4", "--datastore-uri", uri],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "+ Customer c3",
        '    id: "c3"',
        '    name: "Cy"',
        "    profile: {}",
        '    tier: "standard"',
        "~ Buys c1:10",
        "    pieces: 1 → 7",
        "- Customer c2",
        '    id: "c2"',
        '    name: "Bob"',
        "    profile: {}",
        '    tier: "5"',
        "1 created, 1 updated, 1 deleted",
    ]


@pytest.mark.req("NEW-043")
def test_a_difference_in_json_is_a_change_a_line(run, shop):
    [change] = map(json.loads, run("diff", "2", "1", "--json").stdout.splitlines())

    assert (change["change"], change["key"]) == ("updated", "c1")
    assert change["fields"] == {"tier": {"before": "gold", "after": "standard"}}
    assert run("diff", "2", "2").stdout == "nothing differs\n"
    assert run("diff", "2", "2", "--json").stdout == ""


def test_a_terminal_gets_a_difference_in_colours(shop, uri):
    shown = on_a_terminal("diff", "1", "2", uri=uri)

    assert '\x1b[31m"standard"\x1b[0m → \x1b[32m"gold"\x1b[0m' in shown


def test_a_difference_with_a_commit_that_is_not_there_is_exit_code_4(run, shop):
    done = run("diff", "1", "9")

    assert done.exit_code == 4
    assert "there is no commit 9" in done.stderr
    assert run("diff", "1", "x").exit_code == 2
