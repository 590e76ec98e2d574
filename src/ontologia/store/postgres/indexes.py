"""Real indexes for `Field(index=True)`, on the table of what is current.

The index is on the very expression that conditions compare, for objects of one type.

What ANALYZE learns of a partial index the planner does not use: it would take a third of the table
for a range, and read all of it. So the values get statistics of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import get_args

from psycopg import errors

from ontologia.errors import DatabaseError
from ontologia.schema.fieldtype import Kind
from ontologia.store.postgres.database import Database, lock_key
from ontologia.store.postgres.filters import Compiler, indexed
from ontologia.store.questions.conditions import Doc, literal
from ontologia.store.questions.names import short_index_name

log = logging.getLogger(__name__)
_FIND = "SELECT to_regclass(%s)::text"
_told: set[str] = set()
"""Indexes that are missing because this program may not make them; each is told once."""


def create_index(
    database: Database,
    kind: str,
    type_name: str,
    field: str,
    value_kind: str,
    fill: str | None = None,
) -> None:
    """Make the index unless it is there. One read if it is.

    A role that may not make it goes on without, and a warning says what the owner can run.
    """
    schema, table = database.schema, f'"{database.schema}".{kind}_latest'
    name = short_index_name(kind, type_name, field, value_kind, fill)
    place = (f'"{schema}"."{name}"',)
    if database.all(_FIND, place)[0][0] is not None:
        return
    doc = Doc("fields", {}, text="fields_json")
    if fill is not None:
        doc = Compiler.filled(doc, field, fill)
    value = indexed(doc, field, value_kind)
    # One for all types that have such a field.
    about = short_index_name(f"values_{kind}", "", field, value_kind, fill)
    of_type = f"WHERE {kind}_type = {literal(type_name)}"
    steps = (
        f'CREATE INDEX "{name}" ON {table} (({value}) NULLS FIRST) {of_type}',
        f'CREATE STATISTICS IF NOT EXISTS "{schema}"."{about}" ON ({value}) FROM {table}',
        f"ANALYZE {table}",
    )
    try:
        with database.write(unlimited=True) as tx:
            tx.one("SELECT pg_advisory_xact_lock(%s)", (lock_key("indexes", schema),))
            if tx.one(_FIND, place)[0] is not None:
                return  # another process was faster
            for other in get_args(Kind):  # the field may have had another type, or no fill
                old = short_index_name(kind, type_name, field, other)
                tx.run(f'DROP INDEX IF EXISTS "{schema}"."{old}"')
            for step in steps:
                tx.run(step)
    except DatabaseError as error:
        if not isinstance(error.__cause__, errors.InsufficientPrivilege):
            raise
        _tell(f'{database.shown} "{schema}"."{name}"', f"{type_name}.{field}", steps)


def _tell(index: str, field: str, steps: Sequence[str]) -> None:
    if index not in _told:
        _told.add(index)
        log.warning(
            "%s has no index, and this role may not make it: questions about it read every "
            "object of the type. The owner of the tables can run: %s;",
            field,
            "; ".join(steps),
        )
