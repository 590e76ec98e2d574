"""A short life of a store, in steps that something goes wrong at: at each point of it, once.

It opens, commits with and without an event, announces in every way there is, runs handlers that
commit and emit, collects what is old, and closes. What the steps that returned have promised is
written down. A step that was refused is tried again, by the same session or by another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ontologia import Entity, Event, Field, OntologiaConfig, Session, on_event
from ontologia.errors import OntologiaError
from ontologia.testing import ManualClock
from tests.faults.checker import problems_at_the_end
from tests.faults.workers import HANDLERS, Order, Parcel, Placed, Receipt

_AN_HOUR = 3_600  # seconds: whatever is leased, in backoff or deferred is due by then
_MOST_TRIES = 4


class Chore(Event):
    """In a namespace of its own, where it is collected."""

    __event_type__ = "faults.chore"
    number: Field[str]


class Tally(Entity):
    """Deleted as soon as it is there."""

    id: Field[str] = Field(primary_key=True)


@on_event(Chore, name="sweep")
def sweep(_ctx: object) -> None:
    """Nothing but an acknowledgement."""


class Step(NamedTuple):
    """A call, and what its return promises."""

    name: str
    call: Callable[[], object]
    committed: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()


class Refusal(NamedTuple):
    """A step that raised, and what it said."""

    step: str
    error: Exception


class Scenario:
    """One such life, at `uri`."""

    def __init__(self, uri: str, *, reopen: bool = False) -> None:
        self.uri = uri
        self._reopen = reopen
        self._clock = ManualClock(datetime.now(UTC))
        self._session: Session | None = None
        self.committed: set[str] = set()
        self.announced: set[str] = set()
        self.refusals: list[Refusal] = []
        self.relief: Callable[[], None] = lambda: None
        """Called when a step was refused, and what had to be closed is: so it goes away at last."""
        self.before: Callable[[str], None] = lambda _: None
        """Told the name of each step before it is made."""
        self.noise: tuple[type[Exception], ...] = ()
        """What closing a connection raises here, and nowhere else; see `disk`."""
        self.steps = (
            Step("open", self._open),
            Step("commit", self._commit, ("plain",)),
            Step("commit with an event", lambda: self._commit_with("1"), ("1",), ("1",)),
            Step("enqueue", lambda: self._enqueue("2"), (), ("2",)),
            Step("defer", lambda: self._now.defer(Placed(number="3"), delay=60), (), ("3",)),
            Step("run", self._run),
            Step("commit and delete", self._delete),
            Step("collect", self._collect),
            Step("run once more", lambda: self._commit_with("4"), ("4",), ("4",)),
            Step("run to the end", self._run),
            Step("close", self._close),
        )

    def play(self) -> None:
        """All steps; AssertionError if one is refused for good."""
        for step in self.steps:
            self.before(step.name)
            for _ in range(_MOST_TRIES):
                if self._try(step):
                    break
                self._recover()
                self.relief()
            else:
                raise AssertionError(f"{step.name} is never done: {self.refusals}")
        self.relief()
        self._finish()

    def problems(self) -> list[str]:
        """What is wrong in the end."""
        return problems_at_the_end(self.uri, committed=self.committed, announced=self.announced)

    def _try(self, step: Step) -> bool:
        try:
            if self._session is None and step.name != "open":
                self._open()
            step.call()
        except (OntologiaError, *self.noise) as error:
            self.refusals.append(Refusal(step.name, error))
            return False
        self.committed.update(step.committed)
        self.announced.update(step.announced)
        return True

    def _recover(self) -> None:
        """What was claimed is free an hour later; with `reopen` another session goes on."""
        self._clock.advance(seconds=_AN_HOUR)
        if self._reopen:
            self._close()

    def _finish(self) -> None:
        """What failed in a handler, and so was no step's failure, is tried again."""
        self._clock.advance(seconds=_AN_HOUR)
        finish(self.uri, self._clock)

    # -- the steps ------------------------------------------------------------------------------

    @property
    def _now(self) -> Session:
        assert self._session is not None
        return self._session

    def _open(self) -> None:
        config = OntologiaConfig(
            clock=self._clock, event_retention_ms=86_400_000, lock_timeout_ms=500
        )
        types: list[type[Entity]] = [Order, Receipt, Parcel]
        self._session = Session(self.uri, entity_types=types, config=config)

    def _commit(self) -> None:
        self._now.ensure(Order(id="plain"))
        self._now.commit()

    def _commit_with(self, number: str) -> None:
        self._now.ensure(Order(id=number))
        self._now.commit(event=Placed(number=number))

    def _enqueue(self, number: str) -> None:
        self._now.event_store.enqueue(Placed(number=number), "default")

    def _run(self) -> None:
        self._clock.advance(seconds=_AN_HOUR)
        self._now.run(HANDLERS, max_iterations=6)

    def _delete(self) -> None:
        self._now.ensure(Tally(id="t"))
        self._now.commit()
        self._now.delete(Tally(id="t"))
        self._now.commit()

    def _collect(self) -> None:
        """What another namespace has finished is old enough."""
        config = OntologiaConfig(clock=self._clock, event_retention_ms=1_000)
        with Session(self.uri, "chores", config=config) as other:
            other.event_store.enqueue(Chore(number="1"), "chores")
            other.run([sweep], max_iterations=2)
            self._clock.advance(seconds=10)
            other.event_store.collect_events("chores")

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(*self.noise):
                session.close()


def finish(uri: str, clock: ManualClock | None = None) -> None:
    """Do what a scenario has left to do: by this clock, or that of tomorrow, every lease is over."""
    config = OntologiaConfig(clock=clock or ManualClock(datetime.now(UTC) + timedelta(days=1)))
    with Session(uri, config=config) as session:
        session.run(HANDLERS, max_iterations=6)
    with Session(uri, "chores", config=config) as session:
        session.run([sweep], max_iterations=2)
