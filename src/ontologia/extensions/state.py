"""State for extensions, which have no classes: types by name, objects as dicts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ontologia.commands.domain import condition, orders
from ontologia.extensions.threads import Threads
from ontologia.query.builder import EntityQuery
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.stored import StoredTypes
from ontologia.schema.entity import Entity
from ontologia.schema.shape import Shape
from ontologia.schema.stored import plain

T = TypeVar("T")


class Types:
    """The entity types of a session, by name: its own classes, else what the store knows of them.

    Made once a session: one name means one class. Any thread may ask.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: dict[str, type[Entity]] = {}
        self._lock = threading.Lock()

    def entity(self, name: str) -> type[Entity]:
        """The class of an entity type; NotFoundError, with the name that was meant, if unknown."""
        registered = core_of(self._session).registry.find("entity", name)
        if registered is not None:
            found: type[Entity] = registered.cls
            return found
        with self._lock:
            if name not in self._made:
                self._made[name] = StoredTypes.of(self._session).entity(name)
            return self._made[name]

    def instance(self, name: str, fields: dict[str, Any]) -> Entity:
        """An object of a type, checked as by its class."""
        return self.entity(name)(**fields)

    def to_delete(self, name: str, key: Any) -> Entity:
        """An object of which only the key is known, which is all that a deletion looks at."""
        cls = self.entity(name)
        shape: Shape = cls.__shape__
        field = shape.key or ""
        obj = cls.__new__(cls)
        object.__setattr__(obj, "__dict__", {field: shape.validate_one(field, key)})
        return obj


@dataclass(frozen=True, slots=True)
class StateQuery:
    """A question for the objects of one type. Each call gives a new one; nothing is asked until
    `await`: `await ctx.query("Customer").where(("tier", "=", "gold")).order_by("name").collect()`.
    """

    _types: Types
    _session: Session
    _threads: Threads
    _name: str
    _domains: tuple[tuple[Any, ...], ...] = ()
    _orders: tuple[str, ...] = ()
    _limit: int | None = None
    _offset: int = 0
    _as_of: int | None = None

    def where(self, *terms: Any) -> StateQuery:
        """Only what satisfies every `(field, operator, value)`.

        Operators are `= != < <= > >= in`, `not in`, `like`, `ilike`; a field may be dotted to look
        into its JSON; `"|"`, `"&"` and `"!"` stand before the terms that they join.
        """
        return replace(self, _domains=(*self._domains, terms))

    def order_by(self, *fields: str) -> StateQuery:
        """Sort by these, the first one first: `"name"`, `"spent desc"`. Without, by key."""
        return replace(self, _orders=(*self._orders, *fields))

    def limit(self, count: int) -> StateQuery:
        """At most this many."""
        return replace(self, _limit=count)

    def offset(self, count: int) -> StateQuery:
        """Leave out this many first."""
        return replace(self, _offset=count)

    def as_of(self, commit_id: int) -> StateQuery:
        """The state right after that commit."""
        return replace(self, _as_of=commit_id)

    async def collect(self) -> list[dict[str, Any]]:
        """All of them, each a dict of its fields as they are stored. One read."""
        return await self._ask(lambda query: [_plain(obj) for obj in query.collect()])

    async def first(self) -> dict[str, Any] | None:
        """The first of them; None if there is none."""

        def first(query: EntityQuery[Any]) -> dict[str, Any] | None:
            found = query.first()
            return None if found is None else _plain(found)

        return await self._ask(first)

    async def count(self) -> int:
        """How many there are; `limit` and `offset` count for nothing here."""
        return await replace(self, _limit=None, _offset=0)._ask(lambda query: query.count())

    async def _ask(self, answer: Callable[[EntityQuery[Any]], T]) -> T:
        return await self._threads.run(lambda: answer(self._question()))

    def _question(self) -> EntityQuery[Any]:
        cls = self._types.entity(self._name)
        shape: Shape = cls.__shape__
        query = self._session.query().entities(cls)
        for domain in self._domains:
            found = condition(shape, domain)
            query = query if found is None else query.where(found)
        for order in self._orders:
            query = query.order_by(*orders(shape, order))
        if self._as_of is not None:
            query = query.as_of(self._as_of)
        if self._limit is not None:
            query = query.limit(self._limit)
        return query.offset(self._offset) if self._offset else query


def _plain(obj: Any) -> dict[str, Any]:
    return plain(obj.__shape__, obj.__dict__)
