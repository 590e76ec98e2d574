"""`ontologia schedules list`: when they fire."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from ontologia import Event, Field, Schedule, on_event
from ontologia.cli.main import app
from tests.integration.commands import at_a_terminal

MODULE = """
from ontologia import Event, Field, Schedule

class Report(Event):
    kind: Field[str] = Field(default="all")

daily = Schedule(event=Report(), cron="0 2 * * *", tz="Europe/Berlin")
schedules = [daily, Schedule(event=Report(kind="leap"), cron="0 0 29 2 *")]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "planned.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "planned"
    sys.modules.pop("planned", None)


def test_each_schedule_is_listed_once_with_its_next_five_times(module):
    done = CliRunner().invoke(app, ["schedules", "list", "--models", module, "--json"])

    daily, leap = [json.loads(line) for line in done.stdout.splitlines()]
    times = [datetime.fromisoformat(each) for each in daily["next"]]
    assert done.exit_code == 0
    assert (daily["type"], daily["cron"], daily["tz"]) == ("report", "0 2 * * *", "Europe/Berlin")
    assert daily["fields"] == {"kind": "all"}
    assert len(times) == len(set(times)) == 5
    assert times == sorted(times)
    assert times[0] > datetime.now(UTC)
    assert {each.hour for each in times} <= {0, 1}
    assert all(each[4:10] == "-02-29" for each in leap["next"])


def test_a_pipe_gets_tabs(module):
    done = CliRunner().invoke(app, ["schedules", "list", "--models", module])

    head, daily, leap = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["Event", "Cron", "Zone", "Fields", "Next (UTC)"]
    assert daily[:4] == ["report", "0 2 * * *", "Europe/Berlin", '{"kind":"all"}']
    assert daily[4].count(", ") == 4
    assert leap[2:4] == ["UTC", '{"kind":"leap"}']
    assert leap[4].count("-02-29 00:00:00") == 5


def test_no_store_is_needed_and_none_is_made(module, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ontologia", "schedules", "list", "--models", module],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert list(tmp_path.glob("*.db")) == []


def test_a_terminal_hears_that_there_are_none(tmp_path):
    (tmp_path / "bare.py").write_text("x = 1\n")

    code, shown = at_a_terminal("schedules", "list", "--models", "bare", cwd=tmp_path)

    assert code == 0
    assert "bare has no schedules." in shown


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("no.such", 4, "there is no module no.such"),
        ("planned:nothing", 4, "module planned has no nothing"),
        ("planned:Report", 1, "neither a handler nor a schedule"),
        ("planned.py", 4, "with dots: planned."),
        ("", 4, "is no name of a module"),
    ],
)
def test_what_is_not_there_is_said(module, name, code, said):
    done = CliRunner().invoke(app, ["schedules", "list", "--models", name])

    assert done.exit_code == code
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [("import nowhere_at_all", "nowhere_at_all"), ("def (", "SyntaxError"), ("1 / 0", "division")],
)
def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch, text, said):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    done = CliRunner().invoke(app, ["schedules", "list", "--models", "broken"])

    assert done.exit_code == 1
    assert "module broken cannot be imported" in done.stderr
    assert said in done.stderr


class StockDue(Event):
    shelf: Field[str]


@pytest.mark.req("NEW-215")
def test_without_a_module_those_of_the_store_are_listed_and_one_is_fired(session, uri):
    schedule = Schedule(event=StockDue(shelf="a"), cron="0 2 * * *")
    session.run([look], schedules=[schedule], max_iterations=1)

    def ask(*words):
        return CliRunner().invoke(app, ["schedules", *words, "--datastore-uri", uri])

    [told] = [json.loads(line) for line in ask("list", "--json").stdout.splitlines()]
    head, row = [line.split("\t") for line in ask("list").stdout.splitlines()]
    fired = ask("fire", told["key"], "--reason", "missed")

    assert (told["type"], told["fields"], told["key"]) == (
        "stock.due",
        {"shelf": "a"},
        schedule.key,
    )
    assert head == [
        "Event",
        "Cron",
        "Zone",
        "Fields",
        "Key",
        "Sessions",
        "Last (UTC)",
        "Next (UTC)",
    ]
    assert row[:5] == ["stock.due", "0 2 * * *", "UTC", '{"shelf":"a"}', schedule.key]
    found = session.event_store.inspect_event(fired.stdout.strip())
    assert found["payload"] == {"shelf": "a"}
    [commit] = session.list_commits()
    assert (commit["metadata"]["action"], commit["metadata"]["reason"]) == (
        "schedules fire",
        "missed",
    )
    assert ask("fire", "nothing").exit_code == 4


@on_event(StockDue)
def look(ctx):
    """Nothing to do."""
