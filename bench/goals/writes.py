"""Writing state: everything new, everything as it was, everything changed, and one at a time.

Each round starts from a copy of the same empty store, so that every round writes the same rows.
All transactions are hard: they are on the disk when they return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.bare import sqlite_state as bare
from bench.goals import statements
from bench.goals.figures import Count, Figure, Ratio, compare
from bench.measure import progress, same, seconds
from bench.shop import CUSTOMERS, Customer, open_shop, rows
from bench.stores import copied

_ROUNDS = 5
_SINGLE = 50
_OTHERS = CUSTOMERS // 10
_BATCH = CUSTOMERS // 100

_HISTORY = (
    "SELECT entity_type, entity_key, fields_json, commit_id, schema_version_id "
    "FROM entity_history ORDER BY id"
)
_LATEST = "SELECT * FROM entity_latest ORDER BY entity_type, entity_key"


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    with open_shop(folder / "empty.db"):
        pass
    yield from _batches(folder)
    yield from _singles(folder)
    yield from _statements(folder)


def _batches(folder: Path) -> Iterator[Figure]:
    with progress(f"making {CUSTOMERS:,} instances, twice"):
        fields = [rows(1), rows(2)]
        objects = [[Customer(**row) for row in version] for version in fields]
    new = Ratio(f"ensure + commit of {CUSTOMERS:,} new entities", 3)
    changed = Ratio(f"ensure + commit of {CUSTOMERS:,}, all changed", 4)
    unchanged = Ratio(f"ensure + commit of {CUSTOMERS:,}, all unchanged", 1.5)
    compared = Ratio("  the same, beside the least that reads and compares")
    for number in range(_ROUNDS + 1):
        with progress(f"commits, round {number} of {_ROUNDS}"):
            plain = _bare_round(folder, fields)
            ours = _our_round(folder, objects)
            if number == 0:  # to warm up, and to see that both wrote the same
                _check(folder)
                continue
            for figure, bare_step, our_step in (
                (new, 0, 0),
                (unchanged, 0, 1),  # beside inserts of the same rows
                (compared, 1, 1),
                (changed, 2, 2),
            ):
                figure.bare.append(plain[bare_step])
                figure.ours.append(ours[our_step])
    yield from (new, changed, unchanged, compared)


def _bare_round(folder: Path, fields: list[list[dict[str, Any]]]) -> tuple[float, float, float]:
    with bare.connected(copied(folder / "empty.db", "bare.db")) as connection:
        new = seconds(lambda: bare.insert(connection, fields[0]))
        same("nothing changed", 0, bare.changed(connection, fields[0]))
        unchanged = seconds(lambda: bare.changed(connection, fields[0]))
        changed = seconds(lambda: bare.insert(connection, fields[1]))
    return new, unchanged, changed


def _our_round(folder: Path, objects: list[list[Customer]]) -> tuple[float, float, float]:
    with open_shop(copied(folder / "empty.db", "ours.db")) as session:
        answers: list[int | None] = []

        def put(version: int) -> Callable[[], None]:
            def work() -> None:
                # Each round writes the same instances to another copy of one file.
                session.ensure(objects[version], overwrite=True)
                answers.append(session.commit())

            return work

        times = seconds(put(0)), seconds(put(0)), seconds(put(1))
        same("numbers of the commits", [1, None, 2], answers)
    return times


def _check(folder: Path) -> None:
    """Both files hold the same rows."""
    with bare.connected(folder / "bare.db") as plain, bare.connected(folder / "ours.db") as ours:
        for question in (_HISTORY, _LATEST):
            same("rows written", plain.execute(question).get, ours.execute(question).get)


def _singles(folder: Path) -> Iterator[Figure]:
    """One entity a commit, among customers that are already there."""
    some = copied(folder / "empty.db", "some.db")
    with open_shop(some) as session:
        session.ensure(Customer(**row) for row in rows(1, range(_OTHERS)))
        session.commit()
    plain_path, our_path = copied(some, "bare.db"), copied(some, "ours.db")
    version = {"bare": 1, "ours": 1}

    def next_rows(side: str) -> list[dict[str, Any]]:
        version[side] += 1
        return rows(version[side], range(_SINGLE))

    with bare.connected(plain_path) as connection, open_shop(our_path) as session:

        def plain() -> None:
            for row in next_rows("bare"):
                bare.insert(connection, [row])

        def ours() -> None:
            for row in next_rows("ours"):
                session.ensure(Customer(**row))
                session.commit()

        figure = Ratio("ensure + commit of one entity, hard", per=_SINGLE)
        yield compare(figure, plain, ours, rounds=9)
    _check(folder)


def _statements(folder: Path) -> Iterator[Figure]:
    """A commit runs the same statements for one entity and for many."""
    for count in (1, _BATCH):
        with statements.counted() as ran, open_shop(folder / "ours.db") as session:
            session.ensure(Customer(**row) for row in rows(-1, range(count)))
            session.commit()
            ran.clear()
            session.ensure(Customer(**row) for row in rows(-2, range(count)))
            session.commit()
            detail = f"{ran.total():,} runs"
            yield Count(f"different statements in a commit of {count:,}", len(ran), detail=detail)
