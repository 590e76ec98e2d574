"""persist-queue, on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from bench.beside.contenders.contender import Fields, Handling, Producer, Queue
from bench.beside.contenders.order_history import Books, make_books

_TABLE = "ack_queue_default"
_FINISHED = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
    f"INSERT INTO {_TABLE}(data, timestamp, status) SELECT ?, 0, 5 FROM numbers"
)
_ONE_CONSUMER = (
    "two processes would be given the same items: it looks for one and marks it in two steps"
)


class PersistQueue(Queue):
    """A queue and no more: the loop is its user's."""

    name = "persist-queue"
    database = "SQLite"
    needs: ClassVar = {"persistqueue": "persist-queue"}
    notes = (
        "SQLiteAckQueue(auto_commit=True): WAL, every transaction is synced, SQLite's own default. "
        "Taking, and acknowledging, an item is a transaction each; items that were taken come "
        "back when a queue is opened. Acknowledged items stay. Polls every 10 ms. It has no call "
        "for many items; they are stored one by one. It gets a fifth of the events."
    )
    share = 0.2
    cannot: ClassVar = {"processes": _ONE_CONSUMER, "processes-busy": _ONE_CONSUMER}
    left = f"SELECT COALESCE((SELECT status < 5 FROM {_TABLE} ORDER BY _id DESC LIMIT 1), 0)"

    def file(self, where: str) -> str:
        return str(Path(where).parent / "data.db")

    def make(self, where: str) -> None:
        self._open(where).close()
        with sqlite3.connect(self.file(where)) as connection:
            make_books(connection)

    def finish(self, where: str, count: int) -> None:
        pickled = import_module("pickle").dumps({"order_id": "o000001"})
        with sqlite3.connect(self.file(where)) as connection:
            connection.execute(_FINISHED, (count, pickled))

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        queue = self._open(where, auto_resume=False)
        yield _Puts(queue)
        queue.close()

    def work(self, where: str, handling: Handling) -> None:
        queue, books = self._open(where), Books(self.file(where))
        handling.begin()
        handling.until_stopped(_step(queue, handling, books))
        queue.close()

    def _open(self, where: str, *, auto_resume: bool = True) -> Any:
        return import_module("persistqueue").SQLiteAckQueue(
            str(Path(where).parent), auto_resume=auto_resume, auto_commit=True, timeout=30.0
        )


def _step(queue: Any, handling: Handling, books: Books) -> Callable[[], bool]:
    """One item; whether there was one."""
    empty = import_module("persistqueue").Empty

    def step() -> bool:
        try:
            item: Any = queue.get(block=False, raw=True)
        except empty:
            return False
        handling(item["data"], books.write, queue.put)
        queue.ack(id=item["pqid"])
        return True

    return step


class _Puts:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            self._queue.put(row)

    together = each
