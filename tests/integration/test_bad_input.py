"""Bad input gets one error that says what, where and what helps; nothing of it is kept."""

from __future__ import annotations

import json
import math
import re
import types
from enum import IntEnum
from typing import Annotated, NewType

import pytest
from annotated_types import Gt

from ontologia import Entity, Field, OntologiaConfig, Relation, left
from ontologia.errors import (
    BatchSizeExceededError,
    DefinitionError,
    InvalidValueError,
    OntologiaError,
    QueryError,
    QueryTypeError,
)
from tests.shop import Customer, Product, Subscription

Score = NewType("Score", int)


class Level(IntEnum):
    TOO_HIGH = 2**63


class Numbers(Entity):
    id: Field[str] = Field(primary_key=True)
    plain: Field[int] = Field(default=0)
    perhaps: Field[int | None] = Field(default=None)
    positive: Field[Annotated[int, Gt(0)]] = Field(default=1)
    named: Field[Score] = Field(default=Score(0))
    mixed: Field[int | str] = Field(default=0)
    several: Field[list[int]] = Field(default_factory=list)
    pair: Field[tuple[int, int]] = Field(default=(0, 0))
    level: Field[Level | None] = Field(default=None)
    ratio: Field[float] = Field(default=0.0)


def ada(**values) -> Customer:
    return Customer(id="c1", **({"name": "Ada"} | values))


def assert_nothing_is_kept(session) -> None:
    assert session.discard() == 0
    assert (session.commit(), session.head) == (None, 0)


# -- objects --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ada(teir="gold"), r"Customer: teir is not a field .*id, name, tier, profile"),
        (lambda: ada(name=5), r"Customer: name: .*string, got 5"),
        (lambda: ada(name=None), r"Customer: name: .*string, got None"),
        (lambda: Product(sku="p1", price="dear"), r"Product: price: .*number.*'dear'"),
        (lambda: Customer(id="c1"), r"Customer: name is missing"),
        (lambda: Customer(name="Ada"), r"Customer: id is missing"),
        (lambda: Customer(id="", name="Ada"), r"Customer\.id: .*cannot be empty"),
        (lambda: Customer(id=None, name="Ada"), r"Customer: id: .*None"),
        (lambda: Subscription(right_key="p1", seats=1), r"Subscription: left_key is missing"),
        (lambda: Subscription(left_key="c1", right_key="", seats=1), r"right_key is empty"),
        (lambda: Subscription(left_key="c1", right_key=1, seats=1), r"Subscription.right_key"),
    ],
)
def test_an_object_that_does_not_fit_its_class_is_never_made(make, message):
    with pytest.raises(InvalidValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", 5, "Customer: name: .*got 5"),
        ("id", "", "Customer.id: .*cannot be empty"),
        ("tier", None, "Customer: tier"),
    ],
)
def test_a_value_that_does_not_fit_is_not_assigned_either(session, field, value, message):
    customer = ada()

    with pytest.raises(InvalidValueError, match=message):
        setattr(customer, field, value)

    session.ensure(customer)
    session.commit()
    assert session.query().entities(Customer).collect() == [ada()]


def test_an_unknown_field_is_not_assigned_either():
    customer = ada()

    with pytest.raises(AttributeError, match="Customer has no field 'teir'; it has id, "):
        customer.teir = "gold"

    assert customer == ada()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "nan is not a JSON number"),
        (math.inf, "inf is not a JSON number"),
        (-math.inf, "-inf is not a JSON number"),
        (2**63, f"{2**63} does not fit in 64 bits"),
        (-(2**63) - 1, f"{-(2**63) - 1} does not fit in 64 bits"),
        ("a\0b", "U+0000"),
        ("\ud800", "lone surrogate"),
        (b"bytes", "bytes is not JSON"),
        ({1, 2}, "set is not JSON"),
        ({1: "one"}, "key 1 is int"),
    ],
    ids=repr,
)
def test_what_json_cannot_carry_is_refused_where_it_stands(session, sql, value, message):
    customer = ada(profile={"scores": [1, {"deep": value}]})

    with pytest.raises(InvalidValueError) as error:
        session.ensure(customer)

    assert str(error.value).startswith("Customer.profile.scores[1].deep: ")
    assert message in str(error.value)
    assert_nothing_is_kept(session)
    assert sql("SELECT COUNT(*) FROM entity_history") == [[0]]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udfff!"], ids=ascii)
@pytest.mark.parametrize("place", ["id", "name", "profile"])
def test_text_that_is_no_text_is_refused_in_every_place(session, text, place):
    values = {"name": "Ada"} | {place: {text: 1} if place == "profile" else text}

    with pytest.raises(InvalidValueError, match=rf"Customer.{place}.*(U\+0000|surrogate)"):
        session.ensure(Customer(**({"id": "c1"} | values)))

    assert_nothing_is_kept(session)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("plain", 2**63),
        ("perhaps", -(2**63) - 1),
        ("positive", 2**63),
        ("positive", 2**64),
        ("named", 2**63),
        ("mixed", 2**63),
        ("several", [1, 2**63]),
        ("pair", (2**63, 1)),
        ("level", Level.TOO_HIGH),
        ("ratio", math.nan),
        ("ratio", math.inf),
    ],
)
def test_a_number_no_database_can_keep_is_refused_in_every_kind_of_field(session, field, value):
    with pytest.raises(InvalidValueError, match=f"Numbers.*{field}"):
        session.ensure(Numbers(id="n1", **{field: value}))

    assert_nothing_is_kept(session)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_the_largest_numbers_come_back_exact(session, value):
    session.ensure(Numbers(id="n1", plain=value, mixed=value, several=[value]))
    session.commit()

    [found] = session.query().entities(Numbers).where(Numbers.plain == value).collect()

    assert (found.plain, found.mixed, found.several) == (value, value, [value])


def test_a_value_without_end_is_refused_and_not_followed(session):
    endless: dict[str, object] = {}
    endless["again"] = endless

    with pytest.raises(InvalidValueError, match=r"Customer\.profile\.again.*nested deeper"):
        session.ensure(ada(profile=endless))

    assert_nothing_is_kept(session)


@pytest.mark.parametrize("act", ["ensure", "delete"])
@pytest.mark.parametrize(
    "odd",
    [5, None, "c2", {"id": "c2"}, object(), Customer, [Customer(id="c2", name="Bob")]],
    ids=["number", "None", "text", "dict", "object", "class", "list"],
)
def test_of_an_iterable_with_one_object_that_is_no_entity_nothing_is_queued(session, act, odd):
    good = [Customer(id=str(n), name="x") for n in range(3)]

    with pytest.raises(OntologiaError, match=re.escape(repr(odd))):
        getattr(session, act)(iter([*good, odd, *good]))

    assert_nothing_is_kept(session)


@pytest.mark.parametrize("odd", [5, None, "c1", b"c1", {"id": "c1"}, Customer], ids=repr)
def test_what_is_no_entity_is_not_queued(session, odd):
    with pytest.raises(
        InvalidValueError, match=r"expected an entity.* got " + re.escape(repr(odd))
    ):
        session.ensure(odd)

    assert_nothing_is_kept(session)


def test_an_iterable_that_fails_half_way_leaves_the_queue_as_it_was(session):
    def broken():
        yield Customer(id="c2", name="Bob")
        raise OSError("the source is gone")

    session.ensure(ada())

    with pytest.raises(OSError, match="the source is gone"):
        session.ensure(broken())

    assert session.commit() == 1
    assert [c.id for c in session.query().entities(Customer).collect()] == ["c1"]


# -- batches --------------------------------------------------------------------------------------


@pytest.mark.req("ONT-178", "NEW-029")
def test_a_batch_past_the_limit_writes_nothing_and_keeps_the_queue(open_session, sql):
    session = open_session(settings={"max_batch_size": 3})
    session.ensure([Customer(id=str(n), name="x") for n in range(3)])
    session.ensure(Product(sku="p1", price=1.0))

    with pytest.raises(BatchSizeExceededError, match=r"4 objects .*max_batch_size is 3") as error:
        session.commit()

    assert (error.value.size, error.value.limit) == (4, 3)
    assert "smaller steps" in error.value.hint
    assert "max_batch_size" in error.value.hint
    assert sql("SELECT COUNT(*) FROM commits") == [[0]]
    assert session.discard() == 4


@pytest.mark.req("ONT-178")
def test_by_default_a_commit_holds_ten_thousand_objects_and_no_more(session):
    session.ensure(Numbers(id=str(n)) for n in range(10_001))
    with pytest.raises(BatchSizeExceededError):
        session.commit()
    with pytest.raises(BatchSizeExceededError):
        session.commit(dry_run=True)
    session.discard()

    session.ensure(Numbers(id=str(n)) for n in range(10_000))

    assert OntologiaConfig().max_batch_size == 10_000
    assert session.commit() == 1


@pytest.mark.req("SQL-104")
def test_one_key_said_twice_in_a_commit_is_one_row_and_the_last_word_counts(session, sql):
    session.ensure([ada(), ada(tier="gold")])
    session.delete(ada())
    session.ensure(ada(name="Ada L."))

    session.commit()

    [[key, fields]] = sql("SELECT entity_key, fields_json FROM entity_history")
    assert (key, json.loads(fields)["name"], json.loads(fields)["tier"]) == (
        "c1", "Ada L.", "standard",
    )  # fmt: skip
    assert len(session.query().entities(Customer).collect()) == 1


@pytest.mark.parametrize("head", ["1", True, -1, 2**70], ids=repr)
def test_an_expected_head_that_is_no_commit_number_is_never_met(session, head):
    session.ensure(ada())
    session.commit()
    session.ensure(ada(tier="gold"))

    with pytest.raises(OntologiaError, match=re.escape(repr(head))):
        session.commit(expected_head=head)

    assert session.head == 1
    assert session.commit(expected_head=1) == 2


# -- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "namespace",
    [5, b"shop", "a\0b", "\ud800", "x" * 201],
    ids=["number", "bytes", "nul", "surrogate", "long"],
)
def test_a_namespace_that_cannot_be_stored_is_refused_at_once(open_session, sql, namespace):
    open_session().close()

    with pytest.raises(OntologiaError, match="namespace"):
        open_session(namespace=namespace)

    assert sql("SELECT namespace FROM sessions") == [["default"]]


@pytest.mark.parametrize("value", [math.nan, object(), "\0"], ids=["nan", "object", "nul"])
def test_instance_metadata_that_json_cannot_carry_is_refused(open_session, sql, value):
    open_session().close()

    with pytest.raises(InvalidValueError, match=r"instance_metadata\.role"):
        open_session(instance_metadata={"role": value})

    assert sql("SELECT COUNT(*) FROM sessions") == [[1]]


@pytest.mark.parametrize("number", ["1", 1.5, None], ids=repr)
@pytest.mark.parametrize("method", ["get_commit", "list_commit_changes"])
def test_what_is_no_commit_number_is_refused(session, method, number):
    session.ensure(ada())
    session.commit()

    with pytest.raises(QueryError, match=re.escape(repr(number))):
        getattr(session, method)(number)


@pytest.mark.parametrize("number", [-1, 0, 2, 2**63, 2**70])
def test_a_number_that_no_commit_has_finds_nothing(session, number):
    session.ensure(ada())
    session.commit()

    assert session.get_commit(number) is None
    assert session.list_commit_changes(number) == []


@pytest.mark.parametrize("number", [-1, "1", 1.5, True, 2**63], ids=repr)
@pytest.mark.parametrize("option", ["limit", "since"])
def test_a_listing_takes_whole_numbers(session, option, number):
    with pytest.raises(QueryError, match=f"{option} .*{re.escape(repr(number))}"):
        session.list_commits(**{option: number})


# -- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "fields", "message", "way_out"),
    [
        (
            Entity,
            {"a": Field(primary_key=True), "b": Field(primary_key=True)},
            "Bad has 2 primary keys: a, b",
            "Mark one",
        ),
        (Entity, {"a": Field()}, "Bad has no primary key", "primary_key=True"),
        (
            Entity,
            {"id": Field(), "a": Field(instance_key=True)},
            "Bad.a: only relations have an instance_key",
            None,
        ),
        (
            Relation[Customer, Product],
            {"a": Field(primary_key=True)},
            "Bad.a: a relation is named by its two ends",
            "instance_key=True",
        ),
        (
            Relation[Customer, Product],
            {"a": Field(instance_key=True), "b": Field(instance_key=True)},
            "Bad has 2 instance keys",
            None,
        ),
        (Entity, {"id": Field(), "meta": Field()}, "Bad.meta: the name is taken", "meta_"),
    ],
    ids=["two keys", "no key", "entity with instance key", "relation with key", "two", "taken"],
)
def test_a_class_that_cannot_be_stored_is_refused_when_it_is_defined(
    base, fields, message, way_out
):
    def define(namespace: dict[str, object]) -> None:
        namespace |= fields | {"__annotations__": dict.fromkeys(fields, Field[str])}

    with pytest.raises(DefinitionError, match=re.escape(message)) as error:
        types.new_class("Bad", (base,), {}, define)

    assert way_out is None or way_out in error.value.hint


# -- questions ------------------------------------------------------------------------------------


@pytest.mark.req("SQL-050")
def test_a_comparison_with_none_says_what_to_write_instead():
    with pytest.raises(TypeError, match=r"Use \.is_null\(\) instead"):
        Customer.name == None  # noqa: B015
    with pytest.raises(TypeError, match=r"Use \.is_not_null\(\) instead"):
        left(Subscription).name != None  # noqa: B015
    with pytest.raises(QueryTypeError, match=r"Customer\.name < None.*is_null"):
        Customer.name < None  # noqa: B015


@pytest.mark.parametrize(
    "path", ["", ".", "a..b", ".a", "a.", None, 5, "a\0b", "\ud800"], ids=ascii
)
def test_a_path_that_leads_nowhere_is_refused_where_it_is_written(path):
    with pytest.raises(QueryError, match=r"Customer\.profile: "):
        Customer.profile.path(path)
    with pytest.raises(QueryError, match=r"Customer\.profile: "):
        Customer.profile.any_path(path)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Customer.name.path("first"), r"Customer\.name is a single value"),
        (lambda: Customer.profile[-1], r"Customer\.profile: .*counts from 0, got -1"),
        (lambda: Customer.profile.path(".".join("a" * 51)), r"Customer\.profile: .*50 steps"),
        (lambda: Customer.name == 5, r"Customer\.name is str .*int 5"),
        (lambda: Product.price > "5", r"Product\.price is float .*str '5'"),
        (lambda: Product.price.in_([math.nan]), r"Product\.price: nan"),
        (lambda: Product.price.in_([1, 2**63]), r"Product\.price: .*64 bits"),
        (lambda: Customer.name.contains("\0"), r"Customer\.name: .*U\+0000"),
        (lambda: Customer.name == "\ud800", r"Customer\.name: .*surrogate"),
        (lambda: left(Subscription).nmae, r"Customer has no field 'nmae'"),
        (lambda: bool(Customer.name == "Ada"), r"& \| ~"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_when_it_is_written(ask, message):
    with pytest.raises(QueryError, match=message):
        ask()
