"""A question, as data: filters, paths, aggregates, traversal. Asks nobody.

The aggregates for `agg(...)` and `having(...)` are `count sum avg min max count_where avg_len`.
"""

from ontologia.query.aggregates import Aggregate, avg, avg_len, count, count_where, max, min, sum
from ontologia.query.builder import (
    EntityQuery,
    GroupedQuery,
    PathQuery,
    QueryBuilder,
    RelationQuery,
)
from ontologia.query.question import Question
from ontologia.query.traversal import Path
from ontologia.schema.expression import Condition, Expr, Order

__all__ = [
    "Aggregate",
    "Condition",
    "EntityQuery",
    "Expr",
    "GroupedQuery",
    "Order",
    "Path",
    "PathQuery",
    "QueryBuilder",
    "Question",
    "RelationQuery",
    "avg",
    "avg_len",
    "count",
    "count_where",
    "max",
    "min",
    "sum",
]
