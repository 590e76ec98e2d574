"""The world of a simulation: processes, one time for all of them, and what befalls them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import apsw

from ontologia.clock import SystemClock, from_text, to_text
from ontologia.store.sqlite import store as sqlite_store
from ontologia.store.sqlite.watch import wake_all
from ontologia_conformance.simulation.history import Entry
from ontologia_conformance.simulation.stand_ins import standing_in
from ontologia_conformance.simulation.statements import Statements
from ontologia_conformance.simulation.troubles import AT_STATEMENTS, Troubles
from ontologia_conformance.simulation.turns import SECOND, Death, Owner, Turns

START = datetime(2026, 1, 1, 0, 0, 56, tzinfo=UTC)
_BLINK = 0.0001  # seconds: no look takes less
_one_at_a_time = threading.Lock()


class SimulatedClock(SystemClock):
    """The clock of every process: the world's time, as far as it was not set wrong."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now()

    def monotonic(self) -> float:
        return self._world.turns.micros / SECOND

    def sleep(self, seconds: float) -> None:
        self._world.turns.sleep(seconds)


class Process(Owner):
    """One process: its clock, its chances, its connections. It lives until it ends or is killed."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name)
        self._world = world
        self.clock = SimulatedClock(world)
        self.random = Random(world.random.random())
        self.connections: list[apsw.Connection] = []
        self.session_id = ""
        self.deaf = world.troubles.comes("deaf")
        self.watches: list[Watch] = []

    def over(self) -> None:
        """Close what it had open, as the system does: nothing that was not committed stays."""
        self._world.statements.close(self)


class Watch:
    """What tells a loop that there may be something to do, instead of the system's own means."""

    told = False

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._woken = False
        self._seen = world.written
        process.watches.append(self)

    def wake(self) -> None:
        """End the wait, or the next one if nobody waits."""
        self._woken = True

    def wait(self, seconds: float) -> bool:
        """Wait until woken, until somebody has written, or for this long; whether woken."""
        woken = self._world.turns.wait(self._called, max(seconds, _BLINK))
        self._woken, self._seen = False, self._world.written
        return woken

    def _called(self) -> bool:
        return self._woken or (not self._process.deaf and self._seen != self._world.written)

    def settle(self) -> None:
        """Forget what was written so far."""
        self._seen = self._world.written

    def close(self) -> None:
        """Nobody waits any more."""
        self._process.watches.remove(self)


class World:
    """Everything of one run that is shared by its processes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.troubles = Troubles(Random(random.random()))
        self.turns = Turns(Random(random.random()), random.choice([0.05, 0.15, 0.3]))
        self.offset = 0
        """Microseconds by which the clock was set wrong."""
        self.written = 0
        self.history: list[Entry] = []
        self.drained_at = ""
        """When nothing was left to do; what a schedule announces after that may wait."""
        self.due: dict[tuple[str, str], str | None] = {}
        """Until when each open claim waits, to know where time gets interesting."""
        self._said: list[tuple[int, int, str, str]] = []
        self.statements = Statements(self)

    @contextmanager
    def entered(self) -> Generator[None]:
        """While this lasts, what the threads of `turns` do to SQLite happens here."""
        watch, wake = sqlite_store.SQLiteStore.watch, wake_all

        def simulated_watch(store: sqlite_store.SQLiteStore) -> Any:
            return Watch(self, self.process()) if self.turns.mine() else watch(store)

        def simulated_wake(path: str) -> None:
            if not self.turns.mine():
                wake(path)
                return
            for each in self.process().watches:
                each.wake()

        setattr(sqlite_store.SQLiteStore, "watch", simulated_watch)  # noqa: B010
        setattr(sqlite_store, "wake_all", simulated_wake)  # noqa: B010
        try:
            with _one_at_a_time, self.statements.watched(), standing_in(self.turns):
                yield
        finally:
            setattr(sqlite_store, "wake_all", wake)  # noqa: B010
            setattr(sqlite_store.SQLiteStore, "watch", watch)  # noqa: B010

    def process(self) -> Process:
        """The process whose turn it is."""
        owner = self.turns.task().owner
        assert isinstance(owner, Process)
        return owner

    def process_or_none(self) -> Process | None:
        """The process that the calling thread belongs to."""
        owner = self.turns.task().owner if self.turns.mine() else None
        return owner if isinstance(owner, Process) else None

    def now(self) -> datetime:
        """What all clocks show."""
        return self.instant(self.shown())

    def shown(self) -> int:
        """The same in microseconds since the beginning."""
        return self.turns.micros + self.offset

    def instant(self, micros: int) -> datetime:
        """An instant that clocks showed."""
        return START + timedelta(microseconds=micros)

    def say(self, what: str) -> None:
        """Write a line of the trace."""
        turns = self.turns
        self._said.append((turns.steps, turns.micros, turns.task().name, what))

    def trace(self) -> list[str]:
        """Everything that was done, one line each."""
        return [
            f"{step:6d} {micros / SECOND:10.6f} {name:<20} {what}"
            for step, micros, name, what in self._said
        ]

    def note(self, entry: Entry) -> None:
        """Write down what happened."""
        self.history.append(entry)

    # -- troubles ---------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """From here on nothing of this process does anything; whoever is it, raises Death."""
        self.say(f"{process.name} DIES")
        process.dead = True

    def moment(self, name: str) -> None:
        """A point outside the database at which anything may happen but a fault of it."""
        self.turns.pause()
        self.say(name)
        self.trouble()

    def trouble(self) -> str | None:
        """Let something happen, or not; what it was."""
        trouble = self.troubles.any_of(AT_STATEMENTS)
        if trouble == "death":
            self.kill(self.process())
            raise Death
        if trouble == "leap":
            self._leap(int(self.troubles.between(0, 3) * SECOND))
        elif trouble == "leap to the end of a lease":
            now = self.now()
            ends = [from_text(due) for due in self.due.values() if due is not None]
            coming = [end for end in ends if end > now]
            if coming:
                self._leap((min(coming) - now) // timedelta(microseconds=1))
        elif trouble == "clock stepped":
            self.offset += int(self.troubles.between(-2, 2) * SECOND)
            self.say(f"the clock was set to {to_text(self.now())}")
        return trouble

    def _leap(self, micros: int) -> None:
        self.turns.leap(micros)
        self.say(f"{micros / SECOND:.6f} s pass at once")
