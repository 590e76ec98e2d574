"""Every statement that a simulated process gives to SQLite passes through here.

It is a point at which another process may come first, time may leap, a fault may show, or the
process may die. apsw tells of every statement and every row: the store does not know that it is
being watched.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import apsw

from ontologia.clock import to_text
from ontologia_conformance.simulation.history import Transaction
from ontologia_conformance.simulation.tables import change_of, name_of
from ontologia_conformance.simulation.troubles import AT_BEGIN, AT_COMMIT
from ontologia_conformance.simulation.turns import Death

if TYPE_CHECKING:
    from ontologia_conformance.simulation.world import Process, World

_SILENT = ("PRAGMA", "BEGIN", "COMMIT")
_BETWEEN, _WITHIN = 3.0, 0.3  # others matter most between two transactions, least within one
_FAULTS: tuple[Callable[[str], apsw.Error], ...] = (apsw.FullError, apsw.IOError, apsw.BusyError)


class _Open:
    """A write transaction that is not committed yet."""

    __slots__ = ("earliest", "latest", "rows", "step")

    def __init__(self, step: int, now: int) -> None:
        self.step = step
        self.earliest = self.latest = now
        self.rows: list[tuple[str, Any, Any]] = []

    def look(self, now: int) -> None:
        """What the clock shows at one of its statements."""
        if now < self.earliest:
            self.earliest = now
        elif now > self.latest:
            self.latest = now


class Statements:
    """The connections of all processes of a world, and who of them is writing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turns = world.turns
        self._troubles = world.troubles
        self._open: dict[apsw.Connection, _Open] = {}
        self._writing: apsw.Connection | None = None

    @contextmanager
    def watched(self) -> Generator[None]:
        """While this lasts, connections that simulated threads open are watched."""
        if not hasattr(apsw.Connection, "preupdate_hook"):
            raise RuntimeError(
                "this apsw was built without SQLITE_ENABLE_PREUPDATE_HOOK, which tells of changed "
                "rows; the one that pip installs has it"
            )
        apsw.connection_hooks.append(self._connected)
        try:
            yield
        finally:
            apsw.connection_hooks.remove(self._connected)

    def close(self, process: Process) -> None:
        """All connections of a process are gone, and what it had not committed."""
        for connection in process.connections:
            self._given_up(connection)
            with suppress(apsw.ConnectionClosedError):
                connection.exec_trace = None
                connection.close(True)
        process.connections.clear()

    def _connected(self, connection: apsw.Connection) -> None:
        process = self._world.process_or_none()
        if process is None:
            return
        process.connections.append(connection)
        connection.exec_trace = self._statement
        connection.preupdate_hook(self._changed)

    def _statement(self, cursor: apsw.Cursor, sql: str, _bindings: Any) -> bool:
        if not self._turns.mine():
            return True
        process = self._world.process()
        if process.dead:
            raise Death
        connection: apsw.Connection = cursor.connection
        name = name_of(sql)
        if not self._matters(process, connection, name):
            return True
        if name == "BEGIN IMMEDIATE":
            self._turns.pause(_BETWEEN)
            self._begin(process, connection)
        else:
            self._turns.pause(_WITHIN if connection in self._open else 1.0)
        self._world.say(name)
        if name != "ROLLBACK":
            trouble = self._world.trouble()
            if trouble == "statement failed" and name != "COMMIT":
                self._fail(connection, name)
        transaction = self._open.get(connection)
        if transaction is not None:
            transaction.look(self._world.shown())
        if transaction is not None and name == "COMMIT":
            self._commit(process, connection)
        elif name == "ROLLBACK":
            self._given_up(connection)
        return True

    def _matters(self, process: Process, connection: apsw.Connection, name: str) -> bool:
        """Whether a statement is a point at which something may happen.

        Where it makes no difference to others, and none to the database, nothing does: the
        settings of a connection, the frame of a snapshot, and what is only read on opening.
        """
        if connection in self._open or name == "BEGIN IMMEDIATE":
            return True
        return not name.startswith(_SILENT) and bool(process.session_id)

    def _begin(self, process: Process, connection: apsw.Connection) -> None:
        if self._writing is not None and self._troubles.any_of(AT_BEGIN):
            self._world.say("the database is busy for too long")
            raise apsw.BusyError("database is locked")
        self._turns.wait(lambda: self._writing is None)
        self._writing = connection
        self._open[connection] = _Open(self._turns.steps, self._world.shown())

    def _given_up(self, connection: apsw.Connection) -> None:
        """A connection has no write transaction any more."""
        self._open.pop(connection, None)
        if connection is self._writing:
            self._writing = None

    def _fail(self, connection: apsw.Connection, name: str) -> None:
        fault = self._troubles.pick(*_FAULTS)
        self._world.say(f"{name} fails with {fault.__name__}")
        # After some faults SQLite has taken the transaction back by itself.
        if (
            connection in self._open
            and connection.in_transaction
            and self._troubles.pick(True, False)
        ):
            self._untraced(connection, "ROLLBACK")
        if not connection.in_transaction:
            self._given_up(connection)
        raise fault(f"simulated: {name}")

    def _commit(self, process: Process, connection: apsw.Connection) -> None:
        trouble = self._troubles.any_of(AT_COMMIT)
        if trouble == "commit failed":
            self._fail(connection, "COMMIT")
        transaction = self._written(process, self._open[connection])
        self._given_up(connection)
        self._world.written += bool(transaction.changes)
        for change in transaction.of("event_claims"):
            row = change.new or change.old
            assert row is not None
            place = (row["event_id"], row["handler_id"])
            self._world.due[place] = change.new["due_at"] if change.new else None
        self._world.note(transaction)
        if trouble == "death after commit":
            self._untraced(connection, "COMMIT")
            self._world.kill(process)
            raise Death

    def _written(self, process: Process, ended: _Open) -> Transaction:
        return Transaction(
            ended.step,
            process.name,
            self._turns.task().name,
            process.session_id,
            to_text(self._world.instant(ended.earliest)),
            to_text(self._world.instant(ended.latest)),
            [change_of(*row) for row in ended.rows],
        )

    def _untraced(self, connection: apsw.Connection, sql: str) -> None:
        trace, connection.exec_trace = connection.exec_trace, None
        try:
            connection.execute(sql)
        finally:
            connection.exec_trace = trace

    def _changed(self, update: apsw.PreUpdate) -> None:
        transaction = self._open.get(update.connection)
        if transaction is not None:
            transaction.rows.append((update.table_name, update.old, update.new))
