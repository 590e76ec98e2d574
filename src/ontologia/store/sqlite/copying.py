"""Both ends of a copy, on SQLite: a file to read from, a file to write to."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import apsw

from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia.config import OntologiaConfig
from ontologia.errors import CopyError, IntegrityError
from ontologia.store.copying.comparison import Row
from ontologia.store.copying.refusals import (
    no_store,
    not_empty,
    old_layout,
    other_version,
    other_writer,
)
from ontologia.store.copying.tables import FIELDS, LONG_KEY, NOT_CONTENT, SEARCHED, TABLES, Table
from ontologia.store.sqlite.database import MEMORY, Database, Tx, connect_as_it_is
from ontologia.store.sqlite.errors import translated
from ontologia.store.sqlite.layout import LAYOUT, found_copy, found_layout, prepare
from ontologia.store.sqlite.place import check_place
from ontologia.store.unfinished import MARK, unfinished

_COUNTER = "SELECT seq FROM sqlite_sequence WHERE name = ?"


class _Tables:
    """What both ends know of the tables of a connection."""

    shown: str

    def __init__(self, connection: Callable[[], apsw.Connection]) -> None:
        self._connection = connection

    def columns(self, table: Table) -> list[str]:
        """The column with the fields goes by the name of the text that is in it."""
        found = self._all("SELECT name FROM pragma_table_info(?)", (table.name,))
        return sorted(FIELDS if name == SEARCHED else name for (name,) in found)

    def count(self, table: Table) -> int:
        [(rows,)] = self._all(f"SELECT COUNT(*) FROM {table.name}")
        return int(rows)

    def rows(self, table: Table) -> Iterator[Row]:
        values = ", ".join(
            f"json({SEARCHED})" if name == FIELDS and table.is_searched else name
            for name in self.columns(table)
        )
        asked = f"SELECT {values} FROM {table.name} ORDER BY {table.order}"
        with self._translating():
            yield from self._connection().execute(asked)

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._translating():
            return self._connection().execute(sql, values).fetchall()

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except apsw.Error as error:
            raise translated(error, self.shown) from error


class SQLiteSnapshot(_Tables):
    """A file as it is when it is opened here; see `store.copying.sides.Snapshot`."""

    def __init__(self, path: str, config: OntologiaConfig) -> None:
        self.shown = path
        if path == MEMORY or not Path(path).exists() or not Path(path).stat().st_size:
            raise no_store(path, "there is no such file, or it is empty")
        check_place(path, LAYOUT, config.lock_timeout_ms)
        # By hand: `Database` would turn somebody else's file into one of ours.
        super().__init__(lambda: self._file)
        with self._translating():
            self._file = connect_as_it_is(path, config.lock_timeout_ms)
        try:
            self._all("PRAGMA query_only = ON")
            self._begin()
            self._check()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        # The snapshot begins with the first read, which must not come before the version.
        [(self._version,)] = self._all("PRAGMA data_version")
        self._all("BEGIN; SELECT 1 FROM sqlite_master LIMIT 1")

    def _check(self) -> None:
        with self._translating():
            tx = Tx(self._file)
            source, found = found_copy(tx), found_layout(tx)
        if source is not None:
            raise unfinished(self.shown, source)
        if found is None:
            raise no_store(self.shown, "the file has no tables of Ontologia")
        if found != LAYOUT:
            raise old_layout(self.shown, found, LAYOUT)

    def last_numbers(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for table in TABLES:
            if table.number is not None:
                greatest = f"SELECT MAX({table.number}) FROM {table.name}"
                found = self._all(f"{greatest} UNION ALL {_COUNTER}", (table.name,))
                numbers[table.name] = max(number or 0 for (number,) in found)
        return numbers

    def long_key(self, most: int) -> tuple[str, str] | None:
        found = self._all(LONG_KEY.format(most=most))
        return found[0] if found else None

    def is_at(self, path: str) -> bool:
        """Whether the path means this very file, by whatever name."""
        return os.path.exists(path) and os.path.samefile(path, self.shown)

    def renew(self) -> bool:
        before = self._version
        self._all("COMMIT")
        self._begin()
        return bool(self._version != before)

    def close(self) -> None:
        self._file.close()


class SQLiteTarget(_Tables):
    """A file that is being written; see `store.copying.sides.Target`."""

    longest_key = None

    def __init__(self, path: str, config: OntologiaConfig) -> None:
        self.shown = path
        if path == MEMORY:
            raise CopyError(
                "a copy in memory would be gone with this call; nothing was copied",
                hint="Name a file: sqlite:///app.db.",
            )
        check_place(path, LAYOUT, config.lock_timeout_ms)
        self._clock = config.clock or SYSTEM_CLOCK
        self._database = Database(
            path, random=config.random or SystemRandom(), timeout_ms=config.lock_timeout_ms
        )
        super().__init__(lambda: self._database.writer)

    def begin(self, source: str, *, restart: bool) -> bool:
        if self._go_on(restart):
            return True
        self._check_empty()
        prepare(self._database, self._clock)
        with self._database.write() as tx:
            self._check_empty()
            _empty(tx)
            tx.run(f"CREATE TABLE {MARK} (source TEXT NOT NULL, began_at TEXT NOT NULL)")
            began = to_text(self._clock.now())
            tx.run(f"INSERT INTO {MARK}(source, began_at) VALUES (?, ?)", (source, began))
        return False

    def _check_empty(self) -> None:
        there = [t for t in TABLES if t.name not in NOT_CONTENT and self.columns(t)]
        found = {table.name: rows for table in there if (rows := self.count(table))}
        if found:
            raise not_empty(self.shown, found)

    def _go_on(self, restart: bool) -> bool:
        """Whether there is an unfinished copy to go on with; to begin anew, it is removed."""
        with self._database.write() as tx:
            copied = found_copy(tx) is not None
            if copied and restart:
                _empty(tx)
                tx.run(f"DROP TABLE {MARK}")
            elif copied and found_layout(tx) != LAYOUT:
                raise other_version(self.shown)
        return copied and not restart

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        names = self.columns(table)
        made = table.is_searched
        columns = [SEARCHED if name == FIELDS and made else name for name in names]
        values = ["jsonb(?)" if name == FIELDS and made else "?" for name in names]
        statement = f"INSERT INTO {table.name}({', '.join(columns)}) VALUES ({', '.join(values)})"
        try:
            with self._database.write(durable=False) as tx:
                tx.many(statement, rows)
        except IntegrityError as error:
            raise other_writer(self.shown, table) from error

    def finish(self, numbers: Mapping[str, int]) -> None:
        with self._database.write() as tx:
            for name, number in numbers.items():
                if not _counted(tx, name):
                    continue
                if tx.one(_COUNTER, (name,)) is None:
                    tx.run("INSERT INTO sqlite_sequence(name, seq) VALUES (?, 0)", (name,))
                tx.run(
                    "UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = ?", (number, name)
                )
            tx.run(f"DROP TABLE {MARK}")

    def close(self) -> None:
        self._database.close()


def _counted(tx: Tx, name: str) -> bool:
    """Whether SQLite remembers the greatest number of this table."""
    [(made,)] = tx.all("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    return "AUTOINCREMENT" in made


def _empty(tx: Tx) -> None:
    for table in reversed(TABLES):
        tx.run(f"DELETE FROM {table.name}")
        tx.run("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
