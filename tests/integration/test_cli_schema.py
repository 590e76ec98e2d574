"""`ontologia schema sql`, and what is true of every command."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import apsw
import psycopg
import pytest
from typer.testing import CliRunner

import ontologia
from ontologia import Session
from ontologia.cli.main import app
from ontologia.store.postgres.place import place_of
from tests.integration.moving import tables


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, arguments)


def test_the_version_is_shown(run):
    assert run("--version").stdout == f"ontologia {ontologia.__version__}\n"


def test_the_statements_for_postgresql_make_a_store(run, place, ask_store):
    uri = place("postgres")
    schema = place_of(uri).schema

    text = run("schema", "sql", "--schema", schema).stdout
    with psycopg.connect(place_of(uri).conninfo, autocommit=True) as connection:
        connection.execute(text.encode())

    assert "CREATE ROLE" not in text
    made = ask_store(uri, "SELECT xmin::text FROM ontologia_layout")
    Session(uri).close()
    assert ask_store(uri, "SELECT xmin::text FROM ontologia_layout") == made


def test_the_schema_is_ontologia_unless_another_is_named(run):
    plain, named = run("schema", "sql").stdout, run("schema", "sql", "--schema", "shop").stdout

    assert 'CREATE SCHEMA "ontologia"' in plain
    assert 'CREATE SCHEMA "shop"' in named
    assert "ontologia." not in named


def test_roles_are_added_when_asked_for(run):
    text = run("schema", "sql", "--roles", "--schema", "shop").stdout

    assert 'CREATE ROLE "shop_worker"' in text
    assert 'GRANT SELECT ON ALL TABLES IN SCHEMA "shop" TO "shop_worker", "shop_reader"' in text


def test_the_statements_for_sqlite_make_a_store(run, tmp_path, ask_store):
    path, other = tmp_path / "made.db", tmp_path / "opened.db"
    with closing(apsw.Connection(str(path))) as database:
        database.execute(run("schema", "sql", "--dialect", "sqlite").stdout)
    Session(str(other)).close()

    asked = "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"
    statistics = "SELECT * FROM sqlite_stat1 ORDER BY 1, 2, 3"
    for statement in (asked, statistics, "SELECT version FROM ontologia_layout"):
        here = ask_store(f"sqlite:///{path}", statement)
        assert here == ask_store(f"sqlite:///{other}", statement)
    Session(str(path)).close()
    assert "events" in tables(ask_store, f"sqlite:///{path}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dialect", "sqlite", "--roles"],
        ["--dialect", "sqlite", "--schema", "shop"],
        ["--dialect", "oracle"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_a_usage_error(arguments, run):
    assert run("schema", "sql", *arguments).exit_code == 2


def test_a_schema_that_cannot_be_is_an_error(run):
    done = run("schema", "sql", "--schema", "a b")

    assert done.exit_code == 5
    assert done.stderr.startswith("error: schema='a b' names no schema")


def test_nothing_heavy_is_imported_before_a_command_needs_it():
    program = (
        "import json, sys\n"
        "from typer.testing import CliRunner\n"
        "from ontologia.cli.main import app\n"
        "before = sorted(sys.modules)\n"
        "print(json.dumps(before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    heavy = {"psycopg", "psycopg_pool", "apsw", "pydantic_settings", "rich.progress", "rich.table"}
    heavy |= {
        "pydantic",
        "ontologia.runtime.session",
        "ontologia.store.sqlite",
        "ontologia.store.postgres",
        "ontologia.store.copying",
    }
    assert heavy & set(json.loads(done.stdout)) == set()


def test_every_command_says_what_it_does(run):
    for command in ([], ["copy"], ["schema"], ["schema", "sql"]):
        done = run(*command, "--help")
        assert done.exit_code == 0
        assert "Usage" in done.stdout
