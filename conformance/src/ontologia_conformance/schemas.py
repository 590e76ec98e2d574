"""The suite's stores on PostgreSQL: schemas of their own, made once and used again.

To make a schema takes a tenth of a second, to empty it a hundredth of that. So a schema that a
test is done with is emptied for the next, unless more than its rows has changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from ontologia import Session
from ontologia.store.postgres.place import place_of

_LARGE = 4 * 1024 * 1024  # bytes: what a test with many rows leaves would slow down the next
_MANY_INDEXES = 30
_HERE = "%(schema)s::regnamespace"
_SHAPE = f"""
SELECT (SELECT md5(string_agg(concat_ws(' ', relname, attname, atttypid, attnotnull), ','
                              ORDER BY relname, attnum))
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relnamespace = {_HERE} AND relkind IN ('r', 'v') AND attnum > 0),
       (SELECT COUNT(*) FROM pg_constraint WHERE connamespace = {_HERE}),
       (SELECT COUNT(*) FROM pg_proc WHERE pronamespace = {_HERE}),
       (SELECT COUNT(*) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = {_HERE})
"""
_WORN = f"""
SELECT SUM(pg_relation_size(oid)) > {_LARGE} OR bool_or(relkind = 'r' AND reltuples > 0)
FROM pg_class WHERE relnamespace = {_HERE}
"""
_TABLES = f"SELECT relname FROM pg_class WHERE relnamespace = {_HERE} AND relkind = 'r'"
_INDEXES = f"SELECT relname FROM pg_class WHERE relnamespace = {_HERE} AND relkind = 'i'"
_START_ANEW = (
    f"SELECT setval(oid::regclass, 1, false) FROM pg_class "
    f"WHERE relnamespace = {_HERE} AND relkind = 'S'"
)
_KEPT = "ontologia_layout"  # its rows say which layout this is


class Postgres:
    """Schemas `test_…` on a server; nothing else there is touched."""

    name = "postgres"

    def __init__(self, server: str) -> None:
        self.server = server
        self._prefix = f"test_{secrets.token_hex(4)}"  # others may test on the same server
        self._made: list[str] = []
        self._free: list[str] = []
        self._fresh: str | None = None
        self._kept: psycopg.Connection[Any] | None = None
        self._new = _Made()

    @contextmanager
    def store(self, folder: Path) -> Generator[str]:
        schema = self._free.pop() if self._free else self._make()
        yield self._uri(schema)
        # Where somebody has a lock in it still, or tables are gone, it is left as it is.
        with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            if self._emptied(schema):
                self._free.append(schema)

    def fresh(self) -> str:
        if self._fresh is None:
            self._fresh = self._make()
        with self._connection() as connection:
            # Indexes stay: the next example has the same classes, and would make them again. But
            # not those of ever more classes, since every one is looked at by every question.
            if len(_names(connection, _INDEXES, self._fresh) - self._new.indexes) > _MANY_INDEXES:
                self._drop_indexes(connection, self._fresh)
            self._empty(connection, self._fresh)
        return self._uri(self._fresh)

    def unmade(self) -> str:
        """The URI of a schema that is not there yet."""
        self._made.append(f"{self._prefix}_{len(self._made) + 1}")
        return self._uri(self._made[-1])

    def ask(self, uri: str, statements: Sequence[str], values: Sequence[Any] = ()) -> list[Any]:
        place = place_of(uri)
        with _connected(place.conninfo) as connection:
            # For the transaction alone: behind a pooler the connection is somebody else's next.
            connection.execute(f"SET LOCAL search_path = {place.schema}".encode())
            cursor = connection.cursor()
            for statement in statements:
                text = statement.replace("?", "%s") if values else statement
                cursor.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def close(self, *, drop: bool = True) -> None:
        """End the connection; with `drop`, after dropping all schemas that were made."""
        for schema in self._made if drop else ():
            with self._connection() as connection:
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
        if self._kept is not None:
            self._kept.close()

    def _uri(self, schema: str) -> str:
        return f"{self.server}{'&' if '?' in self.server else '?'}schema={schema}"

    @contextmanager
    def _connection(self) -> Generator[psycopg.Connection[Any]]:
        """A transaction on the connection that is kept: a new one would be slow to begin with."""
        if self._kept is None:
            self._kept = _connected(place_of(self.server).conninfo, autocommit=True)
        with self._kept.transaction():
            yield self._kept

    def _make(self) -> str:
        Session(self.unmade()).close()
        schema = self._made[-1]
        with self._connection() as connection:
            if self._new == _Made():
                self._new = _as_made(connection, schema)
            self._empty(connection, schema)  # of the session that made it
        return schema

    def _emptied(self, schema: str) -> bool:
        """Empty a schema; False if it would not be as new then."""
        with self._connection() as connection:
            connection.execute(b"SET LOCAL lock_timeout = 1000")
            if _rows(connection, _WORN, schema)[0][0]:
                return False
            self._drop_indexes(connection, schema)
            if _as_made(connection, schema) != self._new:
                return False
            self._empty(connection, schema)
        return True

    def _drop_indexes(self, connection: psycopg.Connection[Any], schema: str) -> None:
        for index in _names(connection, _INDEXES, schema) - self._new.indexes:
            connection.execute(f'DROP INDEX "{schema}"."{index}"'.encode())

    def _empty(self, connection: psycopg.Connection[Any], schema: str) -> None:
        # One statement: what refers to each other is gone together at its end.
        tables = self._new.tables - {_KEPT}
        parts = [f'd{n} AS (DELETE FROM "{schema}".{t})' for n, t in enumerate(tables)]
        connection.execute(f"WITH {', '.join(parts)} {_START_ANEW}".encode(), {"schema": schema})


def _connected(conninfo: str, *, autocommit: bool = False) -> psycopg.Connection[Any]:
    """A connection whose transactions can write, whatever the server's default is."""
    connection = psycopg.connect(
        conninfo,
        application_name="tests of ontologia",
        autocommit=autocommit,
        prepare_threshold=None,
    )
    connection.read_only = False
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


class _Made(NamedTuple):
    """What a schema is like before a test has used it."""

    shape: object = None
    layout: object = None
    tables: frozenset[str] = frozenset()
    indexes: frozenset[str] = frozenset()


def _as_made(connection: psycopg.Connection[Any], schema: str) -> _Made:
    return _Made(
        _rows(connection, _SHAPE, schema),
        _rows(connection, f'SELECT version FROM "{schema}".{_KEPT} ORDER BY 1', schema),
        _names(connection, _TABLES, schema),
        _names(connection, _INDEXES, schema),
    )


def _names(connection: psycopg.Connection[Any], sql: str, schema: str) -> frozenset[str]:
    return frozenset(name for [name] in _rows(connection, sql, schema))


def _rows(connection: psycopg.Connection[Any], sql: str, schema: str) -> list[Any]:
    return connection.execute(sql.encode(), {"schema": schema}).fetchall()
