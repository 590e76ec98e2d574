"""The tables, made or brought up to date when a file is opened.

Everything here can run again without harm, and all of it is one transaction: a file has the old
layout or the new one. Opening a file of the current layout writes nothing.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from ontologia.clock import Clock, from_text, to_text
from ontologia.store.sqlite.database import Database, Tx
from ontologia.store.sqlite.notation import statements
from ontologia.store.unfinished import MARK, unfinished

LAYOUT = 7
SQL = statements("layout.sql")
PARTS = (
    "commits",
    "entity_history",
    "relation_history",
    "history_indexes",
    "latest",
    "staging",
    "types",
    "locks",
    "sessions",
    "events",
    "claims",
    "archives",
    "replies",
    "intakes",
    "event_journal",
    "layout",
)
_ADDED = (
    ("entity_history", "schema_version_id", "INTEGER"),
    ("relation_history", "schema_version_id", "INTEGER"),
    ("relation_history", "instance_key", "TEXT NOT NULL DEFAULT ''"),
    ("events", "occurred_at", "TEXT"),
    ("deferred_events", "occurred_at", "TEXT"),
    ("event_claims", "conflicts", "INTEGER NOT NULL DEFAULT 0"),
    ("attempts", "traceback", "TEXT"),
    ("schema_versions", "fills_json", "TEXT"),
    ("ontologia_layout", "store_id", "TEXT"),
)
"""Columns that layouts before this one lacked: table, name, declaration."""
_OLD_TABLES = {"events": "seq", "event_claims": "consumer_id"}
"""Tables of the event bus as the document prints them lack this column. Their keys differ, too, so
they are built again."""


def prepare(database: Database, clock: Clock) -> str:
    """Bring the file to the current layout and return the store's id.

    `place` has refused a layout that is newer.
    """
    with database.read() as tx:
        found, source = found_layout(tx), found_copy(tx)
        store_id = _store_id(tx) if found == LAYOUT else None
    if source is not None:
        raise unfinished(database.path, source)
    if store_id is not None:
        return store_id
    with database.write() as tx:
        store_id = _store_id(tx) if found_layout(tx) == LAYOUT else None
        if store_id is None:  # another process may have been faster
            _build(tx, to_text(clock.now()))
            store_id = _store_id(tx)
    return store_id


def _store_id(tx: Tx) -> str:
    found: str = tx.one("SELECT MAX(store_id) FROM ontologia_layout")[0]
    return found


def found_copy(tx: Tx) -> str | None:
    """What is being copied into the file, if that is not finished."""
    if not _columns(tx, MARK):
        return None
    source: str = tx.one(f"SELECT source FROM {MARK}")[0]
    return source


def found_layout(tx: Tx) -> int | None:
    """Which layout the file has; None if it has none of our tables."""
    if not _columns(tx, "ontologia_layout"):
        return None
    row = tx.one("SELECT MAX(version) FROM ontologia_layout")
    return None if row is None else row[0]


def _build(tx: Tx, now: str) -> None:
    tx.connection.create_scalar_function("instant", _instant, 1, deterministic=True)
    old = [t for t, column in _OLD_TABLES.items() if (c := _columns(tx, t)) and column not in c]
    for table in old:
        tx.run(f"CREATE TEMP TABLE old_{table} AS SELECT * FROM {table}; DROP TABLE {table}")
    for name in PARTS[:3]:
        tx.run(SQL[name])
    _add_missing_columns(tx)  # of the history, whose indexes need them
    for name in PARTS[3:]:
        tx.run(SQL[name])
    for table in old:
        tx.run(SQL[f"restore_{table}"], {"now": now} if table == "event_claims" else ())
        tx.run(f"DROP TABLE temp.old_{table}")
    tx.run(SQL["restore_times"])
    tx.run(SQL["rebuild_latest"])
    tx.run(SQL["set_layout"], {"version": LAYOUT})
    tx.run(SQL["statistics"])
    tx.run(SQL["reload_statistics"])


def _add_missing_columns(tx: Tx) -> None:
    """Files from before these columns existed get them; their rows keep NULL and ''."""
    if "instance_key" not in _columns(tx, "relation_history"):
        tx.run("DROP INDEX IF EXISTS idx_relation_history_lookup")
    for table, column, declared in _ADDED:
        columns = _columns(tx, table)
        if columns and column not in columns:
            tx.run(f"ALTER TABLE {table} ADD COLUMN {column} {declared}")


def _instant(*values: Any) -> Any:
    """ISO 8601 text in the form of `to_text`, taken for UTC if it has no zone; else unchanged."""
    [text] = values  # SQLite calls it with one
    try:
        found = from_text(text)
        return to_text(found if found.tzinfo else found.replace(tzinfo=UTC))
    except (ValueError, TypeError, OverflowError):
        return text


def _columns(tx: Tx, table: str) -> set[str]:
    return {row[0] for row in tx.all("SELECT name FROM pragma_table_info(?)", (table,))}
