"""A disk that refuses: the n-th write, sync, read, lock or whatever else SQLite asks of the system.

SQLite lets its system calls be replaced, so that a refusal is the real thing: -1, and an `errno`.
Only `fsync` it calls directly; with `syncs` that one alone can be refused, where SQLite calls its own way
to files. There a refusal is an exception, also when SQLite itself keeps quiet about it: when the
log is not tidied up as the last connection closes. All of it lasts as long as the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import apsw


class Fault(NamedTuple):
    """A system call, what the system says when it refuses, and whether half of it was done."""

    call: str
    errno: int
    half: bool = False


FAULTS = {
    "write": Fault("pwrite64", errno.EIO),
    "half a write": Fault("pwrite64", errno.EIO, half=True),
    "no room": Fault("pwrite64", errno.ENOSPC, half=True),
    "sync": Fault("fsync", errno.EIO),
    "read": Fault("pread64", errno.EIO),  # SQLite takes that for damage
    "stale read": Fault("pread64", errno.ESTALE),
    "truncate": Fault("ftruncate", errno.EIO),
    "size": Fault("fstat", errno.EIO),
    "lock": Fault("fcntl", errno.EIO),
    "map": Fault("mmap", errno.ENOMEM),
    "open": Fault("open", errno.EMFILE),
    "delete": Fault("unlink", errno.EIO),
}
# All that is passed are integers and pointers: what a function does not take it does not see.
_CALL = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 6, use_errno=True)


class BadDisk:
    """Counts the system calls, and decides which one fails. One of them in a process."""

    def __init__(self, *, syncs: bool = False) -> None:
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._left = 0
        self._for_good = False
        self.counts: Counter[str] = Counter()
        self.refused = 0
        self._vfs = _Syncs(self, default=syncs)
        # While SQLite deals with an exception nothing else of Python's can be called.
        calls = () if syncs else {each.call for each in FAULTS.values()} - {"fsync"}
        self._mine = [self._replace(call) for call in calls]

    def fail(self, fault: str | None, number: int, *, for_good: bool = False) -> None:
        """Let the n-th such call from now on fail; with `for_good` every later one, too."""
        with self._lock:
            self._fault = None if fault is None else FAULTS[fault]
            self._left, self._for_good = number, for_good
            self.counts.clear()
            self.refused = 0

    def heal(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._fault = None

    def asked(self, call: str) -> Fault | None:
        """A call is to be made; the fault, if it is to fail."""
        with self._lock:
            self.counts[call] += 1
            if self._fault is None or self._fault.call != call:
                return None
            self._left -= 1
            if self._left > 0 or (self._left < 0 and not self._for_good):
                return None
            self.refused += 1
            return self._fault

    def _replace(self, call: str) -> Any:
        """Put ourselves before a system call of SQLite's; what it returns must live."""
        real: Callable[..., int] = _CALL(self._vfs.xGetSystemCall(call))

        def mine(*arguments: int) -> int:
            fault = None if _is_given_up(call, arguments) else self.asked(call)
            if fault is None:
                return real(*arguments)
            if fault.half:
                file, data, size, *offset = arguments
                real(file, data, size // 2, *offset)
            ctypes.set_errno(fault.errno)
            return -1

        callback = _CALL(mine)
        assert self._vfs.xSetSystemCall(call, ctypes.cast(callback, ctypes.c_void_p).value)
        return callback


def _is_given_up(call: str, arguments: tuple[int, ...]) -> bool:
    """Whether a lock is to be given up, or only asked after: no system refuses that."""
    if call != "fcntl":
        return False
    command = ctypes.c_int(arguments[1]).value
    return command != fcntl.F_SETLK or _kind_of_lock(arguments[2]) == fcntl.F_UNLCK


def _kind_of_lock(flock: int) -> int:
    return ctypes.c_short.from_address(flock).value


class _Syncs(apsw.VFS):
    """SQLite's own way to files, and the disk is asked before it syncs."""

    def __init__(self, disk: BadDisk, *, default: bool) -> None:
        self._disk = disk
        super().__init__("bad", "unix", makedefault=default)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return _SyncedFile(self._disk, name, flags)


class _SyncedFile(apsw.VFSFile):
    def __init__(self, disk: BadDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:
        if self._disk.asked("fsync"):
            error = apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
            error.args = ("disk I/O error",)
            raise error
        super().xSync(flags)
