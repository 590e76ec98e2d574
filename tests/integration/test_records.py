"""Records: made, read, found, changed and deleted, as commands and through `env.models`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from ontologia.commands import Command, Env, RecordNotFound, RecordSet
from ontologia.errors import (
    InvalidValueError,
    NotFoundError,
    ObjectExistsError,
    QueryError,
    QueryTypeError,
)
from tests.integration.freight import FreightNote, FreightShipment, application, do

KEY = "freight.shipment"


@pytest.fixture
def env(uri: str) -> Iterator[Env]:
    with Env(uri, modules=[application()]) as env:
        yield env


@pytest.fixture
def five(env: Env) -> RecordSet:
    return env.models[KEY].create(
        [
            {"reference": f"S-{n}", "weight": n * 10, "status": "draft" if n % 2 else "sent"}
            for n in range(1, 6)
        ]
    )


def references(env: Env, domain: list[Any], **options: Any) -> list[str]:
    found = env.models[KEY].search(domain, **options).read(["reference"])
    return [record["reference"] for record in found]


# -- through env.models ---------------------------------------------------------------------------


@pytest.mark.req("EDE-017")
def test_a_record_is_made_read_changed_and_gone_through(env: Env) -> None:
    made = env.models[KEY].create({"reference": "S-1"})
    [record] = made
    assert (len(made), made.ids) == (1, [record.id])
    assert record.read()[0] == {
        "id": record.id,
        "reference": "S-1",
        "status": "draft",
        "weight": 0,
        "price": None,
        "due": None,
        "tags": [],
        "address": {},
    }
    record.write({"status": "sent", "weight": 3})
    found = env.models[KEY].browse(record.id)
    assert found == record
    assert [each.read(["weight", "status"]) for each in found] == [
        [{"id": record.id, "weight": 3, "status": "sent"}]
    ]


@pytest.mark.req("EDE-018")
def test_browsing_nothing_finds_nothing(env: Env) -> None:
    records = env.models[KEY]
    for empty in (records.browse(), records.browse(None)):
        assert not empty
        assert list(empty) == []
        assert empty.read() == []
        empty.write({"status": "sent"})
        empty.unlink()
    with pytest.raises(InvalidValueError, match=r"browse\(\*ids\)"):
        records.browse(["a", "b"])
    assert records.browse("b", None, "a", "b").ids == ["b", "a"]


@pytest.mark.req("EDE-025")
def test_a_record_that_does_not_exist_is_named(env: Env, five: RecordSet) -> None:
    missing = env.models[KEY].browse("no-1", five.ids[0], "no-2")
    for act in (missing.read, missing.unlink, lambda: missing.write({"weight": 1})):
        with pytest.raises(RecordNotFound, match=r"freight\.shipment has no record 'no-1'"):
            act()
    assert five.read(["weight"])[0]["weight"] == 10  # the one in the middle is as it was
    assert missing.exists().ids == [five.ids[0]]
    with pytest.raises(RecordNotFound):
        env.dispatch(Command("ede.read_one", {}, KEY, "no-1"))


@pytest.mark.req("EDE-024")
def test_what_is_unlinked_is_gone_and_its_history_stays(env: Env, five: RecordSet) -> None:
    gone = five[1]
    gone.unlink()
    assert gone.id not in env.models[KEY].search().ids
    assert env.models[KEY].count() == 4
    with pytest.raises(RecordNotFound):
        gone.read()
    versions = (
        env.session.query()
        .entities(FreightShipment)
        .where(FreightShipment.id == gone.id)
        .with_history()
        .collect()
    )
    assert [(each.reference, each.meta().deleted) for each in versions] == [
        ("S-2", False),
        ("S-2", True),
    ]


def test_a_record_keeps_the_id_it_brings_and_two_cannot_have_it(env: Env) -> None:
    first = env.models[KEY].create({"id": "S-1", "reference": "first"})
    assert first.id == "S-1"
    with pytest.raises(ObjectExistsError, match=r"freight\.shipment 'S-1'"):
        env.models[KEY].create({"id": "S-1", "reference": "second"})
    assert first.read()[0]["reference"] == "first"
    with pytest.raises(InvalidValueError, match="the id of a record cannot change"):
        first.write({"id": "S-2"})


def test_values_are_validated_where_the_model_has_fields(env: Env, five: RecordSet) -> None:
    head = env.session.head
    for values in ({"reference": 5}, {}, {"reference": "S", "colour": "red"}):
        with pytest.raises(InvalidValueError, match=r"freight\.shipment"):
            env.models[KEY].create(values)
    with pytest.raises(InvalidValueError, match="weight"):
        five.write({"weight": "heavy"})
    with pytest.raises(InvalidValueError, match="'colour' is not a field"):
        five.write({"colour": "red"})
    with pytest.raises(InvalidValueError, match="a record's values are a dict"):
        five.write([("weight", 1)])  # type: ignore[arg-type]
    assert env.session.head == head


def test_values_have_the_types_of_their_fields(env: Env) -> None:
    due = datetime(2026, 5, 1, 12, tzinfo=UTC)
    record = env.models[KEY].create(
        {"reference": "S", "price": Decimal("12.50"), "due": due, "address": {"city": "Bern"}}
    )
    [read] = record.read()
    assert (read["price"], read["due"], read["address"]) == (
        Decimal("12.50"),
        due,
        {"city": "Bern"},
    )
    record.write({"weight": 1})
    assert record.read(["price", "due"]) == [
        {"id": record.id, "price": Decimal("12.50"), "due": due}
    ]


def test_a_model_without_fields_takes_any_json(env: Env) -> None:
    note = env.models["freight.note"].create({"text": "hello", "tags": ["a"], "stars": 5})
    note.write({"stars": 4, "seen": True})
    assert note.read() == [
        {"id": note.id, "text": "hello", "tags": ["a"], "stars": 4, "seen": True}
    ]
    assert env.models["freight.note"].search([("stars", ">", 3), ("seen", "=", True)]) == note
    assert env.models["freight.note"].count([("stars", ">", 4)]) == 0
    assert note.read(["absent"]) == [{"id": note.id, "absent": None}]
    with pytest.raises(InvalidValueError):
        env.models["freight.note"].create({"text": object()})


def test_what_was_read_can_be_changed_without_changing_the_record(env: Env) -> None:
    record = env.models[KEY].create({"reference": "S", "tags": ["a"]})

    def change(model: FreightShipment, cmd: Command) -> None:
        tags = cmd.record.read()[0]["tags"]
        tags.append("b")
        assert cmd.record.read()[0]["tags"] == ["a"]
        cmd.record.write({"tags": tags})
        tags.append("c")

    do(env, change, record.id)
    assert record.read()[0]["tags"] == ["a", "b"]


def test_a_set_has_parts(env: Env, five: RecordSet) -> None:
    assert five[1:3].ids == five.ids[1:3]
    assert five[-1].id == five.ids[-1]
    assert five[5:].ids == []
    assert [each["weight"] for each in five[:2].read()] == [10, 20]
    with pytest.raises(IndexError):
        _ = five[5]


def test_ids_are_asked_of_one_record(env: Env, five: RecordSet) -> None:
    with pytest.raises(InvalidValueError, match="this one has 5"):
        _ = five.id
    assert repr(five[0]) == f"RecordSet(model_key='{KEY}', ids=['{five.ids[0]}'])"


# -- like any entity ------------------------------------------------------------------------------


def test_records_have_a_past_and_a_why(env: Env, five: RecordSet) -> None:
    before = env.session.head
    env.dispatch(Command("shipment.confirm", {}, KEY, five.ids[0]))
    query = env.session.query().entities(FreightShipment)
    [then] = query.where(FreightShipment.id == five.ids[0]).as_of(before).collect()
    [now] = query.where(FreightShipment.id == five.ids[0]).collect()
    assert (then.status, now.status) == ("draft", "confirmed")
    why = env.session.why(FreightShipment, five.ids[0], "status")
    assert why.value == "confirmed"
    assert why.metadata["command"] == "shipment.confirm"


# -- as commands ----------------------------------------------------------------------------------


@pytest.mark.req("EDE-021", "EDE-022", "EDE-023", "EDE-025", "EDE-029")
def test_the_built_in_commands_do_what_the_records_do(env: Env) -> None:
    made = env.dispatch(Command("ede.create", {"reference": "S-1", "weight": 4}, KEY))
    other = env.dispatch(Command("ede.create", {"reference": "S-2", "weight": 4}, KEY))
    assert made["id"] != other["id"]
    changed = env.dispatch(Command("ede.update", {"weight": 5}, KEY, made["id"]))
    assert changed == made | {"weight": 5}
    assert env.dispatch(Command("ede.read_one", {}, KEY, made["id"])) == changed
    assert env.dispatch(Command("ede.read_one", {}, KEY, other["id"]))["weight"] == 4
    env.dispatch(Command("ede.delete", {}, KEY, other["id"]))
    assert env.dispatch(Command("ede.count", {}, KEY)) == 1
    found = env.dispatch(Command("ede.search", {"domain": [["weight", "=", 5]]}, KEY))
    assert found == [changed]


@pytest.mark.req("EDE-027")
def test_the_count_is_of_those_that_a_domain_describes(env: Env, five: RecordSet) -> None:
    def count(domain: list[Any] | None) -> Any:
        return env.dispatch(Command("ede.count", {"domain": domain}, KEY))

    assert count([["weight", ">", 20]]) == 3
    assert count([["weight", ">", 20], ["status", "=", "draft"]]) == 2
    assert count([["weight", ">", 900]]) == 0
    assert count(None) == count([]) == 5
    env.dispatch(Command("ede.delete", {}, KEY, five[4].id))
    assert count([["weight", ">", 20]]) == 2


@pytest.mark.req("EDE-030")
def test_a_built_in_command_says_what_it_lacks(env: Env) -> None:
    with pytest.raises(InvalidValueError, match="of which model"):
        env.dispatch(Command("ede.create", {}))
    with pytest.raises(NotFoundError, match=r"no model 'no\.model'"):
        env.dispatch(Command("ede.create", {}, "no.model"))
    with pytest.raises(InvalidValueError, match="about one record"):
        env.dispatch(Command("ede.update", {"weight": 1}, KEY))
    with pytest.raises(LookupError, match=r"ede\.explode"):
        env.dispatch(Command("ede.explode", {}, KEY))
    with pytest.raises(InvalidValueError, match="knows no 'filter'"):
        env.dispatch(Command("ede.search", {"filter": []}, KEY))
    with pytest.raises(InvalidValueError, match="needs group_by"):
        env.dispatch(Command("ede.read_group", {}, KEY))


# -- searching ------------------------------------------------------------------------------------


@pytest.mark.req("EDE-026")
@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ([], [1, 2, 3, 4, 5]),
        ([("weight", "=", 30)], [3]),
        ([("weight", "!=", 30)], [1, 2, 4, 5]),
        ([("weight", "<", 30)], [1, 2]),
        ([("weight", "<=", 30)], [1, 2, 3]),
        ([("weight", ">", 30)], [4, 5]),
        ([("weight", ">=", 30)], [3, 4, 5]),
        ([("weight", "in", [10, 50, 70])], [1, 5]),
        ([("weight", "not in", [10, 50, 70])], [2, 3, 4]),
        ([("reference", "like", "S-_")], [1, 2, 3, 4, 5]),
        ([("reference", "like", "s-1")], []),
        ([("reference", "ilike", "s-1")], [1]),
        ([("reference", "like", "%-2")], [2]),
        ([("price", "=", None)], [1, 2, 3, 4, 5]),
        ([("price", "!=", None)], []),
        ([("status", "=", "draft"), ("weight", ">", 10)], [3, 5]),
        (["&", ("status", "=", "draft"), ("weight", ">", 10)], [3, 5]),
        (["|", ("weight", "=", 10), ("weight", "=", 20)], [1, 2]),
        (["|", ("weight", "=", 10), "|", ("weight", "=", 20), ("weight", "=", 30)], [1, 2, 3]),
        (["!", ("status", "=", "draft")], [2, 4]),
        (["!", "|", ("weight", "=", 10), ("weight", "=", 20)], [3, 4, 5]),
        (["|", ("weight", "=", 10), ("weight", "=", 20), ("status", "=", "draft")], [1]),
        (["|", "&", ("weight", ">", 10), ("weight", "<", 30), ("weight", "=", 50)], [2, 5]),
    ],
)
def test_a_domain_means(env: Env, five: RecordSet, domain: list[Any], expected: list[int]) -> None:
    assert references(env, domain, order="reference") == [f"S-{n}" for n in expected]
    assert env.models[KEY].count(domain) == len(expected)


def test_a_domain_looks_into_json(env: Env) -> None:
    env.models[KEY].create(
        [{"reference": "a", "address": {"city": "Bern"}}, {"reference": "b", "address": {}}]
    )
    assert references(env, [("address.city", "=", "Bern")]) == ["a"]
    assert references(env, [("address.city", "=", None)]) == ["b"]


@pytest.mark.req("EDE-026")
def test_what_is_found_is_sorted_and_paged(env: Env, five: RecordSet) -> None:
    assert references(env, [], order="status desc, weight") == ["S-2", "S-4", "S-1", "S-3", "S-5"]
    assert references(env, [], order="weight DESC", limit=2, offset=1) == ["S-4", "S-3"]


@pytest.mark.parametrize(
    ("domain", "problem"),
    [
        ("weight = 3", "a domain is a list"),
        ([("weight", "=")], "a term of a domain is"),
        ([("weight", "~", 3)], "compares nothing"),
        ([("weight", ["="], 3)], "compares nothing"),
        (["|", ("weight", "=", 3)], "stands before 2 more"),
        (["!"], "stands before 1 more"),
        (["xor", ("weight", "=", 3)], "joins nothing"),
        ([("colour", "=", 3)], "has no field 'colour'"),
        ([("", "=", 3)], "has a name"),
        ([("weight", "=", "heavy")], "cannot be compared"),
        ([("weight", "<", None)], "is_null"),
        ([("weight", "in", 3)], "takes a list"),
        ([("weight", "=", 1)] * 1001, "at most 1000 terms"),
        (["|", ("weight", "=", 1), "&", ("weight", "=", 1)] * 60 + [("weight", "=", 1)], "deep"),
        (["!", "|", ("weight", "=", 1)] * 60 + [("weight", "=", 1)], "deep"),
    ],
)
def test_a_domain_that_means_nothing_is_refused(env: Env, domain: Any, problem: str) -> None:
    with pytest.raises((QueryError, QueryTypeError), match=problem):
        env.models[KEY].search(domain)


def test_a_domain_may_be_long(env: Env, five: RecordSet) -> None:
    either = ["|"] * 499 + [("weight", "=", n) for n in range(500)]
    many = ["!"] * 998 + [("weight", "=", 10)]

    def count(model: Any, cmd: Command) -> list[int]:
        five[0].write({"status": "counted"})  # now Python is asked about it as well
        return [env.models[KEY].count(domain) for domain in (either, many, ["!", *many])]

    assert do(env, count) == [5, 1, 4]
    assert [env.models[KEY].count(domain) for domain in (either, many, ["!", *many])] == [5, 1, 4]


@pytest.mark.req("EDE-028")
def test_records_are_grouped(env: Env, five: RecordSet) -> None:
    records = env.models[KEY]
    figures = {"n": "count", "total": "sum:weight", "least": "min:weight", "most": "max:weight"}
    assert records.read_group([], group_by=["status"], aggregate=figures, order="total desc") == [
        {"status": "draft", "n": 3, "total": 90.0, "least": 10, "most": 50},
        {"status": "sent", "n": 2, "total": 60.0, "least": 20, "most": 40},
    ]
    assert records.read_group([("weight", ">", 20)], group_by=["status"]) == [
        {"status": "draft", "count": 2},
        {"status": "sent", "count": 1},
    ]
    assert records.read_group(group_by=["status"], limit=1, offset=1, order="status") == [
        {"status": "sent", "count": 2}
    ]
    payload = {"group_by": ["status"], "aggregate": {"mean": "avg:weight"}, "order": "status"}
    assert env.dispatch(Command("ede.read_group", payload, KEY)) == [
        {"status": "draft", "mean": 30.0},
        {"status": "sent", "mean": 30.0},
    ]
    for wrong in ({"n": "median:weight"}, {"n": "sum"}, {"a b": "count"}, {"n": 5}, ["count"]):
        with pytest.raises(QueryError):
            records.read_group(group_by=["status"], aggregate=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="list of fields"):
        records.read_group(group_by="status")


# -- a command sees its own writes ------------------------------------------------------------------


def test_a_command_sees_what_it_wrote(env: Env, five: RecordSet) -> None:
    def look(model: FreightShipment, cmd: Command) -> None:
        records = model.env.models[KEY]
        records.browse(five.ids[0]).write({"weight": 35, "status": "sent"})
        records.browse(five.ids[4]).unlink()
        made = records.create({"reference": "S-6", "weight": 15})
        assert made.read()[0]["weight"] == 15
        assert references(model.env, [("weight", ">", 12)], order="weight") == [
            *("S-6", "S-2", "S-3", "S-1", "S-4"),
        ]
        assert references(model.env, [], order="weight desc", limit=2, offset=1) == ["S-1", "S-3"]
        assert references(model.env, [("weight", "=", 10)]) == []
        assert records.count() == 5
        assert records.count([("status", "=", "sent")]) == 3
        assert records.read_group(
            [], group_by=["status"], aggregate={"n": "count", "w": "sum:weight"}, order="status"
        ) == [
            {"status": "draft", "n": 2, "w": 45.0},
            {"status": "sent", "n": 3, "w": 95.0},
        ]
        assert records.browse(five.ids[4]).exists().ids == []
        with pytest.raises(RecordNotFound):
            records.browse(five.ids[4]).read()
        assert model.env.session.query().entities(FreightShipment).count() == 5  # as stored

    do(env, look)
    assert references(env, [], order="weight") == ["S-6", "S-2", "S-3", "S-1", "S-4"]


def test_what_came_and_went_within_a_command_never_was(env: Env) -> None:
    head = env.session.head

    def fleeting(model: FreightShipment, cmd: Command) -> None:
        model.env.models[KEY].create({"reference": "S"}).unlink()

    do(env, fleeting)
    assert env.session.head == head


def test_open_records_are_found_among_those_written_just_now(env: Env) -> None:
    def look(model: FreightShipment, cmd: Command) -> None:
        notes = model.env.models["freight.note"]
        notes.create([{"stars": 5}, {"stars": "many"}, {}])
        assert notes.count([("stars", "=", 5)]) == 1
        assert notes.count([("stars", "=", None)]) == 1

    do(env, look)
    assert env.session.query().entities(FreightNote).count() == 3
