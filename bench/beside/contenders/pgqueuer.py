"""pgqueuer, on PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from signal import SIGTERM
from typing import Any, ClassVar

import orjson

from bench.beside.contenders.contender import Fields, Handling, Producer, Queue
from bench.beside.contenders.order_history import PostgresBooks, make_postgres_books
from bench.workload import BATCH


class PgQueuer(Queue):
    """Its fastest driver, asyncpg, on uvloop, as its own command runs it."""

    name = "pgqueuer"
    database = "PostgreSQL"
    needs: ClassVar = {"pgqueuer": "pgqueuer", "asyncpg": "asyncpg", "uvloop": "uvloop"}
    notes = (
        "asyncpg on uvloop, one connection for a worker, batches of 100, its settings for "
        "autovacuum, woken by notifications. Jobs are taken and finished in batches, each in a "
        "synced transaction. Those of a worker that dies are taken again when their heartbeat is "
        "old; a job may be finished by a worker that lost it. What is finished leaves the queue, "
        "and a line in a log remembers it."
    )
    left = "SELECT MAX(id) IS NOT NULL FROM pgqueuer"
    command = ("pgqueuer", "--help")

    def make(self, where: str) -> None:
        asyncio.run(self._make(where))
        make_postgres_books(where)

    async def _make(self, where: str) -> None:
        connection = await _connect(where)
        queries = _queries(connection)
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    def finish(self, where: str, count: int) -> None:
        import psycopg

        with psycopg.connect(where) as connection:
            connection.execute(
                "INSERT INTO pgqueuer_log(job_id, status, priority, entrypoint) "
                "SELECT n, 'successful', 0, 'order' FROM generate_series(1, %s) AS n",
                (count,),
            )

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        with _runner() as runner:
            connection = runner.run(_connect(where))
            yield _Enqueuing(runner, _queries(connection))
            runner.run(connection.close())

    def work(self, where: str, handling: Handling) -> None:
        logging.disable(logging.WARNING)
        with _runner() as runner:
            runner.run(self._work(where, handling))

    async def _work(self, where: str, handling: Handling) -> None:
        connection, books = await _connect(where), PostgresBooks(where)
        driver = import_module("pgqueuer.db").AsyncpgDriver(connection)
        queuer: Any = import_module("pgqueuer").PgQueuer(driver)
        queries = import_module("pgqueuer.queries").Queries(driver)  # its lock is the driver's

        async def order(job: Any) -> None:
            following: list[Fields] = []
            handling(orjson.loads(job.payload), books.write, following.append)
            for row in following:
                await queries.enqueue("order", orjson.dumps(row))

        queuer.entrypoint("order")(order)
        handling.begin()
        asyncio.get_running_loop().add_signal_handler(SIGTERM, queuer.shutdown.set)
        await queuer.run(batch_size=BATCH)
        await connection.close()


def _runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop)


async def _connect(uri: str) -> Any:
    return await import_module("asyncpg").connect(uri)


def _queries(connection: Any) -> Any:
    driver = import_module("pgqueuer.db").AsyncpgDriver(connection)
    return import_module("pgqueuer.queries").Queries(driver)


class _Enqueuing:
    def __init__(self, runner: asyncio.Runner, queries: Any) -> None:
        self._runner = runner
        self._queries = queries

    def each(self, rows: list[Fields]) -> None:
        async def work() -> None:
            for row in rows:
                await self._queries.enqueue("order", orjson.dumps(row))

        self._runner.run(work())

    def together(self, rows: list[Fields]) -> None:
        payloads = [orjson.dumps(row) for row in rows]
        count = len(payloads)
        self._runner.run(self._queries.enqueue(["order"] * count, payloads, [0] * count))
