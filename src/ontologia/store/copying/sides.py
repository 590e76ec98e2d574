"""The two ends of a copy, and which database each is on.

Each backend has both, in its `copying` module: a `Snapshot` to read from and a `Target` to write to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ontologia.config import OntologiaConfig
from ontologia.store.copying.comparison import Row
from ontologia.store.copying.refusals import same_store
from ontologia.store.copying.tables import Table
from ontologia.store.open import check_driver, is_postgres, sqlite_path


class Side(Protocol):
    """What can be asked of both ends."""

    @property
    def shown(self) -> str:
        """Where it is, without passwords."""
        ...

    def columns(self, table: Table) -> list[str]:
        """What is copied of a table, in alphabetical order."""
        ...

    def rows(self, table: Table) -> Iterator[Row]:
        """All rows, in the order of their keys, with few of them in memory."""
        ...

    def close(self) -> None:
        """Give up the connections."""
        ...


class Snapshot(Side, Protocol):
    """A store as it is at one moment; those who write to it are not held up."""

    def count(self, table: Table) -> int:
        """How many rows a table has."""
        ...

    def last_numbers(self) -> dict[str, int]:
        """The greatest number that was ever given to a row, by table."""
        ...

    def long_key(self, most: int) -> tuple[str, str] | None:
        """A type and a key of it that has more than so many bytes; None if there is none."""
        ...

    def renew(self) -> bool:
        """See what is there now; whether anything may have changed."""
        ...


class Target(Side, Protocol):
    """A store that is being written, and that nobody can open before it is finished."""

    @property
    def longest_key(self) -> int | None:
        """Bytes of a key that it can keep; None where there is no limit."""
        ...

    def begin(self, source: str, *, restart: bool) -> bool:
        """Make the tables and mark the copy as begun; whether it goes on with an earlier one.

        CopyError if there is something that no copy has begun to write.
        """
        ...

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows in one soft transaction."""
        ...

    def finish(self, numbers: Mapping[str, int]) -> None:
        """Number what comes next from there on, and let the store be opened. Hard."""
        ...


def open_source(uri: str, config: OntologiaConfig) -> Snapshot:
    """The store to read; CopyError, and nothing is made, where there is none."""
    if is_postgres(uri):
        check_driver()
        from ontologia.store.postgres.copying import PostgresSnapshot

        return PostgresSnapshot(uri)
    from ontologia.store.sqlite.copying import SQLiteSnapshot

    return SQLiteSnapshot(sqlite_path(uri), config)


def open_target(uri: str, config: OntologiaConfig, source: Snapshot) -> Target:
    """Where to write; CopyError if that is where the source is."""
    if is_postgres(uri):
        check_driver()
        from ontologia.store.postgres.copying import PostgresSnapshot, PostgresTarget

        if isinstance(source, PostgresSnapshot) and source.is_at(uri):
            raise same_store(source.shown)
        return PostgresTarget(uri, config)
    from ontologia.store.sqlite.copying import SQLiteSnapshot, SQLiteTarget

    path = sqlite_path(uri)
    if isinstance(source, SQLiteSnapshot) and source.is_at(path):
        raise same_store(source.shown)
    return SQLiteTarget(path, config)
