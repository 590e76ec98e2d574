"""The steps of delivery that PostgreSQL does in its own way: one statement each.

Others write at the same time, and a second statement would see what they wrote in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ontologia.store.database import Tx
from ontologia.store.events.claims import HIGHEST_PRIORITY, Lease
from ontologia.store.postgres.database import Database, lock_key
from ontologia.store.postgres.wire import Statement
from ontologia.store.rows import ConsumerRow, EventRow


class PostgresDialect:
    """Claims skip each other's rows; only dispatch is one at a time, under its lock."""

    def __init__(self, sql: Mapping[str, Statement], database: Database) -> None:
        self._sql = sql
        self._database = database

    def add(self, tx: Tx, rows: Sequence[EventRow]) -> None:
        tx.many(self._sql["insert_event"], rows)

    def append(self, rows: Iterable[Sequence[Any]]) -> None:
        self._database.append(self._sql["append_event"], rows)

    def dispatch(self, tx: Tx, most: int) -> int:
        [(dispatched,)] = tx.all(self._sql["dispatch"], {"most": most})
        return int(dispatched)

    def try_dispatch(self, tx: Tx, most: int) -> Sequence[Any]:
        lock = {"key": self._database.dispatch_key, "most": most}
        locked = tx.ask(self._sql["try_dispatch_lock"], lock)
        tx.later(self._sql["dispatch"], {"most": most})
        return locked

    def lock_consumer(self, tx: Tx, consumer: ConsumerRow) -> bool:
        key = lock_key(f"consumer {consumer.id}", self._database.schema)
        return bool(tx.one(self._sql["lock_consumer"], {"key": key})[0])

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
        return tx.ask(
            self._sql["take"],
            {
                "consumer_id": consumer.id,
                "handler_id": consumer.name,
                "types": types,
                "guess": guess,
                "highest": highest,
                "most": most,
                "session_id": lease.session_id,
                "token": lease.token,
                "now": lease.now,
                "lease_until": lease.until,
                "start": lease.start,
            },
        )
