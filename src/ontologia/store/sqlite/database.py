"""One SQLite file, opened: a connection that writes, connections that read, and transactions.

SQLite has one writer at a time. So has this module: one writing connection per opened store,
behind a lock, and every write transaction begins with BEGIN IMMEDIATE, so what is read inside it
cannot change before it is written. Readers have connections of their own and never wait (WAL).

Between processes the file itself is the lock. SQLite's own busy handler backs off to 100 ms and
starves whoever waits; ours asks again every 0.2 to 1 ms until the caller's deadline.

Hard transactions are synced when they return, soft ones are not: `synchronous` is switched before
BEGIN, where SQLite allows it. The log is sequential, so a later hard one makes them durable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from random import Random
from typing import Any, TypeAlias

import apsw

from ontologia import codec
from ontologia.errors import InvalidValueError, LockContentionError, SessionClosedError
from ontologia.store.sqlite.checkpoints import Checkpoints
from ontologia.store.sqlite.errors import translated
from ontologia.store.turn import Turn

Bindings: TypeAlias = dict[str, Any] | Sequence[Any]
MEMORY = ":memory:"
_NO_BINDINGS: tuple[()] = ()


class Tx:
    """Statements within one transaction, on one connection."""

    __slots__ = ("connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def all(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> list[Any]:
        """Every row."""
        return self.connection.execute(sql, bindings).fetchall()

    def one(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> Any:
        """The first row, or None."""
        return self.connection.execute(sql, bindings).fetchone()

    def run(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> int:
        """Run it; how many rows it changed."""
        self.connection.execute(sql, bindings)
        return self.connection.changes()

    def ask(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> Callable[[], list[Any]]:
        """Run it; calling what this returns gives its rows."""
        rows = self.all(sql, bindings)
        return lambda: rows

    def later(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> None:
        """Run it; nothing is gained by waiting."""
        self.connection.execute(sql, bindings)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one prepared statement for each row."""
        self.connection.executemany(sql, rows)

    def hand_out_turn(self, *, wait: bool) -> bool:
        """BEGIN IMMEDIATE excludes every other writer already."""
        return True

    def last_id(self) -> int:
        """The rowid of the last INSERT."""
        return self.connection.last_insert_rowid()


class ChangeCounter:
    """A connection of its own that sees whether others have written. One thread uses it."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._seen = self._version()

    def _version(self) -> int:
        with _translating(self._path, self._connection):
            return int(self._connection.pragma("data_version"))

    def changed(self) -> bool:
        """Whether any other connection has committed since the last call."""
        before, self._seen = self._seen, self._version()
        return before != self._seen

    def close(self) -> None:
        """Give up the connection."""
        self._connection.close()


class Database:
    """An opened file. Any thread may use it; a forked child may not."""

    one_writer = True

    def __init__(self, path: str, *, random: Random, timeout_ms: int) -> None:
        self.path = path
        self.in_memory = path == MEMORY
        self._random = random
        self._timeout_ms = timeout_ms
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._writing = False
        self._pid = os.getpid()
        self._closed = False
        self._durable: bool | None = None
        self._turn = Turn()
        self._readers: list[apsw.Connection] = []
        with _translating(path):
            self._writer = self._connect(self._busy)
        self._tx = Tx(self._writer)
        self._checkpoints = Checkpoints(lambda: self._connect(self._busy_reader))
        if not self.in_memory:
            self._writer.set_wal_hook(self._checkpoints.committed)

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def write(self, *, timeout_ms: int | None = None, durable: bool = True) -> Generator[Tx]:
        """A write transaction, or LockContentionError after `timeout_ms`."""
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        started = time.monotonic()
        with self._turn.taken(limit):
            self._check_usable()
            if self._writing:
                raise RuntimeError("this thread has a write transaction open already")
            try:
                self._writing = True
                self._begin(durable, started, limit)
                yield self._tx
                self._writer.execute("COMMIT")
            except apsw.Error as error:
                said = self._writer.system_errno
                self._roll_back()
                if isinstance(error, apsw.IOError):
                    self._blot()
                raise translated(error, self.path, said) from error
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._writing = False

    def _begin(self, durable: bool, started: float, limit_ms: float) -> None:
        self._roll_back()  # what an interrupt may have left open
        if durable is not self._durable:
            self._writer.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        self._deadline = started + limit_ms / 1000
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise LockContentionError("a writer in another process", _since(started)) from error

    def _roll_back(self) -> None:
        # SQLite has rolled back by itself after some errors (disk full among them).
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _blot(self) -> None:
        """Write over what a commit that could not be synced has left in the log.

        It is all there, only not for certain, and SQLite has forgotten it. But were everybody killed
        before the next one writes, whoever reads the log then would take it for done.
        """
        with suppress(apsw.Error):  # then the disk takes nothing at all
            self._writer.execute("PRAGMA synchronous=NORMAL")
            self._durable = False
            version = self._writer.pragma("user_version")
            self._writer.execute(f"PRAGMA user_version={version}")

    @contextmanager
    def read(self) -> Generator[Tx]:
        """A read transaction: everything in it is answered from one snapshot."""
        if self.in_memory:
            with self._turn.taken(), _translating(self.path, self._writer):
                self._check_usable()
                yield Tx(self._writer)
            return
        self._check_usable()
        reader = self._take_reader()
        try:
            with _translating(self.path, reader):
                reader.execute("BEGIN")
                try:
                    yield Tx(reader)
                finally:
                    if reader.in_transaction:  # SQLite has ended it by itself after some errors
                        reader.execute("COMMIT")
        finally:
            self._return_reader(reader)

    def all(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> list[Any]:
        """Every row of a single statement, which is a snapshot by itself."""
        if self.in_memory:
            with self.read() as tx:
                return tx.all(sql, bindings)
        # Written out, because a point read should not spend its time on context managers.
        self._check_usable()
        reader = self._take_reader()
        try:
            return reader.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            raise translated(error, self.path, reader.system_errno) from error
        finally:
            self._return_reader(reader)

    def change_counter(self) -> ChangeCounter | None:
        """Tells whether anybody has committed since; None if nobody else can."""
        if self.in_memory:
            return None
        self._check_usable()
        return ChangeCounter(self._new_reader(), self.path)

    def _take_reader(self) -> apsw.Connection:
        try:
            return self._readers.pop()
        except IndexError:
            return self._new_reader()

    def _new_reader(self) -> apsw.Connection:
        with _translating(self.path):
            reader = self._connect(self._busy_reader)
            reader.execute("PRAGMA query_only=ON")
            return reader

    def _return_reader(self, reader: apsw.Connection) -> None:
        self._readers.append(reader)
        if self._closed:
            self._close_readers()

    def close(self) -> None:
        """Close every connection; those in use are closed when they come back."""
        with self._turn.taken():
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._pid:  # a forked child must leave its parent's files alone
                self._checkpoints.close()
                self._close_readers()
                self._writer.close()

    def _close_readers(self) -> None:
        while self._readers:
            self._readers.pop().close()

    # -- connections --------------------------------------------------------------------------

    def _connect(self, busy: Callable[[int], bool]) -> apsw.Connection:
        connection = apsw.Connection(self.path)
        try:
            connection.set_busy_handler(busy)
            connection.create_collation("decimal", compare_decimals)
            connection.create_scalar_function("canonical", canonical, 1, deterministic=True)
            self._enter_wal(connection)
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(
                "PRAGMA cache_size=-16384"
            )  # 16 MiB: the system caches the file, too
        except BaseException:
            connection.close()
            raise
        return connection

    def _enter_wal(self, connection: apsw.Connection) -> None:
        """Switch a new file to WAL; SQLite does not call the busy handler while others do, too."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except apsw.BusyError:
                if time.monotonic() >= deadline:
                    raise
                self._pause()

    def _busy(self, _attempts: int) -> bool:
        """Called by SQLite while another process writes; whether to try again."""
        if time.monotonic() >= self._deadline:
            return False
        self._pause()
        return True

    def _busy_reader(self, attempts: int) -> bool:
        """A reader waits only while another process recovers or closes the log: not for long."""
        self._pause()
        return attempts < max(self._timeout_ms, 2_000)

    def _pause(self) -> None:
        time.sleep(0.0002 + 0.0008 * self._random.random())

    def _check_usable(self) -> None:
        if self._closed:
            raise SessionClosedError(f"the store {self.path} was closed")
        if os.getpid() != self._pid:
            raise SessionClosedError(
                f"the store {self.path} was opened in another process",
                hint="A connection does not survive fork(); open a session in the child.",
            )


@contextmanager
def _translating(path: str, connection: apsw.Connection | None = None) -> Generator[None]:
    """Errors of SQLite in our words; of a connection that this thread alone uses."""
    try:
        yield
    except apsw.Error as error:
        said = 0 if connection is None else connection.system_errno
        raise translated(error, path, said) from error


def canonical(*values: Any) -> Any:
    """JSON text in the form that versions are compared in; what the codec refuses stays as it is."""
    [text] = values  # SQLite calls it with one
    try:
        return codec.encode(codec.decode(text))
    except InvalidValueError:
        return text


def compare_decimals(first: str, second: str) -> int:
    """Order of two numbers kept as text, exact."""
    a, b = Decimal(first), Decimal(second)
    return (a > b) - (a < b)


def _since(started: float) -> float:
    return (time.monotonic() - started) * 1000
