"""`ontologia copy`, as somebody at a terminal and as a script use it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ontologia import Session
from ontologia.cli.main import app
from ontologia.runtime.session import core_of
from ontologia.store.copying import copy_store
from tests.integration.moving import contents, fill

ONTOLOGIA = [sys.executable, "-m", "ontologia"]


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, arguments)


@pytest.fixture
def source(place, clock):
    uri = place("sqlite")
    fill(uri, clock)
    return uri


def test_a_store_is_copied_by_a_real_process(source, place, ask_store):
    target = place("postgres")

    done = subprocess.run(
        [*ONTOLOGIA, "copy", source, target], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert contents(ask_store, target) == contents(ask_store, source)
    assert "dead_letters" in done.stdout
    assert "copying commits: " in done.stderr
    assert "comparing dead_letters: " in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # nobody looks at it


def test_a_script_gets_the_report_as_json(source, place, run):
    target = place("sqlite")

    done = run("copy", source, target, "--json")

    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["rows"] == sum(table["rows"] for table in report["tables"])
    assert {table["name"] for table in report["tables"]} >= {"commits", "events", "event_claims"}
    assert report["target"] == target.removeprefix("sqlite:///")
    assert report["moved_on"] == []
    assert report["resumed"] is False


def test_a_terminal_gets_a_bar(source, place):
    mine, theirs = pty.openpty()
    target = place("sqlite")

    with subprocess.Popen(
        [*ONTOLOGIA, "copy", source, target],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(mine):
            shown += chunk
    os.close(mine)

    assert process.returncode == 0
    assert "━".encode() in shown
    assert b"comparing " in shown


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_an_error_is_a_message_with_what_helps_and_no_traceback(place, tmp_path):
    done = subprocess.run(
        [*ONTOLOGIA, "copy", str(tmp_path / "none.db"), place("sqlite")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 4
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: there is no store to copy")
    assert first.endswith("nothing was created")
    assert second.startswith("  hint: ")
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_not_repeated(place, run):
    done = run("copy", "postgresql://ada:sesame@127.0.0.1:1/none", place("sqlite"))

    assert done.exit_code == 5
    assert "127.0.0.1:1" in done.stderr
    assert "sesame" not in done.stderr + done.stdout


def test_a_copy_that_was_broken_off_is_said_to_go_on(source, place, run, monkeypatch):
    target = place("sqlite")

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ontologia.cli.copy._lines", lambda: stop)
    broken_off = run("copy", source, target)
    monkeypatch.undo()
    gone_on = run("copy", source, target)

    assert broken_off.exit_code == 130
    assert "the same call goes on with it" in broken_off.stderr
    assert gone_on.exit_code == 0
    assert "went on with a copy that had been broken off" in gone_on.stdout


def test_restart_empties_an_unfinished_copy_first(source, place, run, clock, ask_store):
    target = place("sqlite")

    def stop(now):
        if now.table == "dead_letters":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_store(source, target, progress=stop)
    ask_store(source, "DELETE FROM attempts")

    refused = run("copy", source, target)
    done = run("copy", source, target, "--restart")

    assert refused.exit_code == 1
    assert "--restart" in refused.stderr
    assert done.exit_code == 0
    assert contents(ask_store, target) == contents(ask_store, source)


def test_what_the_copy_lacks_is_said(source, place, run, monkeypatch):
    target = place("sqlite")
    with Session(source) as session:
        monkeypatch.setattr(
            "ontologia.cli.copy._lines",
            lambda: lambda _: core_of(session).register_session(busy=True),
        )
        done = run("copy", source, target)

    assert "The source was written to meanwhile, in sessions" in done.stdout


@pytest.mark.parametrize("arguments", [["copy"], ["copy", "a.db"], ["copy", "a", "b", "--fast"]])
def test_a_command_that_is_not_understood_has_another_exit_code(arguments, run):
    assert run(*arguments).exit_code == 2


def test_the_program_is_installed_under_its_name():
    """`pip install` makes the program from this entry."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())

    assert project["project"]["scripts"] == {"ontologia": "ontologia.cli.start:main"}
