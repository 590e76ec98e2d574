"""One SQLite file, opened: a connection that writes, connections that read, and transactions.

SQLite has one writer at a time. So has this module: one writing connection per opened store,
behind a lock, and every write transaction begins with BEGIN IMMEDIATE, so what is read inside it
cannot change before it is written. Readers have connections of their own and never wait (WAL).

Between processes the file itself is the lock. SQLite's own busy handler backs off to 100 ms and
starves whoever waits; ours asks again every 0.2 to 1 ms until the caller's deadline.

The file, or the log beside it, may be deleted or replaced while the store is open: its connections
would go on writing to the deleted one. So the inodes of both are compared once a second; after a
difference every read and write raises DatabaseError. SQLite deletes a log only when the last
connection is closed, so the log of an open store stays. What was copied over a file has the same
inode, and is not noticed.

On a full disk SQLite cannot make the index of the log (`-shm`) unless another connection has it there already.
Then the index is kept in memory, for which SQLite wants a connection that has the file to itself: all reads and
writes go one after the other through the writing connection, which is opened for each and closed after it. So
other processes wait, and do not fail; and as soon as there is room all is as usual.

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
from ontologia.errors import (
    DatabaseError,
    InvalidValueError,
    LockContentionError,
    SessionClosedError,
)
from ontologia.store.database import HURRY_MS, read_deadline
from ontologia.store.sqlite.checkpoints import Checkpoints
from ontologia.store.sqlite.errors import translated
from ontologia.store.turn import Turn

Bindings: TypeAlias = dict[str, Any] | Sequence[Any]
MEMORY = ":memory:"
_NO_BINDINGS: tuple[()] = ()
_STEPS = 10_000  # of SQLite's machine between two looks at a deadline: a fraction of a millisecond
_LOOK = 1.0  # seconds between two looks at the file's name
_LONGEST_PAUSE = 0.02  # seconds before a file is opened alone again, at random
_EXISTING = apsw.SQLITE_OPEN_READWRITE
_NO_INDEX = (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP, apsw.SQLITE_IOERR_SHMOPEN)
LONGEST_LOG = 64 * 2**20
"""Bytes: when a log that has grown longer begins anew, SQLite cuts its file to this."""


class Tx:
    """Statements within one transaction, on one connection."""

    __slots__ = ("committed", "connection")

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.committed = False

    def all(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> list[Any]:
        """Every row."""
        return self.connection.execute(sql, bindings).fetchall()

    def one(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> Any:
        """The first row, or None."""
        return self.connection.execute(sql, bindings).fetchone()

    def page(self, sql: str, bindings: dict[str, Any], most_bytes: int) -> list[Any]:
        """The first rows, up to the one with which their objects have so many bytes."""
        rows: list[Any] = []
        cursor = self.connection.execute(sql, bindings)
        for row in cursor:
            rows.append(row)
            most_bytes -= len(row[-2])
            if most_bytes <= 0:
                break
        cursor.close()
        return rows

    def run(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> int:
        """Run it; how many rows it changed."""
        self.connection.execute(sql, bindings)
        return self.connection.changes()

    def ask(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> list[Any]:
        """Every row: nothing is gained by waiting."""
        return self.all(sql, bindings)

    def later(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> None:
        """Run it; nothing is gained by waiting."""
        self.connection.execute(sql, bindings)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one prepared statement for each row."""
        self.connection.executemany(sql, rows)

    def lock_dispatch(self, *, wait: bool) -> bool:
        """BEGIN IMMEDIATE excludes every other writer already."""
        return True

    def last_id(self) -> int:
        """The rowid of the last INSERT."""
        return self.connection.last_insert_rowid()

    @property
    def written(self) -> int:
        """Number of rows that the connection has changed."""
        return self.connection.total_changes()

    def has_written(self, before: int, error: Exception) -> bool:
        """Whether rows were changed since `written` was `before`.

        After an error of its own SQLite may have rolled back the whole transaction.
        """
        return self.written != before or isinstance(error, apsw.Error)


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
        self._open: Tx | None = None
        """The write transaction that was begun last, unless it has ended."""
        self._pid = os.getpid()
        self._closed = False
        self._durable: bool | None = None
        self.turn = Turn()
        """Of the one thread that writes."""
        self._readers: list[apsw.Connection] = []
        self._file = path if self.in_memory else os.path.abspath(path)  # wherever the program goes
        self.log = ""
        """The write-ahead log: beside the file that `path` names, also through a link."""
        self._identity: tuple[int, int] | None = None
        self._log_identity: tuple[int, int] | None = None
        self._replaced = False
        self._look_again = float("inf")
        self._exclusive = False
        """While there is no room for the index of the log, each use of the file is alone."""
        self._uses = 0
        """Nested ones, of the thread that has the turn."""
        self._checkpoints = Checkpoints(lambda: self._connect(self._busy_reader))
        self.writer = self._open_writer()
        if not self.in_memory:
            self.log = self.writer.filename_wal
            self._identity = _identity(self._file)
            if self._identity is None:
                self.writer.close()
                raise DatabaseError(
                    f"{path} was deleted or replaced while it was being opened",
                    hint="Open it again once nothing moves, deletes or restores the file.",
                )
            self._look()
        if self._exclusive:
            self._close_connection(self.writer)

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def write(
        self, *, timeout_ms: int | None = None, durable: bool = True, hurry: bool = False
    ) -> Generator[Tx]:
        """A write transaction, or LockContentionError after `timeout_ms`."""
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        if hurry:
            limit = min(limit, HURRY_MS)
        started = time.monotonic()
        with self.turn.taken(limit), self.transaction(durable, limit, started) as tx:
            yield tx

    @contextmanager
    def transaction(
        self, durable: bool, timeout_ms: float, started: float | None = None
    ) -> Generator[Tx]:
        """The same for a thread that has the turn."""
        self.check_usable()
        # After an interrupt one may be left that nobody ends; then the turn was taken anew.
        if self._open is not None and self.turn.used:
            raise RuntimeError("this thread has a write transaction open already")
        self._hold()
        tx, committing = Tx(self.writer), False
        try:
            self._open, self.turn.used = tx, True
            self._begin(durable, time.monotonic() if started is None else started, timeout_ms)
            yield tx
            committing = True
            self.writer.execute("COMMIT")
            tx.committed = True
        except GeneratorExit:  # what an interrupt has left; any thread may come by here
            if self.turn.take_now():
                try:
                    if self._open is tx:
                        self._roll_back()
                finally:
                    self.turn.release()
            raise
        except apsw.Error as error:
            said = self.writer.system_errno
            self._roll_back()
            if isinstance(error, apsw.IOError):
                self._blot()
            raise translated(error, self.path, said) from error
        except BaseException:
            # An interrupt may come right after COMMIT.
            tx.committed = committing and not self.writer.in_transaction
            self._roll_back()
            raise
        finally:
            if self._open is tx:
                self._open = None
            self._let_go()

    def _begin(self, durable: bool, started: float, limit_ms: float) -> None:
        self._roll_back()  # what an interrupt may have left open
        if durable is not self._durable:
            self.writer.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        self._deadline = started + limit_ms / 1000
        try:
            self.writer.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise LockContentionError("a writer in another process", _since(started)) from error

    def _roll_back(self) -> None:
        # SQLite has rolled back by itself after some errors (disk full among them).
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")

    def _blot(self) -> None:
        """Write over what a commit that could not be synced has left in the log.

        It is all there, only not for certain, and SQLite has forgotten it. But were everybody killed
        before the next one writes, whoever reads the log then would take it for done.
        """
        with suppress(apsw.Error):  # then the disk takes nothing at all
            self.writer.execute("PRAGMA synchronous=NORMAL")
            self._durable = False
            version = self.writer.pragma("user_version")
            self.writer.execute(f"PRAGMA user_version={version}")

    @contextmanager
    def read(self) -> Generator[Tx]:
        """A read transaction: everything in it is answered from one snapshot."""
        if self.in_memory or self._exclusive:
            with self._alone() as tx:
                if tx is not None:
                    yield tx
                    return
        self.check_usable()
        reader = self._take_reader()
        try:
            with _translating(self.path, reader), _limited(reader):
                reader.execute("BEGIN")
                try:
                    yield Tx(reader)
                finally:
                    if reader.in_transaction:  # SQLite has ended it by itself after some errors
                        reader.execute("COMMIT")
        finally:
            self._return_reader(reader)

    @contextmanager
    def _alone(self) -> Generator[Tx | None]:
        """Read with the writing connection, which nobody else can write beside; None if that is over."""
        with self.turn.taken(), _translating(self.path):
            self.check_usable()
            self._hold()
            try:
                with _limited(self.writer):
                    yield Tx(self.writer) if self.in_memory or self._exclusive else None
            finally:
                self._let_go()

    def all(self, sql: str, bindings: Bindings = _NO_BINDINGS) -> list[Any]:
        """Every row of a single statement, which is a snapshot by itself."""
        if self.in_memory or self._exclusive or read_deadline() is not None:
            with self.read() as tx:
                return tx.all(sql, bindings)
        # Written out, because a point read should not spend its time on context managers.
        self.check_usable()
        reader = self._take_reader()
        try:
            return reader.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            raise translated(error, self.path, reader.system_errno) from error
        finally:
            self._return_reader(reader)

    def unmoved_pages(self) -> int:
        """Move of the log what can be moved; how many pages could not, since readers need them."""
        self.check_usable()
        if self._exclusive:
            return 0  # nobody else reads
        reader = self._take_reader()
        try:
            pages, moved = reader.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            return pages - moved
        except apsw.BusyError:  # somebody else is at it
            return 0
        except apsw.Error as error:
            raise translated(error, self.path, reader.system_errno) from error
        finally:
            self._return_reader(reader)

    def change_counter(self) -> ChangeCounter | None:
        """Tells whether anybody has committed since.

        None if nobody else can, or while the file is used by one connection at a time.
        """
        if self.in_memory or self._exclusive:
            return None
        self.check_usable()
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
        with self.turn.taken():
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._pid:  # a forked child must leave its parent's files alone
                self._checkpoints.close()
                self._look()
                self._close_readers()
                if not self._exclusive:  # else it is closed after each use
                    self._close_connection(self.writer)

    def _close_readers(self) -> None:
        while self._readers:
            self._close_connection(self._readers.pop())

    def _close_connection(self, connection: apsw.Connection) -> None:
        """Close it; the last one moves the log into the file, unless that may be another by now."""
        if self._replaced:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()

    # -- connections --------------------------------------------------------------------------

    def _open_writer(self) -> apsw.Connection:
        """The connection that writes; if need be one that has the file to itself."""
        self._deadline = time.monotonic() + self._timeout_ms / 1000
        with _translating(self.path):
            try:
                writer = self._connect(self._busy)
            except apsw.IOError as error:
                if not _lacks_index(error):
                    raise
                self._exclusive = True
                writer = self._connect_alone()
            else:
                self._exclusive = False
            if not self.in_memory:
                writer.execute(f"PRAGMA journal_size_limit={LONGEST_LOG}")
                if not self._exclusive:
                    writer.set_wal_hook(self._checkpoints.committed)
        self._durable = None
        return writer

    def _hold(self) -> None:
        """Open the writing connection if it was closed after its last use; for the thread with the turn."""
        if self._exclusive and not self._uses:
            self.writer.close()  # an interrupt may have left it open
            self.writer = self._open_writer()
        self._uses += self._exclusive

    def _let_go(self) -> None:
        """Close it after its use if it has the file to itself, so that other processes get it."""
        if self._exclusive:
            self._uses -= 1
            if not self._uses:
                self._close_connection(self.writer)

    def _connect_alone(self) -> apsw.Connection:
        """A connection that has the file to itself, once no other one uses it.

        Two that have both begun to read wait for each other, and neither stops reading until it is closed.
        So each is closed at once if it has to wait, and another one is opened.
        """
        while True:
            try:
                connection = self._connect(lambda _: False, exclusive=True)
            except apsw.BusyError:
                if time.monotonic() >= self._deadline:
                    raise
                time.sleep(_LONGEST_PAUSE * self._random.random())
            else:
                connection.set_busy_handler(self._busy)
                return connection

    def _connect(self, busy: Callable[[int], bool], *, exclusive: bool = False) -> apsw.Connection:
        if self._identity is None:
            connection = apsw.Connection(self._file)
        else:
            self._look()  # a file that was put in its place must not be opened for it
            self._check_file()
            connection = apsw.Connection(self._file, flags=_EXISTING)
        try:
            connection.set_busy_handler(busy)
            connection.create_collation("decimal", compare_decimals)
            connection.create_scalar_function("canonical", canonical, 1, deterministic=True)
            if exclusive:
                _keep_index_in_memory(connection)
                connection.execute("PRAGMA journal_mode=WAL")
            else:
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

    def _look(self) -> None:
        """See whether the file that is open, and its log, are still the ones of their names."""
        if self._identity is None or self._replaced:
            return
        self._look_again = time.monotonic() + _LOOK
        with suppress(OSError):  # they cannot be looked at, which says nothing
            # Between two uses of a file that one connection has to itself others may delete the log.
            known, log = self._log_identity, None if self._exclusive else _identity(self.log)
            if known is None:  # a new file has none before the first write
                self._log_identity = known = log
            self._replaced = _identity(self._file) != self._identity or log != known

    def _check_file(self) -> None:
        if self._replaced:
            self._look_again = 0.0  # for good
            raise DatabaseError(
                f"{self.path}, or the log beside it, was deleted or replaced while it was open; "
                f"this session reads and writes nothing any more, and what it wrote last is not in "
                f"the file that is there now",
                hint="Open another session. Stop all programs before a file is moved, deleted or "
                "restored from a backup.",
            )

    def check_usable(self) -> None:
        """SessionClosedError if it is closed, or was opened by another process.

        DatabaseError if its file, or the log, is not there any more; noticed within a second.
        """
        if self._closed:
            raise SessionClosedError(f"the store {self.path} was closed")
        if os.getpid() != self._pid:
            raise SessionClosedError(
                f"the store {self.path} was opened in another process",
                hint="A connection does not survive fork(); open a session in the child.",
            )
        if time.monotonic() >= self._look_again:
            self._look()
            self._check_file()


@contextmanager
def _translating(path: str, connection: apsw.Connection | None = None) -> Generator[None]:
    """Errors of SQLite in our words; of a connection that this thread alone uses."""
    try:
        yield
    except apsw.Error as error:
        said = 0 if connection is None else connection.system_errno
        raise translated(error, path, said) from error


@contextmanager
def _limited(connection: apsw.Connection) -> Generator[None]:
    """Interrupt what the connection reads when the deadline of this thread passes."""
    deadline = read_deadline()
    if deadline is None:
        yield
        return
    connection.set_progress_handler(lambda: deadline.passed, _STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None)


def connect_as_it_is(path: str, timeout_ms: int) -> apsw.Connection:
    """A connection to a file that must be there, and is not switched to WAL; apsw.Error if it cannot be read.

    If there is no room for the index of the log, it has the file to itself until it is closed.
    """
    try:
        return _connect_as_it_is(path, timeout_ms, exclusive=False)
    except apsw.IOError as error:
        if not _lacks_index(error):
            raise
        return _connect_as_it_is(path, timeout_ms, exclusive=True)


def _connect_as_it_is(path: str, timeout_ms: int, *, exclusive: bool) -> apsw.Connection:
    connection = apsw.Connection(path, flags=_EXISTING)
    try:
        connection.set_busy_timeout(timeout_ms)
        if exclusive:
            _keep_index_in_memory(connection)
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _lacks_index(error: apsw.IOError) -> bool:
    """Whether a file cannot be opened because there is no room for the index of its log."""
    code: int = error.extendedresult  # type: ignore[attr-defined]  # pyright: ignore
    return code in _NO_INDEX


def _keep_index_in_memory(connection: apsw.Connection) -> None:
    """Have a connection keep the index of the log in memory; before it has read anything.

    From its first statement until it is closed it has the file to itself: others wait, or get BusyError.
    """
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


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
