"""litequeue, on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

import orjson

from bench.beside.contenders import order_history as books
from bench.beside.contenders.contender import Fields, Handling, Producer, Queue

_FINISHED = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
    "INSERT INTO Queue(data, message_id, status, in_time, lock_time, done_time) "
    "SELECT ?, printf('00000000-%012x', n), 2, n, n, n FROM numbers"
)


class LiteQueue(Queue):
    """A queue and no more: the loop, and what is written with a message, are its user's."""

    name = "litequeue"
    database = "SQLite"
    needs: ClassVar = {"litequeue": "litequeue"}
    notes = (
        "WAL. Storing is synced (synchronous=FULL); pop and done keep its own setting, NORMAL, as "
        "ours. Messages are popped one by one. A change of state goes with done in one synced "
        "transaction on the queue's connection. A message whose worker dies stays locked until "
        "somebody retries it. Polls every 10 ms."
    )
    left = "SELECT EXISTS (SELECT 1 FROM Queue WHERE status = 0) OR EXISTS (SELECT 1 FROM Queue WHERE status = 1)"

    def make(self, where: str) -> None:
        queue = self._open(where)
        books.make_books(queue.conn)
        queue.close()

    def finish(self, where: str, count: int) -> None:
        queue = self._open(where)
        with queue.transaction():
            queue.conn.execute(_FINISHED, (count, '{"order_id":"o000001"}'))
        queue.close()

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        queue = self._open(where)
        queue.conn.execute("PRAGMA synchronous=FULL")
        yield _Puts(queue)
        queue.close()

    def work(self, where: str, handling: Handling) -> None:
        queue = self._open(where)
        handling.begin()
        handling.until_stopped(_step(queue, handling))
        queue.close()

    def _open(self, where: str) -> Any:
        return import_module("litequeue").LiteQueue(where, timeout=30)


def _step(queue: Any, handling: Handling) -> Callable[[], bool]:
    """One message; whether there was one."""
    connection = queue.conn
    writes = handling.kind in ("book", "chain")
    sync = "FULL" if handling.kind == "book" else "NORMAL"  # a follower is stored with done

    def book(fields: Fields) -> None:
        books.write(connection, fields)

    def emit(fields: Fields) -> None:
        queue.put(orjson.dumps(fields).decode())

    def step() -> bool:
        message = queue.pop()
        if message is None:
            return False
        fields = orjson.loads(message.data)
        if not writes:
            handling(fields, book, emit)
            queue.done(message.message_id)
            return True
        connection.execute(f"PRAGMA synchronous={sync}")
        with queue.transaction("IMMEDIATE"):
            handling(fields, book, emit)
            queue.done(message.message_id)
        connection.execute("PRAGMA synchronous=NORMAL")
        return True

    return step


class _Puts:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            self._queue.put(orjson.dumps(row).decode())

    def together(self, rows: list[Fields]) -> None:
        with self._queue.transaction("IMMEDIATE"):
            self.each(rows)
