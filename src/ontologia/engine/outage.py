"""While the database cannot be reached, or not be written: a run waits, and says so once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ontologia.errors import ConnectionLostError, StandbyError

PASSING = (ConnectionLostError, StandbyError)
"""What passes: the server comes back, or becomes the primary."""
log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0  # seconds; a try itself waits for a connection, too
_LOOK = 0.05


class Outage:
    """What the threads of a run know of an outage. It begins with an error.

    It ends with a read, or, if that is answered and nothing else is, with a write.
    """

    def __init__(self, server: str = "database") -> None:
        self._server = server
        self._since: float | None = None
        self._answers = False
        self._pause = _FIRST_PAUSE
        self._lock = threading.Lock()

    def note(self, error: ConnectionLostError | StandbyError) -> float:
        """A statement did not get through; seconds to wait before another is tried."""
        with self._lock:
            pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
            self._answers = isinstance(error, StandbyError)
            if self._since is not None:
                return pause
            self._since = time.monotonic()
        can = "written" if isinstance(error, StandbyError) else "reached"
        log.warning(
            "the run goes on as soon as the %s can be %s: %s", self._server, can, error.args[0]
        )
        return pause

    def wait(
        self,
        error: ConnectionLostError | StandbyError,
        stopped: Callable[[], bool],
        longest: float = _LONGEST_PAUSE,
    ) -> None:
        """Note it, and wait; not for longer than until the run is stopped."""
        deadline = time.monotonic() + min(self.note(error), longest)
        while not stopped() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))

    def over(self, *, wrote: bool = False) -> None:
        """A statement got through."""
        if self._since is None or (self._answers and not wrote):
            return
        with self._lock:
            since, self._since, self._pause = self._since, None, _FIRST_PAUSE
        if since is not None:
            took = time.monotonic() - since
            log.warning("the %s is there again, after %.1f s", self._server, took)
