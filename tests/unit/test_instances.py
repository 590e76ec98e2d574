"""Instances are plain objects whose values fitted when they came in."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from annotated_types import Gt
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ontologia import Entity, Field, Relation, Session
from ontologia.errors import (
    InvalidValueError,
    MetadataUnavailableError,
    OntologiaError,
)


class Colour(Enum):
    RED = "red"


class Address(BaseModel):
    city: str


class Thing(Entity):
    id: Field[str]
    whole: Field[int] = Field(default=0)
    real: Field[float] = Field(default=0.0)
    flag: Field[bool] = Field(default=False)
    text: Field[str] = Field(default="")
    maybe: Field[int | None] = Field(default=None)
    positive: Field[Annotated[int, Gt(0)]] = Field(default=1)
    exact: Field[Decimal | None] = Field(default=None)
    moment: Field[datetime | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    span: Field[timedelta | None] = Field(default=None)
    uid: Field[UUID | None] = Field(default=None)
    colour: Field[Colour | None] = Field(default=None)
    side: Field[Literal["x", "y"]] = Field(default="x")
    numbers: Field[list[int]] = Field(default_factory=list)
    names: Field[set[str]] = Field(default_factory=set)
    address: Field[Address | None] = Field(default=None)
    blob: Field[bytes | None] = Field(default=None)
    free: Field[dict[str, object]] = Field(default_factory=dict)
    anything: Field[Any] = Field(default=None)


class Counter(Entity):
    number: Field[int] = Field(primary_key=True)


class Owns(Relation[Thing, Counter]):
    deed: Field[str] = Field(instance_key=True)
    share: Field[float] = Field(default=1.0)


FITTING = [
    ("whole", "5", 5),
    ("whole", 5.0, 5),
    ("real", 3, 3.0),
    ("flag", "yes", True),
    ("text", "x", "x"),
    ("maybe", None, None),
    ("exact", "1.10", Decimal("1.10")),
    ("moment", "2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
    ("day", "2026-01-01", date(2026, 1, 1)),
    ("span", timedelta(hours=1), timedelta(hours=1)),
    ("uid", "12345678123456781234567812345678", UUID("12345678-1234-5678-1234-567812345678")),
    ("colour", "red", Colour.RED),
    ("numbers", ("1", 2), [1, 2]),
    ("names", ["b", "a", "b"], {"a", "b"}),
    ("address", {"city": "Paris"}, Address(city="Paris")),
    ("blob", b"\xff", b"\xff"),
    ("free", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    ("anything", "free", "free"),
]
WRONG = [
    ("whole", "five"),
    ("whole", 5.5),
    ("whole", None),
    ("whole", 2**63),
    ("maybe", -(2**63) - 1),
    ("positive", 0),
    ("positive", 2**63),
    ("real", math.nan),
    ("real", math.inf),
    ("flag", "perhaps"),
    ("text", 5),
    ("text", None),
    ("exact", Decimal("NaN")),
    ("moment", "yesterday"),
    ("uid", "not a uuid"),
    ("colour", "green"),
    ("side", "z"),
    ("numbers", 5),
    ("numbers", ["x"]),
    ("address", {"town": "Paris"}),
    ("free", {1: 2}),
    ("free", "text"),
]


@pytest.mark.parametrize(("name", "given", "kept"), FITTING)
def test_a_value_is_converted_the_same_when_given_and_when_assigned(name, given, kept):
    assigned = Thing(id="1")

    made = Thing(**{"id": "1", name: given})
    setattr(assigned, name, given)

    assert getattr(made, name) == kept
    assert type(getattr(made, name)) is type(kept)
    assert assigned == made


@pytest.mark.parametrize(("name", "given"), WRONG)
def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(name, given):
    thing = Thing(id="1")

    with pytest.raises(InvalidValueError, match=rf"^Thing: {name}"):
        Thing(**{"id": "1", name: given})
    with pytest.raises(InvalidValueError, match=rf"^Thing: {name}"):
        setattr(thing, name, given)

    assert thing == Thing(id="1")


def test_a_refusal_shows_the_value_and_every_mistake_at_once():
    with pytest.raises(InvalidValueError) as caught:
        Thing(whole="five", colur="red")

    message = str(caught.value)
    assert "id is missing" in message
    assert "whole: " in message
    assert "'five'" in message
    assert "colur is not a field (it has id, whole, " in message


def test_an_unknown_name_can_neither_be_given_nor_assigned_nor_read():
    thing = Thing(id="1")

    with pytest.raises(InvalidValueError, match="size is not a field"):
        Thing(id="1", size=5)
    with pytest.raises(AttributeError, match="Thing has no field 'size'"):
        thing.size = 5
    with pytest.raises(AttributeError, match="size"):
        _ = thing.size


def test_arguments_are_named():
    with pytest.raises(TypeError, match="positional"):
        Thing("1")


@pytest.mark.parametrize(
    ("cls", "key"), [(Thing, {"id": ""}), (Thing, {"id": None}), (Counter, {"number": None})]
)
def test_a_key_is_never_empty(cls, key):
    with pytest.raises(InvalidValueError):
        cls(**key)


def test_a_key_cannot_be_assigned_away_either():
    thing = Thing(id="1")
    owns = Owns(left_key="1", right_key=1, deed="d")

    with pytest.raises(InvalidValueError, match="a key cannot be empty"):
        thing.id = ""
    with pytest.raises(InvalidValueError, match=r"Owns\.left_key is empty"):
        owns.left_key = ""
    with pytest.raises(InvalidValueError, match="a key cannot be empty"):
        owns.deed = ""

    assert (thing.id, owns.left_key, owns.deed) == ("1", "1", "d")


def test_text_in_a_key_that_no_database_keeps_is_refused():
    for bad in ("a\0b", "\ud800"):
        with pytest.raises(InvalidValueError):
            Thing(id=bad)
        with pytest.raises(InvalidValueError):
            Owns(left_key=bad, right_key="1", deed="d")


def test_the_ends_of_a_relation_are_text_or_the_typed_key():
    owns = Owns(left_key="t1", right_key=7, deed="d")

    owns.right_key = 8

    assert (owns.left_key, owns.right_key) == ("t1", "8")
    with pytest.raises(InvalidValueError, match="left_key is missing"):
        Owns(right_key=7, deed="d")


@pytest.mark.parametrize("end", [Thing(id="t1"), b"t1", ["t1"], {"id": "t1"}, None, True, 1.5])
def test_an_end_that_is_neither_text_nor_the_typed_key_is_refused(end):
    with pytest.raises(InvalidValueError, match="left_key"):
        Owns(left_key=end, right_key=7, deed="d")


def test_objects_are_equal_when_class_and_fields_are():
    class Other(Entity):
        number: Field[int] = Field(primary_key=True)

    assert Counter(number=1) == Counter(number="1")
    assert Counter(number=1) != Counter(number=2)
    assert Counter(number=1) != Other(number=1)
    assert Counter(number=1) != 1


def test_objects_are_not_hashable_since_their_fields_can_change():
    with pytest.raises(TypeError, match="unhashable"):
        {Counter(number=1)}


def test_repr_is_what_would_make_the_object_again():
    owns = Owns(left_key="t1", right_key=7, deed="d", share=0.5)

    assert repr(Counter(number=1)) == "Counter(number=1)"
    assert repr(owns) == "Owns(left_key='t1', right_key='7', deed='d', share=0.5)"
    assert eval(repr(owns)) == owns  # noqa: S307 - our own text


def test_a_copy_is_another_object_with_the_same_fields():
    thing = Thing(id="1", numbers=[1], moment=datetime(2026, 1, 1, tzinfo=UTC))

    shallow, deep = copy.copy(thing), copy.deepcopy(thing)
    shallow.whole = 9
    deep.numbers.append(2)

    assert (thing.whole, thing.numbers) == (0, [1])
    assert shallow.numbers is thing.numbers
    assert pickle.loads(pickle.dumps(thing)) == thing  # noqa: S301 - our own bytes


def test_a_copy_is_still_checked():
    twin = copy.copy(Thing(id="1"))

    with pytest.raises(InvalidValueError):
        twin.whole = "five"


def test_what_was_never_stored_has_no_metadata_and_no_ends():
    owns = Owns(left_key="t1", right_key=7, deed="d")

    for ask in (Thing(id="1").meta, owns.meta, lambda: owns.left, lambda: owns.right):
        with pytest.raises(MetadataUnavailableError, match="read from a store"):
            ask()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=5)
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.uuids()
    | st.just(Colour.RED)
    | st.builds(object)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def session():
    opened = Session("sqlite://")
    yield opened
    opened.close()


@given(name=st.sampled_from(list(Thing.__shape__.fields)), value=VALUES)
@settings(max_examples=300, deadline=None)
def test_whatever_is_given_is_read_back_the_same_or_refused_with_our_error(session, name, value):
    try:
        thing = Thing(**{"id": "1"} | {name: value})
        session.ensure(thing)
    except OntologiaError:
        return
    session.commit()

    [back] = session.query().entities(Thing).where(Thing.id == thing.id).collect()

    assert back == thing
    assert type(getattr(back, name)) is type(getattr(thing, name))


class Odd(Entity):
    id: Field[str]
    call: Field[Callable[[], int] | None] = Field(default=None)
    parts: Field[list[bytes]] = Field(default_factory=list)
    moment: Field[datetime | None] = Field(default=None)


@pytest.mark.parametrize(
    "values",
    [{"call": len}, {"moment": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}],
    ids=["function", "before the first day"],
)
def test_what_cannot_be_stored_is_refused_with_our_error(session, values):
    with pytest.raises(OntologiaError, match="Odd"):
        session.ensure(Odd(id="1", **values))


@pytest.mark.parametrize(
    "thing",
    [
        Thing(id="1", span=timedelta.max),
        Thing(id="1", span=timedelta.min),
        Thing(id="1", span=timedelta(days=200_000, microseconds=1)),
        Thing(id="1", moment=datetime.max.replace(tzinfo=UTC)),
        Thing(id="1", exact=Decimal("1E+400")),
        Thing(id="1", real=5e-324),
        Odd(id="1", parts=[b"\xff\x00", b""]),
    ],
    ids=lambda thing: repr({k: v for k, v in vars(thing).items() if v and k != "id"})[:40],
)
def test_a_value_at_the_edge_is_read_back_exact_or_refused(session, thing):
    try:
        session.ensure(thing)
    except OntologiaError:
        return
    session.commit()

    cls = type(thing)
    assert session.query().entities(cls).where(cls.id == thing.id).collect() == [thing]


class Tagged(BaseModel):
    tags: set[int]


class Bag(Entity):
    id: Field[str]
    flat: Field[set[int]] = Field(default_factory=set)
    deep: Field[dict[str, set[int]]] = Field(default_factory=dict)
    model: Field[Tagged | None] = Field(default=None)
    order: Field[dict[str, object]] = Field(default_factory=dict)


# Two sets that are equal and list their elements in different orders.
ONE, OTHER = {0, 8}, {8, 0}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("flat", ONE, OTHER),
        ("deep", {"a": ONE}, {"a": OTHER}),
        ("model", Tagged(tags=ONE), Tagged(tags=OTHER)),
        ("order", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_an_equal_value_is_no_new_version(session, name, one, other):
    assert list(ONE) != list(OTHER)
    session.ensure(Bag(**{"id": name, name: one}))
    session.commit()

    session.ensure(Bag(**{"id": name, name: other}))

    assert session.commit() is None


class Rank(IntEnum):
    LOW = 1


class Ranked(Entity):
    id: Field[str]
    rank: Field[Rank]
    ranks: Field[list[Rank]] = Field(default_factory=list)


@pytest.mark.parametrize("fields", [{"rank": Decimal("sNaN")}, {"ranks": [Decimal("sNaN")]}])
def test_a_signalling_nan_is_refused_where_it_would_be_compared(fields):
    made = Ranked(id="r", rank=1)

    with pytest.raises(InvalidValueError, match="Ranked: a signalling NaN"):
        Ranked(**{"id": "r", "rank": 1} | fields)
    with pytest.raises(InvalidValueError, match="Ranked: a signalling NaN"):
        setattr(made, *next(iter(fields.items())))
    assert made == Ranked(id="r", rank=1)
