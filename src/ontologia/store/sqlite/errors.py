"""SQLite's errors in our words, in one place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from ontologia.errors import (
    DatabaseError,
    DiskFullError,
    IntegrityError,
    LockContentionError,
    OntologiaError,
    ReadOnlyError,
    ReadTimeoutError,
    StoreOpenError,
)
from ontologia.store.database import read_deadline

_LITTLE_ROOM = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def translated(error: apsw.Error, path: str, system_errno: int = 0) -> OntologiaError:
    """The error to raise `from` this one. `system_errno` is what the system said last."""
    match error:
        case apsw.BusyError():
            return LockContentionError(f"a program in another process that has {path}", 0)
        case apsw.InterruptError() if (deadline := read_deadline()) is not None:
            return ReadTimeoutError(path, deadline.seconds)
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreOpenError(
                f"{path} is not a SQLite database, or is damaged: {error}",
                hint="Check the path; restore the file from a backup if it was one.",
            )
        case apsw.FullError():
            return _disk_full(path, error)
        case apsw.IOError() if system_errno in _FULL or _no_room(path):
            return _disk_full(path, error)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return read_only(path)
        case apsw.CantOpenError():
            return StoreOpenError(
                f"{path} cannot be opened: {error}",
                hint="The directory must exist and be writable: SQLite keeps two files beside it.",
            )
        case apsw.ConstraintError():
            return IntegrityError(f"{path}: {error}; nothing was written")
        case _:
            return DatabaseError(f"{path}: {error}; the transaction was taken back")


def read_only(path: str) -> ReadOnlyError:
    """The database is there but may not be written."""
    return ReadOnlyError(
        f"{path} is read-only: this user has no right to write the file or beside it; "
        f"nothing was written",
        hint="Give this user the right to write the file and its directory, or copy it elsewhere.",
    )


def _disk_full(path: str, error: apsw.Error) -> DiskFullError:
    return DiskFullError(
        f"no room left for {path} ({error}); nothing was written, and what was queued is still queued",
        hint="Free some space and commit again.",
    )


def _no_room(path: str) -> bool:
    try:
        room = os.statvfs(Path(path).parent)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _LITTLE_ROOM
