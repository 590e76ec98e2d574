"""Classes as plain data: described, hashed, compared."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
import json
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional
from uuid import UUID

import pytest
from annotated_types import Ge
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue
from typing_extensions import TypeAliasType

from ontologia import Entity, Field, Relation, codec
from ontologia.schema.describe import describe
from ontologia.schema.diff import TypeDiff, diff_specs, serialize_diff
from ontologia.schema.typespec import TypeSpec, schema_hash, spec_of


class Colour(enum.Enum):
    BLUE = "blue"
    RED = "red"


class Level(enum.Enum):
    LOW = 1


class LevelText(enum.Enum):
    LOW = "1"


class Money(BaseModel):
    amount: Decimal
    currency: str


class Tree(BaseModel):
    name: str
    children: list[Tree]


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Options(typing.TypedDict):
    dark: bool


class Person(Entity):
    id: Field[str]
    name: Field[str]


class Firm(Entity):
    vat: Field[int] = Field(primary_key=True)


class Job(Relation[Person, Firm]):
    title: Field[str] = Field(instance_key=True)
    pay: Field[Decimal | None] = Field(default=None)


UserId = NewType("UserId", str)
Names = TypeAliasType("Names", list[str])


# -- specs ------------------------------------------------------------------------------------


def test_the_spec_of_an_entity_names_its_fields_and_its_key():
    spec = spec_of(Firm.__shape__)

    assert spec == TypeSpec("entity", "Firm", {"vat": {"type": "int"}}, key="vat")


def test_the_spec_of_a_relation_names_its_ends_and_its_instance_key():
    spec = spec_of(Job.__shape__)

    assert (spec.kind, spec.left, spec.right) == ("relation", "Person", "Firm")
    assert spec.key == "title"
    assert spec.fields == {
        "title": {"type": "str"},
        "pay": {"type": {"any_of": ["Decimal", "null"]}},
    }


@pytest.mark.req("SQL-019")
def test_the_hash_does_not_depend_on_the_order_of_the_fields():
    def backwards():
        class Person(Entity):
            name: Field[str]
            id: Field[str]

        return Person

    one, other = spec_of(Person.__shape__), spec_of(backwards().__shape__)

    assert list(one.fields) != list(other.fields)
    assert one.to_json() == other.to_json()
    assert one.hash == other.hash


@pytest.mark.req("SQL-019")
def test_the_hash_is_the_sha256_of_sorted_compact_json():
    spec = spec_of(Job.__shape__)

    canonical = json.dumps(json.loads(spec.to_json()), sort_keys=True, separators=(",", ":"))

    assert spec.to_json() == canonical
    assert spec.hash == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.req("SQL-019")
@given(
    st.dictionaries(st.text("abé", max_size=3), st.integers(0, 9) | st.booleans(), max_size=6),
    st.randoms(use_true_random=False),
)
@settings(max_examples=50, deadline=None)
def test_equal_schemas_hash_equal_however_they_are_written(data, random):
    shuffled = list(data.items())
    random.shuffle(shuffled)

    loose = json.dumps({"z": dict(shuffled), "a": 1}, indent=2)
    tight = json.dumps({"a": 1, "z": data}, separators=(",", ":"), ensure_ascii=False)

    assert schema_hash(loose) == schema_hash(tight)
    assert schema_hash(loose) != schema_hash(json.dumps({"a": 2, "z": data}))


def test_defaults_and_indexes_are_no_part_of_a_spec():
    def adorned():
        class Person(Entity):
            id: Field[str] = Field(primary_key=True)
            name: Field[str] = Field(default="nobody", index=True)

        return Person

    assert spec_of(adorned().__shape__).hash == spec_of(Person.__shape__).hash


def test_a_spec_survives_the_way_through_its_text():
    for cls in (Person, Firm, Job):
        spec = spec_of(cls.__shape__)

        assert TypeSpec.from_json(spec.to_json()) == spec


def test_text_from_elsewhere_is_read_as_far_as_it_goes():
    spec = TypeSpec.from_json('{"fields":{"id":{"type":"str"}},"written_by":"another program"}')

    assert spec == TypeSpec("", "", {"id": {"type": "str"}})


# -- annotations ------------------------------------------------------------------------------

SCALARS = [str, int, float, bool, Decimal, datetime, date, time, timedelta, UUID, bytes]
DESCRIPTIONS = [
    *((scalar, scalar.__name__) for scalar in SCALARS),
    (None, "null"),
    (Any, "any"),
    (object, "any"),
    (Optional[str], {"any_of": ["null", "str"]}),  # noqa: UP045
    (str | int | None, {"any_of": ["int", "null", "str"]}),
    (Literal["a", 1], {"literal": ["a", 1]}),
    (list, {"list": ["any"]}),
    (list[int], {"list": ["int"]}),
    (set[str], {"set": ["str"]}),
    (frozenset[str], {"set": ["str"]}),
    (tuple[int, str], {"tuple": ["int", "str"]}),
    (dict, {"dict": ["any"]}),
    (dict[str, list[date]], {"dict": ["str", {"list": ["date"]}]}),
    (Colour, {"enum": ["blue", "red"]}),
    (Money, {"object": {"amount": "Decimal", "currency": "str"}}),
    (Point, {"object": {"x": "float", "y": "float"}}),
    (Options, {"object": {"dark": "bool"}}),
    (Tree, {"object": {"name": "str", "children": {"list": [{"ref": "Tree"}]}}}),
    (Annotated[int, Ge(0)], "int"),
    (UserId, "str"),
    (Names, {"list": ["str"]}),
    (list[UserId], {"list": ["str"]}),
]


@pytest.mark.parametrize(
    ("annotation", "description"), DESCRIPTIONS, ids=[str(a) for a, _ in DESCRIPTIONS]
)
def test_an_annotation_is_described_in_our_own_words(annotation, description):
    found = describe(annotation)

    assert found == description
    assert json.loads(codec.encode(found)) == found


def test_json_of_any_shape_can_be_described_though_it_contains_itself():
    described = describe(JsonValue)

    assert json.loads(codec.encode(described)) == described


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (str | None, Optional[str]),  # noqa: UP045
        (int | str, str | int),
        (Literal["a", "b"], Literal["b", "a"]),
        (Annotated[str, "a note"], str),
    ],
    ids=["optional", "union", "literal", "annotated"],
)
def test_two_ways_to_write_one_type_are_described_alike(one, other):
    assert describe(one) == describe(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (str, str | None),
        (int, float),
        (list[int], list[str]),
        (list[int], set[int]),
        (tuple[int], tuple[int, ...]),
        (tuple[int, int], tuple[int]),
        (dict[str, int], dict[int, int]),
        (Literal[1], Literal["1"]),
        (Level, LevelText),
        (Colour, Literal["red"]),
        (Money, Point),
        (datetime, date),
    ],
    ids=str,
)
def test_types_whose_stored_values_differ_are_described_differently(one, other):
    assert codec.encode(describe(one)) != codec.encode(describe(other))


# -- differences ------------------------------------------------------------------------------


def spec(fields: dict[str, Any], **parts: Any) -> TypeSpec:
    described = {name: {"type": kind} for name, kind in fields.items()}
    return TypeSpec("entity", "Person", described, **parts)


def test_equal_specs_do_not_differ():
    assert diff_specs(spec({"id": "str"}, key="id"), spec({"id": "str"}, key="id"), 1) is None


def test_a_difference_lists_what_was_added_removed_and_changed_in_the_order_of_names():
    stored = spec({"id": "str", "b": "str", "a": "str", "age": "int"}, key="id")
    current = spec({"id": "str", "z": "str", "y": "str", "age": "float"}, key="id")

    diff = diff_specs(stored, current, 4)

    assert diff == TypeDiff(
        *("entity", "Person", 4, ("y", "z"), ("a", "b"), (("age", "int", "float"),)),
        schema_hash=current.hash,
        breaking=tuple((name, "a new field without a default") for name in "yz"),
    )
    assert str(diff) == "entity Person (stored version 4): +y, +z, -a, -b, age: int → float"


@pytest.mark.parametrize("part", ["key", "left", "right"])
def test_another_key_or_end_is_a_difference_of_its_own(part):
    diff = diff_specs(spec({}, **{part: "before"}), spec({}, **{part: "after"}), 1)

    assert diff is not None
    assert diff.changed == ((f"({part})", "before", "after"),)


@pytest.mark.req("SQL-088")
def test_a_serialized_difference_is_json_and_says_everything():
    stored = spec({"id": "str", "old": "str", "age": "int"})
    current = spec({"id": "str", "new": "str", "age": {"any_of": ["int", "null"]}})

    data = serialize_diff(diff_specs(stored, current, 2))

    assert json.loads(json.dumps(data)) == data
    assert data == {
        "kind": "entity",
        "name": "Person",
        "from_version": 2,
        "schema_hash": current.hash,
        "added": ["new"],
        "removed": ["old"],
        "changed": [["age", "int", {"any_of": ["int", "null"]}]],
    }


# -- compatible or breaking -------------------------------------------------------------------


def widget(fields):
    """A class of which these are the fields beside its id: types, or types with their `Field`."""
    declared = {"__annotations__": {"id": Field[str]}}
    for name, kind in fields.items():
        declared["__annotations__"][name] = Field[kind[0] if isinstance(kind, tuple) else kind]
        if isinstance(kind, tuple):
            declared[name] = kind[1]
    return type(Entity)("Widget", (Entity,), declared).__shape__


def changed(before, after, **options):
    shape = widget(after)
    return diff_specs(spec_of(widget(before)), spec_of(shape), 1, shape=shape, **options)


class LevelHigh(enum.Enum):
    LOW = 1
    HIGH = 2


@pytest.mark.req("NEW-140")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (int, float),
        (int, float | None),
        (str, str | None),
        (int, int | str),
        (int | str, Any),
        (Level, LevelHigh),
        (Level, int),
        (Level, float),
        (Literal["a"], Literal["a", "b"]),
        (Literal["a", "b"], str),
        (list[int], list[float]),
        (dict[str, int], dict[str, int | None]),
        (list[Level], list[LevelHigh]),
    ],
)
def test_a_wider_type_is_compatible_and_the_way_back_is_breaking(before, after):
    wider, narrower = changed({"x": before}, {"x": after}), changed({"x": after}, {"x": before})

    assert (wider.breaking, wider.fills) == ((), {})
    assert [name for name, _ in narrower.breaking] == ["x"]


@pytest.mark.req("NEW-140")
@pytest.mark.parametrize(
    ("before", "after"),
    [(int, bool), (bool, int), (int, str), (Level, str), (Level, bool), (set[int], set[float])],
)
def test_types_that_are_stored_otherwise_are_breaking(before, after):
    assert [name for name, _ in changed({"x": before}, {"x": after}).breaking] == ["x"]


@pytest.mark.req("NEW-140")
@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (int, "a new field without a default"),
        (
            (str, Field(default_factory=itertools.count().__next__)),
            "its default does not pass the validators of the class",
        ),
        (
            (int, Field(default_factory=itertools.count().__next__)),
            "its default_factory gives another value each time",
        ),
        (
            (str, Field(default="x", unique=True)),
            "all objects would have the same value of a unique field",
        ),
    ],
)
def test_a_new_field_is_breaking_unless_old_objects_can_have_its_default(field, reason):
    assert changed({}, {"x": field}).breaking == (("x", reason),)


@pytest.mark.req("NEW-140")
def test_new_fields_are_filled_with_their_defaults_as_they_are_stored():
    fields = {
        "a": (Decimal, Field(default=Decimal("1.50"))),
        "b": (list[int], Field(default_factory=lambda: [1])),
        "c": int | None,
        "d": (Level, Field(default=Level.LOW)),
    }

    diff = changed({"old": str}, fields)

    assert (diff.compatible, diff.fills) == (True, {"a": "1.50", "b": [1], "c": None, "d": 1})
    assert diff.verdict("a") == 'compatible: "1.50" in objects that lack it'
    assert changed({}, fields, earlier={"a"}).breaking == (
        ("a", "an earlier version had a field of this name"),
    )


def test_the_key_and_what_an_open_type_holds_do_not_change_by_themselves():
    stored = spec({"id": "int"}, key="id", open=True)

    diff = diff_specs(stored, spec({"id": "float"}, key="id"), 1)

    assert [name for name, _ in diff.breaking] == ["id", "(open)"]
