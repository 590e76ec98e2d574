"""A backlog, handled by one process: a handler that does nothing, and one that commits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.bare import sqlite_queue as bare_queue
from bench.bare import sqlite_state as bare
from bench.goals.figures import Amount, Figure, Ratio
from bench.measure import progress, same, seconds
from bench.orders import booking, build, nothing, open_orders, unlimited
from bench.stores import copied
from bench.workload import BOOKING, NOTHING

_BACKLOG = 10_000
_LARGE = 100_000
_BOOKED = 1_000
_ROUNDS = 5
_LARGE_ROUNDS = 3

_ORDERS = "SELECT entity_key, json(fields) FROM entity_latest ORDER BY entity_key"
_VERSIONS = "SELECT entity_key, fields_json FROM entity_history ORDER BY id"


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    with progress(f"building {_BACKLOG:,}, {_LARGE:,} and {_BOOKED:,} events that wait"):
        backlog = build(folder / "backlog.db", _BACKLOG, handler=NOTHING)
        large = build(folder / "large.db", _LARGE, handler=NOTHING)
        booked = build(folder / "booked.db", _BOOKED, handler=BOOKING)
    yield from _doing_nothing(backlog)
    yield _committing(booked)
    yield _growing(backlog, large)


def _doing_nothing(backlog: Path) -> Iterator[Figure]:
    figure = Ratio(f"{_BACKLOG:,} events, a handler that does nothing", 4, per=_BACKLOG)
    soft = Ratio("  the same, beside bare without syncs", per=_BACKLOG)
    for number in range(_ROUNDS + 1):
        with progress(f"a handler that does nothing, round {number} of {_ROUNDS}"):
            hard_time = _bare_round(backlog, NOTHING, bare_queue.drain)
            soft_time = _bare_round(backlog, NOTHING, bare_queue.drain, durable=False)
            our_time = _our_round(backlog, nothing)
        if number:  # the first is to warm up
            figure.bare.append(hard_time)
            soft.bare.append(soft_time)
            figure.ours.append(our_time)
            soft.ours.append(our_time)
    yield figure
    yield soft
    rate = _BACKLOG / statistics.median(figure.ours)
    yield Amount("  events per second", rate, "/s")


def _committing(booked: Path) -> Ratio:
    title = f"{_BOOKED:,} events, a handler with one ensure and one commit"
    figure = Ratio(title, 1.67, per=_BOOKED)
    for number in range(_ROUNDS + 1):
        with progress(f"a handler that commits, round {number} of {_ROUNDS}"):
            plain = _bare_round(booked, BOOKING, bare_queue.book)
            ours = _our_round(booked, booking)
        if number == 0:
            _check(booked)
            continue
        figure.bare.append(plain)
        figure.ours.append(ours)
    return figure


def _growing(backlog: Path, large: Path) -> Ratio:
    """Ten times the events should take ten times as long."""
    figure = Ratio(f"{_LARGE:,} events (ours) beside {_BACKLOG:,} (bare), handled", 12)
    for number in range(_LARGE_ROUNDS):
        with progress(f"{_LARGE:,} events, round {number + 1} of {_LARGE_ROUNDS}"):
            figure.bare.append(_our_round(backlog, nothing))
            figure.ours.append(_our_round(large, nothing))
            figure.bare.append(_our_round(backlog, nothing))  # short, so once more
    return figure


def _bare_round(
    source: Path, handler: str, work: Callable[[bare_queue.Queue], int], *, durable: bool = True
) -> float:
    with bare.connected(copied(source, "bare.db")) as connection:
        queue = bare_queue.open_queue(connection, handler, durable=durable)
        waiting = bare_queue.states(connection)["waiting"]
        answers: list[int] = []
        elapsed = seconds(lambda: answers.append(work(queue)))
        same("events handled", [waiting], answers)
        bare_queue.check_all_acked(connection, waiting)
    return elapsed


def _our_round(source: Path, handler: Callable[..., Any]) -> float:
    path = copied(source, "ours.db")
    with open_orders(path, unlimited()) as session, bare.connected(path) as connection:
        waiting = bare_queue.states(connection)["waiting"]
        elapsed = seconds(lambda: session.run([handler], max_iterations=1))
        bare_queue.check_all_acked(connection, waiting)
    return elapsed


def _check(booked: Path) -> None:
    """Both files hold the same orders."""
    plain_path, our_path = booked.with_name("bare.db"), booked.with_name("ours.db")
    with bare.connected(plain_path) as plain, bare.connected(our_path) as ours:
        for question in (_ORDERS, _VERSIONS):
            rows = plain.execute(question).fetchall()
            same("rows written", rows, ours.execute(question).fetchall())
            same("number of rows", _BOOKED, len(rows))
