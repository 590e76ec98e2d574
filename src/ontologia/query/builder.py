"""The fluent way to put a question. Each call gives a new builder; nothing is asked until the end.

session.query().entities(Customer).where(Customer.tier == "gold").order_by(Customer.name).collect()
session.query().relations(Owns).where(left(Owns).name == "Ada").as_of(12).count()
session.query().entities(Customer).group_by(Customer.tier).agg(n=count(), total=sum(Customer.spent))
session.query().entities(Customer).via(Owns).via(MadeBy).collect()
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from operator import attrgetter
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar, cast

from ontologia.errors import QueryError, QueryTypeError, shown
from ontologia.query import aggregates
from ontologia.query.aggregates import Aggregate, GroupOrder
from ontologia.query.question import Question, both, group_name
from ontologia.query.traversal import Path, next_hop
from ontologia.query.validate import (
    check_aggregate,
    check_condition,
    check_group_condition,
    check_path,
)
from ontologia.schema.entity import Entity
from ontologia.schema.expression import Condition, Expr, Order, path_of
from ontologia.schema.registry import shape_of
from ontologia.schema.relation import Relation

E = TypeVar("E", bound=Entity)
R = TypeVar("R", bound="Relation[Any, Any]")
S = TypeVar("S", bound="Filtered")
T = TypeVar("T")
V = TypeVar("V")


class Answers(Protocol):
    """Whoever can answer a question."""

    def objects(self, question: Question) -> list[Any]:
        """The objects asked for."""
        ...

    def paths(self, question: Question) -> list[Path[Any]]:
        """The ways asked for."""
        ...

    def groups(self, question: Question) -> list[dict[str, Any]]:
        """One dict a group: group fields by name, then aggregates by alias."""
        ...


class QueryBuilder:
    """Where a question starts: at entities or at relations."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def entities(self, cls: type[E]) -> EntityQuery[E]:
        """Ask for entities of a class."""
        return EntityQuery(self._answers, Question(shape_of(cls, "entity")))

    def relations(self, cls: type[R]) -> RelationQuery[R]:
        """Ask for relations of a class."""
        return RelationQuery(self._answers, Question(shape_of(cls, "relation")))


class Filtered:
    """Which objects, of which state, in which order, how many."""

    def __init__(self, answers: Answers, question: Question) -> None:
        self._answers = answers
        self._question = question

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._answers, self._question._replace(**changes))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._question.shape.name}, not asked yet: collect()>"

    def __iter__(self) -> NoReturn:
        raise QueryTypeError(
            "a question is not its answer", hint="Call collect() and go through it."
        )

    def __len__(self) -> NoReturn:
        raise QueryTypeError(
            "a question is not its answer", hint="Call count(), or len(collect())."
        )

    def __bool__(self) -> NoReturn:
        raise QueryTypeError("a question is not its answer", hint="Call count() or first().")

    def where(self, *conditions: Condition) -> Self:
        """Only what satisfies every condition."""
        where = self._question.where
        for condition in conditions:
            check_condition(condition, self._question)
            where = both(where, condition)
        return self._with(where=where)

    def order_by(self, *terms: Expr[Any] | Order) -> Self:
        """Sort by these, the first one first; ties and no order at all go by key."""
        orders: list[Order] = []
        for term in terms:
            order = term.asc() if isinstance(term, Expr) else term
            if not isinstance(order, Order):
                raise QueryTypeError(f"order_by takes fields like Customer.name, got {term!r}")
            check_path(order.path, self._question, "order_by")
            orders.append(order)
        return self._with(order=(*self._question.order, *orders))

    def limit(self, count: int) -> Self:
        """At most this many."""
        return self._with(limit=_whole("limit", count))

    def offset(self, count: int) -> Self:
        """Leave out this many first."""
        return self._with(offset=_whole("offset", count))

    def as_of(self, commit_id: int) -> Self:
        """The state right after that commit; 0 is the empty state before the first.

        The commit of a time is `session.commit_at(when)`.
        """
        return self._with(as_of=_whole("as_of", commit_id, commit_hint(commit_id)))


class Versioned(Filtered):
    """Of which versions: the latest of each object, or all."""

    def with_history(self) -> Self:
        """Every version, oldest first, instead of the latest of each; deletions included."""
        return self._with(history=True)

    def history_since(self, commit_id: int) -> Self:
        """Every version written after that commit, oldest first; deletions included."""
        since = _whole("history_since", commit_id, commit_hint(commit_id))
        return self._with(history=True, since=since)


class Collectable(Versioned, Generic[T]):
    """A question for objects, or for figures about them."""

    def collect(self) -> list[T]:
        """All of them. The number of statements does not depend on theirs."""
        return cast("list[T]", self._answers.objects(self._question))

    def first(self) -> T | None:
        """The first of them, or None."""
        limit = 1 if self._question.limit is None else min(1, self._question.limit)
        found = self._with(limit=limit).collect()
        return found[0] if found else None

    def group_by(self, *fields: Expr[Any]) -> GroupedQuery:
        """One row for each combination of these values; end with `agg(...)`."""
        if not fields:
            raise QueryError("group_by needs at least one field")
        for field in fields:
            if not isinstance(field, Expr) or path_of(field).each is not None:
                raise QueryTypeError(f"group_by takes fields like Customer.tier, got {field!r}")
            check_path(path_of(field), self._question, "group_by")
        return GroupedQuery(self._answers, self._whole()._replace(group_by=fields))

    def agg(self, **named: Aggregate) -> list[dict[str, Any]]:
        """Several aggregates over everything at once: one dict, by the names given to them."""
        return GroupedQuery(self._answers, self._whole()).agg(**named)

    def _whole(self) -> Question:
        """The question for figures: about all that is found, so a page of it makes no sense."""
        if self._question.limit is not None or self._question.offset:
            raise QueryError(
                "limit and offset choose objects to collect; figures are about all that is found",
                hint="Leave them out, or put them after group_by(...) to choose groups.",
            )
        return self._question._replace(order=())

    def count(self) -> int:
        """How many."""
        return cast(int, self._scalar(aggregates.count()))

    def count_where(self, condition: Condition) -> int:
        """How many of them satisfy `condition`."""
        return cast(int, self._scalar(aggregates.count_where(condition)))

    def sum(self, field: Expr[Any]) -> float | None:
        """The sum of a number; None if there is none."""
        return cast("float | None", self._scalar(aggregates.sum(field)))

    def avg(self, field: Expr[Any]) -> float | None:
        """The mean of a number; None if there is none."""
        return cast("float | None", self._scalar(aggregates.avg(field)))

    def avg_len(self, field: Expr[Any]) -> float | None:
        """The mean length of a list; None if there is none."""
        return cast("float | None", self._scalar(aggregates.avg_len(field)))

    def min(self, field: Expr[V]) -> V | None:
        """The least value; None if there is none."""
        return cast("V | None", self._scalar(aggregates.min(field)))

    def max(self, field: Expr[V]) -> V | None:
        """The greatest value; None if there is none."""
        return cast("V | None", self._scalar(aggregates.max(field)))

    def _scalar(self, aggregate: Aggregate) -> Any:
        return self.agg(value=aggregate)[0]["value"]


class EntityQuery(Collectable[E]):
    """A question for entities."""

    def via(self, relation: type[Relation[Any, Any]]) -> PathQuery[E]:
        """Walk from each entity along its relations of this class, in either direction."""
        return PathQuery[E](self._answers, self._question).via(relation)


class RelationQuery(Collectable[R]):
    """A question for relations; those collected carry the entities at their ends."""


class PathQuery(Filtered, Generic[E]):
    """A question for ways along relations.

    Conditions may speak of the entity at the start, of the relations walked, and of their ends.
    """

    def via(self, relation: type[Relation[Any, Any]]) -> PathQuery[E]:
        """And from there along the relations of this class."""
        if self._question.history:
            raise QueryError("via() walks one state; it cannot be combined with history")
        longer = self._with(hops=(*self._question.hops, next_hop(self._question, relation)))
        for path in longer._question.paths:  # what was clear before may mean two steps now
            check_path(path, longer._question, "via")
        return longer

    def collect(self) -> list[Path[E]]:
        """All ways. The number of statements does not depend on theirs."""
        return self._answers.paths(self._question)

    def first(self) -> Path[E] | None:
        """The first way, or None."""
        limit = 1 if self._question.limit is None else min(1, self._question.limit)
        found = self._with(limit=limit).collect()
        return found[0] if found else None


class GroupedQuery:
    """A question for groups; `having`, `order_by`, `limit` and `offset` speak of groups."""

    def __init__(self, answers: Answers, question: Question) -> None:
        self._answers = answers
        self._question = question

    def having(self, *conditions: Condition) -> GroupedQuery:
        """Only groups that satisfy every condition, for example `having(count() > 2)`."""
        having = self._question.having
        for condition in conditions:
            check_group_condition(condition, self._question)
            having = both(having, condition)
        return self._with(having=having)

    def order_by(self, *terms: Expr[Any] | Order | Aggregate | GroupOrder) -> GroupedQuery:
        """Sort groups by fields they are grouped by, or by aggregates."""
        grouped = [path_of(field) for field in self._question.group_by]
        orders: list[Order | GroupOrder] = []
        for term in terms:
            order = term.asc() if isinstance(term, Expr | Aggregate) else term
            if not isinstance(order, Order | GroupOrder):
                raise QueryTypeError(f"order_by takes fields or aggregates, got {term!r}")
            if isinstance(order, GroupOrder):
                check_aggregate(order.aggregate, self._question, "order_by")
            if isinstance(order, Order) and order.path not in grouped:
                raise QueryError(
                    f"groups cannot be ordered by {order.path.label}: not grouped by it"
                )
            orders.append(order)
        return self._with(order=(*self._question.order, *orders))

    def limit(self, count: int) -> GroupedQuery:
        """At most this many groups."""
        return self._with(limit=_whole("limit", count))

    def offset(self, count: int) -> GroupedQuery:
        """Leave out this many groups first."""
        return self._with(offset=_whole("offset", count))

    def agg(self, **named: Aggregate) -> list[dict[str, Any]]:
        """The groups: one dict each, group fields by name, then the aggregates by theirs."""
        if not named:
            raise QueryError("agg needs at least one aggregate, for example agg(n=count())")
        grouped = [group_name(field) for field in self._question.group_by]
        for alias, aggregate in named.items():
            if alias in grouped:
                raise QueryError(f"agg({alias}=...) has the name of a field that is grouped by")
            if not isinstance(aggregate, Aggregate):
                raise QueryTypeError(
                    f"agg({alias}=...) takes an aggregate from ontologia.query, got {aggregate!r}"
                )
            check_aggregate(aggregate, self._question, aggregate.function)
        question = self._question._replace(aggregates=tuple(named.items()))
        return self._answers.groups(question)

    def _with(self, **changes: Any) -> GroupedQuery:
        return GroupedQuery(self._answers, self._question._replace(**changes))


question_of: Callable[[EntityQuery[Any] | RelationQuery[Any] | PathQuery[Any]], Question] = (
    attrgetter("_question")
)
"""What a query asks for, as data."""


def commit_hint(value: object) -> str | None:
    """What helps if this was given for the number of a commit, and is a time."""
    if not isinstance(value, date):  # a datetime is one, too
        return None
    return "session.commit_at(when) is the number of the last commit made by then."


def _whole(what: str, value: object, hint: str | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise QueryTypeError(
            f"{what} takes a whole number from 0 on, got {shown(value)}", hint=hint
        )
    return value
