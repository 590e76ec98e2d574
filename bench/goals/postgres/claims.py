"""What a claim costs: beside finished events, and while somebody holds a snapshot open.

A snapshot keeps the rows alive that were deleted after it was taken. The rows of `ready` live for
a moment, so they pile up, and every claim reads past those of all claims before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from bench.goals import retained
from bench.goals.figures import Figure, Ratio
from bench.goals.retained import LIMIT
from bench.measure import progress, same
from bench.orders import announce, finish_on_postgres, make_orders, open_orders
from bench.stores import Databases

_FINISHED = 300_000
_EVENTS = 20_000
_LATE = 50
"""The last claims of the drain, which count."""


def figures(databases: Databases) -> Iterator[Figure]:
    with progress(f"building {_FINISHED:,} finished events"):
        none = databases.made(make_orders)
        many = databases.made(_with_finished)
    with open_orders(none) as bare, open_orders(many) as ours:
        yield retained.claiming(bare, ours, _FINISHED, goal=1.3)
        same("broken rules", [], bare.event_store.check())
    yield _beside_snapshot(databases)


def _with_finished(uri: str) -> None:
    """Events of the last hour that the handler has acknowledged, in bulk."""
    make_orders(uri)
    finish_on_postgres(uri, _FINISHED)


def _beside_snapshot(databases: Databases) -> Ratio:
    """Two databases are drained in turn; in one of them a snapshot is held."""
    title = f"claim of {LIMIT}, {_EVENTS:,} claimed, snapshot held (ours)"
    figure = Ratio(title, 8)
    filled = databases.made(_with_waiting)
    with (
        databases.copied(filled) as free,
        databases.copied(filled) as held,
        progress(f"{_EVENTS:,} events, claimed twice"),
        open_orders(free) as bare,
        open_orders(held) as ours,
        _snapshot(held),
    ):
        for number in range(0, _EVENTS, LIMIT):
            times = retained.claim(bare), retained.claim(ours)
            if number >= _EVENTS - _LATE * LIMIT:
                figure.bare.append(times[0])
                figure.ours.append(times[1])
    return figure


def _with_waiting(uri: str) -> None:
    make_orders(uri)
    with open_orders(uri) as session:
        announce(session, _EVENTS)


@contextmanager
def _snapshot(uri: str) -> Generator[None]:
    """Somebody who began to read before the first claim, and is not done after the last."""
    with psycopg.connect(uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        same("events before", _EVENTS, _seen(connection))
        yield
        same("events in the snapshot", _EVENTS, _seen(connection))


def _seen(connection: psycopg.Connection[Any]) -> int:
    [[count]] = connection.execute("SELECT COUNT(*) FROM ontologia.incoming").fetchall()
    return int(count)
