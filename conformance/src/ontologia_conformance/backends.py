"""Where the suite's stores are: a `Backend` makes them, and knows their tables."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import apsw
import pytest

SERVER = os.environ.get("ONTOLOGIA_TEST_POSTGRES", "")
"""A PostgreSQL server to test on, instead of those that the suite starts."""

NAMES = ["sqlite", *(["postgres"] if SERVER else ["postgres18", "postgres16"])]
"""The backends under test: each is a fixture of this name, with the scope of the session."""

PORT = "ontologia_postgres"
"""The key in xdist's `workerinput` for the port of `SharedPostgres`."""


class Backend(Protocol):
    """One kind of store, to be tested."""

    @property
    def name(self) -> str:
        """What a test asks that cannot do without: "sqlite", "postgres"."""
        ...

    def store(self, folder: Path) -> AbstractContextManager[str]:
        """The URI of an empty store of a test's own; `folder` is the test's, for files."""
        ...

    def fresh(self) -> str:
        """The URI of an empty store; the one that was given out before may be it, emptied."""
        ...

    def ask(self, uri: str, statements: Sequence[str], values: Sequence[Any] = ()) -> list[Any]:
        """Run statements on a store's own tables, past the store; the rows of the last one.

        `?` stands for a value.
        """
        ...


class SQLite:
    """Files in the folder of a test."""

    name = "sqlite"

    @contextmanager
    def store(self, folder: Path) -> Generator[str]:
        yield f"sqlite:///{folder / 'test.db'}"

    def fresh(self) -> str:
        return "sqlite://"

    def ask(self, uri: str, statements: Sequence[str], values: Sequence[Any] = ()) -> list[Any]:
        # Through the copy of SQLite that stores use: two in one process drop each other's locks.
        with closing(apsw.Connection(uri.removeprefix("sqlite:///"))) as db:
            db.set_busy_timeout(5000)
            rows: list[Any] = []
            for statement in statements:
                rows = db.execute(statement, values).fetchall()
            return rows


class S3:
    """Prefixes of a bucket: stores of events, without tables and without state."""

    name = "s3"

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    @contextmanager
    def store(self, folder: Path) -> Generator[str]:
        with pytest.MonkeyPatch.context() as patch:
            from ontologia_conformance.seaweed import BUCKET

            for name, value in self._environment.items():
                patch.setenv(name, value)
            yield f"s3://{BUCKET}/{uuid4().hex}"

    def fresh(self) -> str:
        raise NotImplementedError("a bucket has no store of its own for an example")

    def ask(self, uri: str, statements: Sequence[str], values: Sequence[Any] = ()) -> list[Any]:
        raise NotImplementedError("a bucket has no tables")


@contextmanager
def postgres_server(version: int, config: pytest.Config) -> Generator[str]:
    """The URI of a database on a server that is started for the tests; skips where there is none.

    In CI it does not skip: there a missing server is a mistake. The processes of `pytest -n` share
    one server, which the plugin starts in the controller.
    """
    try:
        from ontologia_conformance.servers import Postgres, SharedPostgres, postgres_programs

        postgres_programs(version)
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL {version}: {error}")
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if PORT in given:
        yield SharedPostgres.database_for(given["workerid"], version, given[PORT])
        return
    with Postgres(version) as server:
        yield server.uri


def only(kind: str) -> pytest.MarkDecorator:
    """A mark for tests that are about one kind of backend."""
    names = [name for name in NAMES if name.startswith(kind)]
    return pytest.mark.parametrize("backend", names, indirect=True, scope="session")


SQLITE = only("sqlite")
POSTGRES = only("postgres")
