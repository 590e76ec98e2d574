"""A store of the layout before this one gets what it lacks when it is opened."""

from __future__ import annotations

import pytest

from ontologia.errors import StoreOpenError
from tests.integration.explained import Buys, Customer, fill

INDEXES = ("idx_commits_event", "idx_events_root")


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
    assert sql("SELECT MAX(version) FROM ontologia_layout") == [[3]]
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
