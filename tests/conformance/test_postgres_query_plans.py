"""On PostgreSQL, too, the statements that really run use their indexes, by the planner's choice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ontologia import Entity, Field, OntologiaConfig, Relation, Session, left, right
from ontologia.store.postgres.database import Database
from ontologia.store.postgres.indexes import create_index
from ontologia.store.postgres.place import place_of
from ontologia.store.postgres.wire import Statement

MANY = 6000
START = datetime(2026, 1, 1, tzinfo=UTC)


class Item(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str] = Field(index=True)
    size: Field[int | None] = Field(index=True)
    ratio: Field[float] = Field(index=True)
    price: Field[Decimal] = Field(index=True)
    made: Field[datetime] = Field(index=True)
    sold: Field[bool] = Field(index=True)


class Box(Entity):
    number: Field[int] = Field(primary_key=True)


class Holds(Relation[Box, Item]):
    place: Field[int] = Field(instance_key=True)
    weight: Field[int] = Field(index=True)


class Watch:
    """The questions that a store is asked, with the plans that PostgreSQL has for them."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, _, self._schema = uri.partition("?schema=")
        self._seen: list[tuple[str, Any]] = []
        ask = Database.all

        def watched(database: Database, sql: str, bindings: Any = ()) -> list[Any]:
            if "_latest" in sql or "_history" in sql:  # and not which types there are
                self._seen.append((sql, bindings))
            return ask(database, sql, bindings)

        monkeypatch.setattr(Database, "all", watched)

    def scans(self, action: Callable[[], Any]) -> list[str]:
        """Which index (or table, as a whole) each step of the last statement reads."""
        action()
        sql, bindings = self._seen[-1]
        if isinstance(sql, Statement):  # bound by position, which the driver does not do by name
            bindings = dict(zip(sql.plan.names, bindings, strict=True))
        with psycopg.connect(self._server) as connection:
            explain = f"EXPLAIN (FORMAT JSON) {sql}".encode()
            [[found]] = connection.execute(explain, bindings or None).fetchall()
        plan = json.loads(found) if isinstance(found, str) else found
        return [
            step.get("Index Name") or f"all of {step['Relation Name']}"
            for step in _steps(plan[0]["Plan"])
            if "Index Name" in step or step["Node Type"] == "Seq Scan"
        ]


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _steps(part)


@pytest.fixture(scope="module")
def items_uri(postgres_uri: str) -> str:
    """A store with many items, and up-to-date statistics."""
    uri = f"{postgres_uri}?schema=items"
    with Session(uri, config=OntologiaConfig(max_batch_size=4 * MANY)) as session:
        session.ensure(
            Item(
                id=f"i{n}",
                name=f"n{n:05}",
                size=n if n % 10 else None,
                ratio=n / 8,
                price=Decimal(n) / 100,
                made=START + timedelta(minutes=n),
                sold=n % 1000 == 0,
            )
            for n in range(MANY)
        )
        session.ensure(Box(number=n) for n in range(MANY // 10))
        session.ensure(
            Holds(left_key=n // 10, right_key=f"i{n}", place=n, weight=n) for n in range(MANY)
        )
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        for table in ("entity_latest", "relation_latest", "entity_history", "relation_history"):
            connection.execute(f"ANALYZE items.{table}".encode())
    return uri


@pytest.fixture
def items(items_uri: str) -> Iterator[Session]:
    with Session(items_uri) as session:
        session.query().entities(Item).limit(1).collect()
        session.query().relations(Holds).limit(1).collect()
        yield session


@pytest.fixture
def watch(items: Session, items_uri: str, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(items_uri, monkeypatch)


@pytest.mark.req("NEW-006")
@pytest.mark.parametrize(
    ("condition", "index", "count"),
    [
        (Item.name == "n00007", "idx_entity_Item_name", 1),
        (Item.name.in_(["n00007", "n00008"]), "idx_entity_Item_name", 2),
        ((Item.name > "n00007") & (Item.name <= "n00009"), "idx_entity_Item_name", 2),
        (Item.name < "n00010", "idx_entity_Item_name", 10),
        (Item.name.startswith("n0012"), "idx_entity_Item_name", 10),
        (Item.name.like("n0012_"), "idx_entity_Item_name", 10),
        (Item.size == 7, "idx_entity_Item_size", 1),
        (Item.size == 2.0**60, "idx_entity_Item_size", 0),
        (Item.size.in_([7, 8.0]), "idx_entity_Item_size", 2),
        (Item.size >= MANY - 5, "idx_entity_Item_size", 5),
        (Item.ratio < 1.25, "idx_entity_Item_ratio", 10),
        (Item.price == Decimal("1.50"), "idx_entity_Item_price", 1),
        (Item.price > Decimal("59.95"), "idx_entity_Item_price", 4),
        (Item.price.in_([1, Decimal("1.5")]), "idx_entity_Item_price", 2),
        (Item.made < START + timedelta(minutes=5), "idx_entity_Item_made", 5),
        (Item.sold == True, "idx_entity_Item_sold", 6),
    ],
    ids=str,
)
def test_a_field_with_an_index_is_found_by_it(items, watch, condition, index, count):
    asked = items.query().entities(Item).where(condition)

    [used] = watch.scans(asked.collect)

    assert used.startswith(index)
    assert len(asked.collect()) == count


@pytest.mark.req("NEW-006")
@pytest.mark.parametrize("field", [Item.name, Item.size, Item.made], ids=str)
@pytest.mark.parametrize("down", [False, True])
def test_the_first_few_by_a_field_with_an_index_come_from_it(items, watch, field, down):
    asked = items.query().entities(Item).order_by(field.desc() if down else field).limit(5)

    [used] = watch.scans(asked.collect)

    assert used.startswith(f"idx_entity_{field!r}".replace(".", "_"))


@pytest.mark.req("NEW-006")
def test_a_read_by_key_is_a_seek(items, watch):
    asked = items.query().entities(Item)

    assert watch.scans(asked.where(Item.id == "i3").collect) == ["entity_latest_pkey"]
    assert watch.scans(asked.where(Item.id.in_(["i3", "i4"])).collect) == ["entity_latest_pkey"]
    assert watch.scans(asked.limit(5).collect) == ["entity_latest_pkey"]


@pytest.mark.req("NEW-006")
def test_a_read_by_key_in_the_past_is_a_seek_in_the_lookup_index(items, watch):
    asked = items.query().entities(Item).as_of(1)

    for condition in (Item.id == "i3", Item.id.in_(["i3", "i4"])):
        assert watch.scans(asked.where(condition).collect) == ["idx_entity_history_lookup"]


@pytest.mark.req("NEW-006")
@pytest.mark.parametrize(
    ("condition", "index"),
    [
        (Holds.left_key == "3", "relation_latest_pkey"),
        (Holds.right_key == "i7", "idx_relation_latest_right"),
        (Holds.weight == 7, "idx_relation_Holds_weight"),
        (right(Holds).name == "n00007", "idx_entity_Item_name"),
        (left(Holds).number == 3, "relation_latest_pkey"),
    ],
    ids=str,
)
def test_relations_are_found_by_their_keys_fields_and_ends(items, watch, condition, index):
    scans = watch.scans(items.query().relations(Holds).where(condition).collect)

    assert any(used.startswith(index) for used in scans)
    assert [used for used in scans if used.startswith("all of")] == []


@pytest.mark.req("NEW-006")
def test_a_walk_from_one_entity_reads_no_whole_table(items, watch):
    for asked in (items.query().entities(Box), items.query().entities(Box).as_of(1)):
        scans = watch.scans(asked.where(Box.number == 3).via(Holds).collect)

        assert [used for used in scans if used.startswith("all of")] == []


def test_many_that_want_the_same_index_at_once_get_one(uri):
    databases = [Database(place_of(uri), timeout_ms=20_000) for _ in range(4)]
    failed: list[Exception] = []
    ready = threading.Barrier(len(databases))

    def make(database: Database) -> None:
        try:
            ready.wait()
            for field in ("a", "b", "a" * 200):
                create_index(database, "entity", "Item", field, "number")
        except Exception as error:  # noqa: BLE001 - it is looked at below
            failed.append(error)

    threads = [threading.Thread(target=make, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = databases[0].all(
        "SELECT indexname FROM pg_indexes WHERE schemaname = %s AND indexdef LIKE %s",
        (databases[0].schema, "%entity_latest%Item%"),
    )
    for database in databases:
        database.close()

    assert failed == []
    assert len(made) == 3


def test_an_index_of_a_field_that_changed_its_type_replaces_the_old_one(uri):
    database = Database(place_of(uri), timeout_ms=20_000)
    try:
        create_index(database, "entity", "Item", "size", "text")
        create_index(database, "entity", "Item", "size", "number")
        [[made]] = database.all(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND indexname LIKE %s",
            (database.schema, "idx_entity_Item_size%"),
        )
    finally:
        database.close()

    assert "numeric" in made


@pytest.mark.req("NEW-009", "NEW-140")
def test_an_index_of_a_new_field_finds_the_objects_that_lack_it(open_session, watch):
    fields = {"id": Field[str]}
    old = made_item(fields)
    before = open_session(entity_types=[old])
    before.ensure(old(id=f"i{n}") for n in range(MANY))
    before.commit()
    new = made_item(fields | {"kind": Field[str]}, kind=Field(default="plain", index=True))
    session = open_session(entity_types=[new])
    session.migrate(dry_run=False, force=True)
    session.ensure(new(id=f"i{n}", kind="rare") for n in range(3))
    session.commit()
    asked = session.query().entities(new)

    [used] = watch.scans(asked.where(new.kind == "rare").collect)

    assert used.startswith("idx_entity_Ware_kind")
    assert len(asked.where(new.kind == "rare").collect()) == 3
    assert asked.where(new.kind == "plain").count() == MANY - 3


def made_item(fields, **declared):
    return type(Entity)("Ware", (Entity,), {"__annotations__": fields, **declared})
