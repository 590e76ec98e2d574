"""A store with rows in every table, for tests that move it, and ways to look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from ontologia import Event, Field, OntologiaConfig, Schedule, Session, on_event
from ontologia.runtime.session import core_of
from ontologia.store.copying.tables import TABLES
from ontologia.store.events.archives import ArchivedEvent
from ontologia.store.events.intakes import Move
from ontologia.store.staging import Staged, Staging
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    POST,
    ParcelPosted,
    bury,
    claim,
    post,
)
from ontologia_conformance.query_world import ENTITIES, FIELDS, RELATIONS

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
        with core_of(session).store.write() as transaction:
            core_of(session).store.replies.add(
                transaction.tx, POST, "key ☃", "hash", '{"said":"é"}'
            )
            _fill_staging(core_of(session).store.staging, transaction)
        core_of(session).store.events.intakes.store(
            POST, "s3://bucket/ü", {"": Move(None, 1, 0)}, [], [], ["é.json"], lambda row, _: row
        )
        return _fill_events(session, clock)


def _fill_staging(staging: Staging, transaction: Any) -> None:
    """A migration that is pending, with an object of each kind."""
    types = [("entity", "Room", 1), ("relation", "Door", 1)]
    staging.begin(transaction.tx, "plan", types, "session", "host, process 1", 2, 0)
    pending = staging.pending(transaction.tx)
    assert pending is not None
    staged = [
        Staged("entity", "Room", ("r☃",), 1, 2, '{"name":"é"}', {"name": "hash"}, None),
        Staged("relation", "Door", ("r☃", "s", ""), 1, 2, "{}", {}, None),
    ]
    staging.stage(pending, staged, 0, transaction.tx)


def _fill_events(session: Session, clock: ManualClock) -> dict[str, str]:
    store = session.event_store
    ids: dict[str, str] = {}
    [ids["back"]] = post(store, 20)
    claim(store)
    store.ack("ship", ids["back"])
    clock.advance(seconds=1)
    shelf = Shelf()
    assert [*store.archives.move(POST, timedelta(0), shelf)] == [(1, 0)]
    assert [*store.archives.restore(POST, shelf)] == [(1, 0, 0)]
    [ids["dead"]] = post(store, 13)
    bury(store, ids["dead"], clock)
    cancelled = store.defer(ParcelPosted(number=60), POST, delay=60)
    assert cancelled is not None
    store.cancel_deferred(POST, cancelled)
    store.defer(ParcelPosted(number=61), POST, delay=timedelta(hours=1), dedup_key="once")
    store.defer(Cleaned(room="soon"), POST, delay=1)
    session.add_schedule(EVERY_QUARTER)
    clock.advance(seconds=15 * 60)
    assert core_of(session).scheduler.fire_due() == 1
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


class Shelf:
    """An archive in this process."""

    uri = "shelf://☃"

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], ArchivedEvent] = {}

    def check(self, namespace: str) -> None:
        pass

    def keep(self, events: Sequence[ArchivedEvent]) -> list[ArchivedEvent]:
        self._events |= {(each.row.namespace, each.row.id): each for each in events}
        return list(events)

    def find(self, namespace: str, event_ids: Iterable[str]) -> list[ArchivedEvent]:
        found = (self._events.get((namespace, each)) for each in event_ids)
        return [each for each in found if each is not None]

    def chain(self, namespace: str, root_event_id: str) -> list[str]:
        return [
            id
            for (of, id), each in self._events.items()
            if of == namespace and id != each.row.root_event_id == root_event_id
        ]

    def ids(self, namespace: str) -> Iterator[str]:
        return (id for of, id in self._events if of == namespace)

    def namespaces(self) -> list[str]:
        return sorted({of for of, _ in self._events})


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
