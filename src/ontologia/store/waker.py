"""A wait that any thread, and a signal handler, can end."""

from __future__ import annotations

import math
import select
import socket
from contextlib import suppress

_SELECT_MOST = 1024


class Waker:
    """Two sockets: what is sent to one ends the wait on the other. No lock is taken."""

    __slots__ = ("_closed", "_waking", "_woken")

    def __init__(self) -> None:
        # Sockets and not a pipe: some systems can wait for nothing else.
        self._woken, self._waking = socket.socketpair()
        self._woken.setblocking(False)
        self._waking.setblocking(False)
        self._closed = False

    def fileno(self) -> int:
        """The descriptor that is readable once it was woken."""
        return self._woken.fileno()

    def wake(self) -> None:
        """End the wait, or the next one if nobody waits."""
        with suppress(OSError):  # woken a thousand times already, or closed
            self._waking.send(b"x")

    def wait(self, seconds: float) -> bool:
        """Wait until woken, or for this long; whether it was."""
        return bool(readable([self.fileno()], seconds)) and self.drain()

    def drain(self) -> bool:
        """Forget how often it was woken; True, for those who were."""
        with suppress(BlockingIOError):
            while len(self._woken.recv(4096)) == 4096:
                pass
        return True

    def close(self) -> None:
        """Give up the sockets. Idempotent."""
        if not self._closed:
            self._closed = True
            self._woken.close()
            self._waking.close()

    def __del__(self) -> None:
        """The end of a program may interrupt a run before it has closed its watch."""
        if hasattr(self, "_closed"):
            self.close()


def readable(descriptors: list[int], seconds: float) -> list[int]:
    """Those that can be read, once one can, or none after this long."""
    # select() waits to the microsecond, but knows no descriptor beyond 1023.
    if max(descriptors) < _SELECT_MOST or not hasattr(select, "poll"):
        return select.select(descriptors, [], [], seconds)[0]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(math.ceil(seconds * 1000))]
