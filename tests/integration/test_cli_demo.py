"""`ontologia demo`: the story, and the database it leaves."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ontologia import Session
from ontologia.cli.demo_shop import Order, Stock
from ontologia.cli.main import app
from ontologia.runtime.session import core_of
from tests.integration.commands import Terminal


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["demo", "--fast", *arguments])


@pytest.mark.thorough
def test_the_story_happens_as_it_is_told(run):
    done = run("--path", "shop.db")

    lines = done.stdout
    assert done.exit_code == 0, done.stderr
    assert re.search(r"charge +o-1 +paid", lines)
    assert re.search(r"charge +o-2 +failed at attempt 1: the bank does not answer", lines)
    assert re.search(r"charge +o-2 +paid, .*, at attempt 2", lines)
    assert re.search(r"charge +o-3 +failed at attempt 3, its last", lines)
    assert re.search(r"apologise +dead letters are events, too", lines)
    assert re.search(r"count_stock +the minute is full", lines)
    assert "\x1b" not in lines
    with Session("shop.db", "shop") as session:
        orders = session.query().entities(Order).collect()
        assert {o.id: o.status for o in orders} == {
            "o-1": "shipped",
            "o-2": "shipped",
            "o-3": "on hold",
        }
        assert len(session.query().entities(Stock).collect()) == 1
        [letter] = session.event_store.list_dead_letters("shop")
        assert (letter["type"], letter["attempts"]) == ("order.placed", 3)
        assert session.event_store.check() == []
        assert core_of(session).store.events._database.all(
            "SELECT COUNT(*) FROM schedule_fires"
        ) == [(1,)]


@pytest.mark.thorough
def test_what_to_try_next_names_what_is_there(run):
    done = run("--json")

    told = json.loads(done.stdout)
    assert Path("ontologia-demo.db").exists()
    assert told["datastore_uri"] == "sqlite:///ontologia-demo.db"
    with Session("ontologia-demo.db", "shop") as session:
        root = session.event_store.inspect_event(told["root_event"])
        dead = session.event_store.inspect_event(told["dead_event"])
    assert root["payload"] == {"order_id": "o-1"}
    assert dead["payload"] == {"order_id": "o-3"}
    assert any(f"trace {told['root_event']} " in each for each in told["next"])


@pytest.mark.thorough
def test_the_commands_it_names_work_as_they_are_printed(run, tmp_path, monkeypatch):
    """All but the worker, which would not end. The program is not in the path of the shell."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    told = json.loads(run("--json").stdout)

    for command in told["next"]:
        if " run " in command:
            continue
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.strip()


@pytest.mark.thorough
def test_the_program_in_the_path_is_named_by_its_name(run, tmp_path, monkeypatch):
    (tmp_path / "ontologia").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    told = json.loads(run("--json").stdout)

    assert all(command.startswith("ontologia ") for command in told["next"])


@pytest.mark.thorough
def test_the_shop_is_a_module_that_a_worker_can_run(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    told = json.loads(run("--json").stdout)
    where = ["--datastore-uri", told["datastore_uri"], "--namespace", "shop"]
    shop = ["--models", "ontologia.cli.demo_shop"]
    [command] = [each for each in told["next"] if " run " in each]
    emitted = CliRunner().invoke(
        app,
        ["emit", "OrderPlaced", '{"order_id": "o-9"}', *shop, *where],
    )

    with subprocess.Popen(
        shlex.split(command), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as worker:
        lines = iter(worker.stderr.readline, "")
        heard = next(line for line in lines if "charge failed" in line)
        worker.terminate()
        worker.stderr.read()

    assert emitted.stdout.strip() in heard
    assert "there is no order o-9" in heard
    assert worker.returncode == 0


@pytest.mark.thorough
def test_a_file_that_is_there_is_not_overwritten(run):
    run("--path", "shop.db")
    before = Path("shop.db").read_bytes()

    again = run("--path", "shop.db")

    assert again.exit_code == 1
    assert "shop.db is there already; nothing was changed" in again.stderr
    assert "--force" in again.stderr
    assert Path("shop.db").read_bytes() == before


@pytest.mark.thorough
def test_force_replaces_an_earlier_demo(run):
    first = json.loads(run("--json").stdout)

    again = run("--json", "--force")

    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["root_event"] != first["root_event"]
    with Session("ontologia-demo.db", "shop") as session:
        assert len(session.query().entities(Order).collect()) == 3


@pytest.mark.parametrize("what", ["a store", "text", "nothing"])
def test_force_replaces_nothing_else(run, what):
    path = Path("mine.db")
    if what == "a store":
        Session(str(path)).close()
    else:
        path.write_text("important" if what == "text" else "")
    before = path.read_bytes()

    done = run("--path", "mine.db", "--force")

    assert done.exit_code == 1
    assert "is not the database of a demo; nothing was changed" in done.stderr
    assert path.read_bytes() == before


def test_the_demo_is_for_a_file_of_its_own(run, tmp_path):
    done = run("--datastore-uri", "sqlite:///app.db")

    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_terminal_sees_it_live_and_in_colour(tmp_path):
    with Terminal("demo", cwd=tmp_path) as terminal:
        code = terminal.end()

    assert code == 0, terminal.shown
    assert terminal.portions > 5  # not all at once
    assert "\x1b[32m" in terminal.shown
    assert "Look into it:" in terminal.shown
