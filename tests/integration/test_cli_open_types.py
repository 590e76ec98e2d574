"""An open type with a dotted name, from the command line: nothing there has its class."""

from __future__ import annotations

import json
import types

import pytest

from ontologia import Entity, Field
from tests.integration.commands import invoke

NAME = "logistics.shipment"


def _shipment():
    body = {"__open__": True, "__annotations__": {"id": Field[str], "status": Field[str]}}
    return types.new_class(NAME, (Entity,), exec_body=lambda namespace: namespace.update(body))


Shipment = _shipment()


@pytest.fixture
def shipments(session):
    """Two shipments in two commits; the second adds a field to the first and takes one away."""
    session.ensure(Shipment(id="s1", status="new", color="red", to={"city": "Bern"}))
    session.ensure(Shipment(id="s2", status="new", weight=5))
    session.commit()
    session.ensure(Shipment(id="s1", status="sent", to={"city": "Basel"}, weight=2.5))
    session.commit()
    session.close()


@pytest.fixture
def run(uri, shipments):
    def run(*words, exit_code=0):
        done = invoke(*words, "--datastore-uri", uri)
        assert done.exit_code == exit_code, done.stderr
        return done

    return run


@pytest.fixture
def ask(run):
    """The keys of what is found."""

    def keys(*words):
        done = run("query", "entities", NAME, *words, "--json")
        return [json.loads(line)["key"] for line in done.stdout.splitlines()]

    return keys


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--filter", "weight", "gt", "3"), ["s2"]),
        (("--filter", "to.city", "like", "B_s%"), ["s1"]),
        (("--filter", "to.city", "ilike", "ba%"), ["s1"]),
        (("--filter", "status", "like", "S%"), []),
        (("--filter", "status", "ilike", "S%"), ["s1"]),
        (("--filter", "color", "is_null"), ["s1", "s2"]),
        (("--filter", "color", "eq", "red", "--as-of", "1"), ["s1"]),
        (("--order-by", "weight:desc"), ["s2", "s1"]),
        (("--filter", "id", "like", "%1"), ["s1"]),
    ],
)
def test_undeclared_fields_are_asked_for_by_name(ask, words, expected):
    assert ask(*words) == expected


def test_a_pattern_without_an_end_is_refused_with_its_reason(run):
    done = run("query", "entities", NAME, "--filter", "status", "like", "a\\", exit_code=2)

    assert "ends in a backslash" in done.stderr


def test_rows_show_undeclared_fields_together(run):
    shown = run("query", "entities", NAME).stdout.splitlines()

    assert shown[0].split("\t") == ["id", "status", "(others)"]
    assert shown[1].split("\t") == ["s1", "sent", '{"to":{"city":"Basel"},"weight":2.5}']
    assert shown[2].split("\t") == ["s2", "new", '{"weight":5}']
    [found] = run(
        "query", "entities", NAME, "--filter", "id", "eq", "s2", "--json"
    ).stdout.splitlines()
    assert json.loads(found)["fields"] == {"id": "s2", "status": "new", "weight": 5}


def test_why_knows_undeclared_fields(run):
    def commit(field):
        found = json.loads(run("why", NAME, "s1", "--field", field, "--json").stdout)
        return found["value"], found["commit_id"]

    assert commit("weight") == (2.5, 2)
    assert commit("to") == ({"city": "Basel"}, 2)
    assert commit("color") == (None, 2)  # it was taken away there
    assert f"{NAME} s1.weight" in run("why", NAME, "s1", "--field", "weight").stdout
    assert "never had a field 'size'" in run(
        "why", NAME, "s1", "--field", "size", exit_code=4
    ).stderr  # fmt: skip


def test_commits_and_differences_show_undeclared_fields(run):
    _, change = map(json.loads, run("commits", "show", "2", "--json").stdout.splitlines())
    assert change["fields"]["weight"] == {"before": None, "after": 2.5}
    for words in (("commits", "show", "2"), ("diff", "1", "2")):
        shown = run(*words).stdout
        assert f"~ {NAME} s1" in shown
        assert 'color: "red"' in shown
        assert "weight: " in shown


def test_an_export_is_imported_elsewhere_as_it_was(run, uri, place, tmp_path):
    file = tmp_path / "state.jsonl"
    run("export", "--output", str(file))
    for kind in ("sqlite", "postgres"):
        target = place(kind)
        assert invoke("init", "--datastore-uri", target).exit_code == 0

        done = invoke("import", str(file), "--datastore-uri", target)

        assert done.exit_code == 0, done.stderr
        both = [
            invoke("query", "entities", NAME, "--json", "--datastore-uri", each).stdout
            for each in (uri, target)
        ]
        assert [json.loads(line)["fields"] for line in both[0].splitlines()] == [
            json.loads(line)["fields"] for line in both[1].splitlines()
        ]


def test_a_copy_has_the_open_type(run, uri, place):
    target = place("sqlite")

    assert invoke("copy", uri, target).exit_code == 0

    asked = ("query", "entities", NAME, "--filter", "weight", "eq", "5", "--count")
    assert invoke(*asked, "--datastore-uri", target).stdout == "1\n"
    assert invoke("doctor", "--datastore-uri", target).exit_code == 0


def test_its_schema_is_shown_and_it_can_be_dropped(run):
    [exported] = json.loads(run("schema", "export").stdout)
    assert (exported["name"], exported["schema"]["open"]) == (NAME, True)
    assert "+ (open): yes" in run("schema", "history", NAME).stdout
    preview = json.loads(run("schema", "drop", NAME, "--with-objects", "--json").stdout)

    run("schema", "drop", NAME, "--with-objects", "--apply", "--token", preview["token"])

    assert json.loads(run("schema", "export").stdout) == []
    asked = ("query", "entities", NAME, "--as-of", "2", "--filter", "weight", "eq", "5")
    assert run(*asked, "--count").stdout == "1\n"  # the past stays


def test_a_type_that_was_opened_is_nothing_to_the_doctor(uri, open_session):
    def box(is_open):
        body = {"__open__": is_open, "__annotations__": {"id": Field[str]}}
        return types.new_class("OpenedBox", (Entity,), exec_body=lambda names: names.update(body))

    closed, opened = box(False), box(True)
    session = open_session(entity_types=[closed])
    session.ensure([closed(id="a"), closed(id="b")])
    session.commit()
    open_session(entity_types=[opened]).migrate(dry_run=False, force=True)

    done = invoke("doctor", "--json", "--datastore-uri", uri)

    assert [
        each for each in map(json.loads, done.stdout.splitlines()) if "old_versions" in str(each)
    ] == []
    assert done.exit_code == 0
