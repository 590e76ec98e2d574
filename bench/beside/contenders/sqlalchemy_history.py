"""SQLAlchemy-History (the maintained fork of SQLAlchemy-Continuum), on SQLite."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from bench.beside.contenders.contender import Fields
from bench.beside.contenders.state import Shop, State
from bench.shop import rows

_PORTION = 10_000  # values in one IN (...), below SQLite's limit


class SqlAlchemyHistory(State):
    """Mapped objects; its listeners write the versions."""

    name = tables = "sqlalchemy-history"
    needs: ClassVar = {"sqlalchemy": "sqlalchemy", "sqlalchemy_history": "sqlalchemy-history"}
    notes = (
        "Mapped classes with __versioned__, the strategy `validity`, WAL, synchronous=FULL; `tier` "
        "has an index. A commit loads the objects, sets their attributes and flushes."
    )

    def build(self, where: str, entities: int, versions: int) -> None:
        """In bulk, as its listeners would have left it."""
        models = _models()
        sa, tables = import_module("sqlalchemy"), models.customer.metadata.tables
        engine = _engine(where)
        models.customer.metadata.create_all(engine)
        now = import_module("datetime").datetime(2026, 11, 15)
        with engine.begin() as connection:
            for version in range(1, versions + 1):
                connection.execute(sa.insert(tables["transaction"]), [{"issued_at": now}])
                end = version + 1 if version < versions else None
                about = {"transaction_id": version, "end_transaction_id": end}
                kind = {"operation_type": 0 if version == 1 else 1}
                connection.execute(
                    sa.insert(tables["customers_version"]),
                    [row | about | kind for row in rows(version, range(entities))],
                )
            connection.execute(sa.insert(tables["customers"]), rows(versions, range(entities)))
        engine.dispose()

    @contextmanager
    def opened(self, where: str) -> Generator[Shop]:
        engine = _engine(where)
        yield _Sessions(engine, _models())
        engine.dispose()


class _Models(NamedTuple):
    customer: Any
    version: Any


@cache
def _models() -> _Models:
    sa, orm = import_module("sqlalchemy"), import_module("sqlalchemy.orm")
    history: Any = import_module("sqlalchemy_history")
    history.make_versioned(user_cls=None)
    base: Any = orm.declarative_base()
    columns = {
        "__tablename__": "customers",
        "__versioned__": {},
        "id": sa.Column(sa.String, primary_key=True),
        "name": sa.Column(sa.String, nullable=False),
        "tier": sa.Column(sa.String, nullable=False, index=True),
        "profile": sa.Column(sa.JSON, nullable=False),
    }
    customer = type("Customer", (base,), columns)
    orm.configure_mappers()
    return _Models(customer, history.version_class(customer))


def _engine(where: str) -> Any:
    sa = import_module("sqlalchemy")
    engine = sa.create_engine(f"sqlite:///{where}")

    def settings(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-65536")

    sa.event.listen(engine, "connect", settings)
    return engine


class _Sessions:
    """A session for each answer, as for each request: objects are loaded, not found in memory."""

    def __init__(self, engine: Any, models: _Models) -> None:
        self._sa: Any = import_module("sqlalchemy")
        self._orm: Any = import_module("sqlalchemy.orm")
        self._engine = engine
        self._customer, self._version = models

    def point(self, keys: list[str]) -> list[Any]:
        with self._orm.Session(self._engine) as session:
            return [session.get(self._customer, key) for key in keys]

    def scan(self) -> list[Any]:
        return self._all(self._sa.select(self._customer).order_by(self._customer.id))

    def filter(self, tiers: list[str]) -> list[Any]:
        question = self._sa.select(self._customer)
        return [self._all(question.where(self._customer.tier == each)) for each in tiers]

    def point_then(self, keys: list[str], version: int) -> list[Any]:
        with self._orm.Session(self._engine) as session:
            question = self._then(version)
            return [
                session.scalars(question.where(self._version.id == key)).first() for key in keys
            ]

    def scan_then(self, version: int) -> list[Any]:
        return self._all(self._then(version))

    def group(self) -> list[Any]:
        tier, sa = self._customer.tier, self._sa
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(tier, sa.func.count()).group_by(tier))
            return [{"tier": name, "n": count} for name, count in found]

    def commit(self, changed: list[Fields]) -> None:
        by_key = {fields["id"]: fields for fields in changed}
        keys = list(by_key)
        with self._orm.Session(self._engine) as session:
            for first in range(0, len(keys), _PORTION):
                some = keys[first : first + _PORTION]
                question = self._sa.select(self._customer).where(self._customer.id.in_(some))
                for customer in session.scalars(question):
                    for name, value in by_key[customer.id].items():
                        setattr(customer, name, value)
            session.commit()

    def _then(self, version: int) -> Any:
        made, ended = self._version.transaction_id, self._version.end_transaction_id
        return self._sa.select(self._version).where(
            made <= version, (ended > version) | ended.is_(None)
        )

    def _all(self, question: Any) -> list[Any]:
        with self._orm.Session(self._engine) as session:
            return list(session.scalars(question))
