"""Questions answered: one statement each, rows as `store.rows`."""

from __future__ import annotations

from typing import Any

from ontologia.query.question import Question
from ontologia.schema.expression import Compare
from ontologia.store.named import statements
from ontologia.store.rows import TOMBSTONE, EndRow, EntityRow, PathRow, RelationRow, Version
from ontologia.store.sqlite.database import Database
from ontologia.store.sqlite.filters import key_text
from ontologia.store.sqlite.select import (
    END,
    end_columns,
    group_statement,
    order_terms,
    select,
    version_columns,
)

_STATE = statements("ontologia.store.sqlite", "state.sql")


def entities(database: Database, question: Question) -> list[EntityRow]:
    key = _single_key(question)
    if key is not None:
        return _point(database, question, key)
    made = select(question, ends=False)
    sql = made.sql(version_columns(question, question.shape, "e"), order=order_terms(made))
    return database.all(sql, made.bindings)


def _single_key(question: Question) -> str | None:
    """The key, when a question asks for one entity by its key and for nothing else."""
    where = question.where
    if not isinstance(where, Compare) or where.path.column != "key" or where.op != "==":
        return None
    plain = not question.history and question.limit != 0 and not question.offset
    return key_text(where.value) if plain else None


def _point(database: Database, question: Question, key: str) -> list[EntityRow]:
    """Read by key with a statement that needs no making: half the time is spent there otherwise."""
    name = question.shape.name
    if question.as_of is None:
        rows = database.all(_STATE["get_entity"], (name, key))
    else:
        rows = database.all(_STATE["get_entity_at"], (name, key, question.as_of))
    return [row for row in rows if row[1] != TOMBSTONE]


def relations(database: Database, question: Question) -> list[RelationRow]:
    made = select(question, ends=True)
    columns = version_columns(question, question.shape, "e")
    for side, alias in END.items():
        known = question.shape.ends[side] is not None
        columns += end_columns(question, alias) if known else ["NULL"] * 3
    rows = database.all(made.sql(columns, order=order_terms(made)), made.bindings)
    return [
        RelationRow(_relation(row[:7]), EndRow(*row[7:10]), EndRow(*row[10:13])) for row in rows
    ]


def paths(database: Database, question: Question) -> list[PathRow]:
    made = select(question, ends=False)
    columns = version_columns(question, question.shape, "e")
    for number, hop in enumerate(question.hops):
        columns += version_columns(question, hop.relation, f"r{number}")
        columns += end_columns(question, f"x{number}")
    rows = database.all(made.sql(columns, order=order_terms(made)), made.bindings)
    return [_path(row, len(question.hops)) for row in rows]


def groups(database: Database, question: Question) -> list[tuple[Any, ...]]:
    sql, bindings = group_statement(question)
    return database.all(sql, bindings)


def _relation(row: Any) -> Version:
    return Version(tuple(row[:3]), row[3], row[4], row[5], row[6])


def _path(row: Any, hops: int) -> PathRow:
    steps = [
        (_relation(row[start : start + 7]), EndRow(*row[start + 7 : start + 10]))
        for start in range(5, 5 + hops * 10, 10)
    ]
    return PathRow(row[:5], tuple(steps))
