"""procrastinate, on PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

from bench.beside.contenders.contender import Fields, Handling, Producer, Queue
from bench.beside.contenders.order_history import PostgresBooks, make_postgres_books

_CONCURRENCY = 10
_PORTION = 1_000


class Procrastinate(Queue):
    """Its worker with ten jobs at once, in each process."""

    name = "procrastinate"
    database = "PostgreSQL"
    needs: ClassVar = {"procrastinate": "procrastinate", "psycopg_pool": "psycopg[pool]"}
    notes = (
        "A pool with a connection for each of ten jobs at once (1 and 30 were no faster), woken by "
        "notifications. Jobs are fetched and finished one by one, each in a synced transaction; "
        "finished ones are kept. A job whose worker dies stays `doing` until somebody retries it. "
        "batch_defer stores many. It gets a tenth of the events."
    )
    share = 0.1
    left = "SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    command = ("procrastinate", "--help")

    def make(self, where: str) -> None:
        with self._app(where).open() as app:
            app.schema_manager.apply_schema()
        make_postgres_books(where)

    def finish(self, where: str, count: int) -> None:
        import psycopg

        with psycopg.connect(where) as connection:
            connection.execute("ALTER TABLE procrastinate_jobs DISABLE TRIGGER USER")
            connection.execute(
                "INSERT INTO procrastinate_jobs(queue_name, task_name, status, args, attempts) "
                "SELECT 'default', 'order', 'succeeded', '{}', 1 FROM generate_series(1, %s)",
                (count,),
            )
            connection.execute("ALTER TABLE procrastinate_jobs ENABLE TRIGGER USER")

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        with self._app(where).open() as app:
            yield _Deferring(app)

    def work(self, where: str, handling: Handling) -> None:
        logging.disable(logging.WARNING)
        asyncio.run(self._work(where, handling))

    async def _work(self, where: str, handling: Handling) -> None:
        procrastinate: Any = import_module("procrastinate")
        connector = procrastinate.PsycopgConnector(
            conninfo=where, min_size=_CONCURRENCY, max_size=_CONCURRENCY + 2
        )
        app, books = procrastinate.App(connector=connector), PostgresBooks(where)

        async def order(**fields: Any) -> None:
            following: list[Fields] = []
            handling(fields, books.write, following.append)
            for row in following:
                await app.configure_task("order").defer_async(**row)

        app.task(name="order")(order)
        async with app.open_async():
            handling.begin()
            await app.run_worker_async(concurrency=_CONCURRENCY)

    def _app(self, where: str) -> Any:
        procrastinate: Any = import_module("procrastinate")
        return procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=where))


class _Deferring:
    def __init__(self, app: Any) -> None:
        self._app = app

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            self._app.configure_task("order").defer(**row)

    def together(self, rows: list[Fields]) -> None:
        task = self._app.configure_task("order")
        for first in range(0, len(rows), _PORTION):
            task.batch_defer(*rows[first : first + _PORTION])
