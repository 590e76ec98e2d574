"""Moving the log of a SQLite file into the file itself, beside those who commit.

By itself SQLite does that in whichever commit makes the log longer than 1,000 pages: that one takes
15 to 45 ms instead of a tenth of one. Here a thread with a connection of its own does most of it.
The log begins anew only if a commit finds all of it moved, and while many write the thread never
comes to the end of it: so when little is left a commit does the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import apsw

from ontologia.errors import DatabaseError

_PAGES = 500  # of a log that is worth moving; while that is done it grows to twice as many
_FEW = 250  # that a commit moves in passing
_MOST = 4_000
_OFTEN = 100  # pages between two tries once it is that long
_REST = 5.0  # seconds after which a thread with nothing to do ends


class Checkpoints:
    """Those of one opened file."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._last = 0
        self._next = _PAGES
        self._moved = 0
        self._seen = 0  # of what was moved
        self._refused = False
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def committed(self, connection: apsw.Connection, _name: str, pages: int) -> int:
        """Called by SQLite after each commit, with the length of the log.

        The commit is done: whatever goes wrong here must not look as if it were not.
        """
        if pages < self._last:  # it began anew
            self._next, self._moved, self._seen = _PAGES, 0, 0
        self._last = pages
        if pages >= self._next or self._moved != self._seen:
            self._seen = self._moved
            with suppress(Exception):
                self._go_on(connection, pages)
        return apsw.SQLITE_OK

    def _go_on(self, connection: apsw.Connection, pages: int) -> None:
        """The log has grown by so much, or the thread has moved some of it."""
        left = pages - self._moved
        self._next = pages + (_PAGES if pages < _MOST else _OFTEN)
        # Where a reader was in the way for long there is much to move: not in a commit.
        if left <= _FEW or (pages >= _MOST and (self._refused or left <= 2 * _PAGES)):
            self._move(connection)
            self._seen = self._moved
        else:
            self._ask()

    def _ask(self) -> None:
        with self._lock:
            self._wanted.set()
            if self._thread is None and not self._closed:
                thread = threading.Thread(
                    target=self._run, name="ontologia-checkpoint", daemon=True
                )
                self._refused = True  # unless it starts, and gets its connection
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        try:
            connection = self._connect()
        except (apsw.Error, DatabaseError):  # no descriptor is left; a commit does it in the end
            with self._lock:
                self._thread = None
            return
        self._refused = False
        try:
            while self._still_wanted():
                self._move(connection)
        finally:
            connection.close()

    def _still_wanted(self) -> bool:
        """Wait until there is something to move; False if this thread is to end."""
        asked = self._wanted.wait(_REST)
        with self._lock:
            if self._closed or not (asked or self._wanted.is_set()):
                self._thread = None
                return False
            self._wanted.clear()
            return True

    def _move(self, connection: apsw.Connection) -> None:
        with suppress(apsw.Error):  # somebody else is at it; what is wrong, a commit meets
            _, self._moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        """Wait for the thread, which ends at once."""
        with self._lock:
            self._closed = True
            self._wanted.set()
            thread = self._thread
        if thread is not None:
            thread.join()
