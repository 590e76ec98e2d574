"""What happened, in the order in which it did: transactions as they reached the database, and calls.

A transaction is written down with every row that it changed, as it was before and after. A call is
what a caller was told. The checker holds the one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ontologia.runtime.commits import WriteRequest, Written
from ontologia.store.rows import Announcement

Row = dict[str, Any]


class Change(NamedTuple):
    """One row that a transaction inserted (`old` is None), deleted (`new` is None) or changed."""

    table: str
    old: Row | None
    new: Row | None


@dataclass
class Transaction:
    """One write transaction that was committed."""

    step: int
    process: str
    thread: str
    session_id: str
    """Of the session that wrote it; empty while it was being opened."""
    now: str
    """The earliest time that its session's clock showed within it."""
    latest: str
    """And the latest."""
    changes: list[Change] = field(default_factory=list[Change])

    def of(self, table: str) -> list[Change]:
        """The changes of one table."""
        return [change for change in self.changes if change.table == table]


UNIT = "simulated_unit"
"""In the metadata of a commit: the number of the unit of work, within its process."""


@dataclass
class Tried:
    """Somebody is about to write this."""

    step: int
    thread: str
    unit: WriteRequest


@dataclass
class Refused:
    """And was told that nothing of it is written."""

    step: int
    thread: str


@dataclass
class Committed:
    """And was told that it is written; others may have written since."""

    step: int
    thread: str
    unit: WriteRequest
    written: Written


@dataclass
class Begun:
    """A handler was called."""

    step: int
    process: str
    event_id: str
    handler_id: str
    token: str
    attempt: int
    now: str


@dataclass
class Ended:
    """And came to its end, by itself."""

    step: int
    process: str
    event_id: str
    handler_id: str
    token: str
    outcome: str
    """done, failed, conflict, retry or discarded."""
    after_ms: float | None = None
    emitted: Sequence[Announcement] = ()


Entry = Transaction | Tried | Refused | Committed | Begun | Ended
