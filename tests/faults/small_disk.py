"""A disk of a few megabytes, for one process: a file system in memory that nobody else sees."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # of unshare(2)
_PRIVATE = (
    0x40000 | 0x4000
)  # of mount(2): what is mounted here is seen here alone, all the way down
_PAGE = 4096


class SmallDisk:
    """Mounted at `place` until the process ends; OSError where a user may not do that.

    Only before the process has a second thread.
    """

    def __init__(self, place: Path, megabytes: int) -> None:
        self.place = place
        self._ballast = place / "ballast"
        system = ctypes.CDLL(None, use_errno=True)
        user, group = os.getuid(), os.getgid()
        alone = _NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USER
        _check(system.unshare(alone))
        if user != 0:  # in a world of its own a user may be root, and mount
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        _check(system.mount(b"none", b"/", None, _PRIVATE, None))
        size = f"size={megabytes}m".encode()
        _check(system.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, size))

    def leave_room(self, pages: int) -> None:
        """Fill it up, but for so many pages."""
        self.make_room()
        free = os.statvfs(self.place).f_bavail * _PAGE
        with self._ballast.open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, free - pages * _PAGE)

    def make_room(self) -> None:
        """Take away what fills it."""
        self._ballast.unlink(missing_ok=True)

    def used_pages(self) -> int:
        """How much is taken."""
        room = os.statvfs(self.place)
        return (room.f_blocks - room.f_bavail) * room.f_frsize // _PAGE


def _check(answer: int) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
