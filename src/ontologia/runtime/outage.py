"""While the database cannot be reached: a run waits, and says so once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ontologia.errors import ConnectionLostError

log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0  # seconds; a try itself waits for a connection, too
_LOOK = 0.05


class Outage:
    """What the threads of a run know of an outage. It begins with an error, and ends with a read."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause = _FIRST_PAUSE
        self._lock = threading.Lock()

    def note(self, error: ConnectionLostError) -> float:
        """A statement did not get through; seconds to wait before another is tried."""
        with self._lock:
            pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
            if self._since is not None:
                return pause
            self._since = time.monotonic()
        log.warning("the run goes on as soon as the database can be reached: %s", error.args[0])
        return pause

    def wait(self, error: ConnectionLostError, stopped: Callable[[], bool]) -> None:
        """Note it, and wait; not for longer than until the run is stopped."""
        deadline = time.monotonic() + self.note(error)
        while not stopped() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))

    def over(self) -> None:
        """A statement got through."""
        if self._since is None:
            return
        with self._lock:
            since, self._since, self._pause = self._since, None, _FIRST_PAUSE
        if since is not None:
            log.warning("the database is there again, after %.1f s", time.monotonic() - since)
