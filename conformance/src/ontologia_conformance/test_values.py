"""Values: every type of field comes back as it went in, and compares as what it is."""

from __future__ import annotations

import copy
import dataclasses
import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

import orjson
import pytest
from pydantic import BaseModel

from ontologia import Entity, Field, Relation
from ontologia.errors import InvalidValueError, MetadataUnavailableError
from ontologia_conformance.shop import Customer, Product, Subscription


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 10


class Address(BaseModel):
    city: str
    lines: list[str] = []
    since: date | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


PARIS = timezone(timedelta(hours=2))
CASES = [
    (str, "", "é\U0001f600\n\"'\\"),
    (int, -(2**63), 2**63 - 1),
    (float, -0.1, 1.7976931348623157e308),
    (bool, False, True),
    (datetime, datetime(1, 1, 1), datetime(2026, 5, 1, 12, 30, 0, 7)),
    (datetime, datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 5, 1, 12, 0, 0, 1, tzinfo=PARIS)),
    (date, date(1, 1, 1), date(2026, 12, 31)),
    (time, time(0), time(23, 59, 59, 999999)),
    (timedelta, timedelta(microseconds=-1), timedelta(days=36500, microseconds=1)),
    (Decimal, Decimal("0.10"), Decimal("-123456789012345678901234567890.123456789")),
    (Decimal, Decimal("1E+30"), Decimal("0.1") + Decimal("0.2")),
    (UUID, UUID(int=0), UUID("0195d3b2-0000-7000-8000-00000000abcd")),
    (bytes, b"", bytes(range(256))),
    (Color, Color.RED, Color.BLUE),
    (Level, Level.LOW, Level.HIGH),
    (Literal["a", "b"], "a", "b"),
    (int | None, None, 0),
    (datetime | None, None, datetime(2026, 1, 1, tzinfo=UTC)),
    (int | str, 5, "5"),
    (list[int], [], [3, 1, 2]),
    (list[dict[str, Any]], [], [{"a": [1, None, {"b": True}]}, {}]),
    (dict[str, object], {}, {"": 1, "a.b": {"c": [1.5, "x", None, False]}}),
    (dict[str, Decimal], {}, {"a": Decimal("1.10")}),
    (dict[int, str], {}, {1: "a"}),
    (list[datetime], [], [datetime(2026, 1, 1, tzinfo=UTC)]),
    (tuple[int, str], (1, "a"), (2, "b")),
    (tuple[int, ...], (), (3, 1, 2)),
    (set[str], set(), {"b", "a"}),
    (frozenset[int], frozenset(), frozenset({8, 0})),
    (Address, Address(city="x"), Address(city="Oslo", lines=["a"], since=date(2026, 1, 1))),
    (list[Address], [], [Address(city="Rome")]),
    (Point, Point(1, Decimal("2.50")), Point(0, Decimal(0))),
    (Address | None, None, Address(city="Rome")),
    (Any, None, {"anything": [1]}),
]


def holder(annotation: Any, name: str = "Holder") -> Any:
    """An entity class with one field of this type."""
    return type(
        name,
        (Entity,),
        {"__annotations__": {"id": Field[str], "value": Field[annotation]}, "__module__": __name__},
    )


# -- round trip -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "one", "other"), CASES, ids=[getattr(c[0], "__name__", str(c[0])) for c in CASES]
)
def test_a_value_comes_back_as_it_went_in_and_equal_values_write_nothing(
    session, annotation, one, other
):
    cls = holder(annotation)
    stored = [cls(id="1", value=one), cls(id="2", value=other)]
    session.ensure(stored)
    session.commit()

    read = session.query().entities(cls).collect()

    assert read == stored
    assert [type(obj.value) for obj in read] == [type(one), type(other)]
    assert session.query().entities(cls).as_of(1).collect() == stored
    session.ensure(read)  # what was read is what is stored
    assert session.commit() is None


@pytest.mark.req("ONT-175")
def test_fields_may_have_any_ordinary_name(session):
    class EmailLog(Entity):
        user_id: Field[str] = Field(primary_key=True)
        type: Field[str]
        sent_at: Field[datetime]
        key: Field[int] = 0
        commit_id: Field[int] = 0
        fields: Field[str] = ""
        entity_type: Field[str] = ""
        order: Field[str] = ""
        select: Field[bool] = False

    sent = datetime.now(UTC)
    log = EmailLog(user_id="u1", type="welcome", sent_at=sent, commit_id=7, fields="x", order="a")
    session.ensure(log)
    session.commit()

    [read] = session.query().entities(EmailLog).where(EmailLog.type == "welcome").collect()

    assert (read, read.sent_at) == (log, sent)
    assert (read.commit_id, read.meta().commit_id) == (7, 1)
    assert session.query().entities(EmailLog).where(EmailLog.commit_id == 7).count() == 1
    assert session.query().entities(EmailLog).order_by(EmailLog.order, EmailLog.select).count() == 1


def test_values_are_converted_to_the_type_of_their_field(session):
    class Mixed(Entity):
        id: Field[str]
        ratio: Field[float]
        at: Field[datetime]
        color: Field[Color]
        price: Field[Decimal]

    given = Mixed(id="1", ratio=3, at="2026-01-01T00:00:00Z", color="red", price="1.50")
    session.ensure(given)
    session.commit()

    [read] = session.query().entities(Mixed).collect()

    assert read == given
    assert (type(given.ratio), given.color, str(given.price)) == (float, Color.RED, "1.50")
    assert read.at == datetime(2026, 1, 1, tzinfo=UTC)


# -- instants -------------------------------------------------------------------------------------


class Moment(Entity):
    id: Field[str] = Field(primary_key=True)
    at: Field[datetime]


def test_an_instant_is_stored_as_utc_text_of_one_width(session, sql):
    session.ensure([
        Moment(id="a", at=datetime(2026, 5, 1, 12, tzinfo=PARIS)),
        Moment(id="b", at=datetime(2026, 5, 1, 10, 0, 0, 5, tzinfo=UTC)),
        Moment(id="c", at=datetime(2026, 5, 1, 10)),
    ])  # fmt: skip
    session.commit()

    texts = [json.loads(row[0])["at"] for row in sql("SELECT fields_json FROM entity_history")]

    assert texts == [
        "2026-05-01T10:00:00.000000+00:00",
        "2026-05-01T10:00:00.000005+00:00",
        "2026-05-01T10:00:00.000000",
    ]


def test_instants_compare_as_instants_whatever_their_offset(session):
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    session.ensure([
        Moment(id="a", at=noon.astimezone(PARIS)),
        Moment(id="b", at=noon + timedelta(microseconds=1)),
        Moment(id="c", at=noon.astimezone(timezone(-timedelta(hours=9))) - timedelta(days=400)),
    ])  # fmt: skip
    session.commit()
    query = session.query().entities(Moment)

    def ids(found):
        return [moment.id for moment in found.collect()]

    assert ids(query.order_by(Moment.at)) == ["c", "a", "b"]
    assert ids(query.where(Moment.at == noon)) == ["a"]
    assert ids(query.where(Moment.at > noon.astimezone(PARIS))) == ["b"]
    assert ids(query.where(Moment.at.in_([noon]))) == ["a"]
    assert (query.min(Moment.at), query.max(Moment.at)) == (
        noon - timedelta(days=400), noon + timedelta(microseconds=1),
    )  # fmt: skip
    session.ensure(Moment(id="a", at=noon))
    assert session.commit() is None  # the same instant


def test_an_aware_instant_comes_back_aware_and_a_naive_one_naive(session):
    session.ensure([
        Moment(id="a", at=datetime(2026, 5, 1, 12, tzinfo=PARIS)),
        Moment(id="b", at=datetime(2026, 5, 1, 12)),
    ])  # fmt: skip
    session.commit()

    aware, naive = session.query().entities(Moment).collect()

    assert (aware.at.utcoffset(), naive.at.tzinfo) == (timedelta(0), None)


def test_dates_times_and_durations_are_ordered_as_what_they_are(session):
    class Slot(Entity):
        id: Field[int]
        day: Field[date]
        at: Field[time]
        lasts: Field[timedelta]

    session.ensure([
        Slot(id=1, day=date(2026, 10, 1), at=time(9), lasts=timedelta(minutes=90)),
        Slot(id=2, day=date(2026, 9, 30), at=time(9, 0, 0, 1), lasts=timedelta(seconds=9)),
    ])  # fmt: skip
    session.commit()
    query = session.query().entities(Slot)

    assert query.where(Slot.day < date(2026, 10, 1)).first().id == 2
    assert query.where(Slot.at > time(9)).first().id == 2
    assert query.where(Slot.lasts > timedelta(minutes=1)).first().id == 1
    assert query.max(Slot.lasts) == timedelta(minutes=90)
    assert (query.min(Slot.day), query.max(Slot.at)) == (date(2026, 9, 30), time(9, 0, 0, 1))


def test_a_duration_that_would_lose_its_last_microseconds_is_refused(session):
    longest = timedelta(days=36500, microseconds=1)  # a hundred years, to the microsecond
    cls = holder(timedelta)

    for lost in (timedelta.max, timedelta(days=400_000, microseconds=1)):
        with pytest.raises(InvalidValueError, match="cannot be stored"):
            session.ensure(cls(id="1", value=lost))
    session.ensure(cls(id="1", value=longest))
    session.commit()

    assert session.query().entities(cls).first().value == longest


# -- decimals -------------------------------------------------------------------------------------


class Price(Entity):
    id: Field[str] = Field(primary_key=True)
    amount: Field[Decimal | None] = None


def test_decimals_are_exact_and_are_filtered_and_sorted_as_numbers(session):
    texts = {"a": "10", "b": "9.50", "c": "9.5", "d": "-3", "e": "1E+2", "f": "0.1", "g": "9.51"}
    session.ensure(Price(id=key, amount=Decimal(text)) for key, text in texts.items())
    session.ensure(Price(id="h"))
    session.commit()
    query = session.query().entities(Price)

    def ids(found):
        return "".join(price.id for price in found.collect())

    assert {p.id: str(p.amount) for p in query.limit(7).collect()} == texts
    assert ids(query.order_by(Price.amount)) == "hdfbcgae"
    assert ids(query.where(Price.amount > 9)) == "abceg"
    assert ids(query.where(Price.amount == Decimal("9.500"))) == "bc"
    assert ids(query.where(Price.amount != Decimal("9.5"))) == "adefg"
    assert ids(query.where(Price.amount.in_([Decimal(100), 10]))) == "ae"
    assert ids(query.where(Price.amount <= 0.1)) == "df"
    assert (query.min(Price.amount), query.max(Price.amount)) == (Decimal(-3), Decimal(100))
    assert query.where(Price.amount > 0, Price.amount < 10).sum(Price.amount) == pytest.approx(
        28.61
    )


def test_decimals_that_no_float_can_tell_apart_are_different(session):
    low, high = Decimal("9007199254740993.1"), Decimal("9007199254740993.2")
    session.ensure([Price(id="low", amount=low), Price(id="high", amount=high)])
    session.commit()
    query = session.query().entities(Price)

    assert [p.id for p in query.where(Price.amount == low).collect()] == ["low"]
    assert [p.id for p in query.where(Price.amount > low).collect()] == ["high"]
    assert [p.id for p in query.where(Price.amount < high).collect()] == ["low"]
    assert [p.id for p in query.where(Price.amount <= high).collect()] == ["high", "low"]
    assert query.max(Price.amount) == high
    assert [p.id for p in query.order_by(Price.amount).collect()] == ["low", "high"]


@pytest.mark.parametrize(
    "text",
    [
        "731345436950319168.09", "0.40297375160562551314", "9548817178233732297841413167",
        "9.9600934109396712889E-148", "1E+400", "1E-400", "-0.000008886657930559895174676",
    ],
)  # fmt: skip
def test_a_decimal_is_found_by_its_own_value_however_many_digits_it_has(session, text):
    value = Decimal(text)
    session.ensure([Price(id="it", amount=value), Price(id="other", amount=value * 2)])
    session.commit()

    def found(*conditions):
        return {p.id for p in session.query().entities(Price).where(*conditions).collect()}

    assert found(Price.amount == value) == {"it"}
    assert found(Price.amount.in_([value, 7])) == {"it"}
    assert found(Price.amount <= value, Price.amount >= value) == {"it"}
    assert found((Price.amount < value) | (Price.amount > value)) == {"other"}


# -- other types in conditions --------------------------------------------------------------------


def test_uuids_enums_and_bytes_are_compared_with_their_own_kind(session):
    class Item(Entity):
        id: Field[UUID] = Field(primary_key=True)
        color: Field[Color] = Color.RED
        level: Field[Level] = Level.LOW
        blob: Field[bytes] = b""

    one, two = UUID(int=1), UUID(int=2)
    session.ensure([Item(id=one), Item(id=two, color=Color.BLUE, level=Level.HIGH, blob=b"\0\xff")])
    session.commit()
    query = session.query().entities(Item)

    def ids(*conditions):
        return [item.id for item in query.where(*conditions).collect()]

    assert ids(Item.id == two) == ids(Item.id.in_([two])) == [two]
    assert [item.id for item in query.as_of(1).where(Item.id == two).collect()] == [two]
    assert ids(Item.color == Color.BLUE) == ids(Item.level > Level.LOW) == [two]
    assert ids(Item.color.in_([Color.RED])) == [one]
    assert ids(Item.blob == b"\0\xff") == [two]
    assert query.first().meta().key == str(one)


def test_conditions_reach_into_models_and_dataclasses(session):
    class Place(Entity):
        id: Field[int]
        address: Field[Address]
        points: Field[list[Point]] = Field(default_factory=list)

    session.ensure([
        Place(id=1, address=Address(city="Oslo", lines=["a", "b"])),
        Place(id=2, address=Address(city="Rome"),
              points=[Point(1, Decimal(1)), Point(7, Decimal(2))]),
    ])  # fmt: skip
    session.commit()

    def ids(condition):
        return [place.id for place in session.query().entities(Place).where(condition).collect()]

    assert ids(Place.address.path("city") == "Rome") == [2]
    assert ids(Place.address["lines"][1] == "b") == [1]
    assert ids(Place.points.any_path("x") > 5) == [2]
    assert session.query().entities(Place).avg_len(Place.points) == 1.0


# -- sets -----------------------------------------------------------------------------------------

SETS = [
    (set[int], {0, 8}, {8, 0}),
    (frozenset[int] | None, frozenset([0, 8]), frozenset([8, 0])),
    (dict[str, set[int]], {"a": {0, 8}}, {"a": {8, 0}}),
    (list[frozenset[int]], [frozenset([0, 8])], [frozenset([8, 0])]),
]


@pytest.mark.parametrize(
    ("annotation", "one", "same"), SETS, ids=["set", "optional", "dict", "list"]
)
def test_equal_sets_write_nothing_whatever_order_they_are_walked_in(session, annotation, one, same):
    cls = holder(annotation)
    session.ensure(cls(id="1", value=one))
    session.commit()

    session.ensure(cls(id="1", value=same))

    assert one == same
    assert session.commit() is None


# -- defaults -------------------------------------------------------------------------------------


class Basket(Entity):
    id: Field[str] = Field(primary_key=True)
    note: Field[str] = "none"
    rank: Field[int] = Field(default=3)
    tags: Field[list[str]] = Field(default_factory=list)
    extra: Field[dict[str, object]] = Field(default={"a": [1]})
    owner: Field[str | None] = None


def test_what_is_left_out_gets_its_default(session):
    session.ensure(
        [Basket(id="1"), Basket(id="2", note="x", rank=0, tags=["t"], extra={}, owner="o")]
    )
    session.commit()

    one, two = session.query().entities(Basket).collect()

    assert (one.note, one.rank, one.tags, one.extra, one.owner) == ("none", 3, [], {"a": [1]}, None)
    assert (two.note, two.rank, two.tags, two.extra, two.owner) == ("x", 0, ["t"], {}, "o")


def test_defaults_are_not_shared_between_objects():
    one, two = Basket(id="1"), Basket(id="2")

    one.tags.append("t")
    one.extra["a"].append(2)

    assert (two.tags, two.extra) == ([], {"a": [1]})
    assert Basket(id="3").extra == {"a": [1]}


def test_a_default_factory_is_called_for_each_object():
    calls = []

    class Ticket(Entity):
        id: Field[str]
        number: Field[int] = Field(default_factory=lambda: len(calls))

    first = Ticket(id="1")
    calls.append("x")

    assert (first.number, Ticket(id="2").number, Ticket(id="3", number=9).number) == (0, 1, 9)


# -- instances are plain objects ------------------------------------------------------------------


def test_meta_says_where_an_object_was_read_from(session):
    class Seat(Relation[Customer, Product]):
        number: Field[int] = Field(instance_key=True)

    session.ensure(
        [Customer(id="ada", name="Ada"), Seat(left_key="ada", right_key="bus", number=4)]
    )
    session.commit()

    customer = session.query().entities(Customer).first().meta()
    seat = session.query().relations(Seat).first().meta()

    assert (customer.type_name, customer.commit_id, customer.key) == ("Customer", 1, "ada")
    assert (customer.left_key, customer.instance_key, customer.deleted) == (None, None, False)
    assert (seat.type_name, seat.commit_id, seat.key) == ("Seat", 1, None)
    assert (seat.left_key, seat.right_key, seat.instance_key) == ("ada", "bus", "4")


def test_an_object_that_was_neither_read_nor_committed_has_no_metadata(session):
    mine = Customer(id="ada", name="Ada")
    session.ensure(mine)

    for made in (mine, Subscription(left_key="a", right_key="b", seats=1)):
        with pytest.raises(
            MetadataUnavailableError, match="neither read from a store nor committed"
        ):
            made.meta()
    session.commit()
    assert mine.meta().commit_id == 1
    with pytest.raises(MetadataUnavailableError):
        _ = Subscription(left_key="a", right_key="b", seats=1).left


class Box(Entity):
    id: Field[str]
    size: Field[int]


class Crate(Entity):
    id: Field[str]
    size: Field[int]


def test_objects_are_equal_by_class_and_fields_and_not_by_where_they_came_from(session):
    mine = Customer(id="ada", name="Ada")
    session.ensure([mine, Subscription(left_key="a", right_key="b", seats=1)])
    session.commit()

    read = session.query().entities(Customer).first()
    relation = session.query().relations(Subscription).first()

    assert read == mine
    assert read != Customer(id="ada", name="Ada", tier="gold")
    assert relation == Subscription(left_key="a", right_key="b", seats=1)
    assert relation != Subscription(left_key="a", right_key="c", seats=1)
    assert Box(id="1", size=2) != Crate(id="1", size=2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(mine)


def test_the_repr_of_an_object_is_the_call_that_makes_it(session):
    relation = Subscription(left_key="a", right_key="b", seats=1)

    assert repr(relation) == "Subscription(left_key='a', right_key='b', seats=1)"
    assert eval(repr(relation)) == relation  # noqa: S307
    session.ensure(Customer(id="ada", name="Ada"))
    session.commit()
    assert repr(session.query().entities(Customer).first()) == (
        "Customer(id='ada', name='Ada', tier='standard', profile={})"
    )


def test_a_copy_is_an_object_of_its_own_of_the_same_version(session):
    session.ensure(Customer(id="ada", name="Ada", profile={"a": [1]}))
    session.commit()
    read = session.query().entities(Customer).first()

    shallow, deep = copy.copy(read), copy.deepcopy(read)
    shallow.name = "Grace"
    deep.profile["a"].append(2)

    assert (read.name, read.profile) == ("Ada", {"a": [1]})
    assert (shallow.name, shallow.profile) == ("Grace", {"a": [1]})
    for made in (shallow, deep):
        assert made.meta() == read.meta()


def test_a_field_can_be_set_and_is_validated_like_a_new_one(session):
    session.ensure(Customer(id="ada", name="Ada"))
    session.commit()
    ada = session.query().entities(Customer).first()

    ada.tier = "gold"
    with pytest.raises(ValueError, match="tier"):
        ada.tier = 5
    with pytest.raises(AttributeError, match="colour"):
        ada.colour = "red"
    session.ensure(ada)
    session.commit()

    assert session.query().entities(Customer).first().tier == "gold"


def test_objects_read_twice_do_not_share_their_values(session):
    session.ensure(Customer(id="ada", name="Ada", profile={"a": [1]}))
    session.commit()
    query = session.query().entities(Customer)

    query.first().profile["a"].append(2)

    assert query.first().profile == {"a": [1]}


def test_everything_is_stored_as_canonical_json_and_nothing_as_pickle(session, sql):
    for number, (annotation, one, other) in enumerate(CASES):
        cls = holder(annotation, f"Holder{number}")
        session.ensure([cls(id="1", value=one), cls(id="2", value=other)])
    session.commit()

    texts = [row[0] for row in sql("SELECT fields_json FROM entity_history")]

    assert len(texts) == 2 * len(CASES)
    for text in texts:
        fields = orjson.loads(text)
        assert set(fields) == {"id", "value"}
        assert orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() == text
