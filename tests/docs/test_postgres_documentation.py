"""What the page on PostgreSQL in operation says is so."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from ontologia import Event, Field, OntologiaConfig, Session, errors
from ontologia.errors import OntologiaError
from ontologia.store.postgres import contact, database, place, watch
from tests.docs.test_documentation import DOCS, blocks
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

PAGE = DOCS / "howto/postgres.md"
SAID = PAGE.read_text()


class DumpMade(Event):
    where: Field[str]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


def test_the_program_runs_on_a_database_that_was_set_up_as_the_page_says(server):
    set_up, *queries = blocks(PAGE, "sql")
    [program] = blocks(PAGE, "python")
    with psycopg.connect(server.uri, autocommit=True) as superuser:
        for statement in filter(str.strip, set_up.split(";")):
            superuser.execute(statement)

    exec(program.replace("db.example.com:5432", f"127.0.0.1:{server.port}"), {})  # noqa: S102

    with psycopg.connect(server.uri, dbname="shop", autocommit=True) as operator:
        assert operator.execute("SELECT COUNT(*) FROM ontologia.commits").fetchone() == (1,)
        answers = {query: operator.execute(query).fetchall() for query in queries}
    for query, rows in answers.items():
        if "-- good: no row" in query:
            assert rows == [], query
        if "n_dead_tup" in query:
            assert len(rows) == 4


def test_limits_are_as_the_page_says():
    settings = OntologiaConfig.model_fields
    assert settings["lock_timeout_ms"].default == 5_000
    assert settings["statement_timeout_ms"].default == 600_000
    assert place._DEFAULTS["connect_timeout"] == "10"
    assert place._DEFAULTS["tcp_user_timeout"] == "25000"
    assert database._CONNECTING_MS == 10_000
    assert database._FIND_OUT == 30
    assert database._MOST_CONNECTIONS == 16
    assert contact._OLDEST == 15
    assert (watch._POLL_FIRST, watch._POLL_LAST) == (0.02, 1)


def test_the_page_names_no_error_and_no_setting_that_does_not_exist():
    for name in set(re.findall(r"`(\w+Error)`", SAID)):
        assert issubclass(getattr(errors, name), OntologiaError)
    for name in set(re.findall(r"`(\w+_ms)`", SAID)):
        assert name in OntologiaConfig.model_fields


def test_a_dump_of_the_schema_restores_to_a_whole_store(server, tmp_path):
    dump, restore = blocks(DOCS / "howto/backups.md", "text")[-1].splitlines()
    source, target = (re.search(r"postgresql://\S+", line)[0] for line in (dump, restore))
    here = f"postgresql://postgres@127.0.0.1:{server.port}"
    with psycopg.connect(server.uri, autocommit=True) as superuser:
        for name in ("dumped", "restored"):
            superuser.execute(f"CREATE DATABASE {name}".encode())
    with Session(f"{here}/dumped") as session:
        session.commit(event=DumpMade(where="here"))

    from ontologia_conformance.servers import postgres_programs

    for line in (dump, restore):
        command = line.replace(source, f"{here}/dumped").replace(target, f"{here}/restored")
        program, *words = shlex.split(command)
        subprocess.run([postgres_programs(18) / program, *words], cwd=tmp_path, check=True)

    with Session(f"{here}/restored") as restored:
        [event] = restored.event_store.list_events("default")
        assert (event["type"], event["status"]) == ("dump.made", "pending")
        assert restored.event_store.check() == []
