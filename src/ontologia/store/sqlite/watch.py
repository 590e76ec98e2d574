"""Waiting for work: woken by this process at once, and by others as soon as they write.

On Linux the kernel tells when the write-ahead log grows. It does so before the transaction is
visible, and a hard one is visible only after its sync; so a wake is followed by short looks at
`PRAGMA data_version` until the commit is there. Elsewhere the looks are all there is. Whatever
is missed is found by the loop's own polling: this only makes it faster.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from contextlib import suppress

from ontologia.store.sqlite.database import ChangeCounter
from ontologia.store.waker import Waker, readable

_IN_MODIFY = 0x2
_STEPS = (0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
_POLL_FIRST, _POLL_LAST = 0.001, 0.02

_watches: dict[str, weakref.WeakSet[Watch]] = {}
_watches_lock = threading.Lock()


def wake_all(path: str) -> None:
    """Wake everybody in this process who waits on this file."""
    with _watches_lock:
        waiting = list(_watches.get(path, ()))
    for watch in waiting:
        watch.wake()


class Watch:
    """One waiter on one file. `wake` may be called from any thread and from a signal handler."""

    def __init__(self, path: str, counter: ChangeCounter | None) -> None:
        self._path = path
        self._counter = counter
        self._waker = Waker()
        self._log = None if counter is None else _watch_file(f"{path}-wal")
        self._closed = False
        with _watches_lock:
            _watches.setdefault(path, weakref.WeakSet()).add(self)

    def wake(self) -> None:
        """End the wait, or the next one if nobody waits."""
        self._waker.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until woken, until another connection has written, or for this long; whether woken."""
        deadline = time.monotonic() + seconds
        if self._counter is not None and self._log is None:
            return self._poll(deadline)
        files = [self._waker.fileno()] + ([] if self._log is None else [self._log])
        while True:
            ready = readable(files, max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            if self._waker.fileno() in ready:
                return self._waker.drain()
            self._drain_log()
            if self._became_visible(deadline):
                return True

    def _became_visible(self, deadline: float) -> bool:
        """Look until what was just written to the log can be read."""
        for step in _STEPS:
            if self._changed():
                return True
            if time.monotonic() >= deadline:
                return False
            if self._waker.wait(step):
                return True
        return self._changed()

    def _poll(self, deadline: float) -> bool:
        step = _POLL_FIRST
        while time.monotonic() < deadline:
            if self._changed() or self._waker.wait(step):
                return True
            step = min(step * 1.2, _POLL_LAST)
        return False

    def _changed(self) -> bool:
        return self._counter is not None and self._counter.changed()

    def settle(self) -> None:
        """Forget what was written so far: the caller is about to look for itself."""
        self._drain_log()
        self._changed()

    def _drain_log(self) -> None:
        if self._log is not None:
            with suppress(BlockingIOError):
                while len(os.read(self._log, 65536)) == 65536:
                    pass

    def close(self) -> None:
        """Stop waiting and give up the file descriptors."""
        with _watches_lock:
            waiting = _watches.get(self._path)
            if waiting is not None:
                waiting.discard(self)
                if not waiting:
                    del _watches[self._path]
        if self._closed:
            return
        self._closed = True
        self._waker.close()
        if self._log is not None:
            os.close(self._log)
        if self._counter is not None:
            self._counter.close()


def _watch_file(path: str) -> int | None:
    """A descriptor that is readable when the file was written; None where there is no such thing."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None  # no more instances to be had: polling works, too
    if library.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
