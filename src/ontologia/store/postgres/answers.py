"""Questions answered: one statement each, rows as `store.rows`."""

from __future__ import annotations

import functools
from typing import Any

from ontologia.query.question import Question
from ontologia.store.postgres.database import Database, Tx
from ontologia.store.postgres.notation import statements
from ontologia.store.postgres.place import qualified
from ontologia.store.postgres.select import Select, group_rows
from ontologia.store.postgres.wire import Statement, prepared
from ontologia.store.questions.rows import (
    entity_sql,
    found_rows,
    path_rows,
    path_sql,
    relation_rows,
    relation_sql,
)
from ontologia.store.questions.statement import single_key
from ontologia.store.rows import TOMBSTONE, EntityRow, ObjectKey, PathRow, RelationRow
from ontologia.store.staging import with_settling


def entities(database: Database, question: Question) -> list[EntityRow]:
    key = single_key(question)
    if key is not None:
        return _point(database, question, key)
    made = Select(question, database.schema, ends=False)
    return _all(database, entity_sql(made), made)


def _point(database: Database, question: Question, key: str) -> list[EntityRow]:
    """Read by key with a statement that needs no making."""
    name, sql = question.shape.name, _state(database.schema)
    if question.as_of is None:
        settling = ("entity", name) in question.settling
        get = "settling_get_entity" if settling else "get_entity"
        rows = database.all(sql[get], (name, key))
    else:
        rows = database.all(sql["get_entity_at"], (name, key, question.as_of))
    return [row for row in rows if row[1] != TOMBSTONE]


def relations(database: Database, question: Question) -> list[RelationRow]:
    made = Select(question, database.schema, ends=True)
    return relation_rows(_all(database, relation_sql(made), made))


def found(tx: Tx, schema: str, question: Question) -> list[tuple[ObjectKey, str]]:
    made = Select(question, schema, ends=False)
    return found_rows(question, _all(tx, entity_sql(made), made))


def paths(database: Database, question: Question) -> list[PathRow]:
    made = Select(question, database.schema, ends=False)
    return path_rows(_all(database, path_sql(made), made), len(question.hops))


def groups(database: Database, question: Question) -> list[tuple[Any, ...]]:
    made = Select(question, database.schema, ends=False)
    return group_rows(question, _all(database, made.groups(), made))


def _all(database: Database | Tx, sql: str, made: Select) -> list[Any]:
    # Without anything bound the driver sends the text as it is, a doubled % included.
    return database.all(sql if made.bindings else sql.replace("%%", "%"), made.bindings)


@functools.cache
def _state(schema: str) -> dict[str, Statement]:
    return prepared(qualified(with_settling(statements("state.sql")), schema))
