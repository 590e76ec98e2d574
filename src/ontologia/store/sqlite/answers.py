"""Questions answered: one statement each, rows as `store.rows`."""

from __future__ import annotations

from typing import Any

from ontologia.query.question import Question
from ontologia.store.rows import EndRow, PathRow, RelationRow, Version
from ontologia.store.sqlite.database import Tx
from ontologia.store.sqlite.select import (
    END,
    end_columns,
    group_statement,
    order_terms,
    select,
    version_columns,
)


def entities(tx: Tx, question: Question) -> list[Version]:
    made = select(question, ends=False)
    sql = made.sql(version_columns(question, question.shape, "e"), order=order_terms(made))
    return [
        Version((key,), fields, commit_id, version, bool(deleted))
        for key, fields, commit_id, version, deleted in tx.all(sql, made.bindings)
    ]


def relations(tx: Tx, question: Question) -> list[RelationRow]:
    made = select(question, ends=True)
    columns = version_columns(question, question.shape, "e")
    for side, alias in END.items():
        known = question.shape.ends[side] is not None
        columns += end_columns(question, alias) if known else ["NULL"] * 3
    rows = tx.all(made.sql(columns, order=order_terms(made)), made.bindings)
    return [
        RelationRow(_relation(row[:7]), EndRow(*row[7:10]), EndRow(*row[10:13])) for row in rows
    ]


def paths(tx: Tx, question: Question) -> list[PathRow]:
    made = select(question, ends=False)
    columns = version_columns(question, question.shape, "e")
    for number, hop in enumerate(question.hops):
        columns += version_columns(question, hop.relation, f"r{number}")
        columns += end_columns(question, f"x{number}")
    rows = tx.all(made.sql(columns, order=order_terms(made)), made.bindings)
    return [_path(row, len(question.hops)) for row in rows]


def groups(tx: Tx, question: Question) -> list[tuple[Any, ...]]:
    sql, bindings = group_statement(question)
    return tx.all(sql, bindings)


def _relation(row: Any) -> Version:
    return Version(tuple(row[:3]), row[3], row[4], row[5], bool(row[6]))


def _path(row: Any, hops: int) -> PathRow:
    key, fields, commit_id, version, deleted = row[:5]
    source = Version((key,), fields, commit_id, version, bool(deleted))
    steps = [
        (_relation(row[start : start + 7]), EndRow(*row[start + 7 : start + 10]))
        for start in range(5, 5 + hops * 10, 10)
    ]
    return PathRow(source, tuple(steps))
