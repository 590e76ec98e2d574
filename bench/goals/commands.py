"""Commands beside what they stand on: one object and one event in one commit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from bench.goals.figures import Figure, Ratio, compare
from bench.measure import progress, same
from ontologia import Entity, Event, Field, Session
from ontologia.commands import Command, DomainModel, Env, api

_ROUNDS = 15
_EACH = 100
KEY = "bench.parcel"


class BenchParcelRow(Entity):
    """What is written without a command."""

    id: Field[str]
    reference: Field[str]
    status: Field[str] = Field(default="draft")
    weight: Field[int] = Field(default=0)


class BenchParcelMoved(Event):
    """What is announced without a command."""

    __event_type__ = "bench.parcel.moved"
    parcel_id: Field[str]


@api.model(KEY)
class BenchParcel(DomainModel):
    """The same as a model."""

    reference: Field[str]
    status: Field[str] = Field(default="draft")
    weight: Field[int] = Field(default=0)

    @api.on_command("parcel.take")
    def take(self, cmd: Command) -> dict[str, Any]:
        """Write a new record and announce it."""
        [made] = self.env.models[KEY].create(cmd.payload)
        self.env.emit("bench.parcel.moved", {"parcel_id": made.id})
        return {"id": made.id}

    @api.on_command("parcel.weigh")
    def weigh(self, cmd: Command) -> None:
        """Change a record and announce it."""
        cmd.record.write(cmd.payload)
        self.env.emit("bench.parcel.moved", {"parcel_id": cmd.model_id})


def figures() -> Iterator[Figure]:
    """A record that is made, and one that is changed, each with an event."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(str(Path(folder) / "bare.db")) as session,
        Env(Path(folder) / "commands.db", modules=[__name__]) as env,
    ):
        with progress("commands"):
            yield _made(session, env)
            yield _changed(session, env)
        same("commits", session.head, env.session.head)


def _made(session: Session, env: Env) -> Figure:
    numbers = count(1)

    def bare() -> None:
        for _ in range(_EACH):
            key = f"b-{next(numbers)}"
            session.ensure(BenchParcelRow(id=key, reference=key))
            session.commit(event=BenchParcelMoved(parcel_id=key))

    def ours() -> None:
        for _ in range(_EACH):
            key = f"c-{next(numbers)}"
            env.dispatch(Command("parcel.take", {"id": key, "reference": key}))

    figure = Ratio("command: one new record, one event", goal=1.5, per=_EACH)
    return compare(figure, bare, ours, rounds=_ROUNDS)


def _changed(session: Session, env: Env) -> Figure:
    weights = count(1)
    session.ensure(BenchParcelRow(id="p", reference="p"))
    session.commit()
    env.models[KEY].create({"id": "p", "reference": "p"})

    def bare() -> None:
        for _ in range(_EACH):
            session.ensure(BenchParcelRow(id="p", reference="p", weight=next(weights)))
            session.commit(event=BenchParcelMoved(parcel_id="p"))

    def ours() -> None:
        for _ in range(_EACH):
            env.dispatch(Command("parcel.weigh", {"weight": next(weights)}, KEY, "p"))

    figure = Ratio("command: one record read and changed, one event", goal=1.5, per=_EACH)
    return compare(figure, bare, ours, rounds=_ROUNDS)
