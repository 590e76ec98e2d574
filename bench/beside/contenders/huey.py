"""huey, on SQLite."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

from bench.beside.contenders.contender import POLL, Fields, Handling, Producer, Queue
from bench.beside.contenders.order_history import Books, make_books


class Huey(Queue):
    """Its consumer with one worker, a thread, for each process."""

    name = "huey"
    database = "SQLite"
    needs: ClassVar = {"huey": "huey"}
    notes = (
        "SqliteHuey(fsync=True, results=False): WAL, every transaction is synced. A task is deleted "
        "when it is taken, so one whose worker dies is lost: at most once. Polls every 10 ms. It "
        "has no call for many tasks; they are stored one by one."
    )
    cannot: ClassVar = {"retained": "finished tasks are deleted, none is retained"}
    left = "SELECT EXISTS (SELECT 1 FROM task)"
    command = ("huey.bin.huey_consumer", "--help")

    def make(self, where: str) -> None:
        self._open(where).storage.close()
        with sqlite3.connect(where) as connection:
            make_books(connection)

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        huey = self._open(where)
        yield _Tasks(huey.task(name="order")(_unused))
        huey.storage.close()

    def work(self, where: str, handling: Handling) -> None:
        logging.disable(logging.INFO)
        huey, books = self._open(where), Books(where)

        def order(fields: Fields) -> None:
            handling(fields, books.write, task)

        task = huey.task(name="order")(order)
        consumer: Any = huey.create_consumer(
            workers=1,
            periodic=False,
            initial_delay=POLL,
            max_delay=POLL,
            check_worker_health=False,
            graceful_signal="TERM",
        )
        handling.begin()
        consumer.run()

    def _open(self, where: str) -> Any:
        return import_module("huey").SqliteHuey(
            "bench", filename=where, fsync=True, results=False, timeout=30
        )


def _unused(fields: Fields) -> None:
    """In a process that only stores tasks."""


class _Tasks:
    def __init__(self, task: Any) -> None:
        self._task = task

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            self._task(row)

    together = each
