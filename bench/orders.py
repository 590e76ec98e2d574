"""The data of the event bus: orders that are placed, and stores full of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.bare import sqlite_state as bare
from bench.workload import BOOKING, NAMESPACE, NOTHING, TYPE, fields
from ontologia.clock import to_text
from ontologia.config import OntologiaConfig
from ontologia.runtime.context import HandlerContext
from ontologia.runtime.handlers import on_event
from ontologia.runtime.session import Session
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event, payload_of
from ontologia.schema.field import Field


class OrderPlaced(Event):
    order_id: Field[str]
    customer: Field[str]
    total: Field[float]
    items: Field[list[str]] = Field(default_factory=list)


class OrderPaid(OrderPlaced):
    """The second event of a chain."""


class OrderShipped(OrderPlaced):
    """The last event of a chain."""


class Order(Entity):
    id: Field[str] = Field(primary_key=True)
    customer: Field[str]
    total: Field[float]


@on_event(OrderPlaced, name=NOTHING)
def nothing(ctx: HandlerContext[OrderPlaced]) -> None:
    """The least a handler can do."""


@on_event(OrderPlaced, name=BOOKING)
def booking(ctx: HandlerContext[OrderPlaced]) -> None:
    """One `ensure` and one `commit`."""
    event = ctx.event
    ctx.ensure(Order(id=event.order_id, customer=event.customer, total=event.total))
    ctx.commit()


def unlimited() -> OntologiaConfig:
    """Without the rate limit of the loop."""
    return OntologiaConfig(event_poll_interval_ms=0, max_events_per_iteration=10**9)


def open_orders(where: str | Path, config: OntologiaConfig | None = None) -> Session:
    """A session on a URI, or on a file by its path."""
    return Session(str(where), entity_types=[Order], config=config)


def make_orders(where: str, handler: str = NOTHING) -> None:
    """The tables of the store, and a consumer."""
    with open_orders(where) as session:
        session.event_store.consumers.register(NAMESPACE, handler, [TYPE])


def placed(number: int) -> OrderPlaced:
    return OrderPlaced(**fields(number))


def announce(session: Session, count: int) -> None:
    """Store this many events in one transaction."""
    announce_all(session, map(fields, range(count)))


def announce_all(session: Session, contents: Iterable[dict[str, Any]]) -> None:
    """Store these events in one transaction."""
    session.commit(event=[OrderPlaced(**each) for each in contents])


def build(path: Path, count: int, *, handler: str, finished: int = 0) -> Path:
    """A store with events that wait to be handed out to a handler, and finished ones."""
    with open_orders(path) as session:
        session.event_store.consumers.register(NAMESPACE, handler, [TYPE])
        if finished:
            finish(path, finished, handler)
        announce(session, count)
    return path


_IDS = "printf('01990000-%04x-7000-8000-%012x', n / 65536, n)"
_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"


def finish(path: Path, count: int, handler: str) -> None:
    """Events of the last hour that the handler has acknowledged, put there in bulk."""
    then = to_text(datetime.now(UTC) - timedelta(hours=1))
    with bare.connected(path) as connection:
        [[consumer]] = connection.execute("SELECT id FROM consumers WHERE name = ?", (handler,))
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"{_NUMBERS} INSERT INTO events(id, namespace, type, payload, created_at, "
            f"root_event_id, correlation_id) SELECT {_IDS}, ?, ?, ?, "
            f"substr(?, 1, 20) || printf('%06d+00:00', n), {_IDS}, {_IDS} FROM numbers",
            (count, NAMESPACE, TYPE, payload_of(placed(1)), then),
        )
        connection.execute(
            "INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, "
            "ack_at, available_at, consumer_id, lease_token, read_commit, started_at) "
            "SELECT id, ?, 'bench', created_at, created_at, created_at, created_at, ?, 'token', "
            "0, created_at FROM events",
            (handler, consumer),
        )
        connection.execute("COMMIT")


_EVENT_ROWS = (
    "INSERT INTO ontologia.events(id, namespace, type, payload, created_at, root_event_id, "
    "correlation_id) SELECT id, %(namespace)s, %(type)s, %(payload)s, "
    "left(%(then)s, 20) || lpad(n::text, 6, '0') || '+00:00', id, id FROM (SELECT n, "
    "'01990000-' || lpad(to_hex(n / 65536), 4, '0') || '-7000-8000-' || lpad(to_hex(n), 12, '0') "
    "AS id FROM generate_series(1, %(count)s) AS n) AS numbered"
)
_CLAIM_ROWS = (
    "INSERT INTO ontologia.event_claims(event_id, handler_id, session_id, claimed_at, lease_until, "
    "ack_at, available_at, consumer_id, lease_token, read_commit, started_at) "
    "SELECT e.id, c.name, 'bench', e.created_at, e.created_at, e.created_at, e.created_at, c.id, "
    "'token', 0, e.created_at FROM ontologia.events e CROSS JOIN ontologia.consumers c"
)


def finish_on_postgres(uri: str, count: int) -> None:
    """The same, for every consumer of a store on PostgreSQL."""
    import psycopg

    then = to_text(datetime.now(UTC) - timedelta(hours=1))
    row = {"namespace": NAMESPACE, "type": TYPE, "payload": payload_of(placed(1)), "then": then}
    with psycopg.connect(uri) as connection:
        connection.execute(_EVENT_ROWS, row | {"count": count})
        connection.execute(_CLAIM_ROWS)
