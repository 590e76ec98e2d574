"""The schemas that tests are given: used again only when they are as new."""

from __future__ import annotations

import psycopg
import pytest

from ontologia import Event, Session
from ontologia.store.postgres.place import place_of
from ontologia_conformance.schemas import Postgres
from tests.shop import Customer, Product, Subscription

TABLES = (
    "SELECT tablename FROM pg_tables "
    "WHERE schemaname = current_schema() AND tablename <> 'ontologia_layout'"
)
INDEXES = (
    "SELECT indexname FROM pg_indexes "
    "WHERE schemaname = current_schema() AND indexname LIKE '%tier%'"
)


class Ping(Event):
    pass


@pytest.fixture
def made(postgres_uri):
    """Schemas of this test's own."""
    schemas = Postgres(postgres_uri)
    yield schemas
    schemas.close()


def use(uri: str) -> tuple[int | None, list[list[int]]]:
    with Session(uri) as session:
        session.ensure([Customer(id="c", name="Ada"), Product(sku="p", price=1.0)])
        session.ensure(Subscription(left_key="c", right_key="p", seats=1))
        return session.commit(event=Ping()), [[each.seats] for each in _all(session)]


def _all(session: Session) -> list[Subscription]:
    return session.query().relations(Subscription).collect()


def test_a_schema_is_used_again_and_nothing_of_the_last_test_is_in_it(made, tmp_path):
    seen = []
    for _ in range(3):
        with made.store(tmp_path) as uri:
            tables = made.ask(uri, [TABLES])
            rows = [made.ask(uri, [f"SELECT * FROM {table}"]) for [table] in tables]
            assert rows == [[]] * len(tables)
            first = made.ask(uri, ["SELECT last_value, is_called FROM events_seq_seq"])
            seen.append((uri, first, made.ask(uri, [INDEXES]), use(uri)))

    assert seen == [(seen[0][0], [(1, False)], [], (1, [[1]]))] * 3


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE commits ADD COLUMN colour text",
        "ALTER TABLE commits ALTER COLUMN metadata_json SET NOT NULL",
        "ALTER TABLE locks ADD CONSTRAINT never CHECK (owner_id IS NULL)",
        "CREATE TABLE more(x int)",
        "DROP TABLE locks",
        "DROP INDEX idx_entity_history_commit",
        "UPDATE ontologia_layout SET version = 99",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "DROP TABLE ontologia_layout",
        "INSERT INTO locks VALUES ('a', 'a', 'a', 'a'); ANALYZE locks",
    ],
)
def test_a_schema_that_was_changed_is_not(made, tmp_path, change):
    with made.store(tmp_path) as uri:
        made.ask(uri, [change])
    with made.store(tmp_path) as another:
        assert another != uri
        assert use(another) == (1, [[1]])


@pytest.mark.thorough
def test_a_schema_in_which_somebody_holds_a_lock_is_not(made, tmp_path):
    with psycopg.connect(made.server) as other:
        with made.store(tmp_path) as uri:
            other.execute(f"LOCK TABLE {place_of(uri).schema}.commits".encode())
        with made.store(tmp_path) as another:
            assert another != uri


def test_what_was_made_is_dropped_and_nothing_else(postgres_uri, tmp_path):
    schemas = "SELECT nspname FROM pg_namespace ORDER BY 1"
    with psycopg.connect(postgres_uri, autocommit=True) as server:
        before = server.execute(schemas).fetchall()
        ours, theirs = Postgres(postgres_uri), Postgres(postgres_uri)
        with ours.store(tmp_path) as uri, theirs.store(tmp_path) as other:
            use(ours.fresh())
        ours.close()

        left = server.execute(schemas).fetchall()
        assert set(left) - set(before) == {(place_of(other).schema,)}
        assert use(other) == (1, [[1]])
        theirs.close()
        assert server.execute(schemas).fetchall() == before
        assert place_of(uri).schema != place_of(other).schema
