"""The columns of a statement's rows, and what `store.rows` makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ontologia.query.question import Question
from ontologia.store.questions.statement import END, KEYS, Statement
from ontologia.store.rows import EndRow, ObjectKey, PathRow, RelationRow, Version


def entity_sql(made: Statement[Any]) -> str:
    columns = made.version_columns(made.question.shape, "e")
    return made.sql(columns, order=made.order_terms())


def found_rows(question: Question, rows: Iterable[Any]) -> list[tuple[ObjectKey, str]]:
    """Key and fields, from the rows of `entity_sql` on either kind."""
    parts = len(KEYS[question.shape.kind])
    return [(tuple(row[:parts]), row[parts]) for row in rows]


def relation_sql(made: Statement[Any]) -> str:
    shape = made.question.shape
    columns = made.version_columns(shape, "e")
    for side, alias in END.items():
        known = shape.ends[side] is not None
        columns += made.end_columns(alias) if known else ["NULL"] * 3
    return made.sql(columns, order=made.order_terms())


def path_sql(made: Statement[Any]) -> str:
    question = made.question
    columns = made.version_columns(question.shape, "e")
    for number, hop in enumerate(question.hops):
        columns += made.version_columns(hop.relation, f"r{number}")
        columns += made.end_columns(f"x{number}")
    return made.sql(columns, order=made.order_terms())


def relation_rows(rows: Iterable[Any]) -> list[RelationRow]:
    return [
        RelationRow(_relation(row[:7]), EndRow(*row[7:10]), EndRow(*row[10:13])) for row in rows
    ]


def path_rows(rows: Iterable[Any], hops: int) -> list[PathRow]:
    return [_path(row, hops) for row in rows]


def _relation(row: Any) -> Version:
    return Version(tuple(row[:3]), row[3], row[4], row[5], row[6])


def _path(row: Any, hops: int) -> PathRow:
    steps = [
        (_relation(row[start : start + 7]), EndRow(*row[start + 7 : start + 10]))
        for start in range(5, 5 + hops * 10, 10)
    ]
    return PathRow(row[:5], tuple(steps))
