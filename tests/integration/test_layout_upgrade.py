"""A store of a layout before this one gets what it lacks when it is opened."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field
from ontologia.errors import StoreOpenError
from ontologia.queues import StoreEventQueue
from ontologia.runtime.session import core_of
from ontologia.store.postgres.layout import LAYOUT as ON_POSTGRES
from ontologia.store.sqlite.layout import LAYOUT
from ontologia_conformance.queue_world import event, take
from tests.integration.explained import Buys, Customer, fill

pytestmark = pytest.mark.each_database

INDEXES = ("idx_commits_event", "idx_events_chain")


@pytest.fixture
def found(backend, sql):
    """Which of the new indexes are there."""

    def names():
        table, column = ("sqlite_master", "name")
        if backend.name != "sqlite":
            table, column = ("pg_indexes", "indexname")
        where = "" if backend.name == "sqlite" else " AND schemaname = current_schema()"
        listed = sql(f"SELECT {column} FROM {table} WHERE {column} LIKE 'idx_%'{where}")
        return {name for (name,) in listed if name in INDEXES}

    return names


@pytest.fixture
def old(session, clock, sql):
    """A store with something in it, of layout 2."""
    fill(session, clock)
    session.close()
    sql(
        *(f"DROP INDEX {name}" for name in INDEXES),
        "DELETE FROM ontologia_layout WHERE version > 2",
        "INSERT INTO ontologia_layout(version) SELECT 2 WHERE NOT EXISTS "
        "(SELECT 1 FROM ontologia_layout)",
    )


def test_the_layout_before_has_its_indexes_made_and_its_past_explained(
    old, found, open_session, sql
):
    assert found() == set()

    session = open_session()

    assert found() == set(INDEXES)
    assert sql("SELECT MAX(version) FROM ontologia_layout") == [[LAYOUT]] == [[ON_POSTGRES]]
    assert session.why(Buys, "c1:10").commit_id == 3
    [ordered] = session.trace(session.why(Customer, "c1").event_id).events
    assert ordered.outcomes[0].commits == (2,)


def test_metadata_that_is_no_json_is_no_obstacle(old, found, open_session, sql):
    sql("UPDATE commits SET metadata_json = '{\"event_id\"' WHERE id = 2")

    open_session()

    assert found() == set(INDEXES)


def test_a_command_that_only_reads_does_not_change_an_old_store(old, found, uri):
    from ontologia.cli.call import Call

    with pytest.raises(StoreOpenError, match="layout 2"), Call(uri).reading():
        pass

    assert found() == set()


# -- layout 3 -------------------------------------------------------------------------------------


class Stamp(Entity):
    id: Field[str]
    motif: Field[str] = Field(index=True)


@pytest.fixture
def third(open_session, sql):
    """A store with an index of a program's own, of layout 3."""
    session = open_session(entity_types=[Stamp])
    session.ensure(Stamp(id="s1", motif="ship"))
    session.commit()
    session.close()
    sql(
        "DROP TABLE replies",
        "DROP VIEW event_journal",
        "UPDATE ontologia_layout SET version = 3",
    )


def test_layout_3_gets_a_table_for_replies_and_keeps_everything_else(third, open_session, sql):
    store = core_of(open_session(entity_types=[Stamp])).store

    with store.events.transaction() as tx:
        assert store.replies.add(tx, "default", "k", "h", "{}")
    assert store.replies.find("default", "k").reply == "{}"
    assert sql("SELECT version FROM ontologia_layout") == [[LAYOUT]]
    [stamp] = open_session().query().entities(Stamp).where(Stamp.motif == "ship").collect()
    assert stamp == Stamp(id="s1", motif="ship")


@pytest.mark.req("BUS-009")
def test_layout_3_gets_the_journal_of_the_events_it_has(third, open_session, sql, clock):
    session = open_session()
    store = core_of(session).store.events
    store.announce(store.log.untyped_row("tea.ready", "{}", session.namespace, source="kitchen"))

    [row] = sql("SELECT topic, source, status, created_at FROM event_journal")

    assert row[:3] == ["tea.ready", "kitchen", "pending"]
    assert row[3] == pytest.approx(clock.now().timestamp(), abs=1e-3)


def test_what_the_planner_knows_of_an_index_outlives_a_new_layout(
    third, backend, open_session, sql
):
    if backend.name != "sqlite":
        pytest.skip("PostgreSQL has statistics of its own")
    asked = "SELECT idx, stat FROM sqlite_stat1 WHERE idx LIKE 'idx_entity_Stamp_motif_%'"
    before = sql(asked)
    assert len(before) == 1

    open_session(entity_types=[Stamp])

    assert sql(asked) == before


# -- layout 4 -------------------------------------------------------------------------------------


@pytest.mark.req("EDE-031")
def test_layout_4_keeps_the_own_time_of_events_from_then_on(session, open_session, sql, clock):
    earlier, now, later = event(1), event(2), event(3)
    StoreEventQueue(session).enqueue(earlier)
    session.close()
    sql(
        "ALTER TABLE events DROP COLUMN occurred_at",
        "ALTER TABLE deferred_events DROP COLUMN occurred_at",
        "UPDATE ontologia_layout SET version = 4",
    )

    queue = StoreEventQueue(open_session())
    queue.enqueue(now)
    queue.announce(queue.announcement(later, fire_at=clock.now().timestamp() + 60))
    clock.advance(seconds=60)

    given = [delivery.event for delivery in take(queue)]
    assert given[1:] == [now, later]
    assert given[0].event_id == earlier.event_id


# -- layout 5 -------------------------------------------------------------------------------------


def test_layout_5_gets_the_tables_of_archives(session, open_session, sql):
    enqueued = event(1)
    StoreEventQueue(session).enqueue(enqueued)
    session.close()
    sql(
        "DROP TABLE archives",
        "DROP TABLE restored",
        "UPDATE ontologia_layout SET version = 5",
    )

    found = open_session()

    assert sql("SELECT version FROM ontologia_layout") == [[LAYOUT]]
    assert found.event_store.archives.places(found.namespace) == []
    assert found.event_store.collect_events(found.namespace) == 0
    assert [each.event for each in take(StoreEventQueue(found))] == [enqueued]
