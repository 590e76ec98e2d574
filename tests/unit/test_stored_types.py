"""Classes made from stored schemas: the same schema, and the same text for the same object."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ontologia import Entity, Field, Relation, codec
from ontologia.errors import DefinitionError, InvalidValueError
from ontologia.schema.stored import annotation_of, class_of, plain, unknown_entity
from ontologia.schema.typespec import TypeSpec, spec_of


class Colour(Enum):
    red = "r"
    blue = "b"


class Level(IntEnum):
    low = 1
    high = 2


class Address(BaseModel):
    street: str
    since: date


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float


class Everything(Entity):
    id: Field[str]
    text: Field[str | None]
    whole: Field[int]
    number: Field[float]
    yes: Field[bool]
    amount: Field[Decimal]
    moment: Field[datetime]
    day: Field[date | None]
    hour: Field[time]
    span: Field[timedelta]
    uuid: Field[UUID]
    data: Field[bytes]
    colour: Field[Colour]
    level: Field[Level | None]
    word: Field[Literal["a", "b"]]
    some: Field[Literal[1, "1"]]
    names: Field[list[str]]
    tree: Field[dict[str, list[int | None]]]
    free: Field[Any]
    loose: Field[dict]
    either: Field[str | int]
    mixed: Field[datetime | str]
    moments: Field[list[datetime]]
    tags: Field[set[int]]
    pair: Field[tuple[int, str]]
    address: Field[Address]
    points: Field[list[Point]]


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner),
    max_leaves=5,
)
zoned = st.datetimes(timezones=st.just(UTC))
values = st.fixed_dictionaries(
    {
        "id": st.text("abc:", min_size=1),
        "text": st.none() | st.text("aé\n"),
        "whole": st.integers(-(2**63), 2**63 - 1),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "yes": st.booleans(),
        "amount": st.decimals(allow_nan=False, allow_infinity=False, places=3),
        "moment": zoned | st.datetimes(),
        "day": st.none() | st.dates(),
        "hour": st.times(),
        "span": st.timedeltas(timedelta(0), timedelta(days=999)),
        "uuid": st.uuids(),
        "data": st.binary(max_size=5),
        "colour": st.sampled_from(Colour),
        "level": st.none() | st.sampled_from(Level),
        "word": st.sampled_from(["a", "b"]),
        "some": st.sampled_from([1, "1"]),
        "names": st.lists(st.text("ab")),
        "tree": st.dictionaries(st.text("ab"), st.lists(st.none() | st.integers(0, 9))),
        "free": json_values,
        "loose": st.dictionaries(st.text("ab"), json_values),
        "either": st.text("a1") | st.integers(0, 9),
        "mixed": st.just("2026-01-01") | zoned,
        "moments": st.lists(zoned, max_size=2),
        "tags": st.sets(st.integers(0, 20)),
        "pair": st.tuples(st.integers(0, 9), st.text("a")),
        "address": st.builds(Address, street=st.text("a"), since=st.dates()),
        "points": st.lists(st.builds(Point, x=st.integers(0, 9), y=st.just(0.5)), max_size=3),
    }
)
STORED = class_of(TypeSpec.from_json(spec_of(Everything.__shape__).to_json()))


def test_the_schema_of_such_a_class_is_the_stored_one():
    assert spec_of(STORED.__shape__) == spec_of(Everything.__shape__)
    assert spec_of(STORED.__shape__).hash == spec_of(Everything.__shape__).hash


@given(values)
def test_what_is_read_and_written_again_is_the_same_text(fields):
    text = Everything.__shape__.dump(vars(Everything(**fields)))

    read = STORED.__shape__.decode(codec.decode(text))
    again = STORED(**read)

    assert STORED.__shape__.dump(vars(again)) == text
    assert codec.encode(plain(STORED.__shape__, vars(again))) == text


def test_fields_compare_as_they_do_in_the_class_they_came_from():
    kinds = {name: found.kind for name, found in Everything.__shape__.types.items()}

    assert {name: found.kind for name, found in STORED.__shape__.types.items()} == kinds


def test_values_that_do_not_fit_are_refused():
    Small = class_of(
        TypeSpec("entity", "Small", {"id": {"type": "str"}, "n": {"type": "int"}}, "id")
    )

    with pytest.raises(InvalidValueError, match=r"Small: n: .* got 'many'"):
        Small(id="s", n="many")
    with pytest.raises(InvalidValueError, match="n is missing"):
        Small(id="s")


# -- relations ------------------------------------------------------------------------------------


class Person(Entity):
    name: Field[str] = Field(primary_key=True)


class Knows(Relation[Person, Person]):
    since: Field[int]


class Calls(Relation[Person, Person]):
    number: Field[int] = Field(instance_key=True)


def test_a_relation_has_its_ends_and_its_instance_key():
    person = class_of(spec_of(Person.__shape__))
    knows = class_of(spec_of(Knows.__shape__), person, person)
    calls = class_of(spec_of(Calls.__shape__), person, person)

    assert person.__shape__.key == "name"
    assert knows.__shape__.ends == {"left": person.__shape__, "right": person.__shape__}
    assert (knows.__shape__.instance_key, calls.__shape__.instance_key) == (None, "number")
    assert spec_of(calls.__shape__) == spec_of(Calls.__shape__)
    assert calls(left_key="a", right_key="b", number=7).number == 7


def test_ends_must_be_those_of_the_schema():
    with pytest.raises(DefinitionError, match="Knows connects Person and Person"):
        class_of(spec_of(Knows.__shape__), unknown_entity("Dog"), unknown_entity("Person"))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (TypeSpec("", "Odd", {}), "no class is that"),
        (TypeSpec("entity", "Odd", {"id": "str"}, "id"), "not written by Ontologia"),
        (TypeSpec("entity", "Odd", {"a": {"type": "str"}}), "no primary key"),
    ],
)
def test_a_schema_that_no_class_has_is_refused(spec, said):
    with pytest.raises(DefinitionError, match=said):
        class_of(spec)


@pytest.mark.parametrize(
    "described",
    ["shop.Money", {"ref": "Tree"}, {"any_of": ["date", "str"]}, {"enum": [[1]]}, {"list": []}, 5],
)
def test_what_is_not_known_for_sure_is_left_as_json(described):
    assert annotation_of(described) is Any
