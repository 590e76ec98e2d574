"""What the commands say to somebody who has taken a wrong turn."""

from __future__ import annotations

import json

import pytest

from ontologia import Entity, Event, Field, Relation, Session
from tests.integration.commands import at_a_terminal, invoke

LONG = "folded" * 10


class Shelf(Entity):
    id: Field[str]


class WideShelf(Entity):
    id: Field[str]
    accountable_department: Field[str]
    b: Field[str]
    c: Field[str]
    d: Field[str]
    e: Field[str]


class StandsBeside(Relation[Shelf, Shelf]):
    pass


class ShelfMoved(Event):
    shelf: Field[str]


@pytest.fixture
def shelves(uri):
    with Session(uri) as session:
        session.ensure([Shelf(id="a"), Shelf(id="b"), StandsBeside(left_key="a", right_key="b")])
    return uri


def test_a_relation_that_is_asked_for_as_an_entity_is_said_to_be_one(shelves):
    as_entity = invoke("query", "entities", "StandsBeside", "--datastore-uri", shelves)
    as_relation = invoke("query", "relations", "Shelf", "--datastore-uri", shelves)

    assert (as_entity.exit_code, as_relation.exit_code) == (4, 4)
    assert "There is a relation of this name." in as_entity.stderr
    assert "There is an entity of this name." in as_relation.stderr


def test_the_name_of_a_class_is_no_type_of_event_and_that_is_said(shelves):
    where = ("--datastore-uri", shelves)

    by_class = invoke("emit", "ShelfMoved", '{"shelf": "a"}', *where)
    by_type = invoke("emit", "shelf.moved", '{"shelf": "a"}', *where)
    for_programs = invoke("emit", "ShelfMoved", '{"shelf": "a"}', *where, "--json")

    assert "a class ShelfMoved have the type shelf.moved" in by_class.stderr
    assert len(by_class.stdout.split()) == 1, "the id alone"
    assert by_type.stderr == ""
    assert json.loads(for_programs.stdout)["type"] == "ShelfMoved"
    assert for_programs.stderr == ""


def test_fields_that_are_no_json_are_named(shelves):
    done = invoke("emit", "shelf.moved", "shelf=a", "--datastore-uri", shelves)

    assert done.exit_code == 2
    assert "Invalid value for JSON: not JSON: " in done.stderr


def test_a_trace_says_who_announced_its_first_event(shelves):
    event = invoke("emit", "shelf.moved", '{"shelf": "a"}', "--datastore-uri", shelves)

    shown = invoke("trace", event.stdout.strip(), "--datastore-uri", shelves).stdout

    assert ", announced by ontologia emit  ◀\n" in shown


@pytest.mark.parametrize(("columns", "table"), [(130, True), (80, False)])
def test_a_terminal_too_narrow_for_a_table_gets_a_line_for_each_value(shelves, columns, table):
    event = invoke("emit", "shelf.moved", '{"shelf": "a"}', "--datastore-uri", shelves)

    code, shown = at_a_terminal("events", "show", "--datastore-uri", shelves, columns=columns)

    lines = shown.splitlines()
    assert code == 0
    assert ("─" in shown) is table
    assert (f"Event ID    {event.stdout.strip()}" in lines) is not table
    assert ("Type        shelf.moved" in lines) is not table


def test_no_word_of_a_header_is_broken_in_a_table(uri):
    with Session(uri) as session:
        session.ensure(WideShelf(id="a", accountable_department="x", **dict.fromkeys("bcde", LONG)))

    code, shown = at_a_terminal(
        "query", "entities", "WideShelf", "--datastore-uri", uri, columns=100
    )

    assert code == 0
    assert "─" in shown
    assert "accountable_department" in shown
    assert LONG not in shown, "wide texts are folded"


def test_the_report_of_a_copy_is_columns_in_a_pipe_like_every_other_table(shelves, place):
    done = invoke("copy", shelves, place("sqlite"))

    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert header == ["table", "rows", "hash, equal on both sides"]
    assert {len(row) for row in rows} == {3}
    assert rows[-1][:2] == ["all", str(sum(int(row[1]) for row in rows[:-1]))]
