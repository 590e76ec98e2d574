"""`threading` and `time`, as the runtime sees them while it is simulated.

The same names with the same meaning, over `Turns`: a lock that is taken lets others come first, an
event is waited for in simulated time. Whoever is no part of the simulation gets the real ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from ontologia_conformance.simulation.turns import Task, Turns

_MODULES = (
    "migration.versions",
    *("engine.acks", "engine.engine", "engine.handover", "engine.inbox", "engine.maintenance"),
    *("engine.outage", "engine.scheduler", "engine.source", "engine.watchdog", "runtime.session"),
    *("store.lease", "store.turn", "store.writer"),
)


class Lock:
    """One at a time; one that has it may take it again if it is `reentrant`."""

    def __init__(self, turns: Turns, *, reentrant: bool = False) -> None:
        self._turns = turns
        self._reentrant = reentrant
        self._holder: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, waiting for at most `timeout` seconds; whether it was taken."""
        me = self._turns.task()
        free = self._holder is None or (self._reentrant and self._holder is me)
        if not free or me.owner.dead:
            seconds = 0.0 if not blocking else None if timeout < 0 else timeout
            if not self._turns.wait(lambda: self._holder is None, seconds):
                return False
        self._holder, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        """Give it back."""
        me = self._turns.task()
        if me.owner.dead:
            return
        if self._holder is None or (self._reentrant and self._holder is not me):
            raise RuntimeError("release of a lock that this thread does not have")
        self._depth -= 1
        if not self._depth:
            self._holder = None

    def locked(self) -> bool:
        """Whether anybody has it."""
        return self._holder is not None

    def _is_owned(self) -> bool:
        return self._holder is self._turns.current

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """Set once, and waited for."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._on = False

    def set(self) -> None:
        """From here on nobody waits for it."""
        self._on = True

    def clear(self) -> None:
        """It can be waited for again."""
        self._on = False

    def is_set(self) -> bool:
        """Whether it is."""
        return self._on

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for this long; whether it is."""
        return self._turns.wait(self.is_set, timeout)


class Condition:
    """A lock, and something to wait for while others have it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._lock = Lock(turns, reentrant=True)
        self._notified = 0

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def notify_all(self) -> None:
        """Wake everybody who waits."""
        self._notified += 1

    def wait(self, timeout: float | None = None) -> bool:
        """Let others have the lock until notified, or for this long; whether it was."""
        seen = self._notified
        self._lock.release()
        try:
            woken = self._turns.wait(lambda: self._notified != seen, timeout)
        finally:
            self._lock.acquire()
        return woken


class Thread:
    """A thread of the same process."""

    def __init__(
        self,
        turns: Turns,
        target: Callable[..., object],
        name: str,
        args: Iterable[Any] = (),
        daemon: bool | None = None,
    ) -> None:
        self._turns = turns
        self._call = lambda: target(*args)
        self._name = name.removeprefix("ontologia-")
        self._task: Task | None = None

    def start(self) -> None:
        """Let it have turns."""
        owner = self._turns.task().owner
        self._task = self._turns.spawn(f"{owner.name}.{self._name}", owner, self._call)

    def is_alive(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for this long."""
        self._turns.wait(lambda: not self.is_alive(), timeout)


class StandIn:
    """A module of which some names mean something else to those who take turns."""

    def __init__(self, module: Any, turns: Turns, names: dict[str, Callable[..., Any]]) -> None:
        self._module = module
        self._turns = turns
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name in self._names and self._turns.mine():
            return self._names[name]
        return getattr(self._module, name)


@contextmanager
def standing_in(turns: Turns) -> Generator[None]:
    """While this lasts, the runtime's threads, locks and pauses are simulated ones."""
    threads = StandIn(
        threading,
        turns,
        {
            "Thread": partial(Thread, turns),
            "Lock": partial(Lock, turns),
            "RLock": partial(Lock, turns, reentrant=True),
            "Event": partial(Event, turns),
            "Condition": partial(Condition, turns),
        },
    )
    clock = StandIn(
        time, turns, {"sleep": turns.sleep, "monotonic": lambda: turns.micros / 1_000_000}
    )
    changed: list[tuple[Any, str, Any]] = []
    for name in _MODULES:
        module = import_module(f"ontologia.{name}")
        for attribute, stand_in in (("threading", threads), ("time", clock)):
            if hasattr(module, attribute):
                changed.append((module, attribute, getattr(module, attribute)))
                setattr(module, attribute, stand_in)
    try:
        yield
    finally:
        for module, attribute, real in changed:
            setattr(module, attribute, real)
