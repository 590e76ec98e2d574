"""One thread after the other, per record: they wait for each other instead of colliding."""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable
from contextlib import contextmanager

from ontologia.store.turn import Turn


class Turns:
    """As many turns as there are things that somebody wants at this moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Hashable, tuple[Turn, int]] = {}

    @contextmanager
    def taken(self, place: Hashable, timeout_ms: float) -> Generator[None]:
        """Have the turn at this place; LockContentionError if it takes too long."""
        with self._lock:
            turn, waiting = self._turns.get(place, (Turn(), 0))
            self._turns[place] = (turn, waiting + 1)
        try:
            with turn.taken(timeout_ms):
                yield
        finally:
            with self._lock:
                turn, waiting = self._turns[place]
                if waiting == 1:
                    del self._turns[place]
                else:
                    self._turns[place] = (turn, waiting - 1)
