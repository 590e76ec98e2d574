"""The steps of delivery that SQLite does in its own way: several statements, one writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ontologia.store.database import Database, Tx
from ontologia.store.events.claims import Lease, Taken
from ontologia.store.named import statements
from ontologia.store.rows import Consumer, EventRow

_SQL = statements("ontologia.store.sqlite", "claims.sql", "events.sql")
_ATTEMPTS = len(EventRow._fields)  # a row that is taken has them behind the event's own columns


class SQLiteDialect:
    """Nobody else writes during a write transaction, so one statement may rely on the last."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, tx: Tx, rows: Sequence[EventRow]) -> None:
        tx.many(_SQL["insert_event"], rows)
        tx.many(_SQL["insert_incoming"], [(row.id,) for row in rows])

    def append(self, rows: Iterable[EventRow]) -> None:
        given = list(rows)  # before others have to wait
        with self._database.write() as tx:
            self.add(tx, given)

    def hand_out(self, tx: Tx, most: int) -> Callable[[], int]:
        top, count = tx.one(_SQL["incoming_top"], {"most": most})
        if count:
            tx.run(_SQL["hand_out"], {"top": top})
            tx.run(_SQL["delete_incoming"], {"top": top})
        return lambda: int(count)

    def try_hand_out(self, tx: Tx, most: int) -> Callable[[], bool]:
        self.hand_out(tx, most)
        return lambda: True

    def take(
        self,
        tx: Tx,
        consumer: Consumer,
        types: str | None,
        most: int,
        lease: Lease,
        behind: Sequence[int] | None,
    ) -> Callable[[], list[Taken]]:
        rows = tx.all(
            _SQL["select_ready"],
            {
                "consumer_id": consumer.id,
                "handler_id": consumer.name,
                "types": types,
                "most": most,
            },
        )
        if not rows:
            return list
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
        taken = [
            Taken(EventRow(*row[:_ATTEMPTS]), row[_ATTEMPTS], row[_ATTEMPTS + 1], claim[-2])
            for row, claim in zip(rows, claims, strict=True)
        ]
        return lambda: taken
