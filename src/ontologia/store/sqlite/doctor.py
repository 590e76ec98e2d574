"""What `store.doctor` asks of SQLite alone: the file, its log, and the library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import apsw

from ontologia.store.findings import Check, Finding, Severity
from ontologia.store.sqlite.database import LONGEST_LOG
from ontologia.store.sqlite.notation import statements

_SAFE = (3, 51, 3)  # the first release without the WAL-reset fault, which could damage files


def sql_of(_store: Any) -> Mapping[str, str]:
    """The statements of `doctor.sql`, and the one that makes the current state again."""
    layout = statements("layout.sql")
    return statements("doctor.sql") | {"rebuild_latest": layout["rebuild_latest"]}


def surroundings(store: Any) -> Iterator[Finding]:
    """What is wrong around the tables."""
    yield from version(apsw.sqlite_lib_version())
    if store.database.in_memory:
        return
    log: str = store.database.log
    size = os.path.getsize(log) if os.path.exists(log) else 0
    if size > LONGEST_LOG:
        yield _long_log(log, size, store.database.unmoved_pages())


def _long_log(log: str, size: int, unmoved: int) -> Finding:
    what = f"the write-ahead log has {size // 2**20:,} MiB"
    if unmoved:
        return Finding(
            Severity.warning,
            "wal_size",
            f"{what}; a reader keeps {unmoved:,} pages of it from being moved into the file",
            log,
            1,
            "End the program whose read transaction has been open for long; SQLite does not say "
            "which one that is, nor since when it reads.",
        )
    return Finding(
        Severity.info,
        "wal_size",
        f"{what}, and no reader needs them",
        log,
        1,
        f"Nothing needs to be done: commits use the file again from its start, and cut it to "
        f"{LONGEST_LOG // 2**20} MiB.",
    )


def version(text: str) -> Iterator[Finding]:
    """A finding if this release of SQLite is known to damage files."""
    if tuple(map(int, text.split("."))) < _SAFE:
        yield Finding(
            Severity.warning,
            "sqlite_version",
            "this SQLite can lose what was written when the log is reset (fixed in 3.51.3)",
            f"SQLite {text}",
            1,
            "pip install --upgrade apsw",
        )


OWN: tuple[Check, ...] = ()
