"""The store under test, on each backend in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from ontologia import OntologiaConfig, Session
from ontologia.store.events.store import SqlEventStore
from ontologia.store.open import WithEvents, open_event_store
from ontologia.testing import ManualClock

STATE = ("entity_history", "relation_history", "commits", "entity_latest", "relation_latest")
STATE += ("schema_registry", "schema_versions", "locks")
_schemas = count(1)


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """A PostgreSQL server, started when the first test asks for it."""
    try:
        from ontologia.testing.servers import Postgres

        server = Postgres()
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {error}")
    try:
        server.start()
        yield server.uri
    finally:
        server.stop()


@pytest.fixture
def postgres_events_uri(postgres_uri: str) -> str:
    """A schema of its own."""
    return f"{postgres_uri}?schema=test_{next(_schemas)}"


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    """Which backend; `tests.conformance.backends` has marks for tests of one alone."""
    name: str = request.param
    return name


@pytest.fixture
def uri(backend: str, path: Path, request: pytest.FixtureRequest) -> str:
    """Where the test's store is."""
    if backend == "postgres":
        schema: str = request.getfixturevalue("postgres_events_uri")
        return schema
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def fresh_uri(backend: str, request: pytest.FixtureRequest) -> Callable[[], str]:
    """A store without state each time it is called, for tests that need one an example.

    On PostgreSQL it is the same one, emptied: that is faster than making another.
    """
    if backend == "sqlite":
        return lambda: "sqlite://"
    uri = f"{request.getfixturevalue('postgres_uri')}?schema=fresh"
    Session(uri).close()
    empty = [f"DELETE FROM {table}" for table in STATE]

    def emptied() -> str:
        _ask_postgres(uri, ["; ".join(empty)])
        return uri

    return emptied


@pytest.fixture
def direct(backend: str, uri: str, path: Path) -> Callable[..., list[Any]]:
    """Ask or change the tables themselves, on a connection of its own; `?` stands for a value."""

    def ask(statement: str, values: Sequence[Any] = ()) -> list[Any]:
        if backend == "postgres":
            return _ask_postgres(uri, [statement.replace("?", "%s")], values)
        with closing(apsw.Connection(str(path))) as db:
            db.set_busy_timeout(5000)
            return db.execute(statement, values).fetchall()

    return ask


@pytest.fixture
def sql(
    backend: str, uri: str, sql: Callable[..., list[list[Any]]]
) -> Callable[..., list[list[Any]]]:
    """Ask the database itself, as a process that knows nothing of stores would."""
    if backend == "sqlite":
        return sql
    return lambda *statements: [list(row) for row in _ask_postgres(uri, statements)]


def _ask_postgres(uri: str, statements: Sequence[str], values: Sequence[Any] = ()) -> list[Any]:
    import psycopg

    server, _, schema = uri.partition("?schema=")
    with psycopg.connect(server, options=f"-c search_path={schema}") as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["sqlite", "postgres"])
def events_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the test's events are; override it for tests of one backend."""
    if request.param == "postgres":
        uri: str = request.getfixturevalue("postgres_events_uri")
        return uri
    return f"sqlite:///{tmp_path / 'events.db'}"


@pytest.fixture
def open_events(events_uri: str, clock: ManualClock) -> Iterator[Callable[..., SqlEventStore]]:
    """Open the test's event store, as another process would; settings as keywords.

    At the end what is stored must keep every rule of delivery.
    """
    opened: list[WithEvents] = []

    def open_(**settings: Any) -> SqlEventStore:
        config = OntologiaConfig(clock=clock, **settings)
        opened.append(open_event_store(events_uri, config, clock, Random(len(opened))))
        return opened[-1].events

    yield open_
    try:
        for each in opened[:1]:
            assert each.events.check() == []
    finally:
        for each in opened:
            each.close()


@pytest.fixture
def event_store(open_events: Callable[..., SqlEventStore]) -> SqlEventStore:
    return open_events()


@pytest.fixture
def ask(event_store: SqlEventStore, events_uri: str) -> Callable[[str], list[Any]]:
    """Rows of the tables themselves; the statement has no parameters."""

    def rows(statement: str) -> list[Any]:
        with event_store.transaction() as tx:
            _find_tables(tx, events_uri)
            return tx.all(statement)

    return rows


@pytest.fixture
def change(event_store: SqlEventStore, events_uri: str) -> Callable[[str], int]:
    """Change the tables behind the store's back."""

    def run(statement: str) -> int:
        with event_store.transaction() as tx:
            _find_tables(tx, events_uri)
            return tx.run(statement)

    return run


def _find_tables(tx: Any, uri: str) -> None:
    if not uri.startswith("sqlite"):
        tx.run(f"SET LOCAL search_path = {uri.partition('?schema=')[2]}")
