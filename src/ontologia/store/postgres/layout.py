"""The tables, made or brought up to date when a database is opened.

All of it is one transaction, under a lock: however many processes open at once, one makes the
tables and the others find them. Opening a database of the current layout writes nothing, and
needs no right to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg import errors

from ontologia.errors import DatabaseError, StoreOpenError
from ontologia.store.newer import NewerLayout
from ontologia.store.postgres.database import Database, Tx, lock_key
from ontologia.store.postgres.notation import statements
from ontologia.store.postgres.place import qualified
from ontologia.store.unfinished import unfinished

LAYOUT = 7
"""1 had events alone, 2 no indexes for `why` and `trace`, 3 no replies and no
journal, 4 no conflicts, tracebacks and id of the store, 5 no intakes,
archives and fills of new fields, 6 no migrations in the background. Every step can run again without harm, so one list is all upgrades."""
PARTS = (
    "schema",
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
_PATIENCE = 60_000  # milliseconds: whoever makes the tables is soon done


def prepare(database: Database) -> str:
    """Bring the schema to the current layout and return the store's id; a newer one is refused."""
    sql = layout_statements(database.schema)
    with database.read() as tx:
        found, store_id = _checked(tx, sql, database.schema)
    if found == LAYOUT and store_id is not None:
        return store_id
    if database.standby:
        raise StoreOpenError(
            f"schema {database.schema} has no tables of this version yet, and the server is a "
            f"standby, on which none can be made; nothing was changed",
            hint="Open a session on the primary once; the standby has them a moment later.",
        )
    try:
        return _make(database, sql)
    except DatabaseError as error:
        if found is None or not isinstance(error.__cause__, errors.InsufficientPrivilege):
            raise
        raise StoreOpenError(
            f"schema {database.schema} has layout {found}, this version of Ontologia needs "
            f"{LAYOUT}, and this role may not change tables; nothing was changed",
            hint="Let their owner apply what `ontologia schema sql` prints, or open a session.",
        ) from error


def _make(database: Database, sql: dict[str, str]) -> str:
    with database.write(timeout_ms=_PATIENCE, unlimited=True) as tx:
        tx.one(sql["lock"], {"key": lock_key("layout", database.schema)})
        found, store_id = _checked(tx, sql, database.schema)
        if found == LAYOUT and store_id is not None:
            return store_id  # another process was faster
        for name in PARTS:
            tx.run(sql[name])
        tx.run(sql["set_layout"], {"version": LAYOUT})
        made: str = tx.one(sql["get_layout"])[1]
        return made


def layout_statements(schema: str) -> dict[str, str]:
    """The statements of `layout.sql` for this schema, by name."""
    return qualified(statements("layout.sql"), schema)


def _checked(tx: Tx, sql: dict[str, str], schema: str) -> tuple[int | None, str | None]:
    """The schema's layout and store id; StoreOpenError if it cannot be worked with."""
    found, store_id, copied = found_layout(tx.one, sql)
    if copied:
        raise unfinished(f"schema {schema}", tx.one(sql["get_copy"])[0])
    if found is not None and found > LAYOUT:
        raise NewerLayout(f"schema {schema}", found, LAYOUT)
    return found, store_id


def found_layout(
    one: Callable[[str], Any], sql: dict[str, str]
) -> tuple[int | None, str | None, bool]:
    """The schema's layout, the store's id, and whether a copy into it is unfinished.

    `one` gives the first row of a statement.
    """
    has_layout, has_copy = one(sql["has_layout"])
    version, store_id = (one(sql["get_layout"]) or (None, None)) if has_layout else (None, None)
    return version, store_id, has_copy
