"""The tables, made or brought up to date when a file is opened.

Everything here can run again without harm, and all of it is one transaction: a file has the old
layout or the new one. Opening a file of the current layout writes nothing.
"""

from __future__ import annotations

from ontologia.clock import Clock, to_text
from ontologia.schema.typespec import schema_hash
from ontologia.store.named import statements
from ontologia.store.sqlite.database import Database, Tx
from ontologia.store.unfinished import MARK, unfinished

LAYOUT = 5
SQL = statements("ontologia.store.sqlite", "layout.sql")
PARTS = (
    "commits",
    "entity_history",
    "relation_history",
    "history_indexes",
    "latest",
    "types",
    "locks",
    "sessions",
    "events",
    "claims",
    "replies",
    "event_journal",
    "layout",
)
_TYPES = statements("ontologia.store.sqlite", "types.sql")
_ADDED = (
    ("entity_history", "schema_version_id", "INTEGER"),
    ("relation_history", "schema_version_id", "INTEGER"),
    ("relation_history", "instance_key", "TEXT NOT NULL DEFAULT ''"),
    ("event_claims", "conflicts", "INTEGER NOT NULL DEFAULT 0"),
    ("attempts", "traceback", "TEXT"),
    ("ontologia_layout", "store_id", "TEXT"),
)
"""Columns that layouts before this one lacked: table, name, declaration."""


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
    for name in PARTS[:3]:
        tx.run(SQL[name])
    _add_missing_columns(tx)  # of the history, whose indexes need them
    for name in PARTS[3:]:
        tx.run(SQL[name])
    _bootstrap_versions(tx, now)
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


def _bootstrap_versions(tx: Tx, now: str) -> None:
    """A registry from before versions were kept: what is registered becomes version 1."""
    if tx.one(_TYPES["count_versions"])[0]:
        return
    for kind, name, schema_json in tx.all(_TYPES["list_registry"]):
        tx.run(
            _TYPES["insert_version"],
            {
                "kind": kind,
                "name": name,
                "version": 1,
                "schema_json": schema_json,
                "schema_hash": schema_hash(schema_json),
                "created_at": now,
                "runtime_id": None,
                "reason": "bootstrap",
            },
        )


def _columns(tx: Tx, table: str) -> set[str]:
    return {row[0] for row in tx.all("SELECT name FROM pragma_table_info(?)", (table,))}
