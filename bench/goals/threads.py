"""Threads of one process that commit one object each, beside one thread: how they share a sync."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from bench.goals.figures import Figure, Note, Speed
from bench.measure import progress, same, seconds
from bench.orders import Order, make_orders, open_orders
from bench.stores import Folders, Stores, missing_for_a_server, own_server

_COMMITS = 1_920
_ROUNDS = 5


def figures() -> Iterator[Figure]:
    """On both databases; a server is started for the second."""
    with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
        yield from _figures("SQLite", Folders(Path(name)), {8: 3.0, 32: 3.5})
    if missing := missing_for_a_server():
        yield Note(f"PostgreSQL is left out: {', '.join(missing)} cannot be imported.", missed=True)
        return
    with own_server() as databases:
        yield from _figures("PostgreSQL", databases, {8: 3.0, 32: 4.0})


def _figures(name: str, stores: Stores, goals: dict[int, float]) -> Iterator[Figure]:
    filled = stores.made(make_orders)
    title = f"{name}: ensure + commit, {{}} threads (ours) beside 1 (bare)"
    found = {count: Speed(title.format(count), goal, per=_COMMITS) for count, goal in goals.items()}
    for number in range(_ROUNDS):
        with progress(f"threads that commit, {name}, round {number + 1} of {_ROUNDS}"):
            alone = _round(stores, filled, 1)
            for count, figure in found.items():
                figure.bare.append(alone)
                figure.ours.append(_round(stores, filled, count))
    yield from found.values()


def _round(stores: Stores, filled: str, threads: int) -> float:
    orders = [Order(id=f"o{n:06d}", customer="c000001", total=n + 0.5) for n in range(_COMMITS)]
    begin = Barrier(threads + 1)
    with stores.copied(filled) as where, open_orders(where) as session:
        session.ensure(Order(id="first", customer="c000001", total=0.5))
        session.commit()  # to warm up

        def work(first: int) -> None:
            begin.wait()
            for order in orders[first::threads]:
                session.ensure(order)
                session.commit()

        with ThreadPoolExecutor(threads) as pool:
            done = pool.map(work, range(threads))

            def all_of_them() -> None:
                begin.wait()
                list(done)

            elapsed = seconds(all_of_them)
        same("commits", _COMMITS + 1, session.head)
    return elapsed
