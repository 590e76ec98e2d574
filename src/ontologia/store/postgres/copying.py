"""Both ends of a copy, on PostgreSQL: a schema to read from, a schema to write to.

Rows go through COPY, both ways: it is the fastest, and no more than a row is in memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import SystemRandom
from typing import Any

import psycopg
from psycopg import errors

from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia.config import OntologiaConfig
from ontologia.errors import CopyError
from ontologia.store.copying.comparison import Row
from ontologia.store.copying.refusals import (
    no_store,
    not_empty,
    old_layout,
    other_version,
    other_writer,
)
from ontologia.store.copying.tables import FIELDS, NOT_CONTENT, SEARCHED, TABLES, Table
from ontologia.store.key_length import LONGEST_KEY
from ontologia.store.postgres.contact import first_contact
from ontologia.store.postgres.database import SYNCED, Database, lock_key
from ontologia.store.postgres.errors import translated
from ontologia.store.postgres.layout import LAYOUT, found_layout, layout_statements, prepare
from ontologia.store.postgres.place import DEFAULT_SCHEMA, Place, place_of
from ontologia.store.unfinished import MARK, unfinished

_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_PATIENCE = """
    SELECT set_config(name, '0', true) FROM pg_settings
     WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout',
                    'transaction_timeout')
"""
_COLUMNS = """
    SELECT attname, atttypid FROM pg_attribute
     WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attname
"""
_COUNTER = "SELECT pg_get_serial_sequence(%s, %s)"


class _Tables:
    """What both ends know of the tables of a schema."""

    def __init__(self, place: Place) -> None:
        self.schema = place.schema
        named = "" if place.schema == DEFAULT_SCHEMA else f"?schema={place.schema}"
        self.shown = place.shown + named
        self._columns: dict[Table, dict[str, int]] = {}
        first_contact(place)  # says what is wrong, if something is
        self._connection = psycopg.connect(place.conninfo, autocommit=True, prepare_threshold=None)

    def columns(self, table: Table) -> list[str]:
        return list(self._types(table))

    def _types(self, table: Table) -> dict[str, int]:
        """The columns that are copied, each with its type; `fields` is made from the text."""
        if table not in self._columns:
            found = dict(self._all(_COLUMNS, (self._name(table),)))
            if table.is_searched:
                found.pop(SEARCHED, None)
            if not found:
                return {}  # not there yet
            self._columns[table] = found
        return self._columns[table]

    def rows(self, table: Table) -> Iterator[Row]:
        types = self._types(table)
        asked = f"SELECT {_listed(types)} FROM {self._name(table)} ORDER BY {table.order}"
        statement = f"COPY ({asked}) TO STDOUT (FORMAT BINARY)".encode()
        with self._translating(), self._connection.cursor().copy(statement) as copy:
            copy.set_types(list(types.values()))
            yield from copy.rows()

    def close(self) -> None:
        self._connection.close()

    def _name(self, table: Table) -> str:
        return f'"{self.schema}".{table.name}'

    def count(self, table: Table) -> int:
        [(rows,)] = self._all(f"SELECT COUNT(*) FROM {self._name(table)}")
        return int(rows)

    def _counter(self, table: Table) -> str | None:
        """The sequence that numbers the rows of a table."""
        [(name,)] = self._all(_COUNTER, (self._name(table), table.number))
        return None if name is None else str(name)

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._translating():
            cursor = self._connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def _one(self, sql: str) -> Any:
        return self._all(sql)[0]

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translated(error, self.shown, schema=self.schema) from error


class PostgresSnapshot(_Tables):
    """A schema as it is when it is opened here; see `store.copying.sides.Snapshot`."""

    def __init__(self, uri: str) -> None:
        super().__init__(place_of(uri))
        try:
            self._begin()
            self._check()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._all(_READ)
        self._all(_PATIENCE)
        [(self._seen,)] = self._all("SELECT pg_current_snapshot()::text")

    def _check(self) -> None:
        sql = layout_statements(self.schema)
        found, _, copied = found_layout(self._one, sql)
        if copied:
            raise unfinished(self.shown, self._one(sql["get_copy"])[0])
        if found is None:
            raise no_store(self.shown, f"schema {self.schema} has no tables of Ontologia")
        if found != LAYOUT:
            raise old_layout(self.shown, found, LAYOUT)

    def last_numbers(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for table in TABLES:
            if table.number is None:
                continue
            asked = f"SELECT MAX({table.number}) FROM {self._name(table)}"
            counter = self._counter(table)
            if counter is not None:
                asked += f" UNION ALL SELECT last_value FROM {counter} WHERE is_called"
            numbers[table.name] = max(number or 0 for (number,) in self._all(asked))
        return numbers

    def long_key(self, most: int) -> None:
        """What one server can keep, another can, too."""

    def is_at(self, uri: str) -> bool:
        """One server has many names; a lock that is taken here is taken there if it is the same."""
        place = place_of(uri)
        if place.schema != self.schema:
            return False
        first_contact(place)
        key = SystemRandom().getrandbits(62)
        self._all("SELECT pg_advisory_xact_lock(%s)", (key,))
        with psycopg.connect(place.conninfo, autocommit=True, prepare_threshold=None) as other:
            [(free,)] = other.execute("SELECT pg_try_advisory_xact_lock(%s)", (key,)).fetchall()
        return not free

    def renew(self) -> bool:
        before = self._seen
        self._all("COMMIT")
        self._begin()
        return bool(self._seen != before)


class PostgresTarget(_Tables):
    """A schema that is being written; see `store.copying.sides.Target`."""

    longest_key = LONGEST_KEY

    def __init__(self, uri: str, config: OntologiaConfig) -> None:
        self._place = place_of(uri)
        super().__init__(self._place)
        self._timeout_ms = config.lock_timeout_ms
        self._clock = config.clock or SYSTEM_CLOCK

    def begin(self, source: str, *, restart: bool) -> bool:
        if self._go_on(restart):
            return True
        self._check_empty()
        database = Database(self._place, timeout_ms=self._timeout_ms)
        try:
            prepare(database)
        finally:
            database.close()
        with self._writing():
            self._all("SELECT pg_advisory_xact_lock(%s)", (lock_key("layout", self.schema),))
            self._check_empty()
            self._empty()
            mark = f'"{self.schema}".{MARK}'
            self._all(f"CREATE TABLE {mark} (source text NOT NULL, began_at text NOT NULL)")
            self._all(f"GRANT SELECT ON {mark} TO PUBLIC")  # whoever opens it is told why not
            began = to_text(self._clock.now())
            self._all(f"INSERT INTO {mark} VALUES (%s, %s)", (source, began))
        return False

    def _check_empty(self) -> None:
        there = [t for t in TABLES if t.name not in NOT_CONTENT and self.columns(t)]
        found = {table.name: rows for table in there if (rows := self.count(table))}
        if found:
            raise not_empty(self.shown, found)

    def _go_on(self, restart: bool) -> bool:
        """Whether there is an unfinished copy to go on with; to begin anew, it is removed."""
        with self._writing():
            found, _, copied = found_layout(self._one, layout_statements(self.schema))
            if copied and restart:
                self._empty()
                self._all(f'DROP TABLE "{self.schema}".{MARK}')
            elif copied and found != LAYOUT:
                raise other_version(self.shown)
        return bool(copied and not restart)

    def rows(self, table: Table) -> Iterator[Row]:
        with self._writing():  # a statement may take long there
            yield from super().rows(table)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        names = self.columns(table)
        if table.is_searched:
            text = names.index(FIELDS)
            names = [*names, SEARCHED]
            rows = [(*row, row[text]) for row in rows]
        try:
            with self._writing(durable=False), self._connection.cursor() as cursor:
                into = f"COPY {self._name(table)} ({_listed(names)}) FROM STDIN"
                with cursor.copy(into.encode()) as copy:
                    for row in rows:
                        copy.write_row(row)
        except errors.UniqueViolation as error:
            raise other_writer(self.shown, table) from error
        except psycopg.DataError as error:
            raise self._refused(table, error) from error
        except psycopg.Error as error:
            raise translated(error, self.shown, schema=self.schema) from error

    def _refused(self, table: Table, error: psycopg.DataError) -> CopyError:
        place = f" ({error.diag.context})" if error.diag.context else ""
        return CopyError(
            f"{self.shown} does not take a row of {table.name}: {str(error).splitlines()[0]}{place}",
            hint="Somebody else than Ontologia wrote it; correct or delete it in the source.",
        )

    def finish(self, numbers: Mapping[str, int]) -> None:
        with self._writing():
            for table in TABLES:
                counter = None if table.number is None else self._counter(table)
                number = numbers.get(table.name, 0)
                if counter is not None and number:
                    self._all("SELECT setval(%s, %s)", (counter, number))
            self._all(f'DROP TABLE "{self.schema}".{MARK}')
        with self._writing(durable=False):
            # Now, and not when the server comes to it: workers may begin at once.
            self._all("ANALYZE (SKIP_LOCKED) " + ", ".join(self._name(table) for table in TABLES))

    def _empty(self) -> None:
        self._all("TRUNCATE " + ", ".join(map(self._name, TABLES)) + " RESTART IDENTITY")

    @contextmanager
    def _writing(self, *, durable: bool = True) -> Generator[None]:
        """One transaction; a soft one does not wait for the disk."""
        self._all(_WRITE)
        try:
            self._all(f"SET LOCAL lock_timeout = {max(1, self._timeout_ms)}")
            self._all(_PATIENCE)
            self._all(SYNCED if durable else "SET LOCAL synchronous_commit = off")
            yield
            self._all("COMMIT")
        except BaseException:
            if not self._connection.closed:
                self._connection.rollback()
            raise


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    return ", ".join(f'"{name}"' for name in names)
