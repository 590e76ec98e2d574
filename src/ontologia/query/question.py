"""`Question`: everything a backend needs to know to answer, and nothing it could change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from ontologia.query.aggregates import Aggregate, GroupCondition, GroupOrder
from ontologia.schema.expression import And, Condition, Expr, Not, Or, Order, Path, path_of
from ontologia.schema.shape import Shape

Direction: TypeAlias = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a traversal: a relation, and the way it is walked."""

    relation: Shape
    direction: Direction

    @property
    def near(self) -> str:
        """The side where the walk comes from."""
        return "left" if self.direction == "forward" else "right"

    @property
    def far(self) -> str:
        """The side where the walk goes to."""
        return "right" if self.direction == "forward" else "left"


class Question(NamedTuple):
    """What is asked for, of which state, in which order."""

    shape: Shape
    where: Condition | None = None
    order: tuple[Order | GroupOrder, ...] = ()
    limit: int | None = None
    offset: int = 0
    as_of: int | None = None
    """State after this commit; None for the current one. 0 is the empty state before the first."""
    history: bool = False
    """Every version instead of one per key."""
    since: int | None = None
    """With history: only versions after this commit."""
    hops: tuple[Hop, ...] = ()
    group_by: tuple[Expr[Any], ...] = ()
    having: Condition | None = None
    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    fills: Mapping[tuple[str, str], Mapping[str, str]] = {}
    """What is put where objects lack a field, by kind and name of their type and by the field: a
    JSON object with that field. They were written before it was added."""

    settling: Collection[tuple[str, str]] = frozenset()
    """Kind and name of types of which current objects may not be in their places yet."""

    @property
    def historical(self) -> bool:
        """Whether rows of the past may be read, written under an older schema."""
        return self.history or self.as_of is not None

    @property
    def paths(self) -> list[Path]:
        """Every value that conditions, order, groups and aggregates look at."""
        if not (self.order or self.group_by or self.aggregates or self.having is not None):
            path = getattr(self.where, "path", None)
            if isinstance(path, Path):
                return [path]  # one condition and nothing else: the most common question
        found = [term.path for term in self.order if isinstance(term, Order)]
        found += [path_of(expr) for expr in self.group_by]
        conditions = [self.where]
        aggregates = [aggregate for _, aggregate in self.aggregates]
        aggregates += [term.aggregate for term in self.order if isinstance(term, GroupOrder)]
        aggregates += [
            part.aggregate for part in leaves(self.having) if isinstance(part, GroupCondition)
        ]
        for aggregate in aggregates:
            found += [aggregate.path] if aggregate.path else []
            conditions.append(aggregate.condition)
        for condition in conditions:
            for leaf in leaves(condition):
                path = getattr(leaf, "path", None)
                found += [path] if isinstance(path, Path) else []
        return found


def leaves(condition: Condition | None) -> list[Condition]:
    """The single statements that a condition is made of."""
    match condition:
        case None:
            return []
        case And(parts) | Or(parts):
            return [leaf for part in parts for leaf in leaves(part)]
        case Not(part):
            return leaves(part)
        case _:
            return [condition]


def both(first: Condition | None, second: Condition) -> Condition:
    """`first & second`, where there may be no first yet."""
    if first is None:
        return second
    if isinstance(first, And):
        return And((*first.parts, second))
    return And((first, second))


def group_name(expr: Expr[Any]) -> str:
    """What a field that is grouped by is called in the result: `tier`, `left.tier`, `data.a.b`."""
    path = path_of(expr)
    side = () if path.side == "own" else (path.side,)
    return ".".join(str(part) for part in (*side, path.field, *path.steps) if part != "")
