"""The queues of named events: in memory beside a bare deque, in the store beside typed handlers."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.bare import sqlite_queue as bare_queue
from bench.bare import sqlite_state as bare
from bench.goals.figures import Figure, Ratio, Speed, compare
from bench.measure import progress, seconds
from bench.orders import announce, build, nothing, open_orders, unlimited
from bench.stores import copied
from bench.workload import NAMESPACE, NOTHING, TYPE, fields
from ontologia.queues import DomainEvent, EventWorker, InMemoryEventQueue, StoreEventQueue

_IN_MEMORY = 20_000
_PORTION = 1_000
_BATCH = 10
_BACKLOG = 20_000
_ROUNDS = 5


def figures() -> Iterator[Figure]:
    yield _in_memory()
    with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
        yield _in_the_store(Path(name))


# -- in memory ------------------------------------------------------------------------------------


def _in_memory() -> Ratio:
    """Enqueue 1,000, take them by tens and acknowledge each; on one thread."""
    events = [DomainEvent.build(name=TYPE, payload=fields(n)) for n in range(_PORTION)]
    figure = Speed("in memory: enqueue, dequeue, ack (bare: a deque)", 0.2, per=_IN_MEMORY)
    return compare(figure, lambda: _bare(events), lambda: _ours(events), rounds=20)


def _bare(events: Sequence[DomainEvent]) -> None:
    """A deque forgets what it gives: there is nothing to acknowledge but the lock."""
    waiting: deque[DomainEvent] = deque()
    lock = threading.Lock()
    for _ in range(_IN_MEMORY // _PORTION):
        for event in events:
            with lock:
                waiting.append(event)
        while waiting:
            with lock:
                batch = [waiting.popleft() for _ in range(_BATCH)]
            for _ in batch:
                with lock:
                    pass


def _ours(events: Sequence[DomainEvent]) -> None:
    queue = InMemoryEventQueue()
    for _ in range(_IN_MEMORY // _PORTION):
        for event in events:
            queue.enqueue(event)
        while batch := queue.dequeue(_BATCH, 0):
            for delivery in batch:
                queue.ack(delivery.receipt_handle)


# -- in the store ---------------------------------------------------------------------------------


class Env:
    """As much of an environment as a worker needs: one handler, which stops it at the end."""

    queue = None

    def __init__(self, count: int) -> None:
        self.left = count
        self.registry = self
        self.done: Callable[[], None] = lambda: None

    def get_event_handlers(self, name: str) -> Sequence[Callable[[DomainEvent, Any], None]]:
        return (self.handle,)

    def handle(self, event: DomainEvent, env: Any) -> None:
        self.left -= 1
        if not self.left:
            self.done()


def _in_the_store(folder: Path) -> Speed:
    with progress(f"building two stores with {_BACKLOG:,} events that wait"):
        typed = build(folder / "typed.db", _BACKLOG, handler=NOTHING)
        named = folder / "named.db"
        with open_orders(named) as session:
            session.event_store.consumers.register(NAMESPACE, "worker:default", ["*"])
            announce(session, _BACKLOG)
    title = f"{_BACKLOG:,} events, a worker (bare: a typed handler)"
    figure = Speed(title, 0.6, per=_BACKLOG)
    for number in range(_ROUNDS + 1):
        with progress(f"a worker on the store, round {number} of {_ROUNDS}"):
            handled, worked = _handled(typed), _worked(named)
        if number:  # the first is to warm up
            figure.bare.append(handled)
            figure.ours.append(worked)
    return figure


def _handled(source: Path) -> float:
    path = copied(source, "handled.db")
    with open_orders(path, unlimited()) as session:
        elapsed = seconds(lambda: session.run([nothing], max_iterations=1))
        _all_acked(path)
    return elapsed


def _worked(source: Path) -> float:
    path = copied(source, "worked.db")
    with open_orders(path, unlimited()) as session:
        env = Env(_BACKLOG)
        worker = EventWorker(env, queue=StoreEventQueue(session))
        env.done = worker.stop
        elapsed = seconds(worker.run_forever)
        _all_acked(path)
    return elapsed


def _all_acked(path: Path) -> None:
    with bare.connected(path) as connection:
        bare_queue.check_all_acked(connection, _BACKLOG)
