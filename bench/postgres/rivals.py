"""Two queues for PostgreSQL, as their documentation recommends to run them when speed matters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGTERM
from typing import Any

import asyncpg
import orjson
import procrastinate
import uvloop
from pgqueuer import PgQueuer as Queuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.bare_queue import BATCH
from bench.orders import fields
from bench.postgres.contenders import Producer
from bench.processes import Worker
from bench.worker import begin

_CONCURRENCY = 10
_PORTION = 1_000


class Procrastinate:
    """Jobs are fetched one by one and finished one by one, each in a durable transaction.

    `concurrency` lets the next job be fetched while others are finished, and the pool has a
    connection for each; 1 and 30 were no faster. Finished jobs are kept, as ours are; having them
    deleted made no difference. A job whose worker dies stays `doing` until somebody retries it.
    """

    name = "procrastinate"
    stored = "SELECT COUNT(*) FROM procrastinate_jobs WHERE status = 'todo'"
    left = "SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    finished = "SELECT COUNT(*) FROM procrastinate_jobs WHERE status = 'succeeded'"

    def make(self, uri: str) -> None:
        with _sync_app(uri).open() as app:
            app.schema_manager.apply_schema()

    def ready(self, uri: str) -> None:
        """Nothing."""

    @contextmanager
    def producing(self, uri: str) -> Iterator[Producer]:
        with _sync_app(uri).open() as app:
            yield _Deferring(app)

    def worker(self, uri: str) -> Worker:
        return Worker(self.name, uri, "bench.postgres.worker")

    def drain(self, uri: str) -> int:
        return asyncio.run(self._drain(uri))

    async def _drain(self, uri: str) -> int:
        connector = procrastinate.PsycopgConnector(
            conninfo=uri, min_size=_CONCURRENCY, max_size=_CONCURRENCY + 2
        )
        app, handled = procrastinate.App(connector=connector), 0

        async def order(**_: Any) -> None:
            nonlocal handled
            handled += 1

        app.task(name="order")(order)
        async with app.open_async():
            begin()
            await app.run_worker_async(concurrency=_CONCURRENCY)
        return handled


def _sync_app(uri: str) -> procrastinate.App:
    return procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=uri))


class _Deferring:
    def __init__(self, app: procrastinate.App) -> None:
        self._app = app

    def each(self, numbers: range) -> None:
        for number in numbers:
            self._app.configure_task("order").defer(**fields(number))

    def together(self, numbers: range) -> None:
        task = self._app.configure_task("order")
        for first in numbers[::_PORTION]:
            portion = numbers[first - numbers.start :][:_PORTION]
            task.batch_defer(*[fields(number) for number in portion])


class PgQueuer:
    """Jobs are taken and finished in batches, each batch in a durable transaction.

    Its fastest driver, asyncpg, on uvloop, as its own command runs it: one connection for a
    worker, batches of 100 as ours and bare have, its settings for autovacuum. Jobs of a worker
    that dies are taken again when their heartbeat is old; a job may be finished by a worker that
    lost it. What is finished leaves the queue, and a line in a log remembers it.
    """

    name = "pgqueuer"
    stored = "SELECT COUNT(*) FROM pgqueuer"
    left = "SELECT MAX(id) IS NOT NULL FROM pgqueuer"
    finished = "SELECT COUNT(*) FROM pgqueuer_log WHERE status = 'successful'"

    def make(self, uri: str) -> None:
        asyncio.run(self._make(uri))

    async def _make(self, uri: str) -> None:
        connection = await asyncpg.connect(uri)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    def ready(self, uri: str) -> None:
        """Nothing."""

    @contextmanager
    def producing(self, uri: str) -> Iterator[Producer]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            connection = runner.run(_connect(uri))
            yield _Enqueuing(runner, Queries(AsyncpgDriver(connection)))
            runner.run(connection.close())

    def worker(self, uri: str) -> Worker:
        return Worker(self.name, uri, "bench.postgres.worker")

    def drain(self, uri: str) -> int:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._drain(uri))

    async def _drain(self, uri: str) -> int:
        connection = await _connect(uri)
        queuer, handled = Queuer(AsyncpgDriver(connection)), 0

        async def order(job: Job) -> None:
            nonlocal handled
            assert job.payload is not None
            orjson.loads(job.payload)  # the others hand over what is in it
            handled += 1

        queuer.entrypoint("order")(order)
        asyncio.get_running_loop().add_signal_handler(SIGTERM, queuer.shutdown.set)
        begin()
        await queuer.run(batch_size=BATCH)
        await connection.close()
        return handled


async def _connect(uri: str) -> Any:
    return await asyncpg.connect(uri)


class _Enqueuing:
    def __init__(self, runner: asyncio.Runner, queries: Queries) -> None:
        self._runner = runner
        self._queries = queries

    def each(self, numbers: range) -> None:
        async def work() -> None:
            for number in numbers:
                await self._queries.enqueue("order", orjson.dumps(fields(number)))

        self._runner.run(work())

    def together(self, numbers: range) -> None:
        payloads: list[bytes | None] = [orjson.dumps(fields(number)) for number in numbers]
        count = len(payloads)
        self._runner.run(self._queries.enqueue(["order"] * count, payloads, [0] * count))
