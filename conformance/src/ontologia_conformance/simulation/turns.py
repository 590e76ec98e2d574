"""Threads that take turns: one of them runs at a time, and chance says which comes next.

A thread gives its turn away only where it calls `pause` or `wait`. In between it has the whole
simulation to itself, so the same chances give the same steps, whatever the machine is doing. When
everybody waits, time goes on to the next moment at which somebody does not.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from random import Random

_PATIENCE = 30.0  # seconds of the machine's time for one turn; none needs a hundredth of it
SECOND = 1_000_000


class Death(BaseException):
    """The process that this thread belongs to is dead: the thread ends, and writes nothing more."""


class Stuck(Exception):
    """Everybody waits for somebody else, and for no time."""


class Owner:
    """Whose a thread is. Once it is dead, its threads end at the next thing they do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False

    def over(self) -> None:
        """Called when its last thread has ended."""


class Task:
    """One thread, and what it waits for."""

    def __init__(self, name: str, owner: Owner) -> None:
        self.name = name
        self.owner = owner
        self.done = False
        self.ready: Callable[[], bool] | None = None
        """What it waits for; None if it could go on."""
        self.deadline: int | None = None
        self.gate = threading.Lock()
        self.gate.acquire()
        self.ident: int | None = None


class Turns:
    """Who runs, and what time it is (`micros`, which only goes forward)."""

    def __init__(self, random: Random, eagerness: float) -> None:
        self.micros = 0
        self.steps = 0
        self.ended = 0
        """How many threads have."""
        self.current: Task | None = None
        self._random = random
        self._eagerness = eagerness
        self._tasks: list[Task] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.failure: BaseException | None = None
        """What ended the simulation before its time."""

    # -- seen by those who take turns -----------------------------------------------------------

    def mine(self) -> bool:
        """Whether the calling thread is the one whose turn it is."""
        current = self.current
        return current is not None and current.ident == threading.get_ident()

    def task(self) -> Task:
        """The one whose turn it is."""
        assert self.current is not None, "nobody has the turn"
        return self.current

    def pause(self, weight: float = 1.0) -> None:
        """A point at which somebody else may come first; `weight` says how likely that is."""
        me = self.task()
        if me.owner.dead:
            raise Death
        self.steps += 1
        if self._random.random() < self._eagerness * weight:
            self._give_away(me)

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until this is true, or for this long; whether it is."""
        me = self.task()
        if me.owner.dead:
            raise Death
        if ready():
            return True
        if seconds is not None and seconds <= 0:
            return False
        me.ready = ready
        me.deadline = None if seconds is None else self.micros + max(1, round(seconds * SECOND))
        try:
            self._give_away(me)
        finally:
            me.ready = me.deadline = None
        return ready()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.wait(lambda: False, seconds)

    def leap(self, micros: int) -> None:
        """Let time pass for everybody at once, without anybody having done anything."""
        self.micros += micros

    # -- the threads ------------------------------------------------------------------------------

    def spawn(self, name: str, owner: Owner, target: Callable[[], object]) -> Task:
        """A new thread; it runs when its turn comes."""
        task = Task(name, owner)

        def work() -> None:
            task.gate.acquire()
            try:
                if not owner.dead:
                    target()
            except BaseException as error:  # noqa: BLE001 - raised by `run`
                if not owner.dead:  # what the dead say while they fall is nothing
                    self.fail(error)
            task.done = True
            self._tasks.remove(task)
            self.ended += 1
            if not self.alive(owner):
                owner.over()
            self._give_away(task)

        thread = threading.Thread(target=work, name=f"simulated-{name}", daemon=True)
        thread.start()
        task.ident = thread.ident
        self._threads.append(thread)
        self._tasks.append(task)
        return task

    def run(self) -> None:
        """Let them all run to their end; raises what one of them raised."""
        self._give_away(None)
        if not self._over.wait(_PATIENCE):
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - no public name gives them
            raise RuntimeError(
                f"{self.task().name} has had the turn for {_PATIENCE:.0f} s, and is here:\n"
                + "".join(traceback.format_stack(frames.get(self.task().ident or 0)))
            )
        for thread in self._threads:
            thread.join(_PATIENCE)
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> None:
        """End the simulation: everybody dies where they stand, and `run` raises this."""
        self.failure = self.failure or error
        for task in self._tasks:
            task.owner.dead = True

    def alive(self, owner: Owner) -> bool:
        """Whether any thread of this owner has not ended."""
        return any(task.owner is owner for task in self._tasks)

    def _give_away(self, me: Task | None) -> None:
        following = self._next()
        if following is None:
            self._over.set()
            return
        if following is not me:
            self.current = following
            following.gate.release()
            if me is None or me.done:
                return
            me.gate.acquire()
        if me is not None and me.owner.dead:
            raise Death

    def _next(self) -> Task | None:
        """Whose turn it is: the dead first, to be rid of them, else any who can go on."""
        while self._tasks:
            able: list[Task] = []
            for task in self._tasks:
                if task.owner.dead:
                    return task
                if (
                    task.ready is None
                    or (task.deadline is not None and task.deadline <= self.micros)
                    or task.ready()
                ):
                    able.append(task)
            if able:
                return able[0] if len(able) == 1 else self._random.choice(able)
            times = [task.deadline for task in self._tasks if task.deadline is not None]
            if times:
                self.micros = min(times)
            else:
                self.fail(Stuck("everybody waits, and nothing can wake them"))
        return None
