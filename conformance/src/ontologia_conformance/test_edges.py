"""Where types, states and programs meet at their edges."""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from uuid import UUID

import pytest
from pydantic import BaseModel, SecretStr, computed_field
from pydantic import Field as ModelField

from ontologia import Entity, Field, Relation, Session
from ontologia.errors import (
    DefinitionError,
    InvalidValueError,
    QueryTypeError,
    StoreOpenError,
)
from ontologia.query import sum as total
from ontologia_conformance.backends import SQLITE
from ontologia_conformance.shop import Customer, Subscription


class Address(BaseModel):
    city: str = ModelField(alias="City")


class Sized(BaseModel, extra="forbid"):
    side: int

    @computed_field
    def area(self) -> int:
        return self.side**2


class Parcel(Entity):
    id: Field[str]
    to: Field[Address | None] = Field(default=None)
    size: Field[Sized | None] = Field(default=None)
    secret: Field[SecretStr | None] = Field(default=None)
    seal: Field[bytes] = Field(default=b"")


class Counted(Entity):
    number: Field[int] = Field(primary_key=True)


class Named(Entity):
    uid: Field[UUID] = Field(primary_key=True)


class Marks(Relation[Counted, Named]):
    pass


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["k", "é", "界", "🜁"])
def test_a_key_has_at_most_2000_bytes_whatever_the_database(session, letter):
    """Characters that no server can compress, so that each byte counts."""
    random, longest = Random(1), 2_000 // len(letter.encode())
    first = ord(letter)
    key = "".join(chr(first + random.randrange(10)) for _ in range(longest))
    session.ensure(Customer(id=key, name="Ada"))
    session.commit()
    assert session.one(Customer, key).name == "Ada"

    session.ensure(Customer(id=key + letter, name="Bob"))
    for dry_run in (True, False):
        with pytest.raises(
            InvalidValueError, match="bytes, and 2,000 are the most; nothing was written"
        ):
            session.commit(dry_run=dry_run)
    session.discard()

    assert session.head == 1


def test_the_keys_of_a_relation_count_together(session):
    session.ensure(Subscription(left_key="l" * 1_000, right_key="r" * 1_000, seats=1))
    session.commit()

    session.ensure(Subscription(left_key="l" * 1_000, right_key="r" * 1_001, seats=1))
    with pytest.raises(InvalidValueError, match="keys, taken together, of Subscription"):
        session.commit()
    session.discard()

    assert session.head == 1


@SQLITE
def test_a_longer_key_that_a_file_holds_can_be_read_changed_and_deleted(session, monkeypatch):
    key = "界" * 1_000
    with monkeypatch.context() as earlier:
        earlier.setattr("ontologia.store.key_length.LONGEST_KEY", 10_000)
        session.ensure(Customer(id=key, name="Ada"))
        session.commit()

    session.ensure(Customer(id=key, name="Ada L."))
    session.commit()
    assert session.one(Customer, key).name == "Ada L."
    session.delete(Customer(id=key, name=""))
    session.commit()

    assert session.query().entities(Customer).count() == 0


# -- values that must come back -----------------------------------------------------------------


def test_a_model_that_renames_or_computes_its_parts_comes_back_as_it_was(session):
    parcel = Parcel(id="1", to=Address(City="Rome"), size=Sized(side=3))
    session.ensure(parcel)
    session.commit()

    [found] = session.query().entities(Parcel).collect()

    assert found == parcel
    assert found.size.area == 9


def test_a_value_that_would_not_come_back_is_refused(session):
    with pytest.raises(InvalidValueError, match=r"Parcel\.secret.*would not be read back"):
        session.ensure(Parcel(id="1", secret=SecretStr("hunter2")))

    assert session.commit() is None


def test_bytes_are_ordered_as_bytes(session):
    session.ensure([Parcel(id="a", seal=b"a"), Parcel(id="f", seal=b"\xff"), Parcel(id="0")])
    session.commit()
    parcels = session.query().entities(Parcel)

    assert [p.id for p in parcels.order_by(Parcel.seal).collect()] == ["0", "a", "f"]
    assert [p.id for p in parcels.where(Parcel.seal > b"a").collect()] == ["f"]
    assert parcels.max(Parcel.seal) == b"\xff"
    with pytest.raises(QueryTypeError, match="not text"):
        Parcel.seal.startswith("6")


def test_a_cached_property_is_no_field(session, sql):
    class Person(Entity):
        id: Field[str]

        @functools.cached_property
        def loud(self) -> str:
            return self.id.upper()

    ada = Person(id="ada")
    assert ada.loud == "ADA"
    session.ensure(ada)
    session.commit()
    session.ensure(Person(id="ada"))

    assert session.commit() is None
    assert sql("SELECT fields_json FROM entity_history") == [['{"id":"ada"}']]
    assert ada == Person(id="ada")


def test_a_property_with_a_setter_can_be_set():
    class Person(Entity):
        id: Field[str]
        name: Field[str]

        @property
        def title(self) -> str:
            return self.name.title()

        @title.setter
        def title(self, value: str) -> None:
            self.name = value.lower()

    person = Person(id="1", name="ada")
    person.title = "BOB"

    assert (person.name, person.title) == ("bob", "Bob")


# -- definitions --------------------------------------------------------------------------------


def test_one_declaration_for_two_fields_is_two_fields(session):
    indexed = Field(index=True)

    class Pair(Entity):
        id: Field[str]
        left_hand: Field[str] = indexed
        right_hand: Field[str] = indexed

    session.ensure(Pair(id="1", left_hand="l", right_hand="r"))
    session.commit()

    assert session.query().entities(Pair).where(Pair.left_hand == "l").count() == 1
    assert session.query().entities(Pair).where(Pair.right_hand == "l").count() == 0


def test_a_relation_cannot_end_at_what_is_never_stored():
    class Base(Entity, abstract=True):
        id: Field[str]

    class Touches(Relation[Base, Counted]):
        pass

    with pytest.raises(DefinitionError, match="Base, which is never stored"):
        Touches(left_key="1", right_key="1")


def test_the_text_of_an_end_s_key_is_the_key_s_own(session):
    uid = UUID("0ABCDEF0-0000-0000-0000-000000000001")
    session.ensure([Counted(number=2), Named(uid=uid)])
    session.ensure(Marks(left_key="02", right_key=str(uid).upper()))
    session.commit()

    [found] = session.query().relations(Marks).collect()

    assert (found.left.number, found.right.uid) == (2, uid)
    with pytest.raises(InvalidValueError, match="'two' is no key of Counted"):
        Marks(left_key="two", right_key=str(uid))


def test_types_are_given_as_a_list(uri):
    with pytest.raises(DefinitionError, match=r"entity_types takes a list") as error:
        Session(uri, entity_types=Customer)

    assert error.value.hint == "Write [Customer]."


# -- questions ----------------------------------------------------------------------------------


def test_long_lists_of_values_are_no_problem(session):
    class Price(Entity):
        id: Field[str]
        amount: Field[Decimal]
        data: Field[dict[str, object]]

    session.ensure(Price(id="1", amount=Decimal("7.0"), data={"n": 7, "s": "7", "t": True}))
    session.commit()
    prices = session.query().entities(Price)

    assert prices.where(Price.amount.in_(range(40_000))).count() == 1
    assert prices.where(Price.data["n"].in_(range(40_000))).count() == 1
    assert prices.where(Price.data["s"].in_(range(40_000))).count() == 0
    assert prices.where(Price.data["t"].in_([1, "true"])).count() == 0


def test_a_sum_of_decimals_is_compared_with_a_decimal(session):
    class Bill(Entity):
        id: Field[str]
        amount: Field[Decimal]

    session.ensure([Bill(id="1", amount=Decimal("2.5")), Bill(id="2", amount=Decimal(3))])
    session.commit()
    bills = session.query().entities(Bill).group_by(Bill.id)

    [row] = bills.having(total(Bill.amount) > Decimal("2.75")).agg(total=total(Bill.amount))

    assert row == {"id": "2", "total": 3.0}


def test_a_long_chain_may_grow_on_either_side(session):
    condition = Customer.name == "0"
    for number in range(1, 3_000):
        condition = (Customer.name == str(number)) | condition

    assert session.query().entities(Customer).where(condition).collect() == []


def test_a_day_is_not_compared_with_a_moment():
    class Event(Entity):
        id: Field[str]
        day: Field[date]

    with pytest.raises(QueryTypeError, match="is date"):
        Event.day == datetime(2020, 1, 1, 12, tzinfo=UTC)  # noqa: B015


# -- two programs -------------------------------------------------------------------------------


def goods(price: object, **more: object) -> type[Entity]:
    fields = {"id": Field[str], "price": Field[price]} | dict.fromkeys(more, Field[str])
    given = {name: Field(default=value) for name, value in more.items()}
    return type("Good", (Entity,), {"__annotations__": fields, "price": Field(index=True)} | given)


def test_a_float_becomes_the_decimal_it_was_written_as(open_session):
    old, new = goods(float), goods(Decimal)
    first = open_session()
    first.ensure(old(id="1", price=0.1))
    first.commit()

    second = open_session(entity_types=[new], upgraders={("Good", 1): lambda fields: fields})
    second.migrate(dry_run=False, force=True)

    found = second.query().entities(new).where(new.price == Decimal("0.1")).collect()
    assert [good.price for good in found] == [Decimal("0.1")]


@SQLITE
def test_an_index_follows_the_type_of_its_field(open_session, sql):
    indexes = "SELECT sql FROM sqlite_master WHERE name LIKE 'idx_entity_Good_price%'"
    open_session(entity_types=[goods(float)])
    [[before]] = sql(indexes)

    open_session(entity_types=[goods(Decimal)])

    [[after]] = sql(indexes)
    assert "CAST" not in before
    assert "CAST" in after


def test_a_program_notices_that_another_migrated_whatever_it_asked_before(open_session):
    old, new = goods(float, tier="standard"), goods(float)
    program = open_session()
    program.ensure(old(id="1", price=1.0))
    program.commit()
    standard = program.query().entities(old).where(old.tier == "standard")
    assert standard.count() == 1

    other = open_session(entity_types=[new])
    drop = {("Good", 1): lambda fields: {"id": fields["id"], "price": fields["price"]}}
    other.migrate(dry_run=False, force=True, upgraders=drop)

    assert standard.count() == 1
    assert [good.tier for good in standard.collect()] == ["standard"]


# -- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["sqlite:///app.db?mode=ro", "file:app.db", "sqlite:/app.db"])
def test_a_uri_with_parts_that_mean_nothing_is_refused(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreOpenError) as error:
        Session(uri)

    assert error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_closing_over_a_queue_says_what_was_not_written(open_session, caplog):
    session = open_session()
    session.ensure(Customer(id="c1", name="Ada"))

    session.close()

    assert "1 objects queued" in caplog.text
