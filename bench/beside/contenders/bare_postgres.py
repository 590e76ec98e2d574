"""Bare on PostgreSQL: a loop with psycopg on the store's own tables."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from bench.beside.contenders.contender import BARE, Fields, Handling, Producer, Queue
from bench.workload import NOTHING

if TYPE_CHECKING:
    from bench.bare import postgres_queue


class BareOnPostgres(Queue):
    """The least work: it knows one consumer, no leases that run out, no failures, no fences."""

    name = BARE
    database = "PostgreSQL"
    needs: ClassVar = {"psycopg": "psycopg"}
    notes = (
        "psycopg on the store's own tables: prepared statements, pipelines, batches of 100, the "
        "acknowledgements of a batch with the claim of the next. What is stored and what changes "
        "the state is synced, claims and acknowledgements are not, as ours. Polls every 10 ms."
    )
    left = (
        "SELECT (SELECT MAX(seq) FROM ontologia.incoming) IS NOT NULL "
        "OR EXISTS (SELECT 1 FROM ontologia.ready) "
        "OR EXISTS (SELECT 1 FROM ontologia.event_claims WHERE due_at IS NOT NULL)"
    )
    changed = "SELECT COUNT(*) FROM ontologia.entity_latest"
    synced: ClassVar[bool] = False
    """Whether claims and acknowledgements wait for the disk, too."""

    def make(self, where: str) -> None:
        from bench.orders import make_orders

        make_orders(where)

    def ready(self, where: str) -> None:
        from bench.bare import postgres_queue as bare

        with bare.connected(where) as connection:
            bare.hand_out(bare.open_queue(connection, NOTHING))

    def finish(self, where: str, count: int) -> None:
        from bench.orders import finish_on_postgres

        finish_on_postgres(where, count)

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        from bench.bare import postgres_queue as bare

        with bare.connected(where) as connection:
            yield _Statements(connection)

    def work(self, where: str, handling: Handling) -> None:
        from bench.bare import postgres_queue as bare

        numbers, finished, following = count(1), list[str](), list[Fields]()
        with bare.connected(where) as connection:
            if handling.kind != "book" and not self.synced:
                connection.execute("SET synchronous_commit = off")
            queue = bare.open_queue(connection, NOTHING)

            def step() -> bool:
                if not finished and not bare.look(queue):
                    return False
                taken = bare.take(queue, finished, following)
                finished.clear()
                following.clear()
                for event_id, fields in taken:

                    def book(row: Fields, event_id: str = event_id) -> None:
                        bare.in_one(queue, next(numbers), event_id, row)

                    handling(fields, book, following.append)
                    if handling.kind != "book":  # there it has been acknowledged
                        finished.append(event_id)
                return bool(taken)

            handling.begin()
            handling.until_stopped(step)


class SyncedBareOnPostgres(BareOnPostgres):
    """The bare loop of the goals."""

    synced = True


class _Statements:
    def __init__(self, connection: postgres_queue.Connection) -> None:
        self._connection = connection

    def each(self, rows: list[Fields]) -> None:
        from bench.bare import postgres_queue as bare

        for row in rows:
            bare.announce(self._connection, row)

    def together(self, rows: list[Fields]) -> None:
        from bench.bare import postgres_queue as bare

        bare.announce_all(self._connection, rows)
