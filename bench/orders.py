"""The data of the event bus: orders that are placed, and stores full of them."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench import bare
from ontologia import Entity, Event, Field, HandlerContext, OntologiaConfig, Session, on_event
from ontologia.clock import to_text
from ontologia.delivery.lineage import Lineage
from ontologia.schema.event import payload_of

NAMESPACE = "default"
NOTHING, BOOKING = "bench:nothing", "bench:booking"
"""The names of the handlers."""


class OrderPlaced(Event):
    order_id: Field[str]
    customer: Field[str]
    total: Field[float]
    items: Field[list[str]] = Field(default_factory=list)


class Order(Entity):
    id: Field[str] = Field(primary_key=True)
    customer: Field[str]
    total: Field[float]


TYPE = OrderPlaced.__event_type__


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


def fields(number: int) -> dict[str, Any]:
    return {
        "order_id": f"o{number:06d}",
        "customer": f"c{number % 997:06d}",
        "total": number + 0.5,
        "items": ["apple", "pear"],
    }


def placed(number: int) -> OrderPlaced:
    return OrderPlaced(**fields(number))


def announce(session: Session, count: int) -> None:
    """Store this many events in one transaction, through the log that every commit uses."""
    events = session.event_store
    rows = [events.log.row(placed(number), NAMESPACE, Lineage()) for number in range(count)]
    with events.transaction() as tx:
        events.log.add(tx, rows)


def build(path: Path, count: int, *, handler: str, finished: int = 0) -> Path:
    """A store with events that wait to be handed out to a handler, and finished ones."""
    with open_orders(path) as session:
        session.event_store.consumers.register(NAMESPACE, handler, [TYPE])
        if finished:
            _finish(path, finished, handler)
        announce(session, count)
    return path


_IDS = "printf('01990000-%04x-7000-8000-%012x', n / 65536, n)"
_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"


def _finish(path: Path, count: int, handler: str) -> None:
    """Events of the last hour that the handler has acknowledged, in bulk."""
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


def copied(source: Path, name: str) -> Path:
    """A copy of a store beside it, in place of an earlier one, on the disk."""
    for old in source.parent.glob(f"{name}*"):
        old.unlink()
    target = Path(shutil.copy(source, source.with_name(name)))
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return target
