"""What a contender is: a queue that can be filled and worked on, in processes of its own.

The classes can be looked at whether their packages are installed or not: what a class needs, it
imports when it is used.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, Protocol

from bench.processes import begin, stop_on_sigterm
from bench.workload import NAP

OURS, BARE = "ontologia", "bare"
POLL = 0.01
"""Seconds between two looks of those who poll for events."""
LINKS = 3
"""Events in a chain."""

Fields = dict[str, Any]
Database = Literal["SQLite", "PostgreSQL"]
Kind = Literal["nothing", "book", "chain", "listen", "nap"]


class Producer(Protocol):
    """Stores events, on a connection that is open already."""

    def each(self, rows: list[Fields]) -> None:
        """One after the other; each is on the disk when it is stored."""
        ...

    def together(self, rows: list[Fields]) -> None:
        """All of them, in the way it has for many."""
        ...


class Handling:
    """What a handler does with an event, the same for every contender, and what it saw."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.handled = 0
        self._counting = threading.Lock()  # handlers may run in several threads
        self.started: list[tuple[str, int]] = []
        self._stopped = False

    def begin(self, stop: Callable[[], object] | None = None) -> None:
        """All is open: wait for the common start. From here on SIGTERM sets `stopped`, or calls `stop`."""
        if stop is None:
            signal.signal(signal.SIGTERM, self._stop)
        else:
            stop_on_sigterm(stop)
        begin()
        threading.Thread(target=_end_with_parent, daemon=True).start()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def __call__(
        self,
        fields: Fields,
        book: Callable[[Fields], object],
        emit: Callable[[Fields], object],
    ) -> None:
        """Handle one event; `book` changes the state, `emit` stores the next event."""
        with self._counting:
            self.handled += 1
        if self.kind == "listen":
            self.started.append((fields["order_id"], time.monotonic_ns()))
        elif self.kind == "book":
            book(fields)
        elif self.kind == "nap":
            time.sleep(NAP)
        elif self.kind == "chain" and fields["step"] < LINKS:
            emit(fields | {"step": fields["step"] + 1})

    def until_stopped(self, step: Callable[[], bool]) -> None:
        """For those that are a queue and no more: take and handle; rest when there is nothing."""
        while not self._stopped:
            if not step():
                time.sleep(POLL)

    def _stop(self, *_: object) -> None:
        self._stopped = True


def _end_with_parent() -> None:
    """Whoever started this process holds its input open: a worker does not outlive a run."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class Queue(ABC):
    """A contender for the scenarios with events."""

    name: ClassVar[str]
    database: ClassVar[Database]
    needs: ClassVar[Mapping[str, str]] = {}
    """Modules that must be there, with the packages they come from."""
    notes: ClassVar[str]
    """How it is configured, what is on the disk when, and what happens when a worker dies."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """Scenarios it cannot take part in, with the reason."""
    share: ClassVar[float] = 1.0
    """Of the events: one that needs far longer for each gets fewer of them."""
    left: ClassVar[str]
    """Asks whether any event is not finished; often, so it should not read much."""
    changed: ClassVar[str] = "SELECT COUNT(*) FROM orders"
    """Asks how many orders the handlers of `book` have written."""
    command: ClassVar[tuple[str, ...]] = ()
    """Its command line, if it has one: a module and words that only start it."""

    def file(self, where: str) -> str:
        """On SQLite: the file that `left` is asked of."""
        return where

    @abstractmethod
    def make(self, where: str) -> None:
        """The tables. `where` is a path in a folder of its own, or the URI of a database."""

    @abstractmethod
    def producing(self, where: str) -> AbstractContextManager[Producer]: ...

    @abstractmethod
    def work(self, where: str, handling: Handling) -> None:
        """Open all, `handling.begin()`, then handle events until SIGTERM."""

    def ready(self, where: str) -> None:  # noqa: B027 - most have nothing to do
        """What may be done before a drain is measured."""

    def finish(self, where: str, count: int) -> None:
        """Put this many finished events there, as it keeps them."""
        raise NotImplementedError(self.name)
