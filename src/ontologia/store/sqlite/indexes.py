"""Real indexes for `Field(index=True)`, on the table of what is current.

The type is in the index twice, as a column and as a condition. The condition keeps other types
out; without the column SQLite would not use the index for ranges and lists.
"""

from __future__ import annotations

from typing import get_args

from ontologia.schema.fieldtype import Kind
from ontologia.store.questions.conditions import Doc, json_path, literal
from ontologia.store.questions.names import index_name
from ontologia.store.sqlite.database import Database
from ontologia.store.sqlite.filters import Compiler, decimal_index


def create_index(
    database: Database,
    kind: str,
    type_name: str,
    field: str,
    value_kind: str,
    fill: str | None = None,
) -> None:
    """Make the index unless it is there. One read if it is."""
    name = index_name(kind, type_name, field, value_kind, fill)
    if database.all("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)):
        return
    doc = Doc("fields", {})
    if fill is not None:
        doc = Compiler.filled(doc, field, fill)
    value = f"json_extract({doc.fields}, {literal(json_path(field))})"
    if value_kind == "decimal":
        value = decimal_index(value)
    with database.write() as tx:
        if tx.one("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)):
            return  # another process was faster
        for other in get_args(Kind):  # the field may have had another type, or no fill
            old = index_name(kind, type_name, field, other)
            tx.run(f'DROP INDEX IF EXISTS "{old}"')
            tx.run("DELETE FROM sqlite_stat1 WHERE idx = ?", (old,))
        tx.run(
            f'CREATE INDEX "{name}" ON {kind}_latest({kind}_type, {value}) '
            f"WHERE {kind}_type = {literal(type_name)}"
        )
        # As in layout.sql: what the planner should assume, one value in 50 rows.
        tx.run(
            "INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES (?, ?, '250000 250000 50')",
            (f"{kind}_latest", name),
        )
        tx.run("ANALYZE sqlite_schema")
