"""On PostgreSQL: the same promises, beside a bare loop.

One server that syncs to the disk, with its default settings otherwise, and a database of its own
for every contender and round; TMPDIR does not matter here, the cluster is in /tmp. The server has
the same cores as its clients, so what a client spends is taken from the server, too.

What is compared is not the same promise. Ours keeps every event with its attempts, fences each
attempt, and dispatches an event to any number of consumers. What its loop does for itself is soft: a
power cut can lose the last acknowledgements, and their events are handled again. Bare waits
for the disk with each of its transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from bench.goals.figures import Figure, Note
from bench.stores import missing_for_a_server, own_server


def figures() -> Iterator[Figure]:
    """Start the server, and run every figure on it."""
    if missing := missing_for_a_server():
        yield Note(
            f"PostgreSQL is left out: {', '.join(missing)} cannot be imported. "
            "pip install -e '.[dev]' brings all it needs.",
            missed=True,  # what was not measured has not reached its goals
        )
        return
    from bench.goals import tasks
    from bench.goals.postgres import claims, commits, drains, enqueue

    with own_server() as databases:
        driver = f"psycopg {version('psycopg')}"
        yield Note(f"PostgreSQL {databases.version}, fsync on, default settings; {driver}")
        yield from drains.figures(databases)
        yield from claims.figures(databases)
        yield from commits.figures(databases)
        yield tasks.commits(databases.new())
        yield from enqueue.figures(databases)
