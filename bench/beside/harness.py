"""What a scenario needs: stores that are filled, a host process for each contender, and drains."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import orjson

from bench.beside.contenders import queue, state_of
from bench.beside.contenders.contender import Queue
from bench.beside.sizes import SIZES
from bench.measure import same
from bench.processes import Worker, drain
from bench.shop import VERSIONS
from bench.stores import Databases, Folders, Stores

_PATIENCE = 20.0
"""Seconds: whoever is slower is stopped, and what it did until then is taken for its rate."""
_LONG = 100_000
"""Events for which nobody has to hurry: only those take part who can be waited for."""
_MODULE = "bench.beside.worker"


class Drained(NamedTuple):
    handled: int
    """Events: all, unless it took too long."""
    seconds: float
    """From a common start until everything was acknowledged."""
    reports: list[dict[str, Any]]
    """What the workers said at the end."""


@contextmanager
def harness(server: Databases | None, size: str = "full") -> Generator[Harness]:
    """A harness whose files and hosts go at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ontologia-bench-"))
        yield Harness(size, Path(folder), server, stack)


class Harness:
    """Makes a store for every round, and ends its hosts with itself."""

    def __init__(self, size: str, folder: Path, server: Databases | None, stack: ExitStack) -> None:
        self.size = SIZES[size]
        self._folders = Folders(folder)
        self._server = server
        self._stack = stack
        self._hosts: dict[str, Worker] = {}
        self._templates: dict[tuple[str, int, bool, int], str] = {}
        self._shops: dict[str, str] = {}

    def filled(
        self, key: str, events: int = 0, *, chain: bool = False, finished: int = 0
    ) -> AbstractContextManager[str]:
        """A store in which events wait: a copy of one that is made once for the scenario."""
        stores = self._stores(queue(key))
        wanted = (key, events, chain, finished)
        if wanted not in self._templates:
            self._templates[wanted] = stores.made(
                lambda where: self.ask(key, "fill", where, events, chain, finished)
            )
        return stores.copied(self._templates[wanted])

    def shop(self, key: str) -> str:
        """Where the store with customers of a contender is; it is not changed."""
        tables = state_of(key).tables
        if tables not in self._shops:
            self._shops[tables] = self._folders.made(
                lambda where: self.ask(
                    key, "build", where, self.size.entities, VERSIONS, kind="state"
                )
            )
        return self._shops[tables]

    def copied_shop(self, key: str) -> AbstractContextManager[str]:
        """The same, to be changed."""
        return self._folders.copied(self.shop(key))

    def clear(self) -> None:
        """The scenario is over."""
        for (key, *_), where in self._templates.items():
            self._stores(queue(key)).remove(where)
        self._templates.clear()

    def _stores(self, contender: Queue) -> Stores:
        if contender.database == "SQLite":
            return self._folders
        assert self._server is not None  # without one it does not take part
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
            drained = drain(
                workers,
                lambda: answer(contender.left),
                patience=10 * _PATIENCE if expected >= _LONG else _PATIENCE,
                meanwhile=meanwhile,
                before_stop=lambda: before_stop(workers),
            )
            handled = sum(each["handled"] for each in drained.reports)
            if not drained.late:
                same(f"events that {key} handled", expected, handled)
                if kind == "book":
                    same(f"orders that {key} wrote", expected, answer(contender.changed))
        return Drained(handled, drained.seconds, drained.reports)

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
