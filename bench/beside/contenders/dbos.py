"""dbos: durable workflows, on SQLite and on PostgreSQL."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

from bench.beside.contenders.contender import POLL, Database, Fields, Handling, Producer, Queue
from bench.beside.contenders.order_history import (
    Books,
    PostgresBooks,
    make_books,
    make_postgres_books,
)

_QUEUE = "orders"
_VERSION = "bench"
_SCHEMA = "dbos"
_CONCURRENCY = 100
_SLOW_START = "its processes need longer to start than to do the work; see drain"
_SETTLE = 0.3  # seconds until its threads look for work
_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
_FINISHED = (
    "INSERT INTO workflow_status(workflow_uuid, status, name, queue_name, application_version, "
    "created_at, updated_at, completed_at, inputs, output, priority) SELECT 'finished-' || n, "
    "'SUCCESS', 'order', 'orders', 'bench', n, n, n, '{}', '{}', 0 FROM numbers"
)


class Dbos(Queue):
    """A queue of workflows; a change of state is a step of one."""

    name = "dbos"
    database: ClassVar[Database] = "SQLite"
    needs: ClassVar = {"dbos": "dbos"}
    notes = (
        "A queue that is polled every 10 ms, up to 100 workflows at once in each process; every "
        "transaction is synced. A workflow is recorded when it is stored, taken and ended, a step "
        "when it ended; those of a process that dies are taken up again. A client stores many in one "
        "transaction. It gets a tenth of the events."
    )
    share = 0.1
    cannot: ClassVar = {"processes": _SLOW_START, "processes-busy": _SLOW_START}
    left = "SELECT EXISTS (SELECT 1 FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"
    command = ("dbos.cli.cli", "--help")

    def make(self, where: str) -> None:
        self._make_queue(where)
        with sqlite3.connect(where) as connection:
            make_books(connection)

    def _make_queue(self, where: str) -> None:
        dbos = self._launched(where, "make")
        # Nothing is taken until the worker says so, at the common start.
        dbos.register_queue(_QUEUE, polling_interval_sec=POLL, worker_concurrency=0)
        dbos.destroy(destroy_registry=True)

    def finish(self, where: str, count: int) -> None:
        with sqlite3.connect(where) as connection:
            connection.execute(f"{_NUMBERS} {_FINISHED}", (count,))

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        client = import_module("dbos").DBOSClient(system_database_url=self._url(where))
        yield _Enqueues(client)
        client.destroy()

    def work(self, where: str, handling: Handling) -> None:
        logging.disable(logging.WARNING)
        dbos_class: Any = import_module("dbos").DBOS
        books = self._books(where)

        @dbos_class.step(name="book")  # type: ignore[untyped-decorator]
        def book(fields: Fields) -> None:
            books.write(fields)

        @dbos_class.workflow(name="order")  # type: ignore[untyped-decorator]
        def order(fields: Fields) -> None:
            handling(fields, book, lambda following: queue.enqueue(order, following))

        dbos = self._launched(where, "work")
        queue = dbos.retrieve_queue(_QUEUE)
        time.sleep(_SETTLE)
        handling.begin()
        queue.set_worker_concurrency(_CONCURRENCY)
        while not handling.stopped:
            time.sleep(POLL)
        dbos.destroy(workflow_completion_timeout_sec=5)

    def _launched(self, where: str, name: str) -> Any:
        logging.disable(logging.WARNING)
        dbos_class = import_module("dbos").DBOS
        dbos = dbos_class(
            config={
                "name": "bench",
                "system_database_url": self._url(where),
                "application_version": _VERSION,
                "executor_id": f"{name}-{os.getpid()}",
                "log_level": "ERROR",
            }
        )
        dbos_class.launch()
        return dbos

    def _url(self, where: str) -> str:
        return f"sqlite:///{where}"

    def _books(self, where: str) -> Books | PostgresBooks:
        return Books(where)


class DbosOnPostgres(Dbos):
    database = "PostgreSQL"
    left = Dbos.left.replace("workflow_status", f"{_SCHEMA}.workflow_status")

    def make(self, where: str) -> None:
        self._make_queue(where)
        make_postgres_books(where)

    def finish(self, where: str, count: int) -> None:
        import psycopg

        numbers = f"WITH numbers(n) AS (SELECT * FROM generate_series(1, {count}))"
        statement = _FINISHED.replace("workflow_status", f"{_SCHEMA}.workflow_status")
        with psycopg.connect(where) as connection:
            connection.execute(f"{numbers} {statement}".encode())

    def _url(self, where: str) -> str:
        return where

    def _books(self, where: str) -> Books | PostgresBooks:
        return PostgresBooks(where)


class _Enqueues:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._options = {
            "queue_name": _QUEUE,
            "workflow_name": "order",
            "app_version": _VERSION,
        }

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            self._client.enqueue(self._options, row)

    def together(self, rows: list[Fields]) -> None:
        with self._client._sys_db.engine.begin() as connection:
            for row in rows:
                self._client.enqueue_in_transaction(connection, self._options, row)
