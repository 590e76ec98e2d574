"""One PostgreSQL database, opened: a pool of connections, and transactions on them.

Writers do not exclude each other here. What has to be alone takes a lock of its own: the rows it
is about, or, for dispatch and registration, an advisory lock that ends with the transaction.
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
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from itertools import chain, islice
from typing import Any
from weakref import ref

import psycopg
from psycopg import errors, pq
from psycopg_pool import ConnectionPool, PoolTimeout

from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    LockContentionError,
    SessionClosedError,
)
from ontologia.store.database import (
    HURRY_MS,
    AnswerLost,
    Bindings,
    Conflict,
    ReadDeadline,
    read_deadline,
)
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
_LOCKS = f"""{_BY_INDEX}, set_config('lock_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true)"""
# The server, the database or the role may have it off. What is stronger than `on`, and `local`, which
# waits for the disk of this server, too, stay.
_SYNCED = """set_config('synchronous_commit',
    replace(current_setting('synchronous_commit'), 'off', 'on'), true)"""
SYNCED = f"SELECT {_SYNCED}"
_SOFT = Statement(f"{_LOCKS}, set_config('synchronous_commit', 'off', true)")
_HARD = Statement(f"{_LOCKS}, {_SYNCED}, pg_current_xact_id()::text")
_SOFT_STATE = Statement(f"{_SOFT}, pg_current_xact_id()::text")
_LOOK = Statement(_BY_INDEX)
_WAIT_FOR = Statement("SELECT pg_advisory_xact_lock(%s)")
_APPEND = Statement(f"SELECT set_config('lock_timeout', %s, true), {_SYNCED}")
_TRY = Statement("SELECT pg_try_advisory_xact_lock(%s)")
_NOTHING = Statement("SELECT NULL")
# Whatever the server, the database or the role is set to. The mode is for statements alone; of a
# float every digit is wanted. The server notices a machine that vanished in the middle of a
# transaction, and ends that, within half a minute, as this side does.
_SETTINGS = (
    r"default_transaction_isolation=read\ committed",
    "default_transaction_read_only=off",
    "extra_float_digits=1",
    "tcp_keepalives_idle=10",
    "tcp_keepalives_interval=5",
    "tcp_keepalives_count=3",
    "tcp_user_timeout=25000",
)
_SET = Statement("""
SELECT set_config('extra_float_digits', '1', true), set_config('statement_timeout', %s, true)""")
_SET_READ = Statement(f"{_SET}, set_config('lock_timeout', %s, true)")
# A process that is stopped in the middle of a transaction keeps its locks: its machine still answers
# keepalives. So the server ends a transaction in which it received nothing for this long. For commits,
# claims, dispatch and registration that is less than lock_timeout_ms, so that those which wait for
# their locks get them.
_SILENT_COMMIT_MS = 4_000
_SHORTEST_SILENT_MS = 500  # a commit takes milliseconds, but its process may be swapped out
_SILENT_SHARE = 0.8  # of lock_timeout_ms
_SILENT_MS = 60_000
LONG_COMMIT = Statement(
    f"SELECT set_config('idle_in_transaction_session_timeout', '{_SILENT_MS}', true)"
)
"""Lets a commit be silent for as long as any other write transaction."""
_CONNECTING_MS = 10_000
_RECONNECTING = 5.0  # seconds: the pool's pauses double, and must not outlast the server's
_CLOSING = 0.2  # seconds for the pool's threads, which may be waiting for a server that is gone
_CLOSING_CONNECT = 1.0  # seconds for a connection while the session closes; in vain once only
_CLOSING_ANSWER = 10.0  # seconds for an answer while the session closes: a statement may be slow
_POOL_LOOK = 0.1  # seconds between two looks whether the session closes
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

    __slots__ = ("_dispatch_key", "_wire", "announces", "committed", "gate", "proof", "written")

    def __init__(self, wire: Wire, dispatch_key: int) -> None:
        self._wire = wire
        self._dispatch_key = dispatch_key
        self.proof: tuple[Statement, Bindings] | None = None
        """What to ask whether it was committed; see `Database._find_out`."""
        self.gate: Answer | None = None
        """The rows of the statement that follows BEGIN; see `Database.write_state`."""
        self.announces = False
        """Whether it stores events."""
        self.written = 0
        """Number of statements so far, for `has_written`."""
        self.committed: bool | None = False
        """None while nobody knows."""

    def ask(self, sql: str, bindings: Bindings = ()) -> Answer:
        """Queue a statement; reading its rows sends it."""
        self.written += 1
        if isinstance(sql, Statement):
            if sql.proof is not None:
                self.proof = sql.proof, bindings
            return self._wire.ask(sql, bindings)
        self._wire.sync()
        return plain(self._wire.connection, sql, bindings)

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row."""
        return self.ask(sql, bindings).known().rows

    def one(self, sql: str, bindings: Bindings = ()) -> Any:
        """The first row, or None."""
        rows = self.ask(sql, bindings)
        return rows[0] if rows else None

    def page(self, sql: str, bindings: dict[str, Any], most_bytes: int) -> list[Any]:
        """The first rows, up to the one with which their objects have so many bytes.

        The driver reads all rows of a statement at once, so their sizes are asked for first.
        """
        sizes = self.all(
            f"SELECT octet_length(fields_json) FROM ({sql.rstrip(';')}) AS page", bindings
        )
        most = 0
        for (size,) in sizes:
            most += 1
            most_bytes -= size
            if most_bytes <= 0:
                break
        return self.all(sql, bindings | {"most": most}) if most else []

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
        self.written += len(given)
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

    def lock_dispatch(self, *, wait: bool) -> bool:
        """Lock dispatch and registration; a statement of its own.

        A snapshot is taken when a statement begins. Were the lock part of the next one, that
        would not see what the last holder of the lock wrote.
        """
        row = self.one(_WAIT_FOR if wait else _TRY, (self._dispatch_key,))
        return wait or bool(row[0])

    def has_written(self, before: int, error: Exception) -> bool:
        """Whether a statement was queued since `written` was `before`.

        An error of the driver may be that of a statement which another request queued.
        """
        return self.written != before or isinstance(error, psycopg.Error | AnswerLost)


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
        self.shown = place.shown
        self._timeout_ms = timeout_ms
        self._lock_ms = max(1, timeout_ms)  # 0 would be no limit
        self._silent_commit_ms = min(
            _SILENT_COMMIT_MS, max(_SHORTEST_SILENT_MS, int(timeout_ms * _SILENT_SHARE))
        )
        self._hurried = math.inf  # since when, by the monotonic clock
        self._given_up = False  # no connection came in time while the session was closing
        self._clock = clock
        self._pid = os.getpid()
        # Programs of earlier versions lock the same key: the text stays.
        self.dispatch_key = lock_key("hand-out", place.schema)
        self._commits_key = lock_key("commits", place.schema)
        self.turn = Turn()
        """Of the one thread that writes state."""
        self._lock = threading.Lock()
        self._warm: Connection | None = None
        self._lent: dict[Connection, ref[_Loan]] = {}
        """The connections in use, and to what; see `_take_back`."""
        self._waiting = 0  # threads that wait for a connection
        self._look_again = 0.0
        self._open: Wire | None = None
        """Of the transaction that writes state, unless it has ended; its connection is in use."""
        self._told = _Told()
        self.notice: Callable[[], Last | None] = lambda: None
        """What wakes those who wait for events elsewhere, unless that was said a moment ago."""
        self.pooled, self.standby = first_contact(place, clock)
        self._statement_ms = statement_ms
        # How statements run is part of a connection, where that is one's own.
        limits = (f"lock_timeout={self._lock_ms}", f"statement_timeout={statement_ms}")
        hush()
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            place.conninfo if self.pooled else with_settings(place.conninfo, (*_SETTINGS, *limits)),
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
        self,
        *,
        timeout_ms: int | None = None,
        durable: bool = True,
        unlimited: bool = False,
        hurry: bool = False,
    ) -> AbstractContextManager[Tx]:
        """A write transaction; no lock in it is waited for longer than `timeout_ms`.

        A soft one does not wait for the disk; a hard one does, whatever the server is set to. In an
        unlimited one a statement may take as long as it takes, and only that one may send nothing
        for longer than a commit before the server ends it.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        if hurry:
            limit = min(limit, HURRY_MS)
        silent = _SILENT_MS if unlimited else self._silent_commit_ms
        return self._transaction(
            limit, durable=durable, unlimited=unlimited, hurry=hurry, silent_ms=silent
        )

    @contextmanager
    def write_state(
        self, gate: Statement = _NOTHING, *, timeout_ms: int | None = None, durable: bool = True
    ) -> Generator[Tx]:
        """The same, alone: until its end nobody else writes state.

        `gate` is asked under the lock, on the way of BEGIN; `tx.gate` is its answer. Threads
        here wait for each other without a connection, so that some are left for others.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        with (
            self.turn.taken(limit),
            self.state_transaction(gate, limit, durable=durable, silent_ms=_SILENT_MS) as tx,
        ):
            yield tx

    @contextmanager
    def state_transaction(
        self, gate: Statement, timeout_ms: float, *, durable: bool, silent_ms: int | None = None
    ) -> Generator[Tx]:
        """The same for a thread that has the turn.

        The server ends it when it sends nothing for `silent_ms`; by default that is for a commit,
        which is short.
        """
        # After an interrupt one may be left that nobody ends; then the turn was taken anew.
        if self._open is not None and self.turn.used:
            raise RuntimeError("this thread has a write transaction open already")
        self._end_interrupted()
        self.turn.used = True
        silent = self._silent_commit_ms if silent_ms is None else silent_ms
        with self._transaction(timeout_ms, durable=durable, state=True, silent_ms=silent) as tx:
            tx.later(_WAIT_FOR, (self._commits_key,))
            tx.gate = tx.ask(gate)
            yield tx

    def _end_interrupted(self) -> None:
        """End what an interrupt has left open: the server takes it back. For who has the turn."""
        wire = self._open
        if wire is not None:
            wire.connection.close()
            self._give_back(wire.connection)
            self._open = None

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
                        f"the connection to {self.shown} was lost while {given[0][0]} was being "
                        f"stored, and the server does not say whether it was",
                        hint="Look for it once the server is back: nothing is stored in part.",
                    ) from error
            time.sleep(_ASK_AGAIN)

    def _append(self, wire: Wire, statement: Statement, rows: Iterator[Sequence[Any]]) -> None:
        few = list(islice(rows, _A_FEW))
        if statement.bulk is None or len(few) < _A_FEW:
            wire.ask(_APPEND, (self._lock_ms,))
            for row in chain(few, rows):
                wire.ask(statement, row)
            self._told.yes = wire.sync(then=self.notice())
            return
        try:
            wire.ask(_WRITE)
            wire.ask(_APPEND, (self._lock_ms,))
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
            deadline = read_deadline()
            if self.pooled or deadline is not None:
                wire.ask(_SET_READ, (self._read_ms(deadline), self._lock_ms))
            try:
                yield Tx(wire, self.dispatch_key)
                wire.ask(_COMMIT)
                wire.sync()
            except BaseException:
                wire.roll_back()
                raise

    def _read_ms(self, deadline: ReadDeadline | None) -> int:
        """How long a statement that reads may take; 0 is no limit."""
        if deadline is None:
            return self._statement_ms
        left = max(1, int(deadline.left * 1000))
        return min(left, self._statement_ms or left)

    @contextmanager
    def _transaction(
        self,
        limit_ms: float,
        *,
        durable: bool,
        unlimited: bool = False,
        state: bool = False,
        silent_ms: int,
        hurry: bool = False,
    ) -> Generator[Tx]:
        self._told.yes = False
        soft = _SOFT_STATE if state else _SOFT
        with self._wired(limit_ms, hurry=hurry) as wire:
            wire.ask(_WRITE)
            limits = (max(1, int(limit_ms)), silent_ms)
            settings = wire.ask(_HARD if durable else soft, limits)
            if self.pooled or unlimited:
                wire.ask(_SET, (0 if unlimited else self._statement_ms,))
            tx = Tx(wire, self.dispatch_key)
            try:
                if state:
                    self._open = wire
                yield tx
                # Deliveries that are soft may as well be lost and done again. Of anything else the
                # number must be known before it is committed, to ask what became of it.
                number = settings[0][-1] if durable or state else None
                notice = self.notice() if durable and tx.announces and not self.pooled else None
                cut = self._commit(wire, notice, tx)
            except GeneratorExit:  # what an interrupt has left; any thread may come by here
                if not state:
                    wire.roll_back()
                elif self.turn.take_now():
                    try:
                        if self._open is wire:
                            self._end_interrupted()
                    finally:
                        self.turn.release()
                raise
            except BaseException:
                wire.roll_back()
                if state:
                    self._open = None
                raise
            if state:
                self._open = None
        if cut is not None:
            wire.drop()
            tx.committed = self._find_out(cut, number, tx.proof)
            if not isinstance(cut, psycopg.Error):
                raise cut  # an interrupt stays one, whatever became of the transaction
            if not tx.committed:
                raise ConnectionLostError(
                    f"the connection to {self.shown} was lost while a transaction was being "
                    f"committed; the server took it back, and nothing was written"
                ) from cut

    def _commit(self, wire: Wire, notice: Last | None, tx: Tx) -> BaseException | None:
        """End the transaction; the error, or the interrupt, if the answer was lost."""
        ended = wire.ask(_COMMIT)
        tx.committed = None
        try:
            self._told.yes = wire.sync(once=True, then=notice)
            tx.committed = ended.known().done == b"COMMIT"
        except Exception as error:
            if not isinstance(error, psycopg.OperationalError) or not wire.connection.closed:
                tx.committed = False
                raise
            return error
        except BaseException as interrupt:  # noqa: BLE001 - found out, and raised then
            return interrupt
        if not tx.committed:  # a statement failed, and somebody went on regardless
            raise DatabaseError(f"{self.shown}: the transaction was taken back")
        return None

    def _find_out(
        self,
        cut: BaseException,
        transaction_id: str | None,
        proof: tuple[Statement, Bindings] | None,
    ) -> bool:
        """Whether a commit whose answer was lost was done: then nothing is wrong.

        ConnectionLostError if the server does not say.

        A server that crashed gives numbers again that it had given to transactions of which
        nothing was on disk. So "committed" may be said of somebody else's, and what was written
        is looked for, too.
        """
        if transaction_id is None:
            if isinstance(cut, psycopg.Error):
                raise translated(cut, self.shown) from cut
            raise cut
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
            if status in ("committed", "aborted"):
                return status == "committed"
            if time.monotonic() >= deadline:
                raise ConnectionLostError(
                    f"the connection to {self.shown} was lost while transaction {transaction_id} "
                    f"was being committed, and the server does not say whether it was",
                    hint=f"SELECT pg_xact_status('{transaction_id}') tells it, once the server is "
                    f"back.",
                ) from cut
            time.sleep(_ASK_AGAIN)

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row of a single statement, which is a snapshot by itself.

        No lock is waited for longer than `lock_timeout_ms`.
        """
        if self.pooled or read_deadline() is not None:
            with self._begun(_READ if self.standby else _WRITE) as tx:
                if isinstance(sql, Statement):
                    tx.later(_LOOK)
                return tx.all(sql, bindings)
        with self._wired(self._timeout_ms) as wire:
            if isinstance(sql, Statement):
                wire.ask(_LOOK)  # what is sent together is one transaction
                return wire.ask(sql, bindings).known().rows
            try:
                return plain(wire.connection, sql, bindings).known().rows
            except psycopg.OperationalError:
                if not wire.replaced():
                    raise
                return plain(wire.connection, sql, bindings).known().rows

    # -- connections ------------------------------------------------------------------------

    @contextmanager
    def _wired(self, limit_ms: float, *, hurry: bool = False) -> Generator[Wire]:
        """A connection of the pool; the driver's errors in our words."""
        started, loan = time.monotonic(), _Loan()
        connecting_ms = HURRY_MS if hurry else _CONNECTING_MS

        def until(sent: float) -> float:
            """When an answer is waited for no longer."""
            if hurry:
                return started + HURRY_MS / 1000
            return max(sent, self._hurried) + _CLOSING_ANSWER

        def another(dead: Connection) -> Connection:
            """Instead of one that died in the pool, with the server or on the way to it."""
            self._give_back(dead)
            return self._connection(loan, connecting_ms, connecting_ms)

        try:
            connection = self._connection(loan, limit_ms, connecting_ms)
            wire = Wire(connection, another, prepares=not self.pooled, until=until)
            try:
                # The driver would wait for the answer as long as it takes.
                if self._clock is not None and self._clock.is_due() and not hurry:
                    with suppress(psycopg.Error):  # the first statement meets it, too
                        self._clock.measure(connection)
                yield wire
            finally:
                if wire is not self._open:
                    self._put_back(wire.connection)
        except _COLLISIONS as error:
            others = f"other transactions on {self.shown} ({type(error).__name__})"
            raise Conflict(others, _since(started)) from error
        except psycopg.Error as error:
            waited = _since(started)
            limit = self._statement_ms
            raise translated(
                error, self.shown, waited_ms=waited, limit_ms=limit, schema=self.schema
            ) from error

    def _connection(self, loan: _Loan, limit_ms: float, connecting_ms: int) -> Connection:
        """A connection that is alive, as far as one can see."""
        for _ in range(_MOST_CONNECTIONS):
            connection = self._next_connection(loan, limit_ms, connecting_ms)
            if not has_died(connection):
                return connection
            connection.close()
            self._give_back(connection)
        return self._next_connection(loan, limit_ms, connecting_ms)

    def _next_connection(self, loan: _Loan, limit_ms: float, connecting_ms: int) -> Connection:
        """A connection: those of others are waited for `limit_ms`, a new one `connecting_ms`."""
        self.check_usable()
        with self._lock:
            warm = self._warm
            if warm is not None:
                # An interrupt can come in between: it may be in both, never in neither.
                self._lent[warm] = ref(loan)
                self._warm = None
                return warm
            self._waiting += 1
        try:
            self._take_back()
            connection = self._from_pool(limit_ms, connecting_ms)
        finally:
            with self._lock:
                self._waiting -= 1
        with self._lock:
            self._lent[connection] = ref(loan)
        return connection

    def _take_back(self) -> None:
        """Have the pool make others instead of connections that no call uses any more.

        Each was in the hands of a thread that was interrupted.
        """
        with self._lock:
            left = [each for each, loan in self._lent.items() if loan() is None]
            if self._warm in left:
                left.remove(self._warm)
                del self._lent[self._warm]
        for each in left:
            each.close()
            self._give_back(each)

    def _from_pool(self, limit_ms: float, connecting_ms: int) -> Connection:
        started = time.monotonic()
        try:
            return self._free(started, limit_ms)
        except PoolTimeout as error:
            if len(self._lent) >= _MOST_CONNECTIONS:  # or they are being made anew
                others = f"the {_MOST_CONNECTIONS} connections that other threads here have"
                raise LockContentionError(others, _since(started)) from error
        try:
            return self._free(started, connecting_ms)
        except PoolTimeout as error:
            if connecting_ms < _CONNECTING_MS or self._hurried < math.inf:
                raise lost(self.shown, "there is no connection") from error
            reason = why_not(self._place)  # the pool says only that it waited
        if reason is None:  # the server is back, and the pool pauses between its tries
            return self._free(time.monotonic(), _RECONNECTING * 1000)
        raise lost(self.shown, reason, hint=unreachable(self.shown, reason).hint) from reason

    def _free(self, started: float, limit_ms: float) -> Connection:
        """A connection that nobody uses.

        PoolTimeout after `limit_ms`, and soon after `hurry` unless all are in use: those come back.
        After one has been waited for in vain then, only a connection that is there is taken.
        """
        while True:
            in_use = len(self._lent) >= _MOST_CONNECTIONS
            end = started + limit_ms / 1000
            closing = max(started, self._hurried) + _CLOSING_CONNECT
            if not in_use:
                end = started if self._given_up else min(end, closing)
            left = max(end - time.monotonic(), 0.001)
            # Whoever waits again is the last in line, which matters only while all are in use.
            wait = left if in_use else min(left, _POOL_LOOK)
            try:
                connection = self._pool.getconn(timeout=wait)
            except PoolTimeout:
                if not in_use and time.monotonic() >= closing:
                    self._given_up = True
                if wait == left:
                    raise
            else:
                self._given_up = False
                return connection

    def _put_back(self, connection: Connection) -> None:
        """Keep the connection that was used last for whoever comes next.

        The pool would give them all in turn, and each would be a server process that has the
        least in its caches. Now and then the pool gets it, to see whether it has become old; and
        always while somebody waits there.
        """
        now = time.monotonic()
        idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        with self._lock:
            if connection not in self._lent:
                return
            if idle and self._is_free(now):
                self._warm = connection
                del self._lent[connection]
                return
            if now >= self._look_again:
                self._look_again = now + _KEEP
        self._give_back(connection)

    def _is_free(self, now: float) -> bool:
        """Whether a connection can be kept outside the pool."""
        nobody = self._warm is None and not self._waiting
        return nobody and now < self._look_again and not self._pool.closed

    def _give_back(self, connection: Connection) -> None:
        """Into the pool, which makes another if this one is dead. Idempotent."""
        with self._lock:
            if connection in self._lent:
                try:  # noqa: SIM105 - an interrupt could come in the call of `suppress`
                    self._pool.putconn(connection)
                except ValueError:  # an interrupt came when the pool had it already
                    pass
                del self._lent[connection]

    def hurry(self) -> None:
        """See `store.protocol.Store.hurry`."""
        self._hurried = min(self._hurried, time.monotonic())

    def close(self) -> None:
        """Close every connection; those in use are closed when they come back."""
        if os.getpid() != self._pid:
            return  # a forked child must leave its parent's connections alone
        self._pool.close(_CLOSING)
        with self._lock:
            warm, self._warm = self._warm, None
        if warm is not None:
            self._pool.putconn(warm)

    def check_usable(self) -> None:
        """SessionClosedError if it was opened by another process."""
        if os.getpid() != self._pid:
            raise SessionClosedError(
                f"the store {self.shown} was opened in another process",
                hint="A connection does not survive fork(); open a session in the child.",
            )


class _Loan:
    """What a connection is in use for; there as long as a call has it."""

    __slots__ = ("__weakref__",)


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
