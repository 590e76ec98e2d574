"""Where contenders meet: a place for each store, a host for each contender, and drains."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import orjson

from ontologia.bench.contenders import queue, state_of
from ontologia.bench.contenders.base import Queue
from ontologia.bench.measure import BenchError, same
from ontologia.bench.places import Databases, Folders, Places
from ontologia.bench.processes import Worker, start
from ontologia.bench.sizes import VERSIONS, Size

_LOOK = 0.002
_PATIENCE = 20.0
"""Seconds: whoever is slower is stopped, and what it did until then is taken for its rate."""
_LONG = 100_000
"""Events for which nobody has to hurry: only those take part who can be waited for."""
_MODULE = "ontologia.bench.worker"


class Drained(NamedTuple):
    handled: int
    """Events: all, unless it took too long."""
    seconds: float
    """From a common start until everything was acknowledged."""
    reports: list[dict[str, Any]]
    """What the workers said at the end."""


class Arena:
    """Has a place for every store, and ends its hosts with itself."""

    def __init__(
        self, size: Size, folder: Path, server: Databases | None, stack: ExitStack
    ) -> None:
        self.size = size
        self._folders = Folders(folder)
        self._server = server
        self._stack = stack
        self._hosts: dict[str, Worker] = {}
        self._templates: dict[tuple[str, int, bool, int], str] = {}
        self._shops: dict[str, str] = {}

    @contextmanager
    def filled(
        self, key: str, events: int = 0, *, chain: bool = False, finished: int = 0
    ) -> Generator[str]:
        """A store in which events wait: a copy of one that is made once for the scenario."""
        places = self._places(queue(key))
        wanted = (key, events, chain, finished)
        if wanted not in self._templates:
            self._templates[wanted] = places.new()
            self.ask(key, "fill", self._templates[wanted], events, chain, finished)
        where = places.copy(self._templates[wanted])
        try:
            yield where
        finally:
            places.remove(where)

    def shop(self, key: str) -> str:
        """Where the store with customers of a contender is; it is not changed."""
        tables = state_of(key).tables
        if tables not in self._shops:
            where = self._folders.new()
            self.ask(key, "build", where, self.size.entities, VERSIONS, kind="state")
            self._shops[tables] = where
        return self._shops[tables]

    @contextmanager
    def copied_shop(self, key: str) -> Generator[str]:
        """The same, to be changed."""
        where = self._folders.copy(self.shop(key))
        try:
            yield where
        finally:
            self._folders.remove(where)

    def clear(self) -> None:
        """The scenario is over."""
        for (key, *_), where in self._templates.items():
            self._places(queue(key)).remove(where)
        self._templates.clear()

    def _places(self, contender: Queue) -> Places:
        if contender.database == "SQLite":
            return self._folders
        assert self._server is not None  # noqa: S101 - without one it does not take part
        return self._server

    def ask(self, key: str, what: str, *words: Any, kind: str = "host") -> Any:
        """Let the host of a contender do something; what it says."""
        host = self._hosts.get(key)
        if host is None or not host.alive:
            host = self._hosts[key] = Worker(_MODULE, kind, key)
            self._stack.enter_context(host)
        host.go(orjson.dumps([what, *words]).decode())
        return host.read()

    def drained(
        self,
        key: str,
        where: str,
        kind: str,
        expected: int,
        *,
        processes: int = 1,
        meanwhile: Callable[[], object] = lambda: None,
        before_stop: Callable[[Sequence[Worker]], object] = lambda workers: None,
    ) -> Drained:
        """Let workers handle all that is there, and what comes while `meanwhile` runs."""
        contender = queue(key)
        with ExitStack() as stack:
            workers = [
                stack.enter_context(Worker(_MODULE, "work", key, where, kind))
                for _ in range(processes)
            ]
            answer = stack.enter_context(self._asking(contender, where))
            started = start(workers)
            meanwhile()
            late = started + (10 * _PATIENCE if expected >= _LONG else _PATIENCE)
            while (left := answer(contender.left)) and time.perf_counter() < late:
                if not all(worker.alive for worker in workers):
                    raise BenchError(f"a worker of {key} ended before the work was done ({kind})")
                time.sleep(_LOOK)
            elapsed = time.perf_counter() - started
            before_stop(workers)
            for worker in workers:
                worker.stop()
            reports = [worker.read() for worker in workers]
            handled = sum(each["handled"] for each in reports)
            if kind == "book" and not left:
                same(f"orders that {key} wrote", expected, answer(contender.changed))
        if not left:
            same(f"events that {key} handled", expected, handled)
        return Drained(handled, elapsed, reports)

    @contextmanager
    def _asking(self, contender: Queue, where: str) -> Generator[Callable[[str], Any]]:
        """Answers questions, on a connection that is open already."""
        if contender.database == "PostgreSQL":
            import psycopg

            with psycopg.connect(where, autocommit=True) as connection:
                yield lambda question: connection.execute(question.encode()).fetchall()[0][0]
        else:
            file = apsw.Connection(contender.file(where), flags=apsw.SQLITE_OPEN_READWRITE)
            file.set_busy_timeout(30_000)
            try:
                yield lambda question: file.execute(question).get
            finally:
                file.close()
