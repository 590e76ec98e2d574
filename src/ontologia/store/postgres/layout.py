"""The tables, made or brought up to date when a database is opened.

All of it is one transaction, under a lock: however many processes open at once, one makes the
tables and the others find them. Opening a database of the current layout writes nothing, and
needs no right to.
"""

from __future__ import annotations

from ontologia.errors import StoreOpenError
from ontologia.store.named import statements
from ontologia.store.postgres.database import Database, Tx, lock_key
from ontologia.store.postgres.place import qualified

LAYOUT = 2
"""1 had events alone. Every step can run again without harm, so one list is all upgrades."""
_PARTS = (
    "schema",
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
    "layout",
)
_PATIENCE = 60_000  # milliseconds: whoever makes the tables is soon done


def prepare(database: Database) -> None:
    """Bring the schema to the current layout; one that is newer is refused."""
    sql = qualified(statements("ontologia.store.postgres", "layout.sql"), database.schema)
    with database.read() as tx:
        if _is_current(tx, sql, database.schema):
            return
    with database.write(timeout_ms=_PATIENCE) as tx:
        tx.one(sql["lock"], (lock_key("layout", database.schema),))
        if _is_current(tx, sql, database.schema):  # another process may have been faster
            return
        for name in _PARTS:
            tx.run(sql[name])
        tx.run(sql["set_layout"], (LAYOUT,))


def _is_current(tx: Tx, sql: dict[str, str], schema: str) -> bool:
    found = _layout(tx, sql)
    if found is not None and found > LAYOUT:
        raise StoreOpenError(
            f"schema {schema} has layout {found}, and this version of Ontologia knows "
            f"layouts up to {LAYOUT}; nothing was changed",
            hint="Open it with the version that wrote it, or a newer one.",
        )
    return found == LAYOUT


def _layout(tx: Tx, sql: dict[str, str]) -> int | None:
    if not tx.one(sql["has_layout"])[0]:
        return None
    version: int | None = tx.one(sql["get_layout"])[0]
    return version
