"""`ontologia init` and `ontologia info`: a store is made, and looked at."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.delivery.lifecycle import EVENT_STATUSES
from tests.integration.commands import ONTOLOGIA, at_a_terminal, invoke, process
from tests.integration.moving import fill, tables
from tests.shop import Customer

KINDS = ["sqlite", "postgres"]


# -- init -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_is_made_with_nothing_in_it(place, ask_store, kind):
    uri = place(kind)

    done = invoke("init", uri)

    assert done.exit_code == 0, done.stderr
    assert " was made: " in done.stdout
    assert "Next: Session(" in done.stderr
    assert "events" in tables(ask_store, uri)
    assert ask_store(uri, "SELECT COUNT(*) FROM sessions") == [(0,)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_there_stays_as_it_is(place, kind):
    uri = place(kind)
    with Session(uri) as session:
        session.ensure(Customer(id="c1", name="Ada"))

    done = invoke("init", "--datastore-uri", uri, "--json")

    assert json.loads(done.stdout)["created"] is False
    assert invoke("init", uri).stdout.count(" was there already: ") == 1
    with Session(uri) as session:
        assert session.query().entities(Customer).count() == 1


@pytest.mark.thorough
def test_without_a_uri_it_is_app_db_here(tmp_path):
    done = process("init", cwd=tmp_path)
    seen = process("info", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"sqlite:///app.db was made: SQLite ")
    assert (tmp_path / "app.db").is_file()
    assert json.loads(seen.stdout)["head"] == 0


@pytest.mark.parametrize("uri", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_a_store_in_memory_is_a_usage_error(uri):
    assert invoke("init", uri).exit_code == 2


def test_a_place_where_no_store_can_be_is_an_error(tmp_path):
    (tmp_path / "note.db").write_text("not a database, but long enough to be looked at" * 9)

    done = invoke("init", tmp_path / "note.db")

    assert done.exit_code == 5
    assert done.stderr.startswith("error: ")


def test_a_password_is_not_repeated(place):
    uri = place("postgres")

    done = invoke("init", uri)

    assert "postgresql://…" in done.stderr
    assert uri not in done.stdout + done.stderr


def test_a_store_of_an_old_layout_is_brought_up_to_date(place, ask_store):
    """Commands that read do not do that by the way: they say what helps."""
    uri = place("sqlite")
    invoke("init", uri)
    ask_store(uri, "UPDATE ontologia_layout SET version = version - 1")

    refused = invoke("info", "--datastore-uri", uri)
    mended = invoke("init", uri)
    ask_store(uri, "UPDATE ontologia_layout SET version = version - 1")
    again = json.loads(invoke("init", uri, "--json").stdout)

    assert refused.exit_code == 5
    assert "ontologia init brings it up to date" in refused.stderr
    assert mended.exit_code == 0
    assert " was brought up to date: " in mended.stdout
    assert (again["created"], again["upgraded"]) == (False, True)
    assert invoke("info", "--datastore-uri", uri).exit_code == 0


# -- info -------------------------------------------------------------------------------------------


@pytest.fixture
def full(uri, clock):
    fill(uri, clock)
    return uri


def about(uri, *options):
    done = invoke("info", "--datastore-uri", uri, "--json", *options)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_it_says_where_the_store_is_and_how_far(full):
    found = about(full)

    server = full.startswith("postgres")
    assert found["backend"].startswith("PostgreSQL 1" if server else "SQLite 3.")
    assert found["head"] == 4
    assert found["last_commit"].startswith("2026-01-01T")
    assert found["layout"] >= 3
    assert ("durability" in found) is server
    assert found["size"] > 100_000
    assert [each["name"] for each in found["types"]] == ["Place", "Thing", "Link", "Step", "Visit"]
    assert "objects" not in found["types"][0]  # nothing was counted
    assert "namespaces" not in found


def test_statistics_count_objects_and_events(full, ask_store):
    found = about(full, "--stats")

    counted = ask_store(full, "SELECT COUNT(*) FROM entity_latest WHERE entity_type = 'Thing'")
    assert [each["objects"] for each in found["types"] if each["name"] == "Thing"] == [
        counted[0][0]
    ]
    post = next(each for each in found["namespaces"] if each["namespace"] == "post")
    total = sum(post[status] for status in EVENT_STATUSES)
    assert [(total,)] == [tuple(r) for r in ask_store(full, "SELECT COUNT(*) FROM events")]
    assert (post["dead_lettered"], post["dead_letters"]) == (1, 1)
    assert post["acked"] == 4


def test_running_sessions_are_counted(uri):
    with Session(uri, "shop", config=OntologiaConfig()):
        [shop] = about(uri, "--stats")["namespaces"]
        assert shop["sessions"] == 1
    [shop] = about(uri, "--stats")["namespaces"]
    assert shop["sessions"] == 0


def test_the_types_are_shown_with_their_fields(full):
    done = invoke("info", "--datastore-uri", full, "--schema")

    lines = {line.split("\t")[0]: line.split("\t") for line in done.stdout.splitlines()}
    assert lines["Place"][1:3] == ["entity", "1"]
    assert lines["Place"][3] == "extra: dict[str, any] | null, label: str | null, number: int (key)"
    assert lines["Visit"][3] == "Thing → Place, fare: Decimal | null, slot: str (key)"


@pytest.mark.thorough
def test_a_terminal_gets_a_table_and_a_pipe_gets_tabs(full):
    code, shown = at_a_terminal("info", "--datastore-uri", full, "--stats", "--schema")
    piped = process("info", "--datastore-uri", full, "--stats")

    assert (code, piped.returncode) == (0, 0)
    assert "──" in shown
    assert b"\x1b" not in piped.stdout
    assert b"head\t4\n" in piped.stdout


def test_looking_leaves_no_trace(full, ask_store):
    asked = "SELECT COUNT(*) FROM sessions"
    before = ask_store(full, asked)

    invoke("info", "--datastore-uri", full, "--stats", "--schema")

    assert ask_store(full, asked) == before


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    done = subprocess.run(
        [*ONTOLOGIA, "info", "--datastore-uri", tmp_path / "none.db"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 4
    assert done.stderr.startswith("error: there is no store at ")
    assert "nothing was created" in done.stderr
    assert list(Path(tmp_path).iterdir()) == []
