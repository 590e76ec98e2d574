"""Entities, relations and events speak pydantic: they are dumped, validated, copied and described."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from ontologia import Entity, Event, Field, Relation
from ontologia.errors import DefinitionError, InvalidValueError


class Hue(Enum):
    RED = "red"


class Maker(BaseModel):
    city: str
    since: date


class Gadget(Entity):
    """Something to sell."""

    id: Field[str]
    price: Field[Decimal] = Field(default=Decimal("9.50"))
    hue: Field[Hue] = Field(default=Hue.RED)
    maker: Field[Maker | None] = Field(default=None)
    made: Field[datetime | None] = Field(default=None)
    at: Field[time | None] = Field(default=None)
    span: Field[timedelta | None] = Field(default=None)
    uid: Field[UUID | None] = Field(default=None)
    tags: Field[set[str]] = Field(default_factory=set)
    blob: Field[bytes] = Field(default=b"")


class Shelf(Entity):
    number: Field[int] = Field(primary_key=True)


class Holds(Relation[Shelf, Gadget]):
    row: Field[int] = Field(instance_key=True)
    count: Field[int] = Field(default=1)


class Near(Relation[Shelf, Shelf]):
    pass


class Bin(Entity):
    __open__ = True
    id: Field[str]


class GadgetSold(Event):
    gadget: Field[str]
    maker: Field[Maker | None] = Field(default=None)
    sold: Field[datetime | None] = Field(default=None)


MAKER = {"city": "Paris", "since": date(1900, 1, 2)}
FULL = Gadget(
    id="g1",
    maker=MAKER,
    made=datetime(2026, 1, 2, tzinfo=UTC),
    at=time(1, 2),
    span=timedelta(hours=1),
    uid=UUID(int=5),
    tags={"new"},
    blob=b"abc",
)
OBJECTS = [
    FULL,
    Gadget(id="g1"),
    Shelf(number=7),
    Holds(left_key=7, right_key="g1", row=3),
    Bin(id="b1", size={"w": [3]}),
    GadgetSold(gadget="g1", maker=MAKER, sold=datetime(2026, 1, 2, tzinfo=UTC)),
]


# -- model_dump ----------------------------------------------------------------------------------


def test_a_dump_has_python_values_or_what_json_has_of_them():
    python, plain = FULL.model_dump(), FULL.model_dump(mode="json")

    assert python == {**vars(FULL), "maker": MAKER}
    assert plain == {
        "id": "g1",
        "price": "9.50",
        "hue": "red",
        "maker": {"city": "Paris", "since": "1900-01-02"},
        "made": "2026-01-02T00:00:00Z",
        "at": "01:02:00",
        "span": "PT1H",
        "uid": str(UUID(int=5)),
        "tags": ["new"],
        "blob": "abc",
    }


def test_a_dump_has_what_is_included_and_not_what_is_excluded():
    opened = Bin(id="b1", size={"w": 3, "h": None}, colour=None)

    assert FULL.model_dump(include={"id", "maker"}) == {"id": "g1", "maker": MAKER}
    assert FULL.model_dump(include={"maker": {"city"}}) == {"maker": {"city": "Paris"}}
    assert Gadget(id="g1").model_dump(mode="json", exclude_none=True, exclude={"tags"}) == {
        "id": "g1",
        "price": "9.50",
        "hue": "red",
        "blob": "",
    }
    assert opened.model_dump() == {"id": "b1", "size": {"w": 3, "h": None}, "colour": None}
    assert opened.model_dump(exclude={"id": True, "size": {"h"}}, exclude_none=True) == {
        "size": {"w": 3}
    }


def test_a_relation_is_dumped_with_its_ends():
    holds = Holds(left_key=7, right_key="g1", row=3)

    assert holds.model_dump() == {"left_key": "7", "right_key": "g1", "row": 3, "count": 1}


def test_an_event_is_dumped_without_what_the_store_knows_of_it():
    event = GadgetSold(gadget="g1", maker=MAKER, priority=7)
    event.id, event.chain_depth = "e1", 3

    assert event.model_dump() == {"gadget": "g1", "maker": MAKER, "sold": None}


# -- model_validate and model_copy -----------------------------------------------------------------


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: type(obj).__name__)
def test_what_was_dumped_is_validated_to_an_equal_object(obj):
    for dumped in (obj.model_dump(), json.loads(json.dumps(obj.model_dump(mode="json")))):
        assert type(obj).model_validate(dumped) == obj
        assert TypeAdapter(type(obj)).validate_python(dumped) == obj
    assert TypeAdapter(type(obj)).validate_json(TypeAdapter(type(obj)).dump_json(obj)) == obj


def test_an_instance_is_validated_to_itself_and_something_else_is_refused():
    assert Gadget.model_validate(FULL) is FULL
    with pytest.raises(InvalidValueError, match="Gadget: id is missing"):
        Gadget.model_validate({})
    for wrong in (5, "g1", Shelf(number=1)):
        with pytest.raises(TypeError, match="a mapping of its fields"):
            Gadget.model_validate(wrong)


def test_a_copy_has_the_new_values_converted_and_all_of_them_or_none():
    copied = FULL.model_copy(update={"price": "3.5", "tags": ["a"]})

    assert (copied.price, copied.tags, copied.maker) == (Decimal("3.5"), {"a"}, FULL.maker)
    assert (FULL.price, FULL.tags) == (Decimal("9.50"), {"new"})
    assert FULL.model_copy() == FULL
    assert FULL.model_copy().tags is FULL.tags
    assert FULL.model_copy(deep=True).tags is not FULL.tags
    with pytest.raises(InvalidValueError, match="price"):
        FULL.model_copy(update={"hue": "red", "price": "cheap"})
    with pytest.raises(AttributeError, match="has no field 'size'"):
        FULL.model_copy(update={"size": 3})


# -- as a type of pydantic ---------------------------------------------------------------------------


class Basket(BaseModel):
    gadgets: list[Gadget]
    first: Holds | None = None
    bin: Bin | None = None


def test_a_model_of_pydantic_validates_and_serializes_the_objects_in_it():
    given = {
        "gadgets": [{"id": "g2", "price": 3}],
        "first": {"left_key": 7, "right_key": "g2", "row": "1"},
        "bin": {"id": "b1", "free": [1]},
    }

    basket = Basket.model_validate(given)

    assert basket.gadgets == [Gadget(id="g2", price=3)]
    assert type(basket.gadgets[0]) is Gadget
    assert basket.first == Holds(left_key=7, right_key="g2", row=1)
    assert basket.bin == Bin(id="b1", free=[1])
    assert Basket.model_validate_json(basket.model_dump_json()) == basket
    assert basket.model_dump(include={"gadgets": {0: {"id"}}}) == {"gadgets": [{"id": "g2"}]}
    assert basket.model_dump()["bin"] == {"id": "b1", "free": [1]}


def test_an_instance_inside_a_model_is_kept_as_it_is():
    assert Basket(gadgets=[FULL]).gadgets[0] is FULL


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"gadgets": [{"price": 1}]}, ("gadgets", 0, "id")),
        ({"gadgets": [{"id": "g", "price": "cheap"}]}, ("gadgets", 0, "price")),
        ({"gadgets": [{"id": "g", "colour": "red"}]}, ("gadgets", 0, "colour")),
        ({"gadgets": [{"id": ""}]}, ("gadgets", 0)),
        ({"gadgets": [], "first": {"right_key": "g", "row": 1}}, ("first", "left_key")),
        (
            {"gadgets": [], "first": {"left_key": "x", "right_key": "g", "row": 1}},
            ("first", "left_key"),
        ),
        ({"gadgets": [], "bin": {"id": "b", "meta": 1}}, ("bin",)),
        ({"gadgets": [5]}, ("gadgets", 0)),
    ],
)
def test_what_does_not_fit_is_found_where_it_is(given, place):
    with pytest.raises(ValidationError) as caught:
        Basket.model_validate(given)

    assert [problem["loc"] for problem in caught.value.errors()] == [place]


def test_an_object_of_a_subclass_is_serialized_as_what_is_declared():
    class Toy(Gadget):
        age: Field[int] = Field(default=3)

    basket = Basket(gadgets=[Toy(id="t1")])

    assert type(basket.gadgets[0]) is Toy
    assert basket.model_dump(mode="json") == Basket(gadgets=[Gadget(id="t1")]).model_dump(
        mode="json"
    )


def test_a_json_schema_says_what_is_taken_and_what_comes_back():
    schema = Gadget.model_json_schema()
    shown = Gadget.model_json_schema(mode="serialization")

    assert (schema["title"], schema["description"]) == ("Gadget", "Something to sell.")
    assert schema["required"] == ["id"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["price"]["default"] == "9.50"
    assert schema["properties"]["hue"]["default"] == "red"
    assert {"type": "number"} in schema["properties"]["price"]["anyOf"]
    assert shown["properties"]["price"]["type"] == "string"
    assert Bin.model_json_schema()["additionalProperties"] is True
    assert Holds.model_json_schema()["required"] == ["left_key", "right_key", "row"]
    assert "description" not in Shelf.model_json_schema()
    assert list(GadgetSold.model_json_schema()["properties"]) == ["gadget", "maker", "sold"]


def test_to_dataclasses_the_objects_are_dataclasses():
    assert dataclasses.asdict(Holds(left_key=7, right_key="g1", row=3)) == {
        "left_key": "7",
        "right_key": "g1",
        "row": 3,
        "count": 1,
    }
    assert [each.name for each in dataclasses.fields(Shelf)] == ["number"]
    assert not any(map(dataclasses.is_dataclass, (Entity, Relation, Event)))


def test_bases_without_objects_are_no_types_of_pydantic():
    class Base(Entity, abstract=True):
        id: Field[str]

    for cls in (Entity, Base):
        with pytest.raises(DefinitionError):
            TypeAdapter(cls)


# -- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Entity, Relation[Shelf, Shelf], Event])
@pytest.mark.parametrize(
    "name", ["model_dump", "model_validate", "model_json_schema", "model_copy"]
)
def test_the_names_of_these_methods_are_taken(kind, name):
    body = {"__module__": __name__, "__annotations__": {"id_": Field[str], name: Field[str]}}
    key = {"id_": Field(primary_key=True)} if kind is Entity else {}

    with pytest.raises(DefinitionError, match=rf"Thing\.{name}: the name is taken by every"):
        _made("Thing", kind, body | key)


def _made(name: str, base: Any, body: dict[str, Any]) -> Any:
    import types

    return types.new_class(name, (base,), exec_body=lambda namespace: namespace.update(body))


def test_an_object_is_no_field_of_another():
    class Keeps(Entity):
        id: Field[str]
        inside: Field[list[Gadget | None]]

    with pytest.raises(DefinitionError, match=r"Keeps\.inside would hold a copy of a Gadget"):
        Keeps(id="k", inside=[])


def test_the_instance_key_of_a_relation_is_its_text():
    holds = Holds(left_key=7, right_key="g1", row=3)

    assert (holds.instance_key, holds.row) == ("3", 3)
    assert Near(left_key=1, right_key=2).instance_key == ""
    with pytest.raises(AttributeError):
        holds.instance_key = "4"
