"""Real indexes for `Field(index=True)`, on the table of what is current.

The type is in the index twice, as a column and as a condition. The condition keeps other types
out; without the column SQLite would not use the index for ranges and lists.
"""

from __future__ import annotations

import hashlib

from ontologia.store.sqlite.database import Database
from ontologia.store.sqlite.filters import decimal_index, json_path, literal


def create_index(
    database: Database, kind: str, type_name: str, field: str, value_kind: str
) -> None:
    """Make the index unless it is there. One read if it is."""
    name = index_name(kind, type_name, field)
    if database.all("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)):
        return
    value = f"json_extract(fields, {literal(json_path(field))})"
    if value_kind == "decimal":
        value = decimal_index(value)
    with database.write() as tx:
        tx.run(
            f'CREATE INDEX IF NOT EXISTS "{name}" ON {kind}_latest({kind}_type, {value}) '
            f"WHERE {kind}_type = {literal(type_name)}"
        )
        # As in layout.sql: what the planner should assume, one value in 50 rows.
        tx.run(
            "INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES (?, ?, '250000 250000 50')",
            (f"{kind}_latest", name),
        )
        tx.run("ANALYZE sqlite_schema")


def index_name(kind: str, type_name: str, field: str) -> str:
    """A name for the index of a field: readable where the names are plain, and always unique."""
    plain = f"{type_name}_{field}"
    if plain.isascii():
        mark = hashlib.sha256(f"{type_name}.{field}".encode()).hexdigest()[:8]
        return f"idx_{kind}_{plain}_{mark}"
    return f"idx_{kind}_{hashlib.sha256(f'{type_name}.{field}'.encode()).hexdigest()[:24]}"
