"""Moving a store: everything arrives, on either database, and work goes on there."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from ontologia import Session
from ontologia.errors import CopyError
from ontologia.runtime.session import core_of
from ontologia.store.copying import copy_store, transfer
from ontologia.store.copying.tables import LEFT_OUT, TABLES
from ontologia_conformance.event_world import (
    POST,
    ParcelPosted,
    claim,
    claim_of,
    numbers,
    post,
)
from ontologia_conformance.query_world import (
    ENTITIES,
    RELATIONS,
    histories,
    open_world,
    seen,
)
from tests.integration.moving import (
    EVERY_QUARTER,
    Cleaned,
    columns,
    contents,
    fill,
    open_post,
    sweep,
    tables,
)
from tests.shop import Customer

ROUTES = [
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
    ("sqlite", "sqlite"),
    pytest.param(("postgres", "postgres"), marks=pytest.mark.thorough),
]
every_route = pytest.mark.parametrize("route", ROUTES, ids=" to ".join)
both_ways = pytest.mark.parametrize("route", ROUTES[:2], ids=" to ".join)
"""Enough where the kind of the other end makes no difference."""


@pytest.fixture
def copied(route, place, clock):
    """A full store, copied: where it was, where it is, the ids of its events."""
    source, target = place(route[0]), place(route[1])
    ids = fill(source, clock)
    copy_store(source, target)
    return source, target, ids


# -- everything ---------------------------------------------------------------------------------


def test_every_table_and_column_of_both_layouts_is_copied(place, ask_store):
    """Who adds a table to a layout adds it to TABLES, or says in LEFT_OUT why not."""
    stores = {kind: place(kind) for kind in ("sqlite", "postgres")}
    for uri in stores.values():
        Session(uri).close()

    for uri in stores.values():
        assert tables(ask_store, uri) == {table.name for table in TABLES} | set(LEFT_OUT)
    for table in TABLES:
        on_sqlite = columns(ask_store, stores["sqlite"], table.name)
        on_postgres = columns(ask_store, stores["postgres"], table.name)
        if table.name.endswith("_latest"):
            on_sqlite = sorted({*on_sqlite, "fields_json"})  # there it is made from `fields`
        assert on_sqlite == on_postgres, table.name


@every_route
def test_every_row_arrives_as_it_was(copied, ask_store):
    source, target, _ = copied

    here, there = contents(ask_store, source), contents(ask_store, target)

    assert [name for name, rows in here.items() if not rows] == []  # the world fills every table
    for name, rows in here.items():
        assert there[name] == rows, name


def test_a_store_that_goes_there_and_back_is_the_same(place, clock, ask_store):
    first, second, third = place("sqlite"), place("postgres"), place("sqlite")
    fill(first, clock)

    there = copy_store(first, second)
    back = copy_store(second, third)

    assert back.tables == there.tables
    assert contents(ask_store, third) == contents(ask_store, first)


@both_ways
def test_what_is_searched_is_made_anew(copied, clock):
    """The column that conditions look at is not copied, and answers as it did."""
    source, target, _ = copied

    with open_post(source, clock) as here, open_post(target, clock) as there:
        for cls in ENTITIES + RELATIONS:
            for name, field in cls.__shape__.fields.items():
                values = {repr(v): v for v in (getattr(o, name) for o in _all(here, cls))}
                for value in values.values():
                    if value is not None and not isinstance(value, (list, dict)):
                        condition = getattr(cls, name) == value
                        assert _keys(_all(there, cls, condition)) == _keys(
                            _all(here, cls, condition)
                        ), (field, value)


@pytest.mark.thorough
@hypothesis_settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories())
def test_any_history_can_be_asked_the_same_questions_elsewhere(place, history):
    source, target = place("sqlite"), place("postgres")
    world = open_world(source, history)
    world.session.close()

    copy_store(source, target)

    with Session(target, entity_types=ENTITIES, relation_types=RELATIONS) as session:
        assert session.head == world.head
        for cls in ENTITIES + RELATIONS:
            for commit in range(1, world.head + 1):
                answer = _asked(session, cls).as_of(commit).collect()
                expected = [item.seen() for item in world.items(cls, commit, None)]
                assert sorted(map(repr, map(seen, answer))) == sorted(map(repr, expected))


def _asked(session, cls):
    query = session.query()
    return query.entities(cls) if cls in ENTITIES else query.relations(cls)


def _all(session, cls, *conditions):
    asked = _asked(session, cls)
    for condition in conditions:
        asked = asked.where(condition)
    return asked.collect()


def _keys(objects):
    return sorted(repr(each.meta()) for each in objects)


# -- work goes on -------------------------------------------------------------------------------


@every_route
def test_what_was_pending_runs_and_what_was_finished_does_not(copied, clock):
    _, target, ids = copied

    with open_post(target, clock) as session:
        store = session.event_store
        assert store.check() == []
        first = {str(event.id) for event in claim(store, session="s9")}
        clock.advance(seconds=31)
        later = {str(event.id) for event in claim(store, session="s9")}

        assert first == {ids["returned"], ids["ready"], ids["new"]}
        # A lease that was held is waited for, and so is a backoff.
        assert later - first == {ids["held"], ids["failed"]}
        assert claim_of(store, ids["failed"])["attempts"] == 1
        assert claim_of(store, ids["dead"])["dead_lettered_at"] is not None
        assert [letter["event_id"] for letter in store.list_dead_letters(POST)] == [ids["dead"]]
        assert store.check() == []


@both_ways
def test_an_event_that_was_being_worked_on_can_be_acknowledged_there(copied, clock):
    _, target, ids = copied

    with open_post(target, clock) as session:
        session.event_store.ack("ship", ids["held"])

        assert claim_of(session.event_store, ids["held"])["ack_at"] is not None


@both_ways
def test_a_tick_that_fired_does_not_fire_again(copied, clock):
    _, target, _ = copied
    behind = type(clock)(clock.now().replace(minute=14, second=59))

    with open_post(target, behind) as session:
        session.add_schedule(EVERY_QUARTER)
        behind.advance(seconds=2)
        again = core_of(session).scheduler.fire_due()
        behind.advance(seconds=15 * 60)
        following = core_of(session).scheduler.fire_due()

    assert (again, following) == (0, 1)


@both_ways
def test_deferred_events_come_at_their_time_and_cancelled_ones_do_not(copied, clock):
    _, target, _ = copied

    with open_post(target, clock) as session:
        again = session.event_store.defer(Cleaned(), POST, delay=1, dedup_key="other")
        taken = session.event_store.defer(ParcelPosted(number=61), POST, delay=1, dedup_key="once")
        clock.advance(seconds=3600)
        session.run([sweep], max_iterations=1)
        found = numbers(claim(session.event_store, session="s9"))

        assert again is not None
        assert taken is None
        assert 61 in found
        assert 60 not in found


@pytest.mark.thorough
@every_route
def test_numbers_go_on_after_the_greatest_that_was_ever_given(copied, clock, ask_store):
    source, target, _ = copied
    greatest = {
        name: max(row[columns(ask_store, source, name).index(number)] for row in rows)
        for name, rows in contents(ask_store, source).items()
        if (number := {t.name: t.number for t in TABLES}[name]) is not None
    }

    with open_post(target, clock) as session:
        session.ensure(Customer(id="c1", name="Ada"))
        commit = session.commit()
        claim(session.event_store, "another")
        post(session.event_store, 7)

    there = contents(ask_store, target)
    assert commit == greatest["commits"] + 1
    assert _last(ask_store, target, there, "entity_history") == greatest["entity_history"] + 1
    assert _last(ask_store, target, there, "events") == greatest["events"] + 1
    assert _last(ask_store, target, there, "schema_versions") == greatest["schema_versions"] + 1
    # The greatest had been forgotten, and somebody may still know the consumer by it.
    assert _last(ask_store, target, there, "consumers") == greatest["consumers"] + 2


def _last(ask_store, uri, found, table):
    number = {t.name: t.number for t in TABLES}[table]
    return found[table][-1][columns(ask_store, uri, table).index(number)]


# -- while others write -------------------------------------------------------------------------


@every_route
def test_writers_of_the_source_go_on_and_the_copy_is_of_the_moment_it_began(
    route, place, clock, ask_store, monkeypatch
):
    source, target = place(route[0]), place(route[1])
    fill(source, clock)
    before = contents(ask_store, source)
    monkeypatch.setattr(transfer, "_MOST_ROWS", 5)
    with open_post(source, clock) as writer:

        def write(_):
            writer.ensure(Customer(id="c1", name=f"Ada {Random().random()}"))
            writer.commit()

        report = copy_store(source, target, progress=write)

    assert contents(ask_store, target) == before | {
        "sessions": contents(ask_store, target)["sessions"]
    }
    assert set(report.moved_on) == {
        *("commits", "entity_history", "entity_latest", "schema_registry", "schema_versions"),
    }


@every_route
def test_a_source_that_nobody_wrote_to_has_not_moved_on(route, place, clock):
    source, target = place(route[0]), place(route[1])
    fill(source, clock)

    assert copy_store(source, target).moved_on == ()


@pytest.mark.thorough
@both_ways
def test_many_large_payloads_are_not_in_memory_at_once(route, place, clock):
    source, target = place(route[0]), place(route[1])
    with open_post(source, clock) as session:
        for _ in range(60):
            session.event_store.enqueue(Cleaned(text="x" * 1_000_000), POST)
    copy_store(source, place(route[1]))  # once, so that what is imported is there

    tracemalloc.start()
    try:
        copy_store(source, target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 30_000_000


def test_progress_counts_up_to_everything_twice(place, clock, monkeypatch):
    source, target = place("sqlite"), place("postgres")
    fill(source, clock)
    monkeypatch.setattr(transfer, "_MOST_ROWS", 10)
    told = []

    report = copy_store(source, target, progress=told.append)

    for step in ("copying", "comparing"):
        done = [each.done for each in told if each.step == step]
        assert done == sorted(done)
        assert done[-1] == report.rows
        assert {each.total for each in told} == {report.rows}


def test_a_table_that_is_not_the_same_afterwards_is_named(place, clock, ask_store):
    source, target = place("sqlite"), place("postgres")
    fill(source, clock)

    def meddle(now):
        if now.step == "copying" and now.table == "dead_letters":
            ask_store(target, "UPDATE events SET priority = 7 WHERE seq = 2")

    with pytest.raises(CopyError, match=r"^events differs after the copy"):
        copy_store(source, target, progress=meddle)
