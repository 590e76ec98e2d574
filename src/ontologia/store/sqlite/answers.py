"""Questions answered: one statement each, rows as `store.rows`."""

from __future__ import annotations

from typing import Any

from ontologia.query.question import Question
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
from ontologia.store.sqlite.database import Database, Tx
from ontologia.store.sqlite.notation import statements
from ontologia.store.sqlite.select import Select
from ontologia.store.staging import with_settling

_STATE = with_settling(statements("state.sql"))


def entities(database: Database, question: Question) -> list[EntityRow]:
    key = single_key(question)
    if key is not None:
        return _point(database, question, key)
    made = Select(question, ends=False)
    return database.all(entity_sql(made), made.bindings)


def _point(database: Database, question: Question, key: str) -> list[EntityRow]:
    """Read by key with a statement that needs no making: half the time is spent there otherwise."""
    name = question.shape.name
    if question.as_of is None:
        settling = ("entity", name) in question.settling
        get = "settling_get_entity" if settling else "get_entity"
        rows = database.all(_STATE[get], (name, key))
    else:
        rows = database.all(_STATE["get_entity_at"], (name, key, question.as_of))
    return [row for row in rows if row[1] != TOMBSTONE]


def relations(database: Database, question: Question) -> list[RelationRow]:
    made = Select(question, ends=True)
    return relation_rows(database.all(relation_sql(made), made.bindings))


def found(tx: Tx, question: Question) -> list[tuple[ObjectKey, str]]:
    made = Select(question, ends=False)
    return found_rows(question, tx.all(entity_sql(made), made.bindings))


def paths(database: Database, question: Question) -> list[PathRow]:
    made = Select(question, ends=False)
    rows = database.all(path_sql(made), made.bindings)
    return path_rows(rows, len(question.hops))


def groups(database: Database, question: Question) -> list[tuple[Any, ...]]:
    made = Select(question, ends=False)
    return database.all(made.groups(), made.bindings)
