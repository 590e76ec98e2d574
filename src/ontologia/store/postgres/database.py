"""One PostgreSQL database, opened: a pool of connections, and transactions on them.

Writers do not exclude each other here. What has to be alone takes a lock of its own: the rows it
is about, or, for hand-out and registration, an advisory lock that ends with the transaction.
Write transactions are READ COMMITTED: every statement sees what was committed before it began,
so a statement that follows a lock sees what was written under it.

What writes state takes the lock of commits first, and has it until it ends: so commits are numbered
without gaps, in the order in which they become visible, and what a commit compared itself with is
still true when it is written.

Nothing is kept on a connection between transactions: no search_path, no prepared statements, no
settings but SET LOCAL. So the store works behind PgBouncer in transaction mode.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolTimeout

from ontologia.errors import DatabaseError, LockContentionError, SessionClosedError
from ontologia.store.database import Bindings, Conflict
from ontologia.store.postgres.errors import translated, unreachable
from ontologia.store.postgres.place import Place
from ontologia.store.turn import Turn

log = logging.getLogger(__name__)
_MOST_CONNECTIONS = 16
_TRANSACTION_ID = "pg_current_xact_id()::text"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_CONNECTING_MS = 10_000
_FIND_OUT = 30.0  # seconds to ask a server that went away what became of a commit
_ASK_AGAIN = 0.02
_COLLISIONS = (errors.DeadlockDetected, errors.SerializationFailure)
_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}


class Tx:
    """Statements within one transaction, on one connection."""

    __slots__ = ("_connection", "_hand_out_key", "gate")

    def __init__(
        self, connection: psycopg.Connection[Any], hand_out_key: int, gate: Any = None
    ) -> None:
        self._connection = connection
        self._hand_out_key = hand_out_key
        self.gate = gate
        """What the statement that was sent with BEGIN answered; see `Database.write_state`."""

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

    def together(self, steps: Iterable[tuple[str, Bindings]]) -> None:
        """Run several statements, sent at once: none of them waits for the answer of another."""
        with self._connection.pipeline():
            for sql, bindings in steps:
                _execute(self._connection, sql, bindings)

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
        self._commits_key = lock_key("commits", place.schema)
        self._turn = Turn()
        self._writing = False
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

    def write(
        self, *, timeout_ms: int | None = None, durable: bool = True
    ) -> AbstractContextManager[Tx]:
        """A write transaction; no lock in it is waited for longer than `timeout_ms`.

        A soft one does not wait for the disk; a hard one does, as the server is set up to.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        begin = _begin(limit, durable)
        if durable:  # what is soft may as well be lost and done again
            begin += f"; SELECT NULL, {_TRANSACTION_ID}"
        return self._transaction(begin, limit)

    @contextmanager
    def write_state(
        self, gate: str = "SELECT NULL", *, timeout_ms: int | None = None, durable: bool = True
    ) -> Generator[Tx]:
        """The same, alone: until its end nobody else writes state.

        `gate` is asked under the lock, on the way of BEGIN; its first row is `tx.gate`. Threads
        here wait for each other without a connection, so that some are left for others.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        lock = f"pg_advisory_xact_lock({self._commits_key})"
        begin = f"{_begin(limit, durable)}; SELECT {lock}, {_TRANSACTION_ID}; {gate}"
        with self._turn.taken(limit):
            if self._writing:
                raise RuntimeError("this thread has a write transaction open already")
            try:
                self._writing = True
                with self._transaction(begin, limit) as tx:
                    yield tx
            finally:
                self._writing = False

    def read(self) -> AbstractContextManager[Tx]:
        """A read transaction: everything in it is answered from one snapshot."""
        return self._transaction(_READ, self._timeout_ms)

    @contextmanager
    def _transaction(self, begin: str, limit_ms: float) -> Generator[Tx]:
        started = time.monotonic()
        try:
            connection, cursor = self._first(begin, (), limit_ms)
            try:
                answers = _answers(cursor)
                yield Tx(connection, self._hand_out_key, answers[-1] if answers else None)
                lost = self._commit(connection)
            except BaseException:
                _roll_back(connection)
                raise
            finally:
                self._pool.putconn(connection)
            if lost is not None:
                self._find_out(lost, answers[0][1] if answers else None)
        except _COLLISIONS as error:
            others = f"other transactions on {self._shown} ({type(error).__name__})"
            raise Conflict(others, _since(started)) from error
        except psycopg.Error as error:
            raise translated(error, self._shown, waited_ms=_since(started)) from error

    def _commit(self, connection: psycopg.Connection[Any]) -> psycopg.OperationalError | None:
        """End the transaction; the error if the connection was lost on the way."""
        try:
            ended = connection.execute(b"COMMIT").statusmessage
        except psycopg.OperationalError as error:
            if not connection.closed:
                raise
            return error
        if ended != "COMMIT":  # a statement failed, and somebody went on regardless
            raise DatabaseError(f"{self._shown}: the transaction was taken back")
        return None

    def _find_out(self, lost: psycopg.OperationalError, transaction_id: str | None) -> None:
        """Whether a commit whose answer was lost was done: then it is, and nothing is wrong."""
        if transaction_id is None:
            raise lost
        deadline = time.monotonic() + _FIND_OUT
        status: str | None = None
        while True:
            try:
                [[status]] = self.all("SELECT pg_xact_status(%s::xid8)", (transaction_id,))
            except (DatabaseError, LockContentionError) as error:
                log.info("asking what became of transaction %s: %s", transaction_id, error)
            if status == "committed":
                return
            if status == "aborted":
                raise DatabaseError(
                    f"the connection to {self._shown} was lost while a transaction was being "
                    f"committed; the server took it back, and nothing was written"
                ) from lost
            if time.monotonic() >= deadline:
                raise DatabaseError(
                    f"the connection to {self._shown} was lost while transaction {transaction_id} "
                    f"was being committed, and the server does not say whether it was",
                    hint=f"SELECT pg_xact_status('{transaction_id}') tells it, once the server is "
                    f"back.",
                ) from lost
            time.sleep(_ASK_AGAIN)

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
        """A connection: those of others are waited for `limit_ms`, a new one as long as it takes."""
        self._check_usable()
        started = time.monotonic()
        try:
            return self._pool.getconn(timeout=max(limit_ms, 1) / 1000)
        except PoolTimeout as error:
            if self._pool.get_stats().get("pool_size", 0) >= _MOST_CONNECTIONS:
                others = f"the {_MOST_CONNECTIONS} connections that other threads here have"
                raise LockContentionError(others, _since(started)) from error
            if limit_ms >= _CONNECTING_MS:
                raise
        return self._pool.getconn(timeout=(_CONNECTING_MS - limit_ms) / 1000)

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


def _begin(limit_ms: float, durable: bool) -> str:
    timeout = max(1, int(limit_ms))  # 0 would mean for ever
    begin = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {timeout}"
    return begin if durable else f"{begin}; SET LOCAL synchronous_commit = off"


def _answers(cursor: psycopg.Cursor[Any]) -> list[Any]:
    """The first row of each of the statements of one message that have rows."""
    rows: list[Any] = []
    while True:
        if cursor.description is not None:
            rows.append(cursor.fetchone())
        if not cursor.nextset():
            return rows


def _since(started: float) -> float:
    return (time.monotonic() - started) * 1000
