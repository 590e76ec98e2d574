"""One PostgreSQL database, opened: a pool of connections, and transactions on them.

Writers do not exclude each other here. What has to be alone takes a lock of its own: the rows it
is about, or, for hand-out and registration, an advisory lock that ends with the transaction.
Write transactions are READ COMMITTED: every statement sees what was committed before it began,
so a statement that follows a lock sees what was written under it.

What writes state takes the lock of commits first, and has it until it ends: so commits are numbered
without gaps, in the order in which they become visible, and what a commit compared itself with is
still true when it is written.

Nothing is kept on a connection between transactions that the next one relies on: no search_path,
no settings that outlive a transaction. Statements are prepared once per connection, except behind
a pooler, where the next transaction has another one. So the store works behind PgBouncer in
transaction mode.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg_pool import ConnectionPool, PoolTimeout

from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    LockContentionError,
    SessionClosedError,
)
from ontologia.store.database import Bindings, Conflict
from ontologia.store.postgres.clock import ServerClock
from ontologia.store.postgres.contact import first_contact, has_died, unreachable, why_not
from ontologia.store.postgres.errors import lost, translated
from ontologia.store.postgres.place import Place, with_settings
from ontologia.store.postgres.quiet import PREFIX, hush
from ontologia.store.postgres.wire import (
    Answer,
    Connection,
    Last,
    Statement,
    Wire,
    plain,
    portions,
)
from ontologia.store.turn import Turn

log = logging.getLogger(__name__)
_MOST_CONNECTIONS = 16
_READ = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_WRITE = Statement("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_COMMIT = Statement("COMMIT")
# Every statement that is prepared has an index to go by, also while its tables are small and nobody
# has analysed them: what the planner would take instead then, it would keep when they have grown.
_BY_INDEX = """
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)"""
_LOCKS = f"{_BY_INDEX}, set_config('lock_timeout', %s, true)"
_SOFT = Statement(f"{_LOCKS}, set_config('synchronous_commit', 'off', true)")
_HARD = Statement(f"{_LOCKS}, pg_current_xact_id()::text")
_LOOK = Statement(_BY_INDEX)
_WAIT_FOR = Statement("SELECT pg_advisory_xact_lock(%s)")
_WAIT_MOST = Statement("SELECT set_config('lock_timeout', %s, true)")
_TRY = Statement("SELECT pg_try_advisory_xact_lock(%s)")
_NOTHING = Statement("SELECT NULL")
# Whatever the server, the database or the role is set to. The mode is for statements alone; of a
# float every digit is wanted.
_SETTINGS = (
    r"default_transaction_isolation=read\ committed",
    "default_transaction_read_only=off",
    "extra_float_digits=1",
)
_SET = Statement("""
SELECT set_config('extra_float_digits', '1', true), set_config('statement_timeout', %s, true)""")
_CONNECTING_MS = 10_000
_RECONNECTING = 5.0  # seconds: the pool's pauses double, and must not outlast the server's
_FIND_OUT = 30.0  # seconds to ask a server that went away what became of a commit
_ASK_AGAIN = 0.02
_KEEP = 60.0  # seconds
_A_FEW = 8  # rows: as many are faster one by one than the planning of all takes
_PORTION = 1_000
_COLLISIONS = (errors.DeadlockDetected, errors.SerializationFailure)
_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}


class Tx:
    """Statements within one transaction, on one connection.

    Those of the store itself are queued until an answer is needed; see `wire`.
    """

    __slots__ = ("_hand_out_key", "_wire", "announces", "gate", "proof")

    def __init__(self, wire: Wire, hand_out_key: int) -> None:
        self._wire = wire
        self._hand_out_key = hand_out_key
        self.proof: tuple[Statement, Bindings] | None = None
        """What to ask whether it was committed; see `Database._find_out`."""
        self.gate: Answer | None = None
        """What the statement that follows BEGIN answers; see `Database.write_state`."""
        self.announces = False
        """Whether it stores events."""

    def ask(self, sql: str, bindings: Bindings = ()) -> Answer:
        """Queue a statement; calling what this returns gives its rows."""
        if isinstance(sql, Statement):
            if sql.proof is not None:
                self.proof = sql.proof, bindings
            return self._wire.ask(sql, bindings)
        self._wire.sync()
        return plain(self._wire.connection, sql, bindings)

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row."""
        return self.ask(sql, bindings)()

    def one(self, sql: str, bindings: Bindings = ()) -> Any:
        """The first row, or None."""
        rows = self.ask(sql, bindings)()
        return rows[0] if rows else None

    def run(self, sql: str, bindings: Bindings = ()) -> int:
        """Run it; how many rows it changed."""
        return self.ask(sql, bindings).known().changed

    def later(self, sql: str, bindings: Bindings = ()) -> None:
        """Run it at the latest when the transaction ends: nobody waits for it."""
        self.ask(sql, bindings)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row, without waiting for each."""
        statement = sql if isinstance(sql, Statement) else Statement(sql)
        given = list(rows)
        self.announces = self.announces or statement.announces
        if statement.bulk is not None and len(given) >= _A_FEW:
            for portion in portions(given, _PORTION, _length):
                self._wire.ask(statement.bulk, _columns(portion))
        else:
            for row in given:
                self._wire.ask(statement, row)
        if statement.proof is not None and given:
            values = len(statement.proof.plan.names)
            self.proof = statement.proof, given[-1][:values]

    def hand_out_turn(self, *, wait: bool) -> bool:
        """Have hand-out and registration to oneself; a statement of its own.

        A snapshot is taken when a statement begins. Were the lock part of the next one, that
        would not see what the last holder of the lock wrote.
        """
        row = self.one(_WAIT_FOR if wait else _TRY, (self._hand_out_key,))
        return wait or bool(row[0])


class Database:
    """An opened database. Any thread may use it; a forked child may not."""

    one_writer = False

    def __init__(
        self,
        place: Place,
        *,
        timeout_ms: int,
        statement_ms: int = 0,
        clock: ServerClock | None = None,
    ) -> None:
        self.schema = place.schema
        self._place = place
        self._shown = place.shown
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._pid = os.getpid()
        self.hand_out_key = lock_key("hand-out", place.schema)
        self._commits_key = lock_key("commits", place.schema)
        self._turn = Turn()
        self._lock = threading.Lock()
        self._warm: Connection | None = None
        self._lent: set[Connection] = set()
        self._waiting = 0  # threads that wait for a connection
        self._look_again = 0.0
        self._writing = False
        self._told = _Told()
        self.notice: Callable[[], Last | None] = lambda: None
        """What wakes those who wait for events elsewhere, unless that was said a moment ago."""
        self.pooled, self.standby = first_contact(place, clock)
        self._statement_ms = statement_ms
        # How statements run is part of a connection, where that is one's own.
        settings = (*_SETTINGS, f"statement_timeout={statement_ms}")
        hush()
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            place.conninfo if self.pooled else with_settings(place.conninfo, settings),
            connection_class=Connection,
            kwargs=_OPTIONS,
            min_size=1,
            max_size=_MOST_CONNECTIONS,
            reconnect_timeout=_RECONNECTING,
            open=True,
            name=PREFIX + place.schema,
        )

    @property
    def told(self) -> bool:
        """Whether the last write transaction of this thread took its notice along."""
        return self._told.yes

    # -- transactions -----------------------------------------------------------------------

    def write(
        self, *, timeout_ms: int | None = None, durable: bool = True, unlimited: bool = False
    ) -> AbstractContextManager[Tx]:
        """A write transaction; no lock in it is waited for longer than `timeout_ms`.

        A soft one does not wait for the disk; a hard one does, as the server is set up to. In an
        unlimited one a statement may take as long as it takes.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        return self._transaction(limit, durable=durable, unlimited=unlimited)

    @contextmanager
    def write_state(
        self, gate: Statement = _NOTHING, *, timeout_ms: int | None = None, durable: bool = True
    ) -> Generator[Tx]:
        """The same, alone: until its end nobody else writes state.

        `gate` is asked under the lock, on the way of BEGIN; `tx.gate` is its answer. Threads
        here wait for each other without a connection, so that some are left for others.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        with self._turn.taken(limit):
            if self._writing:
                raise RuntimeError("this thread has a write transaction open already")
            try:
                self._writing = True
                with self._transaction(limit, durable=durable) as tx:
                    tx.later(_WAIT_FOR, (self._commits_key,))
                    tx.gate = tx.ask(gate)
                    yield tx
            finally:
                self._writing = False

    def append(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        """Rows that have ids of their own, on disk when this returns.

        The statement does nothing for a row that is there: if the answer is lost, all is sent
        again. A few go by one message, which is a transaction by itself. Of many the server works
        on the first while the rest are still being made.
        """
        if self.pooled:
            with self.write() as tx:
                tx.many(statement, rows)
            return
        given: list[Sequence[Any]] = []
        rest = _noted(rows, given)
        deadline = time.monotonic() + _FIND_OUT
        sent = False
        while True:
            try:
                with self._wired(self._timeout_ms) as wire:
                    sent = True
                    self._append(wire, statement, chain(tuple(given), rest))
                return
            except ConnectionLostError as error:
                if not sent:
                    raise
                if time.monotonic() >= deadline:
                    raise ConnectionLostError(
                        f"the connection to {self._shown} was lost while {given[0][0]} was being "
                        f"stored, and the server does not say whether it was",
                        hint="Look for it once the server is back: nothing is stored in part.",
                    ) from error
            time.sleep(_ASK_AGAIN)

    def _append(self, wire: Wire, statement: Statement, rows: Iterator[Sequence[Any]]) -> None:
        few = list(islice(rows, _A_FEW))
        if statement.bulk is None or len(few) < _A_FEW:
            wire.ask(_WAIT_MOST, (max(1, self._timeout_ms),))
            for row in chain(few, rows):
                wire.ask(statement, row)
            self._told.yes = wire.sync(then=self.notice())
            return
        try:
            wire.ask(_WRITE)
            wire.ask(_WAIT_MOST, (max(1, self._timeout_ms),))
            for portion in portions(chain(few, rows), _PORTION, _length):
                wire.ask(statement.bulk, _columns(portion))
                wire.push()
            wire.ask(_COMMIT)
            self._told.yes = wire.sync(then=self.notice())
        except BaseException:
            wire.roll_back()
            raise

    @contextmanager
    def read(self) -> Generator[Tx]:
        """A read transaction: everything in it is answered from one snapshot."""
        with self._begun(_READ) as tx:
            tx.later(_LOOK)
            yield tx

    @contextmanager
    def _begun(self, begin: Statement) -> Generator[Tx]:
        """A transaction that writes nothing."""
        with self._wired(self._timeout_ms) as wire:
            wire.ask(begin)
            if self.pooled:
                wire.ask(_SET, (self._statement_ms,))
            try:
                yield Tx(wire, self.hand_out_key)
                wire.ask(_COMMIT)
                wire.sync()
            except BaseException:
                wire.roll_back()
                raise

    @contextmanager
    def _transaction(
        self, limit_ms: float, *, durable: bool, unlimited: bool = False
    ) -> Generator[Tx]:
        self._told.yes = False
        with self._wired(limit_ms) as wire:
            wire.ask(_WRITE)
            settings = wire.ask(_HARD if durable else _SOFT, (max(1, int(limit_ms)),))
            if self.pooled or unlimited:
                wire.ask(_SET, (0 if unlimited else self._statement_ms,))
            tx = Tx(wire, self.hand_out_key)
            try:
                yield tx
                # What is soft may as well be lost and done again. Of a hard one the number must be
                # known before it is committed, to ask what became of it.
                number = settings()[0][-1] if durable else None
                notice = self.notice() if durable and tx.announces and not self.pooled else None
                cut = self._commit(wire, notice)
            except BaseException:
                wire.roll_back()
                raise
        if cut is not None:
            wire.drop()
            self._find_out(cut, number, tx.proof)

    def _commit(self, wire: Wire, notice: Last | None) -> psycopg.OperationalError | None:
        """End the transaction; the error if the connection was lost on the way."""
        ended = wire.ask(_COMMIT)
        try:
            self._told.yes = wire.sync(once=True, then=notice)
        except psycopg.OperationalError as error:
            if not wire.connection.closed:
                raise
            return error
        if ended.known().done != b"COMMIT":  # a statement failed, and somebody went on regardless
            raise DatabaseError(f"{self._shown}: the transaction was taken back")
        return None

    def _find_out(
        self,
        cut: psycopg.OperationalError,
        transaction_id: str | None,
        proof: tuple[Statement, Bindings] | None,
    ) -> None:
        """Whether a commit whose answer was lost was done: then it is, and nothing is wrong.

        A server that crashed gives numbers again that it had given to transactions of which
        nothing was on disk. So "committed" may be said of somebody else's, and what was written
        is looked for, too.
        """
        if transaction_id is None:
            raise translated(cut, self._shown) from cut
        deadline = time.monotonic() + _FIND_OUT
        status: str | None = None
        while True:
            try:
                [[status]] = self.all("SELECT pg_xact_status(%s::xid8)", (transaction_id,))
                if status == "committed" and proof is not None and not self.all(*proof):
                    status = "aborted"
            except (DatabaseError, LockContentionError) as error:
                log.info("asking what became of transaction %s: %s", transaction_id, error)
                # A number in the future: it is not known any more.
                if isinstance(error.__cause__, errors.InvalidParameterValue):
                    status = "aborted"
            if status == "committed":
                return
            if status == "aborted":
                raise ConnectionLostError(
                    f"the connection to {self._shown} was lost while a transaction was being "
                    f"committed; the server took it back, and nothing was written"
                ) from cut
            if time.monotonic() >= deadline:
                raise ConnectionLostError(
                    f"the connection to {self._shown} was lost while transaction {transaction_id} "
                    f"was being committed, and the server does not say whether it was",
                    hint=f"SELECT pg_xact_status('{transaction_id}') tells it, once the server is "
                    f"back.",
                ) from cut
            time.sleep(_ASK_AGAIN)

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row of a single statement, which is a snapshot by itself.

        It may lock rows, for as long as it takes.
        """
        if self.pooled:
            with self._begun(_READ if self.standby else _WRITE) as tx:
                if isinstance(sql, Statement):
                    tx.later(_LOOK)
                return tx.all(sql, bindings)
        with self._wired(self._timeout_ms) as wire:
            if isinstance(sql, Statement):
                wire.ask(_LOOK)  # what is sent together is one transaction
                return wire.ask(sql, bindings)()
            try:
                return plain(wire.connection, sql, bindings)()
            except psycopg.OperationalError:
                if not wire.replaced():
                    raise
                return plain(wire.connection, sql, bindings)()

    # -- connections ------------------------------------------------------------------------

    @contextmanager
    def _wired(self, limit_ms: float) -> Generator[Wire]:
        """A connection of the pool; the driver's errors in our words."""
        started = time.monotonic()
        try:
            connection = self._connection(limit_ms)
            wire = Wire(connection, self._another, prepares=not self.pooled)
            try:
                if self._clock is not None and self._clock.is_due():
                    with suppress(psycopg.Error):  # the first statement meets it, too
                        self._clock.measure(connection)
                yield wire
            finally:
                self._put_back(wire.connection)
        except _COLLISIONS as error:
            others = f"other transactions on {self._shown} ({type(error).__name__})"
            raise Conflict(others, _since(started)) from error
        except psycopg.Error as error:
            waited = _since(started)
            limit = self._statement_ms
            raise translated(
                error, self._shown, waited_ms=waited, limit_ms=limit, schema=self.schema
            ) from error

    def _another(self, dead: Connection) -> Connection:
        """Instead of a connection that died in the pool, with the server or on the way to it."""
        self._give_back(dead)
        return self._connection(_CONNECTING_MS)

    def _connection(self, limit_ms: float) -> Connection:
        """A connection that is alive, as far as one can see."""
        for _ in range(_MOST_CONNECTIONS):
            connection = self._next_connection(limit_ms)
            if not has_died(connection):
                return connection
            connection.close()
            self._give_back(connection)
        return self._next_connection(limit_ms)

    def _next_connection(self, limit_ms: float) -> Connection:
        """A connection: those of others are waited for `limit_ms`, a new one as long as it takes."""
        self._check_usable()
        with self._lock:
            connection, self._warm = self._warm, None
            self._waiting += connection is None
        if connection is None:
            try:
                connection = self._from_pool(limit_ms)
            finally:
                with self._lock:
                    self._waiting -= 1
        with self._lock:
            self._lent.add(connection)
        return connection

    def _from_pool(self, limit_ms: float) -> Connection:
        started = time.monotonic()
        try:
            return self._pool.getconn(timeout=max(limit_ms, 1) / 1000)
        except PoolTimeout as error:
            if len(self._lent) >= _MOST_CONNECTIONS:  # or they are being made anew
                others = f"the {_MOST_CONNECTIONS} connections that other threads here have"
                raise LockContentionError(others, _since(started)) from error
        try:
            return self._pool.getconn(timeout=max(_CONNECTING_MS - limit_ms, 1) / 1000)
        except PoolTimeout:
            reason = why_not(self._place)  # the pool says only that it waited
        if reason is None:  # the server is back, and the pool pauses between its tries
            return self._pool.getconn(timeout=_RECONNECTING)
        raise lost(self._shown, reason, hint=unreachable(self._shown, reason).hint) from reason

    def _put_back(self, connection: Connection) -> None:
        """Keep the connection that was used last for whoever comes next.

        The pool would give them all in turn, and each would be a server process that has the
        least in its caches. Now and then the pool gets it, to see whether it has become old; and
        always while somebody waits there.
        """
        now = time.monotonic()
        idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        with self._lock:
            if idle and self._is_free(now):
                self._lent.discard(connection)
                self._warm = connection
                return
            if now >= self._look_again:
                self._look_again = now + _KEEP
        self._give_back(connection)

    def _is_free(self, now: float) -> bool:
        """Whether a connection can be kept outside the pool."""
        nobody = self._warm is None and not self._waiting
        return nobody and now < self._look_again and not self._pool.closed

    def _give_back(self, connection: Connection) -> None:
        """Into the pool, which makes another if this one is dead."""
        with self._lock:
            self._lent.discard(connection)
        self._pool.putconn(connection)

    def close(self) -> None:
        """Close every connection; those in use are closed when they come back."""
        if os.getpid() != self._pid:
            return  # a forked child must leave its parent's connections alone
        self._pool.close()
        with self._lock:
            warm, self._warm = self._warm, None
        if warm is not None:
            self._pool.putconn(warm)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SessionClosedError(
                f"the store {self._shown} was opened in another process",
                hint="A connection does not survive fork(); open a session in the child.",
            )


class _Told(threading.local):
    """What each thread's last write transaction did."""

    yes = False


def lock_key(purpose: str, schema: str) -> int:
    """The number of an advisory lock: two schemas of one database do not share it."""
    digest = blake2b(f"ontologia {purpose} {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _columns(rows: list[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _noted(rows: Iterable[Sequence[Any]], given: list[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The rows, each written down as it is made."""
    for row in rows:
        given.append(row)
        yield row


def _length(row: Sequence[Any]) -> int:
    return sum([len(value) for value in row if type(value) is str])


def _since(started: float) -> float:
    return (time.monotonic() - started) * 1000
