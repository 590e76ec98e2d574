"""Bare: a queue as one would write it by hand with psycopg, on the store's own tables.

It knows one consumer, no leases that run out, no failures and no fences, and its events are handed
out already. Statements are prepared. The acknowledgements of a batch go with the claim of the
next: one message, one transaction, one wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import psycopg

from bench.bare.sqlite_queue import FAR, SESSION, new_id, now_text, payload_of, version_of
from bench.measure import same
from bench.workload import BATCH, NAMESPACE, TYPE

Connection = psycopg.Connection[tuple[Any, ...]]

_EVENT = (
    "INSERT INTO ontologia.events(id, namespace, type, payload, created_at, root_event_id, "
    "correlation_id) VALUES (%(id)s, %(namespace)s, %(type)s, %(payload)s, %(now)s, %(id)s, %(id)s)"
)
_EVENTS = (
    "INSERT INTO ontologia.events(id, namespace, type, payload, created_at, root_event_id, "
    "correlation_id) SELECT id, %s, %s, payload, %s, id, id "
    "FROM unnest(%s::text[], %s::text[]) AS e(id, payload)"
)
_HAND_OUT = (
    "WITH taken AS (DELETE FROM ontologia.incoming RETURNING event_id) "
    "INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type) "
    "SELECT %s, e.priority, e.created_at, e.id, e.type "
    "FROM taken JOIN ontologia.events e ON e.id = taken.event_id"
)
_TAKE = """
WITH picked AS MATERIALIZED (
    SELECT ctid, event_id FROM ontologia.ready WHERE consumer_id = %(consumer)s
     ORDER BY priority DESC, created_at, event_id LIMIT %(most)s FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM ontologia.ready WHERE ctid = ANY(ARRAY(SELECT ctid FROM picked))),
claimed AS (
    INSERT INTO ontologia.event_claims(event_id, handler_id, session_id, claimed_at, lease_until,
                                       available_at, consumer_id, lease_token, due_at)
    SELECT event_id, %(handler)s, %(session)s, %(now)s, %(far)s, %(now)s, %(consumer)s,
           %(session)s, %(far)s FROM picked)
SELECT e.id, e.payload FROM picked
 CROSS JOIN LATERAL (SELECT * FROM ontologia.events WHERE id = picked.event_id LIMIT 1) e
"""
_READY = (
    "INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type) "
    "SELECT %s, 100, %s, unnest(%s::text[]), %s"
)
_ANY = (
    "SELECT EXISTS (SELECT 1 FROM ontologia.ready WHERE consumer_id = %s), "
    "(SELECT MAX(seq) FROM ontologia.incoming) IS NOT NULL"
)
_ACK = (
    "UPDATE ontologia.event_claims SET ack_at = %s, due_at = NULL "
    "WHERE handler_id = %s AND event_id = ANY(%s)"
)
_COMMIT = "INSERT INTO ontologia.commits(id, created_at, metadata_json) VALUES (%s, %s, %s)"
_VERSION = (
    "INSERT INTO ontologia.entity_history(entity_type, entity_key, fields_json, commit_id, "
    "schema_version_id) VALUES ('Order', %s, %s, %s, 1)"
)
_LATEST = (
    "INSERT INTO ontologia.entity_latest(entity_type, entity_key, commit_id, schema_version_id, "
    "fields_json, fields) VALUES ('Order', %(key)s, %(commit)s, 1, %(text)s, %(text)s::text::jsonb) "
    "ON CONFLICT (entity_type, entity_key) DO UPDATE SET commit_id = excluded.commit_id, "
    "fields_json = excluded.fields_json, fields = excluded.fields"
)
_IN_ONE = """
WITH made AS (
    INSERT INTO ontologia.commits(id, created_at, metadata_json)
    VALUES (%(commit)s, %(now)s, %(metadata)s)),
version AS (
    INSERT INTO ontologia.entity_history(entity_type, entity_key, fields_json, commit_id,
                                         schema_version_id)
    VALUES ('Order', %(key)s, %(text)s, %(commit)s, 1)),
latest AS (
    INSERT INTO ontologia.entity_latest(entity_type, entity_key, commit_id, schema_version_id,
                                        fields_json, fields)
    VALUES ('Order', %(key)s, %(commit)s, 1, %(text)s, %(text)s::text::jsonb)
        ON CONFLICT (entity_type, entity_key) DO UPDATE SET commit_id = excluded.commit_id,
           fields_json = excluded.fields_json, fields = excluded.fields)
UPDATE ontologia.event_claims SET ack_at = %(now)s, due_at = NULL
 WHERE event_id = %(event)s AND handler_id = %(handler)s
"""
_STATES = (
    "SELECT (SELECT COUNT(*) FROM ontologia.incoming) + (SELECT COUNT(*) FROM ontologia.ready), "
    "COUNT(*) FILTER (WHERE due_at IS NOT NULL), COUNT(*) FILTER (WHERE ack_at IS NOT NULL) "
    "FROM ontologia.event_claims"
)


class Queue(NamedTuple):
    """What bare has to know: where its events are, and under which name it takes them."""

    connection: Connection
    consumer: int
    handler: str


@contextmanager
def connected(uri: str) -> Generator[Connection]:
    with psycopg.connect(uri, autocommit=True, prepare_threshold=0) as connection:
        yield connection


def open_queue(connection: Connection, handler: str) -> Queue:
    rows = connection.execute("SELECT id FROM ontologia.consumers WHERE name = %s", (handler,))
    [[consumer]] = rows.fetchall()
    return Queue(connection, consumer, handler)


def hand_out(queue: Queue) -> None:
    """Everything that came in becomes ready, before anything is measured."""
    queue.connection.execute(_HAND_OUT, (queue.consumer,))


def states(connection: Connection) -> dict[str, int]:
    """How many events there are in each place."""
    [counts] = connection.execute(_STATES).fetchall()
    return dict(zip(("waiting", "claimed", "acked"), counts, strict=True))


def check_all_acked(connection: Connection, count: int) -> None:
    """Stop here unless there are this many events, all of them acknowledged."""
    same("acknowledgements", {"waiting": 0, "claimed": 0, "acked": count}, states(connection))


# -- storing --------------------------------------------------------------------------------------


def announce(connection: Connection, content: dict[str, Any]) -> None:
    """Store one event: one message, one transaction."""
    row = {"id": new_id(), "namespace": NAMESPACE, "type": TYPE, "now": now_text()}
    with connection.pipeline():
        connection.execute(_EVENT, row | {"payload": payload_of(content)})
        connection.execute("INSERT INTO ontologia.incoming(event_id) VALUES (%s)", (row["id"],))


def announce_all(connection: Connection, contents: Iterable[dict[str, Any]]) -> None:
    """Store many: one transaction, and two statements."""
    rows = {new_id(): payload_of(content) for content in contents}
    ids, payloads = list(rows), list(rows.values())
    with connection.pipeline():
        connection.execute(_EVENTS, (NAMESPACE, TYPE, now_text(), ids, payloads))
        connection.execute(
            "INSERT INTO ontologia.incoming(event_id) SELECT unnest(%s::text[])", (ids,)
        )


# -- handling -------------------------------------------------------------------------------------


def look(queue: Queue) -> bool:
    """Whether anything is ready, once what came in was handed out."""
    [[ready, incoming]] = queue.connection.execute(_ANY, (queue.consumer,)).fetchall()
    if incoming and not ready:
        hand_out(queue)
    return bool(ready or incoming)


def take(
    queue: Queue, finished: list[str], following: Sequence[dict[str, Any]] = ()
) -> list[tuple[str, Any]]:
    """Acknowledge the last batch, with what follows from it, and claim one: ids and events."""
    now = now_text()
    row = {"consumer": queue.consumer, "handler": queue.handler, "most": BATCH}
    with queue.connection.pipeline():
        if finished:
            queue.connection.execute(_ACK, (now, queue.handler, finished))
        if following:
            events = {new_id(): payload_of(content) for content in following}
            ids, payloads = list(events), list(events.values())
            queue.connection.execute(_EVENTS, (NAMESPACE, TYPE, now, ids, payloads))
            queue.connection.execute(_READY, (queue.consumer, now, ids, TYPE))
        taken = queue.connection.execute(_TAKE, row | {"session": SESSION, "now": now, "far": FAR})
        rows = taken.fetchall()
    return [(event_id, orjson.loads(payload)) for event_id, payload in rows]


Booking = Callable[[Queue, int, str, dict[str, Any]], None]


def book(queue: Queue, booked: Booking) -> int:
    """A transaction for each event: a version of an order, with the acknowledgement.

    There is nobody beside it, so it counts its commits by itself.
    """
    handled = 0
    while taken := take(queue, []):
        for event_id, order in taken:
            handled += 1
            booked(queue, handled, event_id, order)
    return handled


def in_steps(queue: Queue, commit: int, event_id: str, order: dict[str, Any]) -> None:
    """Four statements, sent at once."""
    connection, now = queue.connection, now_text()
    key, text, metadata = version_of(order, event_id, queue.handler)
    with connection.pipeline():
        connection.execute(_COMMIT, (commit, now, metadata))
        connection.execute(_VERSION, (key, text, commit))
        connection.execute(_LATEST, {"key": key, "commit": commit, "text": text})
        connection.execute(_ACK, (now, queue.handler, [event_id]))


def in_one(queue: Queue, commit: int, event_id: str, order: dict[str, Any]) -> None:
    """One statement that does it all."""
    key, text, metadata = version_of(order, event_id, queue.handler)
    row = {"commit": commit, "now": now_text(), "metadata": metadata, "key": key, "text": text}
    queue.connection.execute(_IN_ONE, row | {"event": event_id, "handler": queue.handler})
