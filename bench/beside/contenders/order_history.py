"""The state that a handler of a mere queue changes: what its user would write by hand.

Each change is a version in a history and the current row, in one transaction that is on the disk
when it returns.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import orjson

from bench.beside.contenders.contender import Fields

_TABLES = (
    "CREATE TABLE IF NOT EXISTS order_history(number INTEGER PRIMARY KEY, id TEXT, fields TEXT)",
    "CREATE TABLE IF NOT EXISTS orders(id TEXT PRIMARY KEY, fields TEXT)",
)
_VERSION = "INSERT INTO order_history(id, fields) VALUES (?, ?)"
_LATEST = (
    "INSERT INTO orders(id, fields) VALUES (?, ?) "
    "ON CONFLICT (id) DO UPDATE SET fields = excluded.fields"
)


def make_books(connection: sqlite3.Connection) -> None:
    for table in _TABLES:
        connection.execute(table)


def write(connection: sqlite3.Connection, fields: Fields) -> None:
    """Within a transaction of the caller."""
    row = version(fields)
    connection.execute(_VERSION, row)
    connection.execute(_LATEST, row)


def version(fields: Fields) -> tuple[str, str]:
    order = {"id": fields["order_id"], "customer": fields["customer"], "total": fields["total"]}
    return order["id"], orjson.dumps(order).decode()


class Books(threading.local):
    """On a connection of its own in each thread, beside the queue's."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def write(self, fields: Fields) -> None:
        connection = self._connection or self._open()
        connection.execute("BEGIN IMMEDIATE")
        write(connection, fields)
        connection.execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        self._connection.execute("PRAGMA synchronous=FULL")
        return self._connection


class PostgresBooks(threading.local):
    """The same on PostgreSQL, with psycopg."""

    tables = (
        "CREATE TABLE order_history(number BIGSERIAL PRIMARY KEY, id TEXT, fields TEXT)",
        "CREATE TABLE orders(id TEXT PRIMARY KEY, fields TEXT)",
    )
    statement = (
        "WITH version AS (INSERT INTO order_history(id, fields) VALUES (%(id)s, %(fields)s)) "
        "INSERT INTO orders(id, fields) VALUES (%(id)s, %(fields)s) "
        "ON CONFLICT (id) DO UPDATE SET fields = excluded.fields"
    )

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._connection: Any = None

    def write(self, fields: Fields) -> None:
        import psycopg

        if self._connection is None:
            self._connection = psycopg.connect(self._uri, autocommit=True, prepare_threshold=0)
        key, text = version(fields)
        self._connection.execute(self.statement, {"id": key, "fields": text})


def make_postgres_books(uri: str) -> None:
    import psycopg

    with psycopg.connect(uri) as connection:
        for table in PostgresBooks.tables:
            connection.execute(table)
