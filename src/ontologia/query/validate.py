"""Does a condition speak of what is asked for? Checked when the question is put."""

from __future__ import annotations

from ontologia.errors import QueryError, QueryTypeError
from ontologia.query.aggregates import Aggregate, GroupCondition
from ontologia.query.question import Question
from ontologia.schema.expression import (
    And,
    Compare,
    Condition,
    In,
    IsBool,
    IsNull,
    Like,
    Match,
    Not,
    Or,
    Path,
)


def check_condition(condition: object, question: Question) -> None:
    """Raise QueryError unless every path of `condition` belongs to the question."""
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                check_condition(part, question)
        case Not(part):
            check_condition(part, question)
        case Compare(path) | In(path) | Match(path) | Like(path) | IsNull(path) | IsBool(path):
            check_path(path, question, "where")
        case GroupCondition():
            raise QueryError("aggregates are compared in having(...), not in where(...)")
        case _:
            raise QueryTypeError(
                f"expected a condition like Customer.tier == 'gold', got {condition!r}"
            )


def check_group_condition(condition: object, question: Question) -> None:
    """Raise QueryError unless `condition` compares aggregates and nothing else."""
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                check_group_condition(part, question)
        case Not(part):
            check_group_condition(part, question)
        case GroupCondition(aggregate):
            check_aggregate(aggregate, question, "having")
        case Condition():
            raise QueryError("having(...) compares aggregates; put other conditions in where(...)")
        case _:
            raise QueryTypeError(f"expected a condition like count() > 2, got {condition!r}")


def check_aggregate(aggregate: Aggregate, question: Question, what: str) -> None:
    """Raise QueryError unless what is aggregated belongs to the question."""
    if aggregate.path is not None:
        check_path(aggregate.path, question, what)
    if aggregate.condition is not None:
        check_condition(aggregate.condition, question)


def check_path(path: Path, question: Question, what: str) -> None:
    """Raise QueryError unless `path` starts at something the question asks for."""
    names = [question.shape.name, *(hop.relation.name for hop in question.hops)]
    places = names.count(path.owner)
    if places == 0:
        raise QueryError(
            f"{what}: {path.label} is not part of a question for {' via '.join(names)}"
        )
    if places > 1:
        raise QueryError(
            f"{what}: {path.label} could be either of {places} steps of this traversal"
        )
    if what == "order_by" and path.each is not None:
        raise QueryError(f"order_by: {path.label} has many values for one object")
