"""A lock with a deadline, which an interrupt cannot leave behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from ontologia.errors import LockContentionError


class Turn:
    """One thread after the other. A thread whose turn it is may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def taken(self, timeout_ms: float | None = None) -> Generator[None]:
        """Have the turn; LockContentionError if another thread has it for longer than this.

        A KeyboardInterrupt can come between any two steps, also between taking the lock and
        noting that it was taken. So at the end the lock itself is asked whose it is.
        """
        if self._is_mine():
            with self._lock:
                yield
            return
        started = time.monotonic()
        try:
            if not self._lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
                waited = (time.monotonic() - started) * 1000
                raise LockContentionError("another thread of this process", waited)
            yield
        finally:
            if self._is_mine():
                self._lock.release()

    def _is_mine(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # pyright: ignore
