"""Changes of a type: how long they take, and what they cost others."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from bench.goals.figures import Amount, Figure, Note, Ratio, Speed, compare
from bench.measure import progress, quantile, same, seconds
from bench.stores import Folders, Stores, missing_for_a_server, own_server
from ontologia import Entity, Field, Session

_OBJECTS = 1_000_000
_BATCH = 10_000
_KEYS = 1_000
_ROUNDS = 9


class Crate(Entity):
    id: Field[str]
    shelf: Field[int] = Field(index=True)
    weight: Field[float]


class LabelledCrate(Entity, name="Crate"):
    id: Field[str]
    shelf: Field[int] = Field(index=True)
    weight: Field[float]
    label: Field[str] = Field(default="none")


class SealedCrate(Entity, name="Crate"):
    id: Field[str]
    shelf: Field[int] = Field(index=True)
    weight: Field[float]
    label: Field[str] = Field(default="none")
    sealed: Field[bool] = Field(default=False)


class LoadedCrate(Entity, name="Crate"):
    id: Field[str]
    place: Field[int] = Field(index=True)
    grams: Field[int]


class Memo(Entity):
    id: Field[str]
    text: Field[str]


def figures() -> Iterator[Figure]:
    """On both databases; a server is started for the second."""
    with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
        yield from _figures("SQLite", Folders(Path(name)))
        yield from _background("SQLite", Folders(Path(name)))
    if missing := missing_for_a_server():
        yield Note(f"PostgreSQL is left out: {', '.join(missing)} cannot be imported.", missed=True)
        return
    with own_server() as databases:
        yield from _figures("PostgreSQL", databases)
        yield from _background("PostgreSQL", databases)


def _figures(name: str, stores: Stores) -> Iterator[Figure]:
    with progress(f"{_OBJECTS:,} objects, {name}"):
        where = stores.made(_fill)
    with Session(where) as session:
        found = [_applied_in(where, cls) for cls in (LabelledCrate, SealedCrate)]
        title = f"{name}: a compatible change of {_OBJECTS:,} objects"
        yield Amount(title, 1000 * quantile(found, 1.0), "ms", 50)
        # Half of the objects are written anew, so that half are of version 1.
        for first in range(0, _OBJECTS // 2, _BATCH):
            session.ensure([_crate(SealedCrate, n) for n in range(first, first + _BATCH)])
            session.commit()
        random = Random(24)
        newer = [random.randrange(_OBJECTS // 2) for _ in range(_KEYS)]
        older = [number + _OBJECTS // 2 for number in newer]
        for title, read in (
            ("get by key", _by_key(session)),
            ("filter by index", _by_shelf(session)),
        ):
            same(title, [c.weight for c in read(newer)], [c.weight - 0.5 for c in read(older)])
            figure = Ratio(f"{name}: {title}, older objects (ours) beside new", 1.1, per=_KEYS)
            yield compare(figure, lambda: read(newer), lambda: read(older), rounds=_ROUNDS)  # noqa: B023


def _background(name: str, stores: Stores) -> Iterator[Figure]:
    """A breaking change of all objects, alone and beside a program that commits."""
    with progress(f"a breaking change of {_OBJECTS:,} objects, {name}"):
        where = stores.made(_fill)
        title = f"{name}: a breaking change (ours) beside ensure and commit"
        figure = Speed(title, 0.5, per=_OBJECTS)
        figure.bare.append(seconds(lambda: _weigh_all(where)))
        figure.ours.append(seconds(lambda: _load_all(where)))
        yield figure
        where = stores.made(_fill)
        before, _ = _beside(where, lambda: time.sleep(10))
        during, longest = _beside(where, lambda: _load_all(where))
    yield Speed(
        f"{name}: a committer beside a breaking change (ours), and alone",
        0.7,
        bare=[1 / before],
        ours=[1 / during],
    )
    yield Amount(f"{name}: the longest commit beside a breaking change", 1000 * longest, "ms", 250)


def _weigh_all(where: str) -> None:
    with Session(where) as session:
        for first in range(0, _OBJECTS, _BATCH):
            crates = [_crate(Crate, number) for number in range(first, first + _BATCH)]
            for each in crates:
                each.weight += 1.0  # type: ignore[attr-defined]
            session.ensure(crates)
            session.commit()


def _load_all(where: str) -> None:
    def load(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": fields["id"],
            "place": fields["shelf"],
            "grams": int(1000 * fields["weight"]),
        }

    with Session(where, entity_types=[LoadedCrate], upgraders={("Crate", 1): load}) as session:
        assert session.migrate(dry_run=False, force=True).objects == _OBJECTS


def _beside(where: str, work: Callable[[], object]) -> tuple[float, float]:
    """Commits a second of a process that commits while `work` is done, and the longest of them."""
    context = multiprocessing.get_context("spawn")
    stop, answers = context.Event(), context.Queue()
    process = context.Process(target=_commit_until, args=(where, stop, answers))
    process.start()
    answers.get()
    work()
    stop.set()
    rate, longest = answers.get()
    process.join()
    return rate, longest


def _commit_until(where: str, stop: Any, answers: Any) -> None:
    with Session(where) as session:
        session.ensure(Memo(id="n", text=""))
        session.commit()
        answers.put("ready")
        count, longest, began = 0, 0.0, time.perf_counter()
        while not stop.is_set():
            started = time.perf_counter()
            session.ensure(Memo(id=f"n{count % _KEYS}", text=str(count)))
            session.commit()
            longest = max(longest, time.perf_counter() - started)
            count += 1
        answers.put((count / (time.perf_counter() - began), longest))


def _fill(where: str) -> None:
    with Session(where) as session:
        for first in range(0, _OBJECTS, _BATCH):
            session.ensure([_crate(Crate, number) for number in range(first, first + _BATCH)])
            session.commit()


def _crate(cls: Any, number: int) -> Entity:
    """The second half is the first once more, on other shelves and half a kilogram heavier."""
    half, rest = divmod(number, _OBJECTS // 2)
    made: Entity = cls(id=f"c{number:07d}", shelf=number, weight=rest + half * 0.5)
    return made


def _applied_in(where: str, cls: Any) -> float:
    """Seconds for a change of the type to this class."""
    with Session(where, entity_types=[cls]) as session:
        return seconds(lambda: session.migrate(dry_run=False, force=True))


def _by_key(session: Session) -> Callable[[list[int]], list[Any]]:
    return lambda numbers: [session.one(SealedCrate, f"c{n:07d}") for n in numbers]


def _by_shelf(session: Session) -> Callable[[list[int]], list[Any]]:
    def read(numbers: list[int]) -> list[Any]:
        query = session.query().entities(SealedCrate)
        return [query.where(SealedCrate.shelf == n).collect()[0] for n in numbers]

    return read
