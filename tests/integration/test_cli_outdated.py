"""`ontologia run` and `worker` of a program whose types are not the store's."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from ontologia import Event, Field, Session
from tests.integration.commands import ONTOLOGIA, process
from tests.integration.test_cli_run import Worker

BEFORE = """
from ontologia import Entity, Event, Field, on_event, upgrader
from ontologia.commands import DomainModel, api


class Wick(Entity):
    id: Field[str]


class WickCut(Event):
    wick: Field[str]


@on_event(WickCut)
def trim(ctx):
    ctx.ensure(Wick(id=ctx.event.wick))
    ctx.commit()
    print("TRIMMED", ctx.event.wick, flush=True)
    ctx.session.stop()


@api.model("wick.box")
class Box(DomainModel):
    @api.on_command("wick.look")
    def look(self, cmd):
        return "wicks"

    @api.on_event("wick.cut")
    def count(self, event, env):
        pass
"""
AFTER = BEFORE.replace(
    "    id: Field[str]\n", "    id: Field[str]\n    oil: Field[int] = 0\n", 1
) + ("\n\n@upgrader('Wick', from_version=1)\ndef dry(fields):\n    return fields | {'oil': 0}\n")


DIFFERS = "the store has another schema than this program: entity Wick (stored version 1): +oil"
HINT = (
    "If the store is newer, start the program that it was migrated for; if the program is, "
    "migrate first: ontologia migrate --models wicks"
)


class WickCut(Event):
    wick: Field[str]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "program"
    place.mkdir()
    (place / "wicks.py").write_text(BEFORE)
    return place


@pytest.fixture
def store(uri, folder):
    """One that knows the first version of the types, an object of it, and an event that waits."""
    Session(uri).close()
    with Session(uri) as session:
        session.commit(event=WickCut(wick="a"))
    done = run(folder, "run", "wicks", "--datastore-uri", uri)
    assert done.returncode == 0, done.stderr
    with Session(uri) as session:
        session.commit(event=WickCut(wick="b"))
    return uri


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return process(*arguments, cwd=folder, env=environment, timeout=60)


def migrate(folder, uri):
    where = ("--datastore-uri", uri)
    token = json.loads(run(folder, "migrate", "--models", "wicks", *where, "--json").stdout)[
        "token"
    ]
    done = run(folder, "migrate", "--models", "wicks", "--apply", "--token", token, *where)
    assert done.returncode == 0, done.stderr


def place_of(uri):
    return uri if uri.startswith("sqlite") else "postgresql://…"


@pytest.mark.thorough
def test_run_claims_nothing_until_the_store_was_migrated(store, folder):
    (folder / "wicks.py").write_text(AFTER)

    refused = run(folder, "run", "wicks", "--datastore-uri", store)

    assert refused.returncode == 3
    assert refused.stderr.decode().splitlines() == [
        f"error: {DIFFERS}",
        "  nothing was claimed, and no handler was called",
        f"  hint: {HINT} --datastore-uri {place_of(store)}",
    ]
    with Session(store) as session:
        [_, event] = session.event_store.list_events("default")
        assert event["status"] == "pending"
        assert session.event_store.inspect_event(event["id"])["claims"] == []

    migrate(folder, store)
    after = run(folder, "run", "wicks", "--datastore-uri", store)
    assert after.returncode == 0, after.stderr
    assert b"TRIMMED b" in after.stdout
    assert b"trim done at attempt 1" in after.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", [("worker", "wicks"), ("serve", "wicks", "--port", "0", "--with-worker")]
)
def test_a_worker_of_commands_is_refused_as_well(store, folder, arguments):
    (folder / "wicks.py").write_text(AFTER)
    (folder / "other.py").write_text("")

    refused = run(folder, *arguments, "other", "--datastore-uri", store)

    said = refused.stderr.decode()
    assert refused.returncode == 3, said
    assert f"{DIFFERS}\n  nothing was claimed" in said
    assert f"{HINT} --datastore-uri {place_of(store)}\n" in said


@pytest.mark.thorough
def test_what_serves_without_a_worker_only_warns(store, folder):
    """Whoever asks it for something is told."""
    (folder / "wicks.py").write_text(AFTER)
    server = subprocess.Popen(
        [*ONTOLOGIA, "serve", "wicks", "--port", "0", "--datastore-uri", store],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    with server:
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "serving 1 command" in line:
                server.terminate()

    assert server.returncode == 0, lines
    assert any("until they are migrated: ontologia migrate --models wicks" in e for e in lines)


@pytest.mark.thorough
def test_a_worker_under_which_somebody_migrates_ends_with_the_same_code(store, folder):
    slow = BEFORE.replace("    ctx.ensure", "    input()\n    ctx.ensure")
    (folder / "wicks.py").write_text(slow)
    working = subprocess.Popen(
        [*ONTOLOGIA, "run", "wicks", "--datastore-uri", store],
        cwd=folder,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with working:
        next(line for line in working.stderr if "runs 1 handler" in line)
        (folder / "wicks.py").write_text(AFTER)
        migrate(folder, store)
        working.stdin.write("\n")
        working.stdin.flush()
        said = working.stderr.read()

    assert working.returncode == 3, said
    assert "entity Wick (stored version 2): -oil" in said
    assert "wicks:trim was interrupted; it is released, and no attempt was counted" in said
    assert HINT in said
    assert "Traceback" not in said
    after = run(folder, "run", "wicks", "--datastore-uri", store)
    assert b"TRIMMED b" in after.stdout


@pytest.mark.thorough
def test_a_worker_that_is_reloaded_starts_when_the_store_was_migrated(store, folder):
    (folder / "wicks.py").write_text(AFTER)

    with Worker(folder, store, "wicks", "--reload") as worker:
        worker.hear("the worker ended with code 3; waiting for a change, or a migration")
        migrate(folder, store)
        worker.hear("the types of the store changed; starting again")
        worker.hear("TRIMMED b")
