"""One run of the simulation: processes are born and die, then all is well, and then it is checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import apsw

from ontologia.clock import to_text
from ontologia.delivery.schedule import Schedule
from ontologia.engine.acks import nothing_at_exit
from ontologia.runtime.session import Session
from ontologia.schema.entity import Entity
from ontologia.schema.relation import Relation
from ontologia.testing.clock import ManualClock
from ontologia_conformance.simulation.checker import check_run
from ontologia_conformance.simulation.place import empty_store, folder_in_memory, quiet
from ontologia_conformance.simulation.plan import Plan
from ontologia_conformance.simulation.processes import Overseer, Producer, Program, Worker
from ontologia_conformance.simulation.turns import SECOND, Owner
from ontologia_conformance.simulation.violation import Violation
from ontologia_conformance.simulation.workload import Handle, Produce
from ontologia_conformance.simulation.world import Process, World

_SHOWN = 40
_MOST_STEPS = 60_000
_LONGEST = 20  # seconds of simulated time with troubles
_PENDING = """
SELECT (SELECT COUNT(*) FROM incoming)
     + (SELECT COUNT(*) FROM ready r JOIN consumers c ON c.id = r.consumer_id)
     + (SELECT COUNT(*) FROM event_claims WHERE due_at IS NOT NULL)
     + (SELECT COUNT(*) FROM deferred_events WHERE status = 'scheduled')"""


class SimulationFailed(AssertionError):
    """A run in which a promise was not kept. The message has the seed, the steps and the command."""

    def __init__(self, seed: int, cause: BaseException, trace: Sequence[str], again: str) -> None:
        shown = "\n".join(trace[-_SHOWN:])
        super().__init__(
            f"seed {seed}: {type(cause).__name__}: {cause}\n"
            f"the last of {len(trace)} lines:\n{shown}\n{again}"
        )
        self.seed = seed
        self.trace = list(trace)


@dataclass(frozen=True)
class Report:
    """A run in which every promise was kept."""

    seed: int
    trace: list[str]
    """One line a step, the same for the same seed."""
    counts: Counter[str]
    """What happened, and how often: each trouble by its name, and what was written."""


class Simulation:
    """Sessions, handlers and troubles over one database file, all drawn from a seed.

    Without `handlers` a post office is simulated that uses all there is. With them, `produce` is
    called again and again with a session and a source of randomness, to commit and announce what
    they handle; `check` is called with a session when all is done, to look at what came of it.
    """

    def __init__(
        self,
        seed: int,
        *,
        handlers: Sequence[Handle] | None = None,
        produce: Produce | None = None,
        entity_types: Sequence[type[Entity]] | None = None,
        relation_types: Sequence[type[Relation[Any, Any]]] | None = None,
        schedules: Sequence[Schedule] | None = None,
        check: Callable[[Session], object] | None = None,
    ) -> None:
        random = Random(seed)
        self.seed = seed
        self._check = check
        self._plan = Plan(
            Random(random.random()),
            handlers,
            produce,
            entity_types,
            relation_types,
            schedules,
        )
        self._world = World(random)
        self._programs: dict[str, tuple[Process, Program]] = {}
        self._births: Counter[str] = Counter()
        self._path = ""

    def run(self) -> Report:
        """Run it; SimulationFailed if a promise was not kept."""
        world = self._world
        with folder_in_memory() as folder, quiet(), nothing_at_exit():
            self._path = os.path.join(folder, "simulated.db")
            Path(self._path).write_bytes(empty_store())
            try:
                with world.entered():
                    world.turns.spawn("director", Owner("director"), self._direct)
                    world.turns.run()
                self._verify()
            except Exception as error:
                raise SimulationFailed(self.seed, error, world.trace(), self._again()) from error
        counts = world.troubles.count
        counts["steps"] = world.turns.steps
        return Report(self.seed, world.trace(), counts)

    def _again(self) -> str:
        if self._plan.own:
            command = f"python -m ontologia_conformance.simulation --seed {self.seed} --trace"
            return f"again, with all of them: {command}"
        return f"again: the same call with seed {self.seed}; all lines are in .trace of this error"

    # -- the course of it ---------------------------------------------------------------------------

    def _direct(self) -> None:
        world, turns = self._world, self._world.turns
        while not self._troubled_enough():
            self._people()
            pause = world.random.choice([0.05, 0.3, 1.0])
            turns.wait(self._change(), pause)
            if world.troubles.comes("stopped"):
                self._program(world.random.choice(sorted(self._programs))).stop()
        world.say("no more troubles")
        world.troubles.over = True
        self._drain()

    def _change(self) -> Callable[[], bool]:
        """Says whether anybody has ended of those who are there now, or time is up."""
        turns, ended = self._world.turns, self._world.turns.ended
        return lambda: turns.ended > ended or self._troubled_enough()

    def _troubled_enough(self) -> bool:
        turns = self._world.turns
        return turns.steps >= self._plan.steps or turns.micros >= _LONGEST * SECOND

    def _people(self) -> None:
        """See to it that there are workers, a producer and sometimes others."""
        random = self._world.random
        for number, part in enumerate(self._plan.parts):
            self._be(f"worker{number}", partial(self._worker, part))
        if self._plan.produced:
            self._be("producer", self._producer)
        if self._plan.late and self._world.turns.steps > self._plan.steps // 3:
            self._be("late", lambda: self._worker(self._plan.late, self._plan.late_start))
        if random.random() < 0.15:
            self._be("overseer", lambda: Overseer(self._world, self._plan, self._path))

    def _be(self, slot: str, make: Callable[[], Program]) -> None:
        """Start a process in this place, if there is none."""
        if slot in self._programs:
            process, _ = self._programs[slot]
            if self._world.turns.alive(process):
                return
        self._births[slot] += 1
        process = Process(self._world, f"{slot}#{self._births[slot]}")
        program = make()
        self._programs[slot] = (process, program)
        self._world.say(f"{process.name} is started")
        self._world.turns.spawn(process.name, process, program)

    def _worker(self, handlers: Sequence[Handle], start: Any = "retained") -> Program:
        plan = self._plan
        return Worker(self._world, plan, self._path, handlers, start, plan.workers, plan.schedules)

    def _producer(self) -> Program:
        return Producer(self._world, self._plan, self._path)

    def _program(self, slot: str) -> Program:
        return self._programs[slot][1]

    # -- the end of it ------------------------------------------------------------------------------

    def _drain(self) -> None:
        """With nothing going wrong, everything comes to its end."""
        world, most = self._world, self._world.turns.steps + _MOST_STEPS
        self._part(list(self._programs))
        self._be("last", lambda: self._worker(self._plan.handlers, self._plan.late_start))
        if "overseer" in self._programs:
            self._be("resumer", lambda: Resumer(world, self._plan, self._path))
        database = apsw.Connection(self._path)
        try:
            world.turns.sleep(0.5)  # which nobody gets who is not waiting: all have begun by then
            while list(database.execute(_PENDING)) != [(0,)]:
                if world.turns.steps > most:
                    raise Violation("nothing is left behind", "events are pending after all")
                world.turns.sleep(0.5)
            world.drained_at = to_text(world.now())
        finally:
            database.close()
        self._part(list(self._programs))

    def _part(self, slots: Sequence[str]) -> None:
        """Ask these processes to come to their end, and wait until they have."""
        for slot in slots:
            self._world.turns.wait(partial(self._has_ended, *self._programs[slot]))

    def _has_ended(self, process: Process, program: Program) -> bool:
        program.stop()  # again and again: it may not have begun
        return not self._world.turns.alive(process)

    def _verify(self) -> None:
        check_run(self._world, self._plan, self._path)
        if self._check is not None:
            clock = ManualClock(self._world.now())
            with Session(self._path, config=self._plan.settled(clock)) as session:
                self._check(session)


class Resumer(Program):
    """Resumes every consumer, as an operator would who finds them paused."""

    def work(self, session: Session, process: Process) -> None:
        for consumer in session.event_store.list_consumers(session.namespace):
            if consumer["paused_at"] is not None:
                session.event_store.resume(session.namespace, consumer["name"])


def simulate(seed: int, **options: Any) -> Report:
    """Run the simulation of one seed; the options are those of `Simulation`."""
    return Simulation(seed, **options).run()
