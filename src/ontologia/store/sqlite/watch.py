"""Waiting for work: woken by this process at once, and by others as soon as they write.

On Linux the kernel tells when the write-ahead log grows, while there is nothing to do: beside handlers
it would have to do so twenty times for each of their commits. It tells before the transaction is visible, and a hard
one is visible only after its sync; so a wake is followed by short looks at `PRAGMA data_version`
until the commit is there. Elsewhere the looks are all there is. Whatever is missed is found by the
loop's own polling: this only makes it faster.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress

from ontologia.forking import in_forked_child
from ontologia.store.sqlite.database import ChangeCounter
from ontologia.store.waker import Waker, readable

_IN_MODIFY = 0x2
_STEPS = (0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
_LOOKS = (0.003, 0.01, 0.03, 0.08, 0.13)  # in all as long as the steps
_POLL_FIRST, _POLL_LAST = 0.001, 0.02

_watches: dict[str, weakref.WeakSet[Watch]] = {}
_watches_lock = threading.Lock()


def _renew() -> None:
    global _watches_lock
    _watches_lock = threading.Lock()
    _watches.clear()  # those who wait are the parent's


in_forked_child(_renew)


def wake_all(path: str) -> None:
    """Wake everybody in this process who waits on this file."""
    with _watches_lock:
        waiting = list(_watches.get(path, ()))
    for watch in waiting:
        watch.wake()


class Watch:
    """One waiter on one file. `wake` may be called from any thread and from a signal handler."""

    told = False
    """Whoever is woken looks: here that costs less than a claim that finds nothing."""

    def __init__(self, path: str, counter: ChangeCounter | None) -> None:
        self._path = path
        self._counter = counter
        self._waker = Waker()
        self._log = None if counter is None else _Growth.of(f"{path}-wal")
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
        if self._log is None:
            return bool(readable([self._waker.fileno()], seconds)) and self._waker.drain()
        # What was written before is not told of, and may be in its sync: so there are looks, too.
        looks = () if self._log.tells else _LOOKS
        if not self._log.tell():
            return self._poll(deadline)
        woken = self._told(self._log, deadline, iter(looks))
        if woken:
            self._log.hush()
        return woken

    def _told(self, log: _Growth, deadline: float, looks: Iterator[float]) -> bool:
        files = [self._waker.fileno(), log.descriptor]
        while not self._changed():
            left = max(0.0, deadline - time.monotonic())
            ready = readable(files, min(left, next(looks, left)))
            if self._waker.fileno() in ready:
                return self._waker.drain()
            if ready:
                log.drain()
                if self._became_visible(deadline):
                    return True
            if time.monotonic() >= deadline:
                return False
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
        self._changed()

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
            os.close(self._log.descriptor)
        if self._counter is not None:
            self._counter.close()


class _Growth:
    """What the kernel tells of one file: a descriptor that is readable once it was written to."""

    def __init__(self, library: ctypes.CDLL, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self._library = library
        self._path = os.fsencode(path)
        self._asked = -1

    @property
    def tells(self) -> bool:
        """Whether it was asked to."""
        return self._asked >= 0

    @classmethod
    def of(cls, path: str) -> _Growth | None:
        """None where there is no such thing."""
        if sys.platform != "linux":
            return None
        library = ctypes.CDLL(None, use_errno=True)
        descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        # A process may have no more of them: polling works, too.
        return cls(library, descriptor, path) if descriptor >= 0 else None

    def tell(self) -> bool:
        """Ask to be told from now on; whether that can be had."""
        if not self.tells:
            self._asked = self._library.inotify_add_watch(self.descriptor, self._path, _IN_MODIFY)
        return self.tells

    def hush(self) -> None:
        """Ask no more, and forget what was told."""
        self._library.inotify_rm_watch(self.descriptor, self._asked)
        self._asked = -1
        self.drain()

    def drain(self) -> None:
        """Forget what was told."""
        with suppress(BlockingIOError):
            while len(os.read(self.descriptor, 65536)) == 65536:
                pass
