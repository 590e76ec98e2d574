"""Where stores are: folders on this machine, and databases on a server that a user named."""

from __future__ import annotations

import os
import shutil
import time
from itertools import count
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ontologia.errors import ConfigError, OntologiaError

FILE = "bench.db"
_PATIENCE = 100  # tenths of a second


class Places(Protocol):
    """Makes room for stores."""

    def new(self) -> str:
        """Where a store can be made."""
        ...

    def copy(self, where: str) -> str:
        """Where a copy of this store is, all of it on the disk."""
        ...

    def remove(self, where: str) -> None: ...


class Folders:
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
            copied = shutil.copy(source, target.with_name(source.name))
            with Path(copied).open("rb") as file:
                os.fsync(file.fileno())
        return str(target)

    def remove(self, where: str) -> None:
        shutil.rmtree(Path(where).parent, ignore_errors=True)


class Databases:
    """Databases beside the one that was named, which itself is only connected to."""

    def __init__(self, uri: str) -> None:
        self._uri = without_schema(uri)
        self._numbers = count(1)
        try:
            import psycopg
        except ImportError as error:
            raise ConfigError(
                "a server was named, and psycopg is not installed",
                hint='pip install "ontologia[bench]"',
            ) from error
        try:
            with psycopg.connect(self._uri) as connection:
                number = connection.info.server_version
        except psycopg.Error as error:
            raise ConfigError(f"the server cannot be reached: {error}") from error
        self.version = f"{number // 10_000}.{number % 10_000}"

    def new(self) -> str:
        name = self._name()
        self._run(f"CREATE DATABASE {name}")
        return self._beside(name)

    def copy(self, where: str) -> str:
        name, source = self._name(), where.partition("?")[0].rpartition("/")[2]
        self._settle(where)
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
            raise OntologiaError(
                f"the server refused {statement.partition(' ')[0]} DATABASE: {error}",
                hint="Name a user that may create databases; each round has one of its own.",
            ) from error


def without_schema(uri: str) -> str:
    """The word of ours that drivers do not know; every store has a database of its own here."""
    parts = urlsplit(uri)
    words = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    return urlunsplit(parts._replace(query=urlencode(words)))
