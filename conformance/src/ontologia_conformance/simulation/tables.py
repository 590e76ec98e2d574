"""What the store's tables and statements are called."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import apsw

from ontologia.store.sqlite.notation import statements
from ontologia_conformance.simulation.history import Change

_COLUMNS: dict[str, tuple[str, ...]] = {}
_columns_lock = threading.Lock()


def learn_columns(connection: apsw.Connection) -> None:
    """Note what the columns of the tables are called."""
    with _columns_lock:
        if not _COLUMNS:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'"):
                columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                _COLUMNS[table] = tuple(name for (name,) in columns)


def change_of(table: str, old: tuple[Any, ...] | None, new: tuple[Any, ...] | None) -> Change:
    """A changed row, with the names of its columns."""
    names = _COLUMNS.get(table, ())
    return Change(
        table,
        None if old is None else dict(zip(names, old, strict=False)),
        None if new is None else dict(zip(names, new, strict=False)),
    )


@cache
def _names() -> dict[str, str]:
    files = ("state", "types", "locks", "events", "claims", "listings", "retention", "sessions")
    each = (statements(f"{file}.sql") for file in (*files, "check"))
    return {_bare(sql): name for named in each for name, sql in named.items()}


@cache
def name_of(sql: str) -> str:
    """What a statement is called in the store's own files, or its beginning."""
    bare = _bare(sql)
    return _names().get(bare) or " ".join(bare.split())[:60]


def _bare(sql: str) -> str:
    lines = [line for line in sql.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";").strip()
