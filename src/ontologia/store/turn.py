"""Locks with a deadline, which an interrupt cannot leave behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Hashable
from contextlib import ExitStack, contextmanager, suppress
from weakref import WeakValueDictionary

from ontologia.errors import LockContentionError


class Turn:
    """One thread after the other. A thread whose turn it is may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.used = False
        """For the thread that has it: whether it has begun something since it took it."""
        self.release = self._lock.release
        """Give it back; RuntimeError if the calling thread does not have it.

        A function in C, and the first call of a finally: an interrupt comes after it, never before.
        """

    @contextmanager
    def taken(self, timeout_ms: float | None = None) -> Generator[None]:
        """Have the turn; LockContentionError if another thread has it for longer than this.

        A KeyboardInterrupt can come between any two steps, also between taking the lock and
        noting that it was taken. So at the end the lock itself is asked whose it is.
        """
        try:
            self.take(timeout_ms)
            yield
        finally:
            try:  # noqa: SIM105 - an interrupt could come in the call of `suppress`
                self.release()
            except RuntimeError:  # it was not taken
                pass

    def take(self, timeout_ms: float | None = None) -> None:
        """Take it, as `taken` does, within a try whose finally calls `release`."""
        nested = self.is_mine()
        started = time.monotonic()
        if not self._lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
            waited = (time.monotonic() - started) * 1000
            raise LockContentionError("another thread of this process", waited)
        self.used = self.used and nested

    def take_now(self) -> bool:
        """Take it if no thread has it; whether that was so. `release` belongs in a finally."""
        taken = self._lock.acquire(blocking=False)
        if taken:
            self.used = False
        return taken

    def is_mine(self) -> bool:
        """Whether the calling thread has it."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # pyright: ignore


class Turns:
    """A turn for each key, for as long as a thread has it or waits for it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[Hashable, Turn] = WeakValueDictionary()

    @contextmanager
    def taken(self, key: Hashable, timeout_ms: float) -> Generator[None]:
        """Have the turn of this key; LockContentionError if another thread has it for longer."""
        with self._lock:
            turn = self._turns.setdefault(key, Turn())
        with turn.taken(timeout_ms):
            yield

    @contextmanager
    def preferred(self, key: Hashable, timeout_ms: float) -> Generator[None]:
        """Have the turn of this key, or go on without it if another thread has it for longer."""
        with ExitStack() as stack:
            with suppress(LockContentionError):
                stack.enter_context(self.taken(key, timeout_ms))
            yield
