"""Bare: the least work with apsw and orjson that gives the same answer from the same tables."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson

_SORTED = orjson.OPT_SORT_KEYS
_METADATA = '{"namespace":"default","session_id":"01990000-0000-7000-8000-000000000000"}'
_NOW = "2026-11-15T19:39:43.123456+00:00"

_POINT = "SELECT json(fields) FROM entity_latest WHERE entity_type = 'Customer' AND entity_key = ?"
_POINT_AS_OF = (
    "SELECT fields_json FROM entity_history WHERE entity_type = 'Customer' AND entity_key = ? "
    "AND commit_id <= ? ORDER BY commit_id DESC LIMIT 1"
)
_ALL = "SELECT json(fields) FROM entity_latest WHERE entity_type = 'Customer' ORDER BY entity_key"
_ALL_AS_OF = (
    "SELECT fields_json, MAX(commit_id) FROM entity_history "
    "WHERE entity_type = 'Customer' AND commit_id <= ? GROUP BY entity_key"
)
_TIER = (
    "SELECT json(fields) FROM entity_latest WHERE entity_type = 'Customer' "
    "AND json_extract(fields, '$.\"tier\"') = ? ORDER BY entity_key"
)
_BY_TIER = (
    "SELECT json_extract(fields, '$.\"tier\"') AS tier, COUNT(*) FROM entity_latest "
    "WHERE entity_type = 'Customer' GROUP BY tier"
)
_SUBSCRIPTIONS = (
    "SELECT json(r.fields), json(c.fields), json(p.fields) FROM relation_latest AS r "
    "LEFT JOIN entity_latest AS c ON c.entity_type = 'Customer' AND c.entity_key = r.left_key "
    "LEFT JOIN entity_latest AS p ON p.entity_type = 'Product' AND p.entity_key = r.right_key "
    "WHERE r.relation_type = 'Subscription' ORDER BY r.left_key, r.right_key"
)


@contextmanager
def connected(path: Path) -> Generator[apsw.Connection]:
    """A connection with the settings that the store's own have."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-65536")
    connection.execute("PRAGMA synchronous=FULL")
    try:
        yield connection
    finally:
        connection.close()


def seeks(connection: apsw.Connection) -> bool:
    """Whether the selective statements find their rows by type and value in an index.

    What one value gives is sorted by key after that. The indexes are the store's own. Without them bare would be as slow as ours, and the ratio fine.
    """
    plans = [
        step[3]
        for sql in (_POINT, _POINT_AS_OF, _TIER)
        for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?"))
    ]
    found = [step for step in plans if step != "USE TEMP B-TREE FOR ORDER BY"]
    return all(step.startswith("SEARCH") and " AND " in step for step in found)


# -- reading --------------------------------------------------------------------------------------


def point(connection: apsw.Connection, key: str) -> Any:
    row = connection.execute(_POINT, (key,)).fetchone()
    return orjson.loads(row[0]) if row else None


def point_as_of(connection: apsw.Connection, key: str, commit_id: int) -> Any:
    row = connection.execute(_POINT_AS_OF, (key, commit_id)).fetchone()
    return orjson.loads(row[0]) if row else None


def customers(connection: apsw.Connection) -> list[Any]:
    loads = orjson.loads
    return [loads(text) for (text,) in connection.execute(_ALL)]


def customers_as_of(connection: apsw.Connection, commit_id: int) -> list[Any]:
    loads = orjson.loads
    return [loads(text) for text, _ in connection.execute(_ALL_AS_OF, (commit_id,))]


def in_tier(connection: apsw.Connection, name: str) -> list[Any]:
    loads = orjson.loads
    return [loads(text) for (text,) in connection.execute(_TIER, (name,))]


def by_tier(connection: apsw.Connection) -> list[Any]:
    return [{"tier": tier, "n": count} for tier, count in connection.execute(_BY_TIER)]


def subscriptions(connection: apsw.Connection) -> list[Any]:
    loads = orjson.loads
    return [tuple(map(loads, row)) for row in connection.execute(_SUBSCRIPTIONS)]


# -- writing --------------------------------------------------------------------------------------


def insert(connection: apsw.Connection, fields: Sequence[dict[str, Any]]) -> None:
    """A hard transaction that writes a new version of each customer, unseen."""
    dumps = orjson.dumps
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO commits(created_at, metadata_json) VALUES (?, ?)", (_NOW, _METADATA)
    )
    commit_id = connection.last_insert_rowid()
    connection.executemany(
        "INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id, "
        "schema_version_id) VALUES ('Customer', ?, ?, ?, 1)",
        [(each["id"], dumps(each, None, _SORTED).decode(), commit_id) for each in fields],
    )
    connection.execute(
        "INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields) "
        "SELECT entity_type, entity_key, commit_id, schema_version_id, jsonb(fields_json) "
        "FROM entity_history WHERE commit_id = ? ORDER BY id "
        "ON CONFLICT DO UPDATE SET commit_id = excluded.commit_id, fields = excluded.fields",
        (commit_id,),
    )
    connection.execute("COMMIT")


def changed(connection: apsw.Connection, fields: Sequence[dict[str, Any]]) -> int:
    """How many of these customers differ from what is stored."""
    dumps = orjson.dumps
    connection.execute("BEGIN IMMEDIATE")
    current = dict(
        connection.execute(
            "SELECT entity_key, json(fields) FROM entity_latest WHERE entity_type = 'Customer'"
        )
    )
    count = 0
    for each in fields:
        count += current.get(each["id"]) != dumps(each, None, _SORTED).decode()
    connection.execute("COMMIT")
    return count
