"""The steps of delivery that PostgreSQL does in its own way: one statement each.

Others write at the same time, and a second statement would see what they wrote in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ontologia.store.database import Tx
from ontologia.store.events.claims import Lease, Taken
from ontologia.store.postgres.database import Database
from ontologia.store.postgres.wire import Statement
from ontologia.store.rows import Consumer, EventRow

_OWN = len(EventRow._fields)  # a row that is taken has the claim's columns behind the event's own


class PostgresDialect:
    """Takers skip each other's rows; only hand-out is one at a time, under its lock."""

    def __init__(self, sql: Mapping[str, Statement], database: Database) -> None:
        self._sql = sql
        self._database = database

    def add(self, tx: Tx, rows: Sequence[EventRow]) -> None:
        tx.many(self._sql["insert_event"], rows)

    def append(self, rows: Iterable[EventRow]) -> None:
        self._database.append(self._sql["append_event"], rows)

    def hand_out(self, tx: Tx, most: int) -> Callable[[], int]:
        answer = tx.ask(self._sql["hand_out"], {"most": most})
        return lambda: int(answer()[0][0])

    def try_hand_out(self, tx: Tx, most: int) -> Callable[[], bool]:
        turn = tx.ask(self._sql["try_turn"], {"key": self._database.hand_out_key, "most": most})
        self.hand_out(tx, most)
        return lambda: bool(turn()[0][0] == "true")

    def take(
        self,
        tx: Tx,
        consumer: Consumer,
        types: str | None,
        most: int,
        lease: Lease,
        behind: Sequence[int] | None,
    ) -> Callable[[], list[Taken]]:
        answer = tx.ask(
            self._sql["take"],
            {
                "consumer_id": consumer.id,
                "handler_id": consumer.name,
                "types": types,
                "behind": None if behind is None else list(behind),
                "most": most,
                "session_id": lease.session_id,
                "token": lease.token,
                "now": lease.now,
                "lease_until": lease.until,
                "start": lease.start,
            },
        )
        return lambda: [Taken(EventRow(*row[:_OWN]), *row[_OWN:]) for row in answer()]
