"""Sessions at work: on SQLite, and on PostgreSQL of one version; the conformance suite has more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ontologia import OntologiaConfig
from ontologia.clock import SYSTEM_CLOCK
from ontologia.store.open import open_store
from ontologia_conformance.backends import NAMES, Backend
from tests.integration.running import PATIENCE, until
from tests.s3.proxy import Proxy


@pytest.fixture(scope="session", params=[name for name in NAMES if name != "postgres16"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A file that is about SQLite alone overrides it."""
    found: Backend = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Where a store could be, and none is yet: `place("sqlite")`, `place("postgres")`."""
    numbers = count(1)

    def unmade(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"
        uri: str = request.getfixturevalue(NAMES[1]).unmade()
        return uri

    return unmade


@pytest.fixture
def ask_store(sqlite: Backend, request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Run statements on the tables of any store: `ask_store(uri, "SELECT …")`."""

    def ask(uri: str, *statements: str) -> list[Any]:
        on_server = uri.startswith("postgres")
        backend: Backend = request.getfixturevalue(NAMES[1]) if on_server else sqlite
        return backend.ask(uri, statements)

    return ask


@pytest.fixture
def refuse(
    backend: Backend, sql: Callable[..., object]
) -> Callable[[str, str], Callable[[], object]]:
    """Let the database refuse some rows of a table, until what is returned is called."""

    def begin(table: str, which: str) -> Callable[[], object]:
        if backend.name == "sqlite":
            sql(
                f"CREATE TRIGGER refused BEFORE INSERT ON {table} WHEN NEW.{which} "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
            return lambda: sql("DROP TRIGGER refused")
        sql(f"ALTER TABLE {table} ADD CONSTRAINT refused CHECK (NOT {which}) NOT VALID")
        return lambda: sql(f"ALTER TABLE {table} DROP CONSTRAINT refused")

    return begin


@pytest.fixture
def proxy(
    s3_uri: str, s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """What is opened from now on reaches the S3 server through it."""
    with Proxy(s3_server) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def listening(backend: Backend, uri: str) -> Iterator[None]:
    """For tests that count iterations: whoever runs on PostgreSQL is heard from the beginning.

    A run begins to listen in a thread of its own, and looks once more when it does.
    """
    if backend.name == "sqlite":
        yield
        return
    store: Any = open_store(uri, OntologiaConfig(), SYSTEM_CLOCK, Random(1))
    channel = store._channel
    heard = channel.hears  # the place may have been somebody else's a moment ago
    watch = store.watch()
    until(lambda: channel.hears)
    assert heard or watch.wait(PATIENCE)  # that look is over
    yield
    watch.close()
    store.close()
