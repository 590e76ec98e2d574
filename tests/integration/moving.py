"""A store with rows in every table, for tests that move it, and ways to look at all of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from ontologia import Event, Field, OntologiaConfig, Schedule, Session, on_event
from ontologia.store.copying.tables import TABLES
from ontologia.testing import ManualClock
from ontologia.testing.conformance.event_world import (
    POST,
    ParcelPosted,
    bury,
    claim,
    post,
)
from ontologia.testing.conformance.query_world import ENTITIES, FIELDS, RELATIONS

Ask = Callable[..., list[Any]]
"""`ask(uri, statement)`: the rows of a statement on a store's own tables."""
LIMIT = 1_048_576  # max_payload_bytes


class Cleaned(Event):
    __event_type__ = "moving.cleaned"
    room: Field[str] = ""
    text: Field[str] = ""


EVERY_QUARTER = Schedule(Cleaned(room="hall"), "*/15 * * * *")
CLASSES = (*ENTITIES, *ENTITIES, *RELATIONS)


@on_event(Cleaned, name="sweep")
def sweep(ctx: Any) -> None:
    """Does nothing, successfully."""


def settings(clock: ManualClock) -> OntologiaConfig:
    return OntologiaConfig(clock=clock, event_max_attempts=3, event_poll_interval_ms=86_400_000)


def open_post(uri: str, clock: ManualClock) -> Session:
    return Session(
        uri, POST, entity_types=ENTITIES, relation_types=RELATIONS, config=settings(clock)
    )


def fill(uri: str, clock: ManualClock, *, commits: int = 4, seed: int = 7) -> dict[str, str]:
    """Write something into every table; the ids of some events by what became of them."""
    random = Random(seed)
    with open_post(uri, clock) as session:
        for _ in range(commits):
            for _ in range(30):
                cls = random.choice(CLASSES)
                obj = cls(**{name: kind.draw(random) for name, kind in FIELDS[cls].items()})
                (session.delete if random.random() < 0.2 else session.ensure)(obj)
            session.commit()
        with session._store.write() as transaction:
            session._store.replies.add(transaction.tx, POST, "key ☃", "hash", '{"said":"é"}')
        return _fill_events(session, clock)


def _fill_events(session: Session, clock: ManualClock) -> dict[str, str]:
    store = session.event_store
    ids: dict[str, str] = {}
    [ids["dead"]] = post(store, 13)
    bury(store, ids["dead"], clock)
    cancelled = store.defer(ParcelPosted(number=60), POST, delay=60)
    assert cancelled is not None
    store.cancel_deferred(POST, cancelled)
    store.defer(ParcelPosted(number=61), POST, delay=timedelta(hours=1), dedup_key="once")
    store.defer(Cleaned(room="soon"), POST, delay=1)
    session.add_schedule(EVERY_QUARTER)
    clock.advance(seconds=15 * 60)
    assert session._scheduler.fire_due() == 1
    session.run([sweep], max_iterations=1)

    names = ("done", "failed", "held", "returned", "ready")
    ids |= dict(zip(names, post(store, 1, 2, 3, 4, 5), strict=True))
    claim(store, limit=4)
    store.ack("ship", ids["done"])
    store.start("ship", ids["failed"], lease_ms=30_000)
    store.release("ship", ids["failed"], error="OSError: no van ☃")
    store.abandon("ship", ids["returned"])
    for event in claim(store, "gone", limit=1):
        store.abandon("gone", str(event.id))
    store.forget(POST, "gone")  # its number is the greatest, and never given again
    store.enqueue(Cleaned(text="é" * (LIMIT // 2 - 100)), POST)
    [ids["new"]] = post(store, 6)
    return ids


def contents(ask: Ask, uri: str) -> dict[str, list[Any]]:
    """Every row of every table, read past everything that copies; the searched form left out."""
    found: dict[str, list[Any]] = {}
    for table in TABLES:
        if table.name.endswith("_latest"):
            text = "fields_json" if uri.startswith("postgres") else "json(fields)"
            asked = f"{table.order}, commit_id, schema_version_id, {text}"
        else:
            asked = ", ".join(columns(ask, uri, table.name))
        rows = ask(uri, f"SELECT {asked} FROM {table.name} ORDER BY {table.order}")
        found[table.name] = [tuple(row) for row in rows]
    return found


def columns(ask: Ask, uri: str, table: str) -> list[str]:
    """The columns of a table, in alphabetical order, from the database's own catalogue."""
    asked = f"SELECT name FROM pragma_table_info('{table}') ORDER BY name"
    if uri.startswith("postgres"):
        asked = (
            f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}' "
            f'AND table_schema = current_schema() ORDER BY column_name COLLATE "C"'
        )
    return [name for (name,) in ask(uri, asked)]


def tables(ask: Ask, uri: str) -> set[str]:
    """The tables that are there."""
    asked = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    if uri.startswith("postgres"):
        asked = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    return {name for (name,) in ask(uri, asked)}
