"""What is in a store: its types and their versions, its objects, and how much there is of each.

For operators and for programs that take the state out. Reads only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import from_text
from ontologia.store.database import Database, Tx
from ontologia.store.rows import ObjectKey, StoredType, TypeKey, says_dropped

_PAGE = 1_000  # objects that are in memory at a time
_PAGE_BYTES = 4 * 2**20  # of their fields; one object may have more
_KEY = {"entity": ("key",), "relation": ("left", "right", "instance")}
"""What the statements call the parts of a key."""
_PLURAL = {"entity": "entities", "relation": "relations"}


class About(NamedTuple):
    """The database a store is in."""

    backend: str
    """`SQLite 3.51.3`, `PostgreSQL 18.1`"""
    layout: int
    bytes: int
    """Of all tables and indexes."""
    durability: str | None
    """The server's settings on which it rests: `fsync on, …`; None where there is no server."""


class TypeVersion(NamedTuple):
    """One version of a type, and how it came about."""

    version: int
    schema_json: str
    created_at: datetime
    runtime_id: str | None
    """The session that wrote it."""
    reason: str | None
    host: str | None
    """Where that session ran, while it is on record: `host, process 17`."""

    @property
    def dropped(self) -> bool:
        """Whether this version says that the type is there no more."""
        return says_dropped(self.version, self.schema_json)


class StoredObject(NamedTuple):
    """One object as it is stored."""

    key: ObjectKey
    fields: str
    version: int
    """The schema version it was written in."""


class Contents:
    """What one snapshot holds."""

    def __init__(self, tx: Tx, sql: Mapping[str, str]) -> None:
        self._tx = tx
        self._sql = sql

    def head(self) -> int:
        """The number of the last commit; 0 on an empty store."""
        return int(self._tx.one(self._sql["last_commit"])[0])

    def types(self) -> list[StoredType]:
        """The current version of every type that is registered, by kind and name."""
        return [StoredType(*row) for row in self._tx.all(self._sql["list_types"])]

    def history(self, kind: str, name: str) -> list[TypeVersion]:
        """Every version of a type, oldest first; [] if there never was such a type."""
        rows = self._tx.all(self._sql["type_history"], {"kind": kind, "name": name})
        return [
            TypeVersion(version, text, from_text(created_at), runtime_id, reason, _host(metadata))
            for version, text, created_at, runtime_id, reason, metadata in rows
        ]

    def counts(self, as_of: int | None = None) -> dict[TypeKey, int]:
        """How many objects of each type there are, now or as of a commit; types without are not in.

        Costs the number of objects; as of a commit, the number of versions.
        """
        found: dict[TypeKey, int] = {}
        for kind, plural in _PLURAL.items():
            name = f"count_{plural}" if as_of is None else f"count_{plural}_at"
            for type_name, number in self._tx.all(self._sql[name], _span(as_of)):
                found[kind, type_name] = number
        return found

    def counts_up_to(self, types: Iterable[TypeKey], most: int) -> dict[TypeKey, int]:
        """How many current objects each of these types has, counted up to `most`; costs that."""
        asked = {
            (kind, name): self._tx.ask(
                self._sql[f"count_some_{_PLURAL[kind]}"], {"type": name, "most": most}
            )
            for kind, name in types
        }
        return {key: rows[0][0] for key, rows in asked.items()}

    def objects(self, kind: str, name: str, as_of: int | None = None) -> Iterator[StoredObject]:
        """The objects of a type in the order of their keys, now or as of a commit.

        However many there are, few of them are in memory.
        """
        after: ObjectKey | None = None
        while page := self.page(kind, name, as_of, after):
            yield from page
            after = page[-1].key

    def page(
        self,
        kind: str,
        name: str,
        as_of: int | None,
        after: ObjectKey | None,
        most: int = _PAGE,
        most_bytes: int = _PAGE_BYTES,
    ) -> list[StoredObject]:
        """The next of these objects, after this key; [] at the end.

        At most `most`, and fewer if they are larger than `most_bytes` together.
        """
        sql = self._sql[f"{kind}_page" if as_of is None else f"{kind}_page_at"]
        parts = _KEY[kind]
        asked: dict[str, Any] = {"type": name, "most": most, **_span(as_of)}
        asked |= dict(zip(parts, after or ("",) * len(parts), strict=True))
        return [
            StoredObject(tuple(key), fields, version or 1)
            for *key, fields, version in self._tx.page(sql, asked, most_bytes)
        ]


class Inventory:
    """The same of what is there now, each answer from a snapshot of its own."""

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    @contextmanager
    def read(self) -> Generator[Contents]:
        """One snapshot for several questions."""
        with self._database.read() as tx:
            yield Contents(tx, self._sql)

    def about(self) -> About:
        """The database."""
        backend, layout, size, durability = self._database.all(self._sql["about"])[0]
        return About(backend, layout, int(size or 0), durability)

    def count_events(self, now: str) -> dict[str, dict[str, int]]:
        """Retained events by namespace and status. Looks at every one of them."""
        found: dict[str, dict[str, int]] = {}
        rows = self._database.all(self._sql["count_events"], {"now": now})
        for namespace, status, number in rows:
            found.setdefault(namespace, {})[status] = number
        return dict(sorted(found.items()))


def _host(metadata: str | None) -> str | None:
    said = codec.decode_stored(metadata) if metadata else {}
    return f"{said['hostname']}, process {said.get('pid')}" if "hostname" in said else None


def _span(as_of: int | None) -> dict[str, int]:
    return {} if as_of is None else {"as_of": as_of}
