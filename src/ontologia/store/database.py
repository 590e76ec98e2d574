"""What the shared parts of the stores ask of a database: transactions and statements."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

from ontologia.errors import LockContentionError

HURRY_MS = 500
Bindings: TypeAlias = dict[str, Any] | Sequence[Any]


class ReadDeadline:
    """When the reads of a block must have ended."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; negative once it has passed."""
        return self._end - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._end

    def end(self) -> None:
        """Have it pass now. For any thread."""
        self._end = time.monotonic()


_deadline: ContextVar[ReadDeadline | None] = ContextVar("read_deadline", default=None)
read_deadline = _deadline.get
"""The deadline for reads of the calling thread or task; None without one."""


@contextmanager
def reading_within(seconds: float) -> Generator[ReadDeadline]:
    """Give the reads of this thread or task `seconds` of the machine's time; then ReadTimeoutError.

    SQLite ends a statement that runs at that moment, PostgreSQL each statement that takes longer
    than what was left as its transaction began. Writes are not limited. Of nested blocks the
    deadline that comes first counts.
    """
    deadline, outer = ReadDeadline(seconds), read_deadline()
    if outer is not None and outer.left < deadline.left:
        deadline = outer
    token = _deadline.set(deadline)
    try:
        yield deadline
    finally:
        _deadline.reset(token)


class Conflict(LockContentionError):
    """A transaction collided with others and was taken back; it may well go through next time."""


class AnswerLost(RuntimeError):
    """A transaction was committed, and the connection was lost before a statement was answered."""


class Tx(Protocol):
    """Statements within one transaction."""

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row."""
        ...

    def one(self, sql: str, bindings: Bindings = ()) -> Any:
        """The first row, or None."""
        ...

    def page(self, sql: str, bindings: dict[str, Any], most_bytes: int) -> list[Any]:
        """The first rows, up to the one with which their objects have so many bytes.

        No more of them than that are in memory. The last column but one, `fields_json`, has the object; `most`
        in the bindings is the statement's LIMIT.
        """
        ...

    def run(self, sql: str, bindings: Bindings = ()) -> int:
        """Run it; how many rows it changed."""
        ...

    def ask(self, sql: str, bindings: Bindings = ()) -> Sequence[Any]:
        """Run it at the latest when its rows are read or the transaction ends.

        The rows can be read after the transaction, too, which may save a round trip; AnswerLost if
        the connection was lost before they arrived.
        """
        ...

    def later(self, sql: str, bindings: Bindings = ()) -> None:
        """Run it at the latest when the transaction ends; an error may show only then."""
        ...

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one prepared statement for each row, at the latest when the transaction ends."""
        ...

    def lock_dispatch(self, *, wait: bool) -> bool:
        """Lock dispatch and registration until the end of the transaction.

        Without `wait`, False if another transaction has the lock. On SQLite every writer has it.
        """
        ...


class Database(Protocol):
    """An opened database."""

    one_writer: bool
    """Whether a write transaction excludes every other one (SQLite), or only conflicting ones."""

    def write(
        self, *, timeout_ms: int | None = None, durable: bool = True, hurry: bool = False
    ) -> AbstractContextManager[Tx]:
        """A write transaction, hard or soft; in a hurry nothing is waited for longer than `HURRY_MS`."""
        ...

    def read(self) -> AbstractContextManager[Tx]:
        """A snapshot."""
        ...

    def all(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Every row of a single statement."""
        ...
