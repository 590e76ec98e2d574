"""Looking at a file before it is opened for writing.

For most mistakes SQLite has only "unable to open database file", and opening a file to look at it
already leaves two others beside it. What must not be touched is recognised here, and left alone.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw

from ontologia.errors import LockContentionError, StoreOpenError
from ontologia.store.newer import NewerLayout
from ontologia.store.sqlite.database import MEMORY, connect_as_it_is
from ontologia.store.sqlite.errors import read_only, translated

_EFFECTIVE = os.access in os.supports_effective_ids


def check_place(path: str, layout: int, timeout_ms: int) -> None:
    """Raise StoreOpenError or ReadOnlyError unless a store can live there.

    `layout` is the newest this program knows: a file of a newer one is refused.
    """
    if path == MEMORY:
        return
    place = Path(path)
    try:
        _check_rights(path, place)
    except OSError as error:
        raise _forbidden(path, "look at it") from error
    if place.exists() and place.stat().st_size:
        _check_layout(path, layout, timeout_ms)


def _check_rights(path: str, place: Path) -> None:
    if place.is_dir():
        raise StoreOpenError(
            f"{path} is a directory, not a database file", hint=f"Name a file in it: {path}/app.db."
        )
    if not place.parent.is_dir():
        raise StoreOpenError(
            f"{path} cannot be created: there is no directory {place.parent}",
            hint="Create the directory first; Ontologia makes files, not directories.",
        )
    if place.exists() and not _may(place, os.R_OK):
        raise _forbidden(path, "read it")
    if place.exists() and not _may(place, os.W_OK):
        raise read_only(path)
    if not _may(place.parent, os.W_OK | os.X_OK):
        raise read_only(path)


def _check_layout(path: str, newest: int, timeout_ms: int) -> None:
    """Read the layout before anything is switched to WAL.

    Not read-only: such a connection leaves the files behind that it needs to read a log.
    """
    known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'ontologia_layout'"
    try:
        with closing(connect_as_it_is(path, timeout_ms)) as connection:
            if not connection.execute(known).fetchall():
                return
            [(found,)] = connection.execute("SELECT MAX(version) FROM ontologia_layout")
    except apsw.BusyError as error:
        raise LockContentionError(
            f"a program in another process that has {path} to itself", timeout_ms, what="opening"
        ) from error
    except apsw.Error as error:
        raise translated(error, path) from error
    if found is not None and found > newest:
        raise NewerLayout(path, found, newest)


def _may(place: Path, mode: int) -> bool:
    return os.access(place, mode, effective_ids=_EFFECTIVE)


def _forbidden(path: str, what: str) -> StoreOpenError:
    return StoreOpenError(
        f"{path} cannot be opened: this user has no right to {what}",
        hint="Give this user the right to read and write the file and its directory.",
    )
