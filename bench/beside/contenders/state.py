"""Contenders for versioned state: ours, and bare on the same tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import apsw

from bench.bare import sqlite_state as bare
from bench.beside.contenders.contender import BARE, OURS, Database, Fields
from bench.shop import Customer, add_customers, open_shop
from ontologia.query.aggregates import count
from ontologia.runtime.session import Session


class Shop(Protocol):
    """Customers in an open store; every answer is a list, and has all of their fields."""

    def point(self, keys: list[str]) -> list[Any]: ...
    def scan(self) -> list[Any]: ...
    def filter(self, tiers: list[str]) -> list[Any]: ...
    def point_then(self, keys: list[str], version: int) -> list[Any]: ...
    def scan_then(self, version: int) -> list[Any]: ...
    def group(self) -> list[Any]: ...
    def commit(self, changed: list[Fields]) -> None: ...


class State(ABC):
    """A contender for the scenarios with state."""

    name: ClassVar[str]
    database: ClassVar[Database] = "SQLite"
    needs: ClassVar[Mapping[str, str]] = {}
    notes: ClassVar[str]
    cannot: ClassVar[Mapping[str, str]] = {}
    tables: ClassVar[str] = OURS
    """Whose tables it uses: stores of the same tables are built once."""

    @abstractmethod
    def build(self, where: str, entities: int, versions: int) -> None:
        """Customers who have this many versions each, one commit or transaction a version."""

    @abstractmethod
    def opened(self, where: str) -> AbstractContextManager[Shop]: ...


class Ours(State):
    name = OURS
    notes = "A session; `tier` is Field(index=True). A commit is one synced transaction."

    def build(self, where: str, entities: int, versions: int) -> None:
        with open_shop(Path(where)) as session:
            add_customers(session, versions, entities)

    @contextmanager
    def opened(self, where: str) -> Generator[Shop]:
        with open_shop(Path(where)) as session:
            yield _Sessions(session)


class _Sessions:
    def __init__(self, session: Session) -> None:
        self._session = session

    def point(self, keys: list[str]) -> list[Any]:
        ask = self._session.query
        return [ask().entities(Customer).where(Customer.id == key).first() for key in keys]

    def scan(self) -> list[Any]:
        return self._session.query().entities(Customer).collect()

    def filter(self, tiers: list[str]) -> list[Any]:
        ask = self._session.query
        return [ask().entities(Customer).where(Customer.tier == each).collect() for each in tiers]

    def point_then(self, keys: list[str], version: int) -> list[Any]:
        ask = self._session.query
        return [
            ask().entities(Customer).where(Customer.id == key).as_of(version).first()
            for key in keys
        ]

    def scan_then(self, version: int) -> list[Any]:
        return self._session.query().entities(Customer).as_of(version).collect()

    def group(self) -> list[Any]:
        return self._session.query().entities(Customer).group_by(Customer.tier).agg(n=count())

    def commit(self, changed: list[Fields]) -> None:
        self._session.ensure([Customer(**fields) for fields in changed])
        self._session.commit()


class Bare(State):
    name = BARE
    notes = (
        "apsw and orjson on the store's own tables and indexes; rows are dicts. A commit writes "
        "new versions unseen, in one synced transaction."
    )

    def build(self, where: str, entities: int, versions: int) -> None:
        Ours().build(where, entities, versions)

    @contextmanager
    def opened(self, where: str) -> Generator[Shop]:
        with bare.connected(Path(where)) as connection:
            yield _Statements(connection)


class _Statements:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def point(self, keys: list[str]) -> list[Any]:
        return [bare.point(self._connection, key) for key in keys]

    def scan(self) -> list[Any]:
        return bare.customers(self._connection)

    def filter(self, tiers: list[str]) -> list[Any]:
        return [bare.in_tier(self._connection, each) for each in tiers]

    def point_then(self, keys: list[str], version: int) -> list[Any]:
        return [bare.point_as_of(self._connection, key, version) for key in keys]

    def scan_then(self, version: int) -> list[Any]:
        return bare.customers_as_of(self._connection, version)

    def group(self) -> list[Any]:
        return bare.by_tier(self._connection)

    def commit(self, changed: list[Fields]) -> None:
        bare.insert(self._connection, changed)
