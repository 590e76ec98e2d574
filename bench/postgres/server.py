"""The server, and databases on it that are filled once and copied for every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import psycopg
from psycopg import sql

from ontologia.testing.servers import Postgres


class Databases:
    """The databases of one server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._numbers = count(1)
        with psycopg.connect(server.uri) as connection:
            number = connection.info.server_version
        self.version = f"{number // 10_000}.{number % 10_000}"

    def made(self, fill: Callable[[str], object]) -> str:
        """A new database with what `fill` puts in it; its name."""
        name = f"made_{next(self._numbers)}"
        self._run("CREATE DATABASE {}", name)
        fill(self.uri(name))
        # What autovacuum would have done had it been there for a while.
        with psycopg.connect(self.uri(name), autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
        return name

    def uri(self, name: str) -> str:
        return f"{self._server.uri.rpartition('/')[0]}/{name}"

    @contextmanager
    def copied(self, source: str) -> Iterator[str]:
        """The URI of a copy, which is deleted afterwards."""
        name = f"{source}_{next(self._numbers)}"
        self._run("CREATE DATABASE {} TEMPLATE {}", name, source)
        try:
            with psycopg.connect(self._server.uri, autocommit=True) as connection:
                connection.execute("CHECKPOINT")  # not in the middle of what is measured
            yield self.uri(name)
        finally:
            self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _run(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._server.uri, autocommit=True) as connection:
            text = sql.SQL(statement)
            connection.execute(text.format(*map(sql.Identifier, names)))


@contextmanager
def running() -> Iterator[Databases]:
    """A server of its own, on disk."""
    with Postgres(durable=True) as server:
        yield Databases(server)
