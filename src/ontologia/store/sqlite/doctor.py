"""What `store.doctor` asks of SQLite alone: the file, its log, and the library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import apsw

from ontologia.store.findings import Check, Finding, Severity
from ontologia.store.named import statements

_PACKAGE = "ontologia.store.sqlite"
_LONG_LOG = 100 * 2**20
_SAFE = (3, 51, 3)  # the first release without the WAL-reset fault, which could damage files


def sql_of(_store: Any) -> Mapping[str, str]:
    """The statements of `doctor.sql`, and the one that makes the current state again."""
    layout = statements(_PACKAGE, "layout.sql")
    return statements(_PACKAGE, "doctor.sql") | {"rebuild_latest": layout["rebuild_latest"]}


def surroundings(store: Any) -> Iterator[Finding]:
    """What is wrong around the tables."""
    yield from version(apsw.sqlite_lib_version())
    path: str = store._database.path
    if store._database.in_memory:
        return
    log = f"{path}-wal"
    size = os.path.getsize(log) if os.path.exists(log) else 0
    if size > _LONG_LOG:
        yield Finding(
            Severity.warning,
            "wal_size",
            f"the write-ahead log has {size // 2**20:,} MiB",
            log,
            1,
            "A reader that never ends its transaction keeps it from shrinking. With the programs "
            "stopped: PRAGMA wal_checkpoint(TRUNCATE).",
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
