"""Hashes of tables: the same rows have the same hash, on either database.

A row is the canonical JSON of its values, in the alphabetical order of its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from ontologia.errors import CopyError
from ontologia.store.copying.tables import Table

Row = tuple[Any, ...]


class TableHash:
    """The hash of a table whose rows are added in the order of their keys."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._hash = blake2b(orjson.dumps(columns), digest_size=32)
        self.rows = 0
        self.bytes = 0

    def add(self, row: Row) -> None:
        """One more row."""
        text = orjson.dumps(row)
        self._hash.update(text)
        self._hash.update(b"\n")
        self.rows += 1
        self.bytes += len(text)

    def value(self) -> str:
        """The hash of what was added so far."""
        return self._hash.hexdigest()


def hashing(rows: Iterator[Row], into: TableHash, table: Table, shown: str) -> Iterator[Row]:
    """The same rows, hashed on their way; CopyError for one that is not text and numbers."""
    while True:
        try:
            row = next(rows, None)
            if row is None:
                return
            into.add(row)
        except (orjson.JSONEncodeError, UnicodeError) as error:
            raise CopyError(
                f"{shown}: row {into.rows + 1} of {table.name}, in the order of {table.order}, "
                f"holds a value that is neither text nor a number: {error}",
                hint="Somebody else than Ontologia wrote it; correct or delete it there.",
            ) from error
        yield row
