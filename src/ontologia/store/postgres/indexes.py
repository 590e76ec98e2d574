"""Real indexes for `Field(index=True)`, on the table of what is current.

The index is on the very expression that conditions compare, for objects of one type.

What ANALYZE learns of a partial index the planner does not use: it would take a third of the table
for a range, and read all of it. So the values get statistics of their own.
"""

from __future__ import annotations

from typing import get_args

from ontologia.schema.fieldtype import Kind
from ontologia.store.postgres.database import Database, lock_key
from ontologia.store.postgres.filters import indexed
from ontologia.store.questions.conditions import Doc, literal
from ontologia.store.questions.names import short_index_name

_FIND = "SELECT to_regclass(%s)::text"


def create_index(
    database: Database, kind: str, type_name: str, field: str, value_kind: str
) -> None:
    """Make the index unless it is there. One read if it is."""
    schema, table = database.schema, f'"{database.schema}".{kind}_latest'
    name = short_index_name(kind, type_name, field, value_kind)
    place = (f'"{schema}"."{name}"',)
    if database.all(_FIND, place)[0][0] is not None:
        return
    value = indexed(Doc("fields", {}, text="fields_json"), field, value_kind)
    with database.write() as tx:
        tx.one("SELECT pg_advisory_xact_lock(%s)", (lock_key("indexes", schema),))
        if tx.one(_FIND, place)[0] is not None:
            return  # another process was faster
        for other in get_args(Kind):  # the field may have had another type
            old = short_index_name(kind, type_name, field, other)
            tx.run(f'DROP INDEX IF EXISTS "{schema}"."{old}"')
        tx.run(
            f'CREATE INDEX "{name}" ON {table} (({value}) NULLS FIRST) '
            f"WHERE {kind}_type = {literal(type_name)}"
        )
        # One for all types that have such a field.
        about = short_index_name(f"values_{kind}", "", field, value_kind)
        tx.run(f'CREATE STATISTICS IF NOT EXISTS "{schema}"."{about}" ON ({value}) FROM {table}')
        tx.run(f"ANALYZE {table}")
