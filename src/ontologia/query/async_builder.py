"""The same queries for asyncio: built alike, and awaited where they are answered.

await session.query().entities(Customer).where(Customer.tier == "gold").collect()
async for customer in session.query().entities(Customer): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from ontologia.query.aggregates import Aggregate, GroupOrder
from ontologia.query.builder import (
    Answers,
    Collectable,
    EntityQuery,
    Filtered,
    GroupedQuery,
    PathQuery,
    Versioned,
)
from ontologia.query.question import Question
from ontologia.query.traversal import Path
from ontologia.schema.entity import Entity
from ontologia.schema.expression import Condition, Expr, Order
from ontologia.schema.registry import shape_of
from ontologia.schema.relation import Relation

E = TypeVar("E", bound=Entity)
R = TypeVar("R", bound="Relation[Any, Any]")
T = TypeVar("T")
V = TypeVar("V")


class Ask(Protocol):
    """Calls a function that waits for the database, where that holds up no task."""

    def __call__(self, function: Callable[[], V], /) -> Awaitable[V]:
        """What the function returns."""
        ...


class AsyncQueryBuilder:
    """Where a query starts: at entities or at relations."""

    def __init__(self, answers: Answers, ask: Ask) -> None:
        self._answers = answers
        self._ask = ask

    def entities(self, cls: type[E]) -> AsyncEntityQuery[E]:
        """Ask for entities of a class."""
        return AsyncEntityQuery(self._answers, Question(shape_of(cls, "entity")), self._ask)

    def relations(self, cls: type[R]) -> AsyncRelationQuery[R]:
        """Ask for relations of a class."""
        return AsyncRelationQuery(self._answers, Question(shape_of(cls, "relation")), self._ask)


class _Asking(Filtered):
    """A query together with how to ask it."""

    def __init__(self, answers: Answers, question: Question, ask: Ask) -> None:
        super().__init__(answers, question)
        self._ask = ask

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._answers, self._question._replace(**changes), self._ask)


class _AsyncCollectable(_Asking, Versioned, Generic[T]):
    """A query for objects, or for figures about them."""

    @property
    def _plain(self) -> Collectable[T]:
        return Collectable(self._answers, self._question)

    async def collect(self) -> list[T]:
        """All of them. The number of statements does not depend on theirs."""
        return await self._ask(self._plain.collect)

    async def __aiter__(self) -> AsyncIterator[T]:
        """One after the other; they are read at once, as by `collect`."""
        for each in await self.collect():
            yield each

    async def first(self) -> T | None:
        """The first of them, or None."""
        return await self._ask(self._plain.first)

    def group_by(self, *fields: Expr[Any]) -> AsyncGroupedQuery:
        """One row for each combination of these values; end with `agg(...)`."""
        return AsyncGroupedQuery(self._plain.group_by(*fields), self._ask)

    async def agg(self, **named: Aggregate) -> list[dict[str, Any]]:
        """Several aggregates over everything at once: one dict, by the names given to them."""
        return await self._ask(lambda: self._plain.agg(**named))

    async def count(self) -> int:
        """How many."""
        return await self._ask(self._plain.count)

    async def count_where(self, condition: Condition) -> int:
        """How many of them satisfy `condition`."""
        return await self._ask(lambda: self._plain.count_where(condition))

    async def sum(self, field: Expr[Any]) -> float | None:
        """The sum of a number; None if there is none."""
        return await self._ask(lambda: self._plain.sum(field))

    async def avg(self, field: Expr[Any]) -> float | None:
        """The mean of a number; None if there is none."""
        return await self._ask(lambda: self._plain.avg(field))

    async def avg_len(self, field: Expr[Any]) -> float | None:
        """The mean length of a list; None if there is none."""
        return await self._ask(lambda: self._plain.avg_len(field))

    async def min(self, field: Expr[V]) -> V | None:
        """The least value; None if there is none."""
        return await self._ask(lambda: self._plain.min(field))

    async def max(self, field: Expr[V]) -> V | None:
        """The greatest value; None if there is none."""
        return await self._ask(lambda: self._plain.max(field))


class AsyncEntityQuery(_AsyncCollectable[E]):
    """A query for entities."""

    def via(self, relation: type[Relation[Any, Any]]) -> AsyncPathQuery[E]:
        """Walk from each entity along its relations of this class, in either direction."""
        walked = EntityQuery[E](self._answers, self._question).via(relation)
        return AsyncPathQuery[E](self._answers, walked._question, self._ask)


class AsyncRelationQuery(_AsyncCollectable[R]):
    """A query for relations; those collected carry the entities at their ends."""


class AsyncPathQuery(_Asking, Generic[E]):
    """A query for ways along relations."""

    @property
    def _plain(self) -> PathQuery[E]:
        return PathQuery(self._answers, self._question)

    def via(self, relation: type[Relation[Any, Any]]) -> AsyncPathQuery[E]:
        """And from there along the relations of this class."""
        return AsyncPathQuery[E](self._answers, self._plain.via(relation)._question, self._ask)

    async def collect(self) -> list[Path[E]]:
        """All ways. The number of statements does not depend on theirs."""
        return await self._ask(self._plain.collect)

    async def __aiter__(self) -> AsyncIterator[Path[E]]:
        """One after the other; they are read at once, as by `collect`."""
        for each in await self.collect():
            yield each

    async def first(self) -> Path[E] | None:
        """The first way, or None."""
        return await self._ask(self._plain.first)


class AsyncGroupedQuery:
    """A query for groups; `having`, `order_by`, `limit` and `offset` speak of groups."""

    def __init__(self, plain: GroupedQuery, ask: Ask) -> None:
        self._plain = plain
        self._ask = ask

    def having(self, *conditions: Condition) -> AsyncGroupedQuery:
        """Only groups that satisfy every condition, for example `having(count() > 2)`."""
        return AsyncGroupedQuery(self._plain.having(*conditions), self._ask)

    def order_by(self, *terms: Expr[Any] | Order | Aggregate | GroupOrder) -> AsyncGroupedQuery:
        """Sort groups by fields they are grouped by, or by aggregates."""
        return AsyncGroupedQuery(self._plain.order_by(*terms), self._ask)

    def limit(self, count: int) -> AsyncGroupedQuery:
        """At most this many groups."""
        return AsyncGroupedQuery(self._plain.limit(count), self._ask)

    def offset(self, count: int) -> AsyncGroupedQuery:
        """Leave out this many groups first."""
        return AsyncGroupedQuery(self._plain.offset(count), self._ask)

    async def agg(self, **named: Aggregate) -> list[dict[str, Any]]:
        """The groups: one dict each, group fields by name, then the aggregates by theirs."""
        return await self._ask(lambda: self._plain.agg(**named))
