"""`copy_store`: everything in a store, to another database.

The source is read once, in one snapshot, table by table in the order of the keys. The target is
written in portions, each a transaction. Nothing else is noted: as rows come in order, what the
target holds of a table says how far the copy came. A copy that goes on reads the source from the
beginning and compares: what was written must still be what comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice

from ontologia.config import OntologiaConfig
from ontologia.errors import CopyError
from ontologia.store.copying.comparison import Row, TableHash, hashing
from ontologia.store.copying.refusals import long_key
from ontologia.store.copying.report import CopiedTable, Progress, Report, Step
from ontologia.store.copying.sides import Side, Snapshot, Target, open_source, open_target
from ontologia.store.copying.tables import TABLES, Table

_MOST_ROWS = 10_000
_MOST_BYTES = 8 * 1024 * 1024
"""A portion ends with the row that reaches either: the largest payload may be a megabyte."""


def copy_store(
    source_uri: str,
    target_uri: str,
    *,
    config: OntologiaConfig | None = None,
    progress: Callable[[Progress], None] | None = None,
    restart: bool = False,
) -> Report:
    """Copy a store to another database: SQLite to PostgreSQL, back, or between two of a kind.

    State with its history, types, events, claims, dead letters, deferred events, consumers and
    ticks are copied with all their numbers, and compared at the end. The source is not written
    to, and those who do are not held up: the copy is of the moment it began, and the report
    names tables that were written to since.

    The target must be empty. It cannot be opened before the copy is finished. Broken off at any
    moment, the same call goes on where it stopped, provided that what it wrote is still true of
    the source; otherwise CopyError asks for `restart=True`, which empties the target first.
    """
    settings = config or OntologiaConfig()
    with closing(open_source(source_uri, settings)) as source:
        with closing(open_target(target_uri, settings, source)) as target:
            _check_keys(source, target)
            resumed = target.begin(source.shown, restart=restart)
            try:
                _check_columns(source, target)
                copied = _Copying(source, target, progress).run(resumed)
                target.finish(source.last_numbers())
            except BaseException as error:
                error.add_note(
                    f"{target.shown} holds an unfinished copy, which cannot be opened; "
                    f"the same call goes on with it"
                )
                raise
        moved_on = _moved_on(source, copied)
        return Report(source.shown, target.shown, tuple(copied), resumed, moved_on)


class _Copying:
    """One call: the rows of every table, then the comparison."""

    def __init__(
        self, source: Snapshot, target: Target, progress: Callable[[Progress], None] | None
    ) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._total = sum(source.count(table) for table in TABLES)

    def run(self, resumed: bool) -> list[CopiedTable]:
        self._done = 0
        copied = [self._copy(table, resumed) for table in TABLES]
        self._done = 0
        for table, expected in zip(TABLES, copied, strict=True):
            self._compare(table, expected)
        return copied

    def _copy(self, table: Table, resumed: bool) -> CopiedTable:
        seen = TableHash(self._source.columns(table))
        rows = hashing(self._source.rows(table), seen, table, self._source.shown)
        if resumed:
            self._pass_over(table, rows, seen)
        for portion in _portions(rows, seen):
            self._target.insert(table, portion)
            self._tell("copying", table, len(portion))
        return CopiedTable(table.name, seen.rows, seen.value())

    def _pass_over(self, table: Table, rows: Iterator[Row], seen: TableHash) -> None:
        """Leave out what the target has already."""
        there = _hash(self._target, table)
        for _ in islice(rows, there.rows):
            pass
        if (seen.rows, seen.value()) != (there.rows, there.value()):
            raise CopyError(
                f"{self._source.shown} has changed since the unfinished copy in "
                f"{self._target.shown} began: the first {there.rows:,} rows of {table.name} are "
                f"no longer those that were copied",
                hint="Begin anew with restart=True (--restart), which empties the target first.",
            )
        self._tell("copying", table, there.rows)

    def _compare(self, table: Table, expected: CopiedTable) -> None:
        there = _hash(self._target, table, lambda rows: self._tell("comparing", table, rows))
        if (there.rows, there.value()) != (expected.rows, expected.hash):
            raise CopyError(
                f"{table.name} differs after the copy: {expected.rows:,} rows with the hash "
                f"{expected.hash[:12]} in {self._source.shown}, {there.rows:,} with "
                f"{there.value()[:12]} in {self._target.shown}",
                hint="Somebody wrote to the target meanwhile; begin anew with restart=True "
                "(--restart).",
            )

    def _tell(self, step: Step, table: Table, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(Progress(step, table.name, self._done, self._total))


def _portions(rows: Iterator[Row], seen: TableHash) -> Iterator[list[Row]]:
    """Rows in lists that are neither too many nor too long; `seen` has counted their bytes."""
    portion: list[Row] = []
    began = seen.bytes
    for row in rows:
        portion.append(row)
        if len(portion) >= _MOST_ROWS or seen.bytes - began >= _MOST_BYTES:
            yield portion
            portion, began = [], seen.bytes
    if portion:
        yield portion


def _check_keys(source: Snapshot, target: Target) -> None:
    most = target.longest_key
    found = None if most is None else source.long_key(most)
    if most is not None and found is not None:
        raise long_key(target.shown, *found, most)


def _check_columns(source: Side, target: Side) -> None:
    for table in TABLES:
        here, there = source.columns(table), target.columns(table)
        if here != there:
            raise CopyError(
                f"{table.name} has columns {here} in one database, {there} in the other"
            )


def _hash(side: Side, table: Table, tell: Callable[[int], None] | None = None) -> TableHash:
    seen = TableHash(side.columns(table))
    rows = hashing(side.rows(table), seen, table, side.shown)
    while passed := sum(1 for _ in islice(rows, _MOST_ROWS)):
        if tell is not None:
            tell(passed)
    return seen


def _moved_on(source: Snapshot, copied: list[CopiedTable]) -> tuple[str, ...]:
    """Tables that are no longer as they were copied."""
    if not source.renew():
        return ()
    now = {table.name: _hash(source, table).value() for table in TABLES}
    return tuple(each.name for each in copied if now[each.name] != each.hash)
