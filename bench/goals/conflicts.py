"""Sixteen workers that all change one object: every commit but one of those at a time is a conflict."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.goals.figures import Amount, Figure, Ratio
from bench.measure import progress, same
from bench.orders import unlimited
from ontologia import Entity, Event, Field, HandlerContext, Session, on_event
from ontologia.runtime.session import core_of

_EVENTS = 1_000
_WORKERS = 16
_ROUNDS = 5


class Tally(Entity):
    id: Field[str]
    count: Field[int]


class TallyRaised(Event):
    tally: Field[str]


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    title = f"{_EVENTS:,} increments, {_WORKERS} workers: of one object beside one each"
    figure, conflicts = Ratio(title), 0
    for number in range(_ROUNDS):
        with progress(f"a conflict storm, round {number + 1} of {_ROUNDS}"):
            figure.bare.append(_round(folder / f"apart-{number}.db", _EVENTS)[0])
            seconds, met = _round(folder / f"storm-{number}.db", 1)
            figure.ours.append(seconds)
            conflicts += met
    yield figure
    yield Amount("  conflicts an event in the storm", conflicts / _ROUNDS / _EVENTS, "")


def _round(path: Path, objects: int) -> tuple[float, int]:
    """Seconds from the first to the last event, and how many conflicts there were."""
    handled, lock = 0, threading.Lock()
    with Session(str(path), config=unlimited()) as session:
        session.ensure([Tally(id=str(number), count=0) for number in range(objects)])
        session.commit(event=[TallyRaised(tally=str(n % objects)) for n in range(_EVENTS)])

        @on_event(TallyRaised, name="raise")
        def handler(ctx: HandlerContext[TallyRaised]) -> None:
            nonlocal handled
            tally = ctx.one(Tally, ctx.event.tally)
            tally.count += 1
            ctx.ensure(tally)
            ctx.commit()
            with lock:
                handled += 1
                if handled == _EVENTS:
                    session.stop()

        started = time.perf_counter()
        session.run([handler], workers=_WORKERS)
        seconds = time.perf_counter() - started
        same("increments", _EVENTS, session.query().entities(Tally).sum(Tally.count))
        same("dead letters", [], session.event_store.list_dead_letters(session.namespace))
        listed = session.event_store.list_events(session.namespace, limit=_EVENTS)
        with core_of(session).store.provenance.read() as trail:
            claims = trail.claims([each["id"] for each in listed])
    return seconds, sum(each.conflicts for each in claims)
