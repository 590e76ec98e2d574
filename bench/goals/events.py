"""The event bus: announcing, handing out, handling, and several processes on one file.

Everything lies in a temporary folder; TMPDIR chooses the disk. On one that is only memory a hard
transaction costs nothing. What the loop does for itself is soft: a lost claim or acknowledgement
means that an event is handled again, so a sync for it would buy nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.bare import sqlite_queue as bare_queue
from bench.bare import sqlite_state as bare
from bench.goals import conflicts, contention, drains, latency, retained
from bench.goals.figures import Figure, Ratio, compare
from bench.measure import same
from bench.orders import build, open_orders, placed
from bench.stores import copied
from bench.workload import NOTHING, fields

_COMMITS = 20


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
        folder = Path(name)
        yield _announcing(folder)
        yield from drains.figures(folder)
        yield from retained.figures(folder)
        yield from latency.figures(folder)
        yield from contention.figures(folder)
        yield from conflicts.figures(folder)


def _announcing(folder: Path) -> Ratio:
    """Events alone, no state: each is a commit of its own."""
    empty = build(folder / "empty.db", 0, handler=NOTHING)
    plain_path, our_path = copied(empty, "bare.db"), copied(empty, "ours.db")
    figure = Ratio("commit of one event, hard", 1.25, per=_COMMITS, slack=100e-6)
    with bare.connected(plain_path) as connection, open_orders(our_path) as session:

        def plain() -> None:
            for number in range(_COMMITS):
                bare_queue.announce(connection, fields(number))

        def ours() -> None:
            for number in range(_COMMITS):
                session.commit(event=placed(number))

        compare(figure, plain, ours, rounds=40)
        with bare.connected(our_path) as other:
            question = "SELECT payload, type, namespace, priority FROM events ORDER BY seq"
            rows = connection.execute(question).fetchall()
            same("events", rows, other.execute(question).fetchall())
            same("states", bare_queue.states(connection), bare_queue.states(other))
    return figure
