"""Bare, for events: the least work with apsw and orjson on the store's own tables.

A queue as one would write it by hand: it knows one consumer, no leases that run out, no failures
and no fences, and its events are handed out already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

import apsw
import orjson

from bench.measure import same
from bench.workload import BATCH, NAMESPACE, TYPE

_SORTED = orjson.OPT_SORT_KEYS
SESSION = "01990000-0000-7000-8000-000000000000"
FAR = "9999-01-01T00:00:00.000000+00:00"
_numbers = count(1)
_PROCESS = f"019a{os.getpid() % 65536:04x}"
"""Ids are after those of events that were put there in bulk, and differ between processes."""

_EVENT = (
    "INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id, "
    "chain_depth, correlation_id) VALUES (?1, ?2, ?3, ?4, ?5, 100, ?1, 0, ?1)"
)
_READY = (
    "SELECT r.consumer_id, r.priority, r.created_at, e.id, e.payload "
    "FROM ready r CROSS JOIN events e ON e.id = r.event_id WHERE r.consumer_id = ? "
    "ORDER BY r.priority DESC, r.created_at, r.event_id LIMIT ?"
)
_TAKE = (
    "DELETE FROM ready WHERE consumer_id = ? AND priority = ? AND created_at = ? AND event_id = ?"
)
_CLAIM = (
    "INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, "
    "available_at, consumer_id, lease_token, due_at) VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?3, ?5)"
)
_ANY = "SELECT EXISTS (SELECT 1 FROM ready WHERE consumer_id = ?), EXISTS (SELECT 1 FROM incoming)"
LEFT = (
    "SELECT EXISTS (SELECT 1 FROM incoming) OR EXISTS (SELECT 1 FROM ready) "
    "OR EXISTS (SELECT 1 FROM event_claims WHERE due_at IS NOT NULL)"
)
"""Asks whether any event is not acknowledged."""
_ACK = "UPDATE event_claims SET ack_at = ?, due_at = NULL WHERE event_id = ? AND handler_id = ?"


class Queue(NamedTuple):
    """What bare has to know: where its events are, and under which name it takes them."""

    connection: apsw.Connection
    consumer: int
    handler: str
    durable: bool = True


def begin(connection: apsw.Connection, *, durable: bool) -> None:
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    connection.execute("BEGIN IMMEDIATE")


def announce(connection: apsw.Connection, fields: dict[str, Any]) -> None:
    """Store one event, hard."""
    now, event_id = now_text(), new_id()
    payload = payload_of(fields)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_EVENT, (event_id, NAMESPACE, TYPE, payload, now))
    connection.execute("INSERT INTO incoming(event_id) VALUES (?)", (event_id,))
    connection.execute("COMMIT")


def announce_all(connection: apsw.Connection, contents: Iterable[dict[str, Any]]) -> None:
    """Store many, in one hard transaction."""
    now = now_text()
    rows = [(new_id(), payload_of(fields)) for fields in contents]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_EVENT, [(key, NAMESPACE, TYPE, text, now) for key, text in rows])
    connection.executemany("INSERT INTO incoming(event_id) VALUES (?)", [row[:1] for row in rows])
    connection.execute("COMMIT")


def hand_out(connection: apsw.Connection, consumer: int) -> None:
    """Everything that came in becomes ready, before anything is measured."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO ready SELECT ?, priority, created_at, id, type FROM events "
        "WHERE id IN (SELECT event_id FROM incoming)",
        (consumer,),
    )
    connection.execute("DELETE FROM incoming")
    connection.execute("COMMIT")


def take(queue: Queue, *, durable: bool) -> list[tuple[str, Any]]:
    """Claim a batch: ids and decoded events."""
    connection, now = queue.connection, now_text()
    begin(connection, durable=durable)
    rows: list[Any] = connection.execute(_READY, (queue.consumer, BATCH)).fetchall()
    connection.executemany(_TAKE, [row[:4] for row in rows])
    connection.executemany(
        _CLAIM, [(row[3], queue.handler, SESSION, now, FAR, queue.consumer) for row in rows]
    )
    connection.execute("COMMIT")
    loads = orjson.loads
    return [(row[3], loads(row[4])) for row in rows]


def drain(queue: Queue) -> int:
    """Two transactions for each batch: one claims, one acknowledges."""
    done = 0
    while taken := take(queue, durable=queue.durable):
        acknowledge(queue, taken, [], durable=queue.durable)
        done += len(taken)
    return done


def acknowledge(
    queue: Queue, taken: list[tuple[str, Any]], following: list[dict[str, Any]], *, durable: bool
) -> None:
    """End these events, and store those that follow from them, ready to be taken."""
    connection, now = queue.connection, now_text()
    begin(connection, durable=durable)
    connection.executemany(_ACK, [(now, each[0], queue.handler) for each in taken])
    if following:
        rows = [(new_id(), payload_of(fields)) for fields in following]
        connection.executemany(_EVENT, [(key, NAMESPACE, TYPE, text, now) for key, text in rows])
        connection.executemany(
            "INSERT INTO ready(consumer_id, priority, created_at, event_id, type) "
            "VALUES (?, 100, ?, ?, ?)",
            [(queue.consumer, now, key, TYPE) for key, _ in rows],
        )
    connection.execute("COMMIT")


def look(queue: Queue) -> bool:
    """Whether anything is ready, once what came in was handed out."""
    [[ready, incoming]] = queue.connection.execute(_ANY, (queue.consumer,))
    if incoming and not ready:
        hand_out(queue.connection, queue.consumer)
    return bool(ready or incoming)


def book(queue: Queue) -> int:
    """One hard transaction for each event: a version of an order, with the acknowledgement."""
    done = 0
    while taken := take(queue, durable=False):
        for event_id, fields in taken:
            book_one(queue, event_id, fields)
        done += len(taken)
    return done


def book_one(queue: Queue, event_id: str, fields: dict[str, Any]) -> None:
    connection, now = queue.connection, now_text()
    key, text, metadata = version_of(fields, event_id, queue.handler)
    begin(connection, durable=True)
    connection.execute(
        "INSERT INTO commits(created_at, metadata_json) VALUES (?, ?)",
        (now, metadata),
    )
    commit_id = connection.last_insert_rowid()
    connection.execute(
        "INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id, "
        "schema_version_id) VALUES ('Order', ?, ?, ?, 1)",
        (key, text, commit_id),
    )
    connection.execute(
        "INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields) "
        "VALUES ('Order', ?, ?, 1, jsonb(?)) "
        "ON CONFLICT DO UPDATE SET commit_id = excluded.commit_id, fields = excluded.fields",
        (key, commit_id, text),
    )
    connection.execute(_ACK, (now, event_id, queue.handler))
    connection.execute("COMMIT")


def open_queue(connection: apsw.Connection, handler: str, *, durable: bool = True) -> Queue:
    [[consumer]] = connection.execute("SELECT id FROM consumers WHERE name = ?", (handler,))
    hand_out(connection, consumer)
    return Queue(connection, consumer, handler, durable)


def states(connection: apsw.Connection) -> dict[str, int]:
    """How many events there are in each place."""
    questions: Sequence[tuple[str, str]] = (
        ("waiting", "SELECT (SELECT COUNT(*) FROM incoming) + (SELECT COUNT(*) FROM ready)"),
        ("claimed", "SELECT COUNT(*) FROM event_claims WHERE due_at IS NOT NULL"),
        ("acked", "SELECT COUNT(*) FROM event_claims WHERE ack_at IS NOT NULL"),
    )
    return {name: connection.execute(question).get for name, question in questions}


def check_all_acked(connection: apsw.Connection, count: int) -> None:
    """Stop here unless there are this many events, all of them acknowledged."""
    same("acknowledgements", {"waiting": 0, "claimed": 0, "acked": count}, states(connection))


def version_of(fields: dict[str, Any], event_id: str, handler: str) -> tuple[str, str, str]:
    """What an event makes of its order: the key, the fields, and the metadata of the commit."""
    key = fields["order_id"]
    order = {"id": key, "customer": fields["customer"], "total": fields["total"]}
    metadata = {
        "attempt": 1,
        "event_id": event_id,
        "handler_id": handler,
        "namespace": NAMESPACE,
        "session_id": SESSION,
    }
    return key, orjson.dumps(order, None, _SORTED).decode(), orjson.dumps(metadata).decode()


def payload_of(fields: dict[str, Any]) -> str:
    return orjson.dumps(fields, None, _SORTED).decode()


def new_id() -> str:
    return f"{_PROCESS}-0000-7000-8000-{next(_numbers):012x}"


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
