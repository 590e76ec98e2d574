"""Validators of pydantic in the body of a class run, or the class is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from ontologia import Entity, Event, Field, Relation
from ontologia.errors import DefinitionError, InvalidValueError


class Room(Entity):
    id: Field[str]
    seats: Field[int] = Field(default=1)
    taken: Field[int] = Field(default=0)
    label: Field[str] = Field(default="")

    most: ClassVar[int] = 100

    @field_validator("id", mode="before")
    @classmethod
    def _known_id(cls, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value

    @field_validator("seats")
    @classmethod
    def _few_seats(cls, value: int) -> int:
        if value > cls.most:
            raise ValueError(f"a room has at most {cls.most} seats")
        return value

    @field_validator("taken")
    @classmethod
    def _fits(cls, value: int, info: Any) -> int:
        if value > info.data.get("seats", value):
            raise ValueError("more are taken than there are")
        return value

    @field_validator("label")
    @staticmethod
    def _titled(value: str) -> str:
        return value.title()


def test_a_field_validator_runs_when_an_object_is_made_and_when_a_field_is_assigned():
    room = Room(id=" r1 ", seats=10, taken=3, label="red room")

    assert (room.id, room.label) == ("r1", "Red Room")
    room.label = "blue room"
    assert room.label == "Blue Room"
    with pytest.raises(InvalidValueError, match=r"Room: seats: .* at most 100 seats, got 101"):
        Room(id="r1", seats=101)
    with pytest.raises(InvalidValueError, match=r"Room: seats: .* at most 100 seats, got 101"):
        room.seats = 101
    assert room.seats == 10


def test_a_field_validator_sees_the_other_fields_also_when_one_is_assigned():
    room = Room(id="r1", seats=10)

    room.taken = 10
    with pytest.raises(InvalidValueError, match="more are taken than there are"):
        room.taken = 11
    with pytest.raises(InvalidValueError, match="more are taken than there are"):
        Room(id="r1", seats=1, taken=2)
    assert room.model_copy(update={"taken": 20, "seats": 20}).taken == 20


def test_a_subclass_inherits_validators_and_replaces_them_by_name():
    class Hall(Room):
        most: ClassVar[int] = 1000

        @field_validator("label")
        @classmethod
        def _titled(cls, value: str) -> str:
            return value.upper()

    hall = Hall(id=" h1 ", seats=999, label="big")

    assert (hall.id, hall.label) == ("h1", "BIG")
    with pytest.raises(InvalidValueError, match="at most 1000"):
        hall.seats = 1001


def test_validators_of_a_plain_base_class_and_for_all_fields_run():
    class Trimmed:
        @field_validator("*", mode="before")
        @classmethod
        def _trim(cls, value: Any) -> Any:
            return value.strip() if isinstance(value, str) else value

    class Desk(Trimmed, Entity):
        id: Field[str]
        note: Field[str] = Field(default=" none ")

    assert vars(Desk(id=" d1 ")) == {"id": "d1", "note": "none"}


# -- the whole object -----------------------------------------------------------------------------


class Booking(Entity):
    id: Field[str]
    first: Field[int] = Field(default=0)
    last: Field[int] = Field(default=9)
    nights: Field[int] = Field(default=0)

    @model_validator(mode="before")
    @classmethod
    def _whole_year(cls, data: Any) -> Any:
        return {**data, "first": 1, "last": 365} if data.get("first") == "all" else data

    @model_validator(mode="after")
    def _in_order(self) -> Booking:
        if self.first > self.last:
            raise ValueError("a booking ends after it begins")
        self.nights = self.last - self.first
        return self

    def shifted(self) -> int:
        return self.first + 1


def test_a_model_validator_runs_when_an_object_is_made():
    assert Booking(id="b", first=2).nights == 7
    assert vars(Booking(id="b", first="all"))["nights"] == 364
    with pytest.raises(InvalidValueError, match=r"Booking: .*a booking ends after it begins"):
        Booking(id="b", first=10)


def test_a_model_validator_runs_when_a_field_is_assigned_and_a_failure_changes_nothing():
    booking = Booking(id="b", first=2)

    booking.last = 5
    assert booking.nights == 3
    with pytest.raises(InvalidValueError, match="a booking ends after it begins"):
        booking.first = 6
    with pytest.raises(InvalidValueError, match="first"):
        booking.first = "soon"
    assert vars(booking) == {"id": "b", "first": 2, "last": 5, "nights": 3}
    booking.first = "all"
    assert vars(booking) == {"id": "b", "first": 1, "last": 365, "nights": 364}


def test_fields_that_only_fit_together_are_changed_together_by_a_copy():
    booking = Booking(id="b", first=2, last=5)

    later = booking.model_copy(update={"first": 20, "last": 30})

    assert (later.first, later.last, later.nights) == (20, 30, 10)


def test_only_what_is_assigned_is_validated_again():
    ran = []

    class Secret(Entity):
        id: Field[str]
        word: Field[str]
        note: Field[str] = Field(default="")

        @field_validator("word")
        @classmethod
        def _hidden(cls, value: str) -> str:
            ran.append(value)
            return f"#{value}"

        @model_validator(mode="after")
        def _seen(self) -> Secret:
            return self

    secret = Secret(id="s", word="x")
    secret.note = "new"

    assert (secret.word, ran) == ("#x", ["x"])


def test_a_wrap_validator_is_around_making_and_assigning():
    class Lamp(Entity):
        id: Field[str]
        watt: Field[int] = Field(default=5)

        @model_validator(mode="wrap")
        @classmethod
        def _around(cls, data: Any, make: Any) -> Any:
            made = make({**data, "watt": 7} if data.get("watt") == "usual" else data)
            if made.watt > 100:
                raise ValueError("too bright")
            assert type(made) is cls
            return made

    lamp = Lamp(id="l", watt="usual")
    lamp.watt = 50

    assert lamp.watt == 50
    with pytest.raises(InvalidValueError, match="too bright"):
        lamp.watt = 500
    with pytest.raises(InvalidValueError, match="too bright"):
        Lamp(id="l", watt=500)


def test_a_validator_that_forgets_the_object_is_told():
    class Forgetful(Entity):
        id: Field[str]

        @model_validator(mode="after")
        def _nothing(self) -> None:
            pass

    with pytest.raises(TypeError, match="Forgetful: a @model_validator returned None"):
        Forgetful(id="f")


def test_undeclared_fields_are_seen_by_validators_of_the_whole():
    class Crate(Entity):
        __open__ = True
        id: Field[str]

        @model_validator(mode="after")
        def _known(self) -> Crate:
            if vars(self).get("size", 0) > 5:
                raise ValueError("too big")
            return self

    crate: Any = Crate(id="c", size=5)

    crate.colour = "red"
    assert vars(crate) == {"id": "c", "size": 5, "colour": "red"}
    with pytest.raises(InvalidValueError, match="too big"):
        crate.size = 6
    with pytest.raises(InvalidValueError, match="too big"):
        Crate(id="c", size=6)


# -- relations and events ----------------------------------------------------------------------------


class Adjoins(Relation[Room, Room]):
    doors: Field[int] = Field(default=1)

    @field_validator("right_key")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    @model_validator(mode="after")
    def _two_rooms(self) -> Adjoins:
        if self.left_key == self.right_key:
            raise ValueError("a room does not adjoin itself")
        return self


def test_the_ends_of_a_relation_are_validated_too():
    adjoins = Adjoins(left_key="r1", right_key="R2")

    assert adjoins.right_key == "r2"
    with pytest.raises(InvalidValueError, match="does not adjoin itself"):
        adjoins.right_key = "R1"
    with pytest.raises(InvalidValueError, match="does not adjoin itself"):
        Adjoins(left_key="r1", right_key="R1")


class RoomBooked(Event):
    room: Field[str]
    nights: Field[int]

    @field_validator("nights")
    @classmethod
    def _some(cls, value: int) -> int:
        if value < 1:
            raise ValueError("one night at least")
        return value

    @model_validator(mode="after")
    def _not_the_attic(self) -> RoomBooked:
        if self.room == "attic" and self.nights > 2:
            raise ValueError("two nights at most in the attic")
        return self


def test_validators_of_an_event_raise_what_pydantic_raises():
    booked = RoomBooked(room="attic", nights=2, priority=7)

    with pytest.raises(ValidationError, match="one night at least"):
        RoomBooked(room="r1", nights=0)
    with pytest.raises(ValidationError, match="two nights at most"):
        RoomBooked(room="attic", nights=3)
    with pytest.raises(InvalidValueError, match="two nights at most"):
        booked.nights = 3
    booked.nights = 1
    assert (booked.nights, booked.priority) == (1, 7)


def test_validators_run_where_pydantic_makes_the_object():
    class Plan(BaseModel):
        booking: Booking
        room: Room

    plan = Plan.model_validate({"booking": {"id": "b", "first": "all"}, "room": {"id": " r "}})

    assert (plan.booking.nights, plan.room.id) == (364, "r")
    assert plan.booking.shifted() == 2
    with pytest.raises(ValidationError) as caught:
        Plan.model_validate(
            {"booking": {"id": "b", "first": 99}, "room": {"id": "r", "seats": 101}}
        )
    assert [problem["loc"] for problem in caught.value.errors()] == [
        ("booking",),
        ("room", "seats"),
    ]
    assert TypeAdapter(RoomBooked).validate_python({"room": "r", "nights": 1}).nights == 1


# -- refused when the class is made -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("decorator", "named"),
    [
        (lambda f: field_serializer("id")(f), "@field_serializer"),
        (lambda f: model_serializer()(lambda self: {}), "@model_serializer"),
        (lambda f: computed_field(return_type=int)(property(f)), "@computed_field"),
    ],
)
@pytest.mark.parametrize("base", [Entity, Event])
def test_a_decorator_without_effect_is_refused(base, decorator, named):
    key = "id" if base is Entity else "key"

    with pytest.raises(DefinitionError, match=rf"Odd\.odd: {named} has no effect") as caught:
        type(base)(
            "Odd",
            (base,),
            {
                "__module__": __name__,
                "__annotations__": {key: Field[str]},
                "odd": decorator(lambda self, value=None: value),
            },
        )

    assert caught.value.hint


def test_a_validator_of_a_field_that_is_not_there_is_refused():
    with pytest.raises(DefinitionError, match=r"Mistyped\._check: @field_validator names seets"):

        class Mistyped(Entity):
            id: Field[str]
            seats: Field[int]

            @field_validator("seets")
            @classmethod
            def _check(cls, value: int) -> int:
                return value


def test_a_base_class_may_validate_fields_of_its_subclasses():
    class Base(Entity, abstract=True):
        id: Field[str]

        @field_validator("size", check_fields=False)
        @classmethod
        def _even(cls, value: int) -> int:
            return value * 2

    class Sized(Base):
        size: Field[int]

    assert Sized(id="s", size=2).size == 4


def test_a_config_of_pydantic_is_refused():
    with pytest.raises(DefinitionError, match=r"Frozen\.model_config has no effect"):

        class Frozen(Entity):
            id: Field[str]
            model_config = ConfigDict(frozen=True)
