"""One PostgreSQL database, opened: a pool of connections, and transactions on them.

Writers do not exclude each other here. What has to be alone takes a lock of its own: the rows it
is about, or, for hand-out and registration, an advisory lock that ends with the transaction.
Write transactions are READ COMMITTED: every statement sees what was committed before it began,
so a statement that follows a lock sees what was written under it.

Nothing is kept on a connection between transactions: no search_path, no prepared statements, no
settings but SET LOCAL. So the store works behind PgBouncer in transaction mode.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from ontologia.errors import DatabaseError, LockContentionError, SessionClosedError
from ontologia.store.database import Bindings
from ontologia.store.postgres.errors import translated, unreachable
from ontologia.store.postgres.place import Place

_MOST_CONNECTIONS = 16
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}


class Tx:
    """Statements within one transaction, on one connection."""

    __slots__ = ("_connection", "_hand_out_key")

    def __init__(self, connection: psycopg.Connection[Any], hand_out_key: int) -> None:
        self._connection = connection
        self._hand_out_key = hand_out_key

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row."""
        return _execute(self._connection, sql, bindings).fetchall()

    def one(self, sql: str, bindings: Bindings = ()) -> Any:
        """The first row, or None."""
        return _execute(self._connection, sql, bindings).fetchone()

    def run(self, sql: str, bindings: Bindings = ()) -> int:
        """Run it; how many rows it changed."""
        return max(0, _execute(self._connection, sql, bindings).rowcount)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row, without waiting for each."""
        self._connection.cursor().executemany(sql.encode(), rows)

    def hand_out_turn(self, *, wait: bool) -> bool:
        """Have hand-out and registration to oneself; a statement of its own.

        A snapshot is taken when a statement begins. Were the lock part of the next one, that
        would not see what the last holder of the lock wrote.
        """
        call = "pg_advisory_xact_lock" if wait else "pg_try_advisory_xact_lock"
        row = self.one(f"SELECT {call}(%s)", (self._hand_out_key,))
        return wait or bool(row[0])


class Database:
    """An opened database. Any thread may use it; a forked child may not."""

    one_writer = False

    def __init__(self, place: Place, *, timeout_ms: int) -> None:
        self.schema = place.schema
        self._shown = place.shown
        self._timeout_ms = timeout_ms
        self._pid = os.getpid()
        self._hand_out_key = lock_key("hand-out", place.schema)
        # The pool would try for a long time and say nothing; one connection by hand says why not.
        try:
            psycopg.connect(place.conninfo).close()
        except psycopg.Error as error:
            raise unreachable(self._shown, str(error).strip()) from error
        self._pool: ConnectionPool[psycopg.Connection[Any]] = ConnectionPool(
            place.conninfo,
            kwargs=_OPTIONS,
            min_size=1,
            max_size=_MOST_CONNECTIONS,
            open=True,
            name=f"ontologia-{place.schema}",
        )

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def write(self, *, timeout_ms: int | None = None, durable: bool = True) -> Generator[Tx]:
        """A write transaction; no lock in it is waited for longer than `timeout_ms`.

        A soft one does not wait for the disk; a hard one does, as the server is set up to.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        begin = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_lock_timeout(limit)}"
        if not durable:
            begin += "; SET LOCAL synchronous_commit = off"
        with self._transaction(begin, limit) as tx:
            yield tx

    @contextmanager
    def read(self) -> Generator[Tx]:
        """A read transaction: everything in it is answered from one snapshot."""
        with self._transaction(_READ, self._timeout_ms) as tx:
            yield tx

    @contextmanager
    def _transaction(self, begin: str, limit_ms: float) -> Generator[Tx]:
        started = time.monotonic()
        try:
            connection, _ = self._first(begin, (), limit_ms)
            try:
                yield Tx(connection, self._hand_out_key)
                ended = connection.execute(b"COMMIT").statusmessage
                if ended != "COMMIT":  # a statement failed, and somebody went on regardless
                    raise DatabaseError(f"{self._shown}: the transaction was taken back")
            except BaseException:
                _roll_back(connection)
                raise
            finally:
                self._pool.putconn(connection)
        except psycopg.Error as error:
            waited = (time.monotonic() - started) * 1000
            raise translated(error, self._shown, waited_ms=waited) from error

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row of a single statement, which is a snapshot by itself."""
        try:
            connection, cursor = self._first(sql, bindings, self._timeout_ms)
            try:
                return cursor.fetchall()
            finally:
                self._pool.putconn(connection)
        except psycopg.Error as error:
            raise translated(error, self._shown) from error

    # -- connections ------------------------------------------------------------------------

    def _first(
        self, sql: str, bindings: Bindings, limit_ms: float
    ) -> tuple[psycopg.Connection[Any], psycopg.Cursor[Any]]:
        """Run the first statement on a connection of the pool.

        A connection may have died in the pool, with the server or on the way to it. That shows
        with the first statement, which has done nothing then: another connection is tried.
        """
        left = _MOST_CONNECTIONS
        while True:
            connection = self._connection(limit_ms)
            try:
                return connection, _execute(connection, sql, bindings)
            except BaseException as error:
                _roll_back(connection)
                gone = isinstance(error, psycopg.OperationalError) and connection.closed
                self._pool.putconn(connection)
                left -= 1
                if not gone or left < 0:
                    raise

    def _connection(self, limit_ms: float) -> psycopg.Connection[Any]:
        self._check_usable()
        started = time.monotonic()
        try:
            return self._pool.getconn(timeout=max(limit_ms, 1) / 1000)
        except PoolTimeout as error:
            if self._pool.get_stats().get("pool_size", 0) < _MOST_CONNECTIONS:
                raise  # they are not in use: they cannot be had
            waited = (time.monotonic() - started) * 1000
            others = f"the {_MOST_CONNECTIONS} connections that other threads here have"
            raise LockContentionError(others, waited) from error

    def close(self) -> None:
        """Close every connection; those in use are closed when they come back."""
        if os.getpid() == self._pid:  # a forked child must leave its parent's connections alone
            self._pool.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SessionClosedError(
                f"the store {self._shown} was opened in another process",
                hint="A connection does not survive fork(); open a session in the child.",
            )


def lock_key(purpose: str, schema: str) -> int:
    """The number of an advisory lock: two schemas of one database do not share it."""
    digest = blake2b(f"ontologia {purpose} {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _execute(
    connection: psycopg.Connection[Any], sql: str, bindings: Bindings
) -> psycopg.Cursor[Any]:
    # Bytes, because the driver's types want str to be a literal. Without bindings the server is
    # sent plain text, and several statements can go at once.
    return connection.execute(sql.encode(), bindings or None)


def _roll_back(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.rollback()
    except psycopg.Error:
        connection.close()  # the server takes the transaction back by itself


def _lock_timeout(limit_ms: float) -> str:
    return f"SET LOCAL lock_timeout = {max(1, int(limit_ms))}"  # 0 would mean for ever
