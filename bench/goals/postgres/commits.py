"""A handler with one `ensure` and one `commit`, and several processes that commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import perf_counter

from bench.bare import postgres_queue as bare
from bench.goals.figures import Figure, Speed
from bench.goals.worker import launch
from bench.measure import progress, same, seconds
from bench.orders import announce, booking, make_orders, open_orders, unlimited
from bench.processes import start
from bench.stores import Databases
from bench.workload import BOOKING

_BOOKED = 1_000
_WRITTEN = 2_000
_WRITERS = 4
_ROUNDS = 5

_VERSIONS = "SELECT entity_key, fields_json FROM ontologia.entity_history ORDER BY entity_key"
_LATEST = (
    "SELECT entity_key, fields_json, fields, commit_id FROM ontologia.entity_latest "
    "ORDER BY entity_key"
)
_COMMITS = "SELECT id FROM ontologia.commits ORDER BY id"


def figures(databases: Databases) -> Iterator[Figure]:
    yield from _booking(databases)
    yield _writing(databases)


# -- one worker, beside bare ------------------------------------------------------------------


def _booking(databases: Databases) -> Iterator[Speed]:
    filled = databases.made(_with_waiting)
    title = f"{_BOOKED:,} events, a handler with one ensure and one commit"
    figure = Speed(title, 0.5, per=_BOOKED)
    stricter = Speed("  the same, beside bare with one statement an event", per=_BOOKED)
    for number in range(_ROUNDS + 1):
        with (
            progress(f"a handler that commits, round {number} of {_ROUNDS}"),
            databases.copied(filled) as plain,
            databases.copied(filled) as single,
            databases.copied(filled) as ours,
        ):
            in_steps, in_one = _bare_round(plain, bare.in_steps), _bare_round(single, bare.in_one)
            our_time = _our_round(ours)
            if number == 0:  # to warm up, and to see that all wrote the same
                _check(plain, ours)
                _check(single, ours)
                continue
            figure.bare.append(in_steps)
            stricter.bare.append(in_one)
            figure.ours.append(our_time)
            stricter.ours.append(our_time)
    yield figure
    yield stricter


def _with_waiting(uri: str) -> None:
    make_orders(uri, BOOKING)
    with open_orders(uri) as session:
        announce(session, _BOOKED)


def _bare_round(uri: str, booked: bare.Booking) -> float:
    with bare.connected(uri) as connection:
        queue = bare.open_queue(connection, BOOKING)
        bare.hand_out(queue)
        return _timed(connection, lambda: bare.book(queue, booked))


def _our_round(uri: str) -> float:
    with open_orders(uri, unlimited()) as session, bare.connected(uri) as connection:
        return _timed(connection, lambda: session.run([booking], max_iterations=1))


def _timed(connection: bare.Connection, work: Callable[[], object]) -> float:
    elapsed = seconds(work)
    bare.check_all_acked(connection, _BOOKED)
    return elapsed


def _check(plain: str, ours: str) -> None:
    """Both databases hold the same orders."""
    with bare.connected(plain) as one, bare.connected(ours) as other:
        for question in (_VERSIONS, _LATEST, _COMMITS):
            rows = one.execute(question).fetchall()
            same("rows written", rows, other.execute(question).fetchall())
            same("number of rows", _BOOKED, len(rows))


# -- several writers, beside one --------------------------------------------------------------


def _writing(databases: Databases) -> Speed:
    filled = databases.made(make_orders)
    title = f"ensure + commit, {_WRITERS} processes (ours) beside 1 (bare)"
    figure = Speed(title, 0.9, per=_WRITTEN)
    for number in range(_ROUNDS):
        for writers, times in ((1, figure.bare), (_WRITERS, figure.ours)):
            with (
                progress(f"{writers} of {_WRITERS} writers, round {number + 1} of {_ROUNDS}"),
                databases.copied(filled) as uri,
            ):
                times.append(_written(uri, writers))
    return figure


def _written(uri: str, writers: int) -> float:
    """All write their share; the last one to end counts."""
    with ExitStack() as stack:
        workers = [stack.enter_context(launch("write", uri)) for _ in range(writers)]
        started = start(workers, str(_WRITTEN // writers))
        for worker in workers:
            same("last word", "written", worker.read())
        elapsed = perf_counter() - started
    with bare.connected(uri) as connection:
        numbers = [row[0] for row in connection.execute(_COMMITS)]
        same("numbers of the commits", list(range(1, _WRITTEN + 1)), numbers)
        same("orders", _WRITTEN, len(connection.execute(_LATEST).fetchall()))
    return elapsed
