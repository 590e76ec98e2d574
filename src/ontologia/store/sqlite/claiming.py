"""The steps of delivery that SQLite does in its own way: several statements, one writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ontologia.store.database import Tx
from ontologia.store.events.claims import HIGHEST_PRIORITY, Lease
from ontologia.store.rows import ConsumerRow, EventRow
from ontologia.store.sqlite.notation import statements
from ontologia.store.writer import Request

if TYPE_CHECKING:
    from ontologia.store.protocol import Transaction

_SQL = statements("claims.sql", "events.sql")
_COLUMNS = len(EventRow._fields)
_ATTEMPTS = _COLUMNS  # a row that is taken has them behind the event's own columns
_TOGETHER = 16
_INSERT_TOGETHER = "{}VALUES {}".format(
    _SQL["insert_event"].partition("VALUES")[0],
    ", ".join([f"({', '.join('?' * _COLUMNS)})"] * _TOGETHER),
)
"""Several events by one statement: each costs half of what it costs alone."""


class _Append(Request):
    """Events alone, in a transaction with others."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._values = _values(rows)
        self.weight = len(self._values) // _COLUMNS

    def write(self, tx: Transaction) -> None:
        _insert(tx.tx, self._values)


def _values(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """The columns of all rows, one after the other: thousands of rows would keep the GC busy."""
    return list(chain.from_iterable(rows))


def _insert(tx: Tx, values: list[Any]) -> None:
    size = _TOGETHER * _COLUMNS
    whole = len(values) - len(values) % size
    if whole:
        tx.many(_INSERT_TOGETHER, (values[at : at + size] for at in range(0, whole, size)))
    rest = range(whole, len(values), _COLUMNS)
    tx.many(_SQL["insert_event"], (values[at : at + _COLUMNS] for at in rest))
    tx.later(_SQL["insert_incoming"], (len(values) // _COLUMNS,))


class SQLiteDialect:
    """Nobody else writes during a write transaction, so one statement may rely on the last."""

    def __init__(self, submit: Callable[[Request], None]) -> None:
        self._submit = submit

    def add(self, tx: Tx, rows: Sequence[EventRow]) -> None:
        _insert(tx, _values(rows))

    def append(self, rows: Iterable[Sequence[Any]]) -> None:
        self._submit(_Append(rows))

    def dispatch(self, tx: Tx, most: int) -> int:
        top, count = tx.one(_SQL["incoming_top"], {"most": most})
        if count:
            tx.run(_SQL["dispatch"], {"top": top})
            tx.run(_SQL["delete_incoming"], {"top": top})
        return int(count)

    def try_dispatch(self, tx: Tx, most: int) -> Sequence[Any]:
        self.dispatch(tx, most)
        return [(True,)]

    def lock_consumer(self, tx: Tx, consumer: ConsumerRow) -> bool:
        return True

    def take(
        self,
        tx: Tx,
        consumer: ConsumerRow,
        types: str | None,
        most: int,
        lease: Lease,
        *,
        guess: bool,
        highest: int = HIGHEST_PRIORITY,
    ) -> Sequence[Any]:
        rows = tx.all(
            _SQL["select_ready"],
            {
                "consumer_id": consumer.id,
                "handler_id": consumer.name,
                "types": types,
                "highest": highest,
                "most": most,
            },
        )
        if not rows:
            return rows
        tx.many(_SQL["take_ready"], [(consumer.id, row[5], row[4], row[0]) for row in rows])
        name, session, now, until = consumer.name, lease.session_id, lease.now, lease.until
        head = tx.one(_SQL["last_commit"])[0] if lease.start else None
        started = (head, now)
        same = (name, session, now, until, consumer.id, lease.token)
        claims: list[tuple[Any, ...]] = [(row[0], *same, *started) for row in rows[: lease.start]]
        for number, row in enumerate(rows[: lease.start]):
            if row[_ATTEMPTS]:  # tried before: it, and what follows, is started alone
                claims = claims[:number]
                break
        claims += [(row[0], *same, None, None) for row in rows[len(claims) :]]
        tx.many(_SQL["upsert_claim"], claims)
        return [(*row, claim[-2]) for row, claim in zip(rows, claims, strict=True)]
