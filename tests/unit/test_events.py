"""An event is a typed message: its fields are the program's, its metadata is the store's."""

from __future__ import annotations

import gc
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ontologia import Event, EventDeadLetter, Field
from ontologia.errors import DefinitionError, InvalidValueError
from ontologia.schema.event import METADATA, event_class, event_of, payload_of


class UserCreated(Event):
    user_id: Field[str]
    email: Field[str]


class OrderPlaced(Event):
    order_id: Field[str]
    total: Field[float]
    priority: int = 10


class SystemCleanup(Event):
    cutoff_days: Field[int] = 90


def ada(**values: Any) -> UserCreated:
    return UserCreated(**({"user_id": "u1", "email": "user@example.com"} | values))


# -- types ----------------------------------------------------------------------------------------


@pytest.mark.req("ONT-015", "ONT-016")
def test_the_type_of_an_event_comes_from_the_name_of_its_class():
    assert UserCreated.__event_type__ == "user.created"
    assert OrderPlaced.__event_type__ == "order.placed"
    assert SystemCleanup.__event_type__ == "system.cleanup"


@pytest.mark.req("ONT-017")
@pytest.mark.parametrize(
    ("name", "event_type"),
    [
        ("UserCreated", "user.created"),
        ("HTTPRequest", "http.request"),
        ("UserCreatedV2", "user.created.v2"),
        ("S3Upload", "s3.upload"),
        ("ABTestDone", "ab.test.done"),
        ("OAuth2Login", "o.auth2.login"),
        ("X", "x"),
    ],
)
def test_names_become_types_as_the_document_derives_them(name, event_type):
    assert Event._derive_event_type(name) == event_type
    assert type(name, (Event,), {}).__event_type__ == event_type


@pytest.mark.req("ONT-093")
def test_a_class_may_say_its_type_itself():
    class Moved(Event):
        __event_type__ = "warehouse.moved"

    class MovedFar(Moved):
        pass

    assert (Moved.__event_type__, MovedFar.__event_type__) == ("warehouse.moved", "moved.far")
    assert event_class("warehouse.moved") is Moved
    assert EventDeadLetter.__event_type__ == "event.dead_letter"


@pytest.mark.parametrize("wrong", ["", "*", 7, "x" * 201, "a\0b", "\ud800"])
def test_a_type_that_cannot_be_stored_is_refused_when_the_class_is_defined(wrong):
    with pytest.raises((DefinitionError, InvalidValueError)):
        type("Wrong", (Event,), {"__event_type__": wrong})


def test_a_class_that_is_gone_leaves_its_type_to_nobody():
    def define() -> None:
        assert event_class(type("GoneTomorrow", (Event,), {}).__event_type__) is not None

    define()
    gc.collect()

    assert event_class("gone.tomorrow") is None


@pytest.mark.req("ONT-031")
def test_a_subclass_inherits_fields_and_priority_and_has_a_type_of_its_own():
    class ExpressOrderPlaced(OrderPlaced):
        courier: Field[str] = "bike"

    event = ExpressOrderPlaced(order_id="o1", total=5)

    assert ExpressOrderPlaced.__event_type__ == "express.order.placed"
    assert ExpressOrderPlaced.__event_fields__ == ("order_id", "total", "courier")
    assert event.model_dump() == {"order_id": "o1", "total": 5.0, "courier": "bike"}
    assert event.priority == 10
    assert OrderPlaced.__event_fields__ == ("order_id", "total")


@pytest.mark.req("ONT-018")
def test_a_class_knows_its_fields_in_the_order_they_are_written():
    assert UserCreated.__event_fields__ == ("user_id", "email")
    assert OrderPlaced.__event_fields__ == ("order_id", "total")
    assert list(SystemCleanup._field_definitions) == ["cutoff_days"]
    assert SystemCleanup._field_definitions["cutoff_days"].default == 90


@pytest.mark.req("ONT-018")
def test_a_class_has_a_pydantic_model_of_its_fields():
    model = SystemCleanup._pydantic_model

    assert issubclass(model, BaseModel)
    assert model.__name__ == "_SystemCleanupModel"
    assert model is SystemCleanup._pydantic_model
    assert get_type_hints(model)["cutoff_days"] is int
    assert model().model_dump() == {"cutoff_days": 90}
    with pytest.raises(ValidationError):
        model(unknown=1)


# -- construction ---------------------------------------------------------------------------------


@pytest.mark.req("ONT-020")
def test_construction_takes_keywords_and_validates_them():
    assert OrderPlaced(order_id="o1", total="9.5").total == 9.5
    with pytest.raises(ValidationError, match="email"):
        UserCreated(user_id="u1")
    with pytest.raises(ValidationError, match="total"):
        OrderPlaced(order_id="o1", total="much")
    with pytest.raises(TypeError, match="positional"):
        UserCreated("u1", "user@example.com")


@pytest.mark.req("ONT-021")
def test_a_default_stands_in_for_what_is_left_out():
    class Tagged(Event):
        tags: Field[list[str]] = Field(default_factory=list)

    assert SystemCleanup().cutoff_days == 90
    assert SystemCleanup(cutoff_days=7).cutoff_days == 7
    first, second = Tagged(), Tagged()
    first.tags.append("x")
    assert second.tags == []


@pytest.mark.req("ONT-033")
def test_a_keyword_that_no_field_has_is_an_error():
    with pytest.raises(ValidationError, match="unknown"):
        ada(unknown=1)
    for name in ("id", "created_at", "root_event_id", "chain_depth"):
        with pytest.raises(ValidationError, match=name):
            ada(**{name: "x"})


@pytest.mark.req("ONT-030")
def test_an_attribute_that_was_not_declared_does_not_exist():
    with pytest.raises(AttributeError):
        ada().phone  # noqa: B018


# -- metadata -------------------------------------------------------------------------------------


@pytest.mark.req("ONT-019")
def test_a_new_event_has_the_metadata_of_one_that_was_never_stored():
    values = {name: getattr(ada(), name) for name in METADATA}

    assert values == {
        "id": None, "created_at": None, "priority": 100, "root_event_id": None, "chain_depth": 0,
    }  # fmt: skip


@pytest.mark.req("ONT-022", "ONT-023")
def test_the_constructors_priority_beats_the_classs_and_that_beats_100():
    assert SystemCleanup().priority == 100
    assert OrderPlaced(order_id="o1", total=1).priority == 10
    assert OrderPlaced(order_id="o1", total=1, priority=50).priority == 50
    assert SystemCleanup(cutoff_days=90, priority=-3).model_dump() == {"cutoff_days": 90}
    assert "priority" not in OrderPlaced.__event_fields__


@pytest.mark.req("ONT-023")
@pytest.mark.parametrize("wrong", [True, "50", 1.5, 2**40])
def test_a_priority_is_a_whole_number(wrong):
    with pytest.raises(InvalidValueError, match="priority"):
        SystemCleanup(priority=wrong)
    with pytest.raises(InvalidValueError, match="priority"):
        type("Wrong", (Event,), {"priority": wrong})


@pytest.mark.req("ONT-024", "ONT-027")
def test_metadata_can_be_assigned_and_is_no_part_of_the_dump():
    event = ada()
    event.id = "evt_123"
    event.created_at = "2026-02-11T10:00:00Z"
    event.priority = 7
    event.root_event_id = "evt_1"
    event.chain_depth = 3

    assert [getattr(event, name) for name in METADATA] == [
        "evt_123", "2026-02-11T10:00:00Z", 7, "evt_1", 3,
    ]  # fmt: skip
    assert event.model_dump() == {"user_id": "u1", "email": "user@example.com"}
    assert payload_of(event) == '{"email":"user@example.com","user_id":"u1"}'


@pytest.mark.req("ONT-029")
@pytest.mark.parametrize("name", METADATA)
def test_a_field_cannot_take_the_name_of_metadata(name):
    with pytest.raises(DefinitionError, match=name):
        type("Wrong", (Event,), {"__annotations__": {name: Field[str]}})


@pytest.mark.req("ONT-028", "ONT-180")
def test_other_names_of_columns_are_free_for_fields():
    class DataSyncCompleted(Event):
        commit_id: Field[int]
        namespace: Field[str]
        record_count: Field[int]
        type: Field[str] = "full"
        payload: Field[str] = "none"

    event = DataSyncCompleted(commit_id=4, namespace="orders", record_count=2)

    assert event.model_dump() == {
        "commit_id": 4, "namespace": "orders", "record_count": 2, "type": "full", "payload": "none",
    }  # fmt: skip


# -- to JSON and back -----------------------------------------------------------------------------


@pytest.mark.req("ONT-025", "ONT-026")
def test_a_dump_goes_through_json_and_back():
    dumped = json.loads(json.dumps(ada().model_dump()))
    again = UserCreated.model_validate(dumped)

    assert dumped == {"user_id": "u1", "email": "user@example.com"}
    assert type(again) is UserCreated
    assert again == ada()
    assert (again.id, again.priority, again.chain_depth) == (None, 100, 0)


class Colour(Enum):
    RED = "red"


class Everything(Event):
    when: Field[datetime]
    day: Field[date]
    price: Field[Decimal]
    who: Field[UUID]
    colour: Field[Colour]
    amounts: Field[list[Decimal]]
    note: Field[str | None] = None


@pytest.mark.req("ONT-032")
@given(
    when=st.datetimes(timezones=st.just(UTC)),
    price=st.decimals(allow_nan=False, allow_infinity=False, places=2),
    who=st.uuids(),
    note=st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
)
def test_what_json_does_not_carry_survives_being_stored(when, price, who, note):
    event = Everything(
        when=when, day=when.date(), price=price, who=who, colour="red", amounts=[price], note=note
    )

    again = event_of(Everything, payload_of(event))

    assert again.model_dump() == event.model_dump()
    assert (type(again.price), type(again.who), again.colour) == (Decimal, UUID, Colour.RED)
    assert again.when - when == timedelta(0)


@pytest.mark.req("ONT-026")
def test_a_stored_payload_may_hold_more_than_the_class_knows_but_not_less():
    again = event_of(UserCreated, '{"user_id":"u1","email":"e","added_later":[1]}')

    assert again.model_dump() == {"user_id": "u1", "email": "e"}
    for payload in ('{"user_id":"u1"}', '{"user_id":"u1","email":{}}', "[1]", "{", '"x"'):
        with pytest.raises(InvalidValueError):
            event_of(UserCreated, payload)
