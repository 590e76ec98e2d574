"""The programs of the simulated processes: workers, producers, and an operator.

Each opens a session of its own on the common file, as any program would, and is watched: what
handlers were called with and what became of it, what was to be written and what a caller was told.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from ontologia.clock import to_text
from ontologia.delivery.retry import Discard, Retry
from ontologia.delivery.schedule import Schedule
from ontologia.errors import (
    AlreadyStartedError,
    ConsumerBusyError,
    NotFoundError,
    OntologiaError,
    StateConflictError,
)
from ontologia.runtime.commits import Commits, WriteRequest, Written
from ontologia.runtime.context import HandlerContext, attempt_of
from ontologia.runtime.operator import ANY, Operator
from ontologia.runtime.session import Session, core_of
from ontologia.schema.event import Event
from ontologia.store.rows import Stored
from ontologia_conformance.simulation.history import (
    UNIT,
    Begun,
    Committed,
    Ended,
    Refused,
    Tried,
)
from ontologia_conformance.simulation.stand_ins import Thread
from ontologia_conformance.simulation.troubles import IN_HANDLERS
from ontologia_conformance.simulation.workload import Handle
from ontologia_conformance.simulation.world import Process, World

if TYPE_CHECKING:
    from ontologia_conformance.simulation.plan import Plan


class Program:
    """What a process does from its birth to its end."""

    def __init__(self, world: World, plan: Plan, path: str) -> None:
        self._world = world
        self._plan = plan
        self._path = path
        self._calm = world.troubles.over
        """Whether nothing has an excuse to fail."""
        self.session: Session | None = None
        self._units = count(1)

    def __call__(self) -> None:
        """Open a session, work, and close it. Faults of the database end it, as they would."""
        process = self._world.process()
        try:
            session = self._open(process)
            try:
                self.work(session, process)
            finally:
                self.session = None
                session.close()
        except OntologiaError as error:
            self._world.say(f"ends with {type(error).__name__}")
            if self._calm:
                raise
            self._world.troubles.count["ended by an error"] += 1

    def work(self, session: Session, process: Process) -> None:
        """What it is there for."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ask it to come to its end, once it has begun."""
        if self.session is not None:
            self.session.stop()

    def _open(self, process: Process) -> Session:
        session = Session(
            self._path,
            entity_types=self._plan.entity_types,
            relation_types=self._plan.relation_types,
            instance_metadata={"hostname": "simulated", "pid": 0, "process": process.name},
            config=self._plan.config(process),
        )
        process.session_id = session.session_id
        self._listen(core_of(session).commits)
        self.session = session
        return session

    def _listen(self, commits: Commits) -> None:
        """Write down what the session is asked to write, and what it was told then."""
        world, turns = self._world, self._world.turns
        write, append = commits.write, commits.append

        def written(unit: WriteRequest) -> Written:
            # By this a commit is known for that of a unit, whichever thread writes it.
            unit.metadata = {**unit.metadata, UNIT: next(self._units)}
            world.note(Tried(turns.steps, turns.task().name, unit))
            try:
                told = write(unit)
            except Exception:
                world.note(Refused(turns.steps, turns.task().name))
                raise
            world.note(Committed(turns.steps, turns.task().name, unit, told))
            return told

        def appended(events: Sequence[Event], namespace: str) -> None:
            unit = WriteRequest()  # its events get their ids on the way
            world.note(Tried(turns.steps, turns.task().name, unit))
            append(events, namespace)
            told = Written(None, [Stored(str(event.id), None) for event in events])
            world.note(Committed(turns.steps, turns.task().name, unit, told))

        setattr(commits, "write", written)  # noqa: B010
        setattr(commits, "append", appended)  # noqa: B010


class Worker(Program):
    """Runs handlers until it is stopped."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        path: str,
        handlers: Sequence[Handle],
        start: Literal["retained", "now"] = "retained",
        workers: int = 1,
        schedules: Sequence[Schedule] = (),
    ) -> None:
        super().__init__(world, plan, path)
        self._handlers = [self._watched(handler) for handler in handlers]
        self._start: Literal["retained", "now"] = start
        self._workers = workers
        self._schedules = schedules

    def work(self, session: Session, process: Process) -> None:
        session.run(
            self._handlers,
            schedules=list(self._schedules),
            workers=self._workers,
            start=self._start,
        )

    def _watched(self, function: Handle) -> Handle:
        """The handler, with what goes wrong around it, and a record of what came of it."""
        world = self._world

        @functools.wraps(function)
        def handle(ctx: HandlerContext[Any]) -> None:
            state, process = attempt_of(ctx), world.process()
            claim = state.claim
            place = (process.name, claim.event.id, claim.handler_id, claim.token)
            now = to_text(world.now())
            world.note(Begun(world.turns.steps, *place, ctx.attempt, now))
            world.say(f"{claim.handler_id} begins {claim.event.type} attempt {ctx.attempt}")
            try:
                self._attempt(function, ctx)
            except (Retry, Discard) as error:
                self._ended(place, error)
                raise
            except Exception as error:
                self._ended(place, state.failure or error)
                raise
            if state.failure is not None:
                self._ended(place, state.failure)
            else:
                emitted = list(state.emitted)
                world.note(Ended(world.turns.steps, *place, "done", None, emitted))
                world.say(f"{claim.handler_id} returns, {len(emitted)} emitted")

        return handle

    def _ended(self, place: tuple[str, str, str, str], error: BaseException) -> None:
        outcome = (
            "retry"
            if isinstance(error, Retry)
            else "discarded"
            if isinstance(error, Discard)
            else "conflict"
            if isinstance(error, StateConflictError)
            else "failed"
        )
        after = error.after_ms if isinstance(error, Retry) else None
        self._world.note(Ended(self._world.turns.steps, *place, outcome, after))
        self._world.say(f"{place[2]} raises {type(error).__name__}")

    def _attempt(self, function: Handle, ctx: HandlerContext[Any]) -> None:
        world = self._world
        trouble = world.troubles.any_of(IN_HANDLERS)
        if trouble == "failed at its begin":
            raise RuntimeError("a simulated failure")
        if trouble == "slow":
            world.turns.sleep(world.troubles.between(0, 0.05))
        if trouble == "slower than its lease":
            lease = ctx.session.config.event_claim_lease_ms / 1000
            world.turns.sleep(lease * world.troubles.pick(0.9, 1.0, 1.2))
        if trouble == "renewed":
            world.turns.sleep(world.troubles.between(0, 1))
            ctx.renew(world.troubles.pick(None, 0.5, 4.0))
        world.moment(f"{attempt_of(ctx).claim.handler_id} works")
        function(ctx)
        world.moment(f"{attempt_of(ctx).claim.handler_id} is about to return")
        if trouble == "failed at its end":
            raise RuntimeError("a simulated failure")
        if trouble == "asked for a retry":
            raise Retry("simulated", after=world.troubles.pick(0, 0.01, 0.5))
        if trouble == "discarded":
            raise Discard("simulated")


class Producer(Program):
    """Emits events and changes state in one thread or several, until all is produced."""

    def work(self, session: Session, process: Process) -> None:
        others = [
            Thread(self._world.turns, self._produce, f"producer-{number}", (session, process))
            for number in range(process.random.choice([0, 0, 2]))
        ]
        for thread in others:
            thread.start()
        self._produce(session, process)
        for thread in others:
            thread.join()

    def _produce(self, session: Session, process: Process) -> None:
        while self._plan.produced:
            self._plan.produced -= 1
            try:
                self._plan.produce(session, process.random)
            except OntologiaError as error:
                self._world.say(f"is told {type(error).__name__}")
                session.discard()
            self._world.turns.sleep(process.random.choice([0, 0.001, 0.1, 0.5]))


class Overseer(Program):
    """An operator who does things by hand: retries dead letters, replays, pauses, collects."""

    def work(self, session: Session, process: Process) -> None:
        acts: list[Callable[[Session, Process], object]] = [
            self._retry,
            self._replay,
            self._cancel,
            self._cancel_event,
            self._cleanup,
            self._pause,
            self._collect,
            self._forget,
        ]
        for _ in range(process.random.randrange(1, 5)):
            act = process.random.choice(acts)
            self._world.say(act.__name__.strip("_"))
            self._world.troubles.count[f"operator: {act.__name__.strip('_')}"] += 1
            act(session, process)
            self._world.turns.sleep(process.random.choice([0.01, 0.3, 1.0]))

    def _retry(self, session: Session, _: Process) -> None:
        Operator(session, "overseer").retry(ANY)

    def _replay(self, session: Session, process: Process) -> None:
        rows = session.event_store.list_events(session.namespace, 20)
        if rows:
            session.event_store.replay_event(session.namespace, process.random.choice(rows)["id"])

    def _cancel(self, session: Session, process: Process) -> None:
        session.cancel_deferred(process.random.randrange(1, 8))

    def _cancel_event(self, session: Session, process: Process) -> None:
        rows = session.event_store.list_events(session.namespace, 20)
        if rows:
            with suppress(AlreadyStartedError, NotFoundError):
                Operator(session, "overseer").cancel(process.random.choice(rows)["id"])

    def _cleanup(self, session: Session, _: Process) -> None:
        session.event_store.cleanup_events(session.namespace, timedelta(seconds=2))

    def _pause(self, session: Session, process: Process) -> None:
        name = process.random.choice(self._plan.names)
        if session.event_store.pause(session.namespace, name):
            self._world.turns.sleep(process.random.choice([0.01, 0.5]))
            session.event_store.resume(session.namespace, name)

    def _collect(self, session: Session, _: Process) -> None:
        session.event_store.collect_events(session.namespace)

    def _forget(self, session: Session, process: Process) -> None:
        try:
            session.event_store.forget(session.namespace, process.random.choice(self._plan.names))
        except ConsumerBusyError:
            self._world.say("the consumer is being run")
