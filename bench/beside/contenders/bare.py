"""Bare: a loop with apsw and orjson on the store's own tables, as one would write it by hand."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import apsw

from bench.bare import sqlite_queue as bare_queue
from bench.bare import sqlite_state as bare
from bench.beside.contenders.contender import BARE, Fields, Handling, Producer, Queue
from bench.workload import NOTHING


class Bare(Queue):
    """The least work: it knows one consumer, no leases that run out, no failures, no fences."""

    name = BARE
    database = "SQLite"
    notes = (
        "apsw and orjson on the store's own tables: WAL, batches of 100. What is stored and what "
        "changes the state is synced, claims and acknowledgements are not, as ours. No leases: the "
        "events of a worker that dies stay taken. Polls every 10 ms."
    )
    left = bare_queue.LEFT
    changed = "SELECT COUNT(*) FROM entity_latest"

    def make(self, where: str) -> None:
        from bench.orders import make_orders

        make_orders(where)

    def ready(self, where: str) -> None:
        with _connected(where) as connection:
            bare_queue.open_queue(connection, NOTHING)

    def finish(self, where: str, count: int) -> None:
        from bench.orders import finish

        finish(Path(where), count, NOTHING)

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        with _connected(where) as connection:
            yield _Statements(connection)

    def work(self, where: str, handling: Handling) -> None:
        with _connected(where) as connection:
            queue = bare_queue.open_queue(connection, NOTHING)
            handling.begin()
            handling.until_stopped(_step(queue, handling))


@contextmanager
def _connected(where: str) -> Generator[apsw.Connection]:
    with bare.connected(Path(where)) as connection:
        connection.set_busy_timeout(30_000)
        yield connection


def _step(queue: bare_queue.Queue, handling: Handling) -> Callable[[], bool]:
    """One batch; whether there was one."""

    def step() -> bool:
        if not bare_queue.look(queue):
            return False
        taken = bare_queue.take(queue, durable=False)
        following: list[Fields] = []
        for event_id, fields in taken:
            handling(fields, partial(bare_queue.book_one, queue, event_id), following.append)
        if handling.kind != "book":  # there each has been acknowledged
            bare_queue.acknowledge(queue, taken, following, durable=False)
        return bool(taken)

    return step


class _Statements:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            bare_queue.announce(self._connection, row)

    def together(self, rows: list[Fields]) -> None:
        bare_queue.announce_all(self._connection, rows)
