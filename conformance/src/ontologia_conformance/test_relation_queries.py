"""Asking for relations: their keys, their ends, and conditions on both."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import EndpointDeleted, InvalidValueError, QueryError
from ontologia_conformance.shop import Customer, Product, Subscription


class Visit(Relation[Customer, Product]):
    """Several between the same two, told apart by text."""

    day: Field[str] = Field(instance_key=True)
    pages: Field[int] = 1


class Seat(Relation[Customer, Product]):
    """Several between the same two, told apart by a number."""

    number: Field[int] = Field(instance_key=True)
    row: Field[str] = "A"


class Tag(Relation):
    """A relation that does not say what it connects."""

    word: Field[str]


class Account(Entity):
    number: Field[int] = Field(primary_key=True)
    owner: Field[str] = ""


class Transfer(Relation[Account, Account]):
    amount: Field[int]


@pytest.fixture
def shop(session):
    """Two customers, two products, and subscriptions to them; Cy and the cup were never stored."""
    session.ensure([
        Customer(id="ada", name="Ada", tier="gold", profile={"city": {"zip": "75001"}}),
        Customer(id="bob", name="Bob", tier="basic"),
        Product(sku="pen", price=2.0),
        Product(sku="ink", price=9.0),
    ])  # fmt: skip
    for left_key, right_key, seats in SUBSCRIPTIONS:
        session.ensure(Subscription(left_key=left_key, right_key=right_key, seats=seats))
    session.commit()
    return session


SUBSCRIPTIONS = [
    ("ada", "pen", 1),
    ("ada", "ink", 5),
    ("bob", "pen", 5),
    ("bob", "cup", 1),
    ("cy", "ink", 5),
]


def pairs(session, *conditions):
    found = session.query().relations(Subscription).where(*conditions).collect()
    return {f"{relation.left_key}-{relation.right_key}" for relation in found}


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.req("SQL-034")
def test_the_current_state_has_each_relation_once_with_its_newest_fields(session):
    for seats in (1, 2, 3):
        session.ensure(Subscription(left_key="ada", right_key="pen", seats=seats))
        session.ensure(Subscription(left_key="ada", right_key="ink", seats=7))
        session.commit()

    ink, pen = session.query().relations(Subscription).collect()

    assert (pen.seats, ink.seats) == (3, 7)
    assert (pen.meta().left_key, pen.meta().right_key, pen.meta().instance_key) == (
        "ada",
        "pen",
        "",
    )
    assert (pen.meta().commit_id, ink.meta().commit_id) == (3, 1)
    assert pen.meta().type_name == "Subscription"


@pytest.mark.req("SQL-015", "SQL-114", "SQL-034")
def test_relations_with_different_instance_keys_are_objects_of_their_own(session):
    session.ensure([Visit(left_key="ada", right_key="pen", day=day) for day in ("mon", "tue")])
    session.commit()
    session.ensure(Visit(left_key="ada", right_key="pen", day="tue", pages=9))
    session.commit()
    session.delete(Visit(left_key="ada", right_key="pen", day="mon"))
    session.commit()

    versions = session.query().relations(Visit).with_history().collect()
    [now] = session.query().relations(Visit).collect()

    assert [(v.day, v.pages, v.meta().commit_id) for v in versions] == [
        ("mon", 1, 1), ("tue", 1, 1), ("tue", 9, 2), ("mon", 1, 3),
    ]  # fmt: skip
    assert (now.day, now.pages, now.meta().instance_key) == ("tue", 9, "tue")


@pytest.mark.req("SQL-114")
def test_each_part_of_the_key_tells_relations_apart(session):
    session.ensure([
        Visit(left_key=left_key, right_key=right_key, day=day)
        for left_key in ("ada", "bob")
        for right_key in ("pen", "ink")
        for day in ("mon", "tue")
    ])  # fmt: skip

    session.commit()

    assert session.query().relations(Visit).count() == 8
    assert session.query().relations(Visit).where(Visit.left_key == "ada").count() == 4
    assert session.query().relations(Visit).where(Visit.right_key == "pen").count() == 4
    assert session.query().relations(Visit).where(Visit.day == "mon").count() == 4


def test_an_instance_key_that_is_a_number_stays_a_number(session):
    session.ensure(Seat(left_key="ada", right_key="bus", number=n) for n in (2, 10, 1))
    session.commit()
    query = session.query().relations(Seat)

    def seats(found):
        return [seat.number for seat in found.collect()]

    assert seats(query.order_by(Seat.number)) == [1, 2, 10]
    assert seats(query.where(Seat.number > 1).order_by(Seat.number.desc())) == [10, 2]
    assert seats(query.where(Seat.number == 10)) == [10]
    assert sorted(seats(query.where(Seat.number.in_([1, 2, 3])))) == [1, 2]
    assert query.where(Seat.number == 10).first().meta().instance_key == "10"
    assert (query.min(Seat.number), query.max(Seat.number)) == (1, 10)


def test_an_instance_key_that_is_text_can_be_filtered_as_text(session):
    days = ("2026-01-01", "2026-01-02", "2026-02-01")
    session.ensure(Visit(left_key="ada", right_key="pen", day=day) for day in days)
    session.commit()

    january = session.query().relations(Visit).where(Visit.day.startswith("2026-01"))

    assert [visit.day for visit in january.collect()] == ["2026-01-01", "2026-01-02"]
    assert january.where(Visit.day > "2026-01-01").count() == 1
    assert january.where(Visit.day.is_null()).count() == 0


@pytest.mark.req("SQL-113")
def test_a_relation_without_an_instance_key_has_an_empty_one(session):
    session.ensure(Subscription(left_key="ada", right_key="pen", seats=1))
    session.commit()

    relation = session.query().relations(Subscription).first()

    assert relation.meta().instance_key == ""
    assert session.list_commit_changes(1)[0]["relation_id"] == "Subscription:ada:pen"
    with pytest.raises(InvalidValueError, match="empty"):
        Visit(left_key="ada", right_key="pen", day="")


def test_a_keyed_relation_is_named_with_its_instance_key(session):
    session.ensure(Seat(left_key="ada", right_key="bus", number=7))
    session.commit()

    [summary] = session.list_commit_changes(1)
    [change] = session.diff(0, 1).created

    assert summary["relation_id"] == "Seat:ada:bus:7"
    assert (change.left_key, change.right_key, change.instance_key) == ("ada", "bus", "7")
    assert change.fields == {"row": (None, "A")}


def test_a_relation_is_ordered_by_its_keys_and_by_its_fields(shop):
    query = shop.query().relations(Subscription)

    by_key = [(r.left_key, r.right_key) for r in query.collect()]
    by_seats = query.order_by(Subscription.seats.desc(), Subscription.right_key)

    assert by_key == sorted(by_key)
    assert [(r.seats, r.right_key) for r in by_seats.collect()] == [
        (5, "ink"), (5, "ink"), (5, "pen"), (1, "cup"), (1, "pen"),
    ]  # fmt: skip


def test_relations_can_be_ordered_by_what_stands_at_their_ends(shop):
    query = shop.query().relations(Subscription).where(right(Subscription).price.is_not_null())

    ordered = query.order_by(right(Subscription).price.desc(), left(Subscription).name)

    assert [(r.left_key, r.right_key) for r in ordered.collect()] == [
        ("cy", "ink"), ("ada", "ink"), ("ada", "pen"), ("bob", "pen"),
    ]  # fmt: skip


# -- ends -----------------------------------------------------------------------------------------


def test_a_relation_gives_the_entities_at_its_ends(shop):
    relation = shop.query().relations(Subscription).where(Subscription.left_key == "ada").first()

    assert relation.left == shop.query().entities(Customer).where(Customer.id == "ada").first()
    assert (relation.right.sku, relation.right.price) == ("ink", 9.0)
    assert (relation.left.meta().commit_id, relation.right.meta().key) == (1, "ink")


def test_the_end_of_a_relation_is_its_newest_version(shop):
    shop.ensure(Customer(id="ada", name="Ada", tier="lead"))
    shop.commit()

    relation = shop.query().relations(Subscription).where(Subscription.left_key == "ada").first()

    assert (relation.left.tier, relation.left.meta().commit_id) == ("lead", 2)
    assert relation.meta().commit_id == 1


def test_deleting_an_entity_leaves_its_relations_and_the_end_says_so(shop):
    shop.delete(Customer(id="ada", name="Ada"))
    shop.commit()

    pen = shop.query().relations(Subscription).where(Subscription.left_key == "ada").first()

    assert pen.right.sku == "ink"
    with pytest.raises(EndpointDeleted, match="'ada' was deleted or never committed") as caught:
        _ = pen.left
    assert (caught.value.side, caught.value.type_name, caught.value.key) == (
        "left",
        "Customer",
        "ada",
    )


def test_an_end_that_was_never_committed_is_missing_and_the_relation_is_not(shop):
    cup = shop.query().relations(Subscription).where(Subscription.right_key == "cup").first()

    assert cup.left.name == "Bob"
    with pytest.raises(EndpointDeleted, match="right end of Subscription:bob:cup"):
        _ = cup.right


def test_an_end_named_by_a_number_is_found(session):
    session.ensure([Account(number=1, owner="Ada"), Account(number=12, owner="Bob")])
    session.ensure(Transfer(left_key=1, right_key=12, amount=5))
    session.commit()

    [transfer] = session.query().relations(Transfer).where(right(Transfer).number == 12).collect()

    assert (transfer.left.owner, transfer.right.owner) == ("Ada", "Bob")
    assert transfer == Transfer(left_key="1", right_key="12", amount=5)
    assert session.query().relations(Transfer).where(left(Transfer).number > 1).count() == 0
    assert session.query().relations(Transfer).where(left(Transfer).number.in_([1, 2])).count() == 1


# -- conditions on ends ---------------------------------------------------------------------------

GOLD = left(Subscription).tier == "gold"
CHEAP = right(Subscription).price < 5.0
LARGE = Subscription.seats == 5


@pytest.mark.req("SQL-035", "SQL-041")
def test_a_condition_on_an_end_looks_at_the_entity_there(shop):
    assert pairs(shop, GOLD) == {"ada-pen", "ada-ink"}
    assert pairs(shop, CHEAP) == {"ada-pen", "bob-pen"}
    assert pairs(shop, left(Subscription).profile.path("city.zip") == "75001") == {
        "ada-pen", "ada-ink",
    }  # fmt: skip
    assert pairs(shop, right(Subscription).sku.in_(["ink", "cup"])) == {"ada-ink", "cy-ink"}


@pytest.mark.req("SQL-035")
def test_a_condition_on_an_end_looks_at_its_newest_version(shop):
    shop.ensure(
        [Customer(id="ada", name="Ada", tier="basic"), Customer(id="bob", name="B", tier="gold")]
    )
    shop.commit()

    assert pairs(shop, GOLD) == {"bob-pen", "bob-cup"}


@pytest.mark.req("SQL-048")
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (GOLD & CHEAP, "ada-pen"),
        (GOLD | CHEAP, "ada-pen ada-ink bob-pen"),
        (GOLD & LARGE, "ada-ink"),
        (GOLD | LARGE, "ada-pen ada-ink bob-pen cy-ink"),
        (CHEAP | (Subscription.seats == 1), "ada-pen bob-pen bob-cup"),
        (~GOLD, "bob-pen bob-cup"),
        (~GOLD & LARGE, "bob-pen"),
        (~GOLD | LARGE, "ada-ink bob-pen bob-cup cy-ink"),
        (~(GOLD | LARGE), "bob-cup"),
        (~(GOLD & LARGE), "ada-pen bob-pen bob-cup"),
        (~(GOLD & CHEAP), "ada-ink bob-pen bob-cup cy-ink"),
        (~(GOLD | CHEAP), ""),
        ((GOLD & LARGE) | (~GOLD & CHEAP), "ada-ink bob-pen"),
        (~~GOLD, "ada-pen ada-ink"),
    ],
    ids=lambda value: value.replace(" ", "+") if isinstance(value, str) else "matches",
)
def test_ends_and_own_fields_combine_in_every_way(shop, condition, expected):
    assert pairs(shop, condition) == set(expected.split())


def test_what_is_said_of_an_end_that_is_not_there_is_neither_true_nor_false(shop):
    cup = Subscription.right_key == "cup"
    on_the_end = [
        right(Subscription).price > 0,
        right(Subscription).price != 0.0,
        right(Subscription).price.is_null(),
        right(Subscription).price.is_not_null(),
        right(Subscription).sku == "cup",
        right(Subscription).price.in_([]),
    ]

    for condition in on_the_end:
        assert pairs(shop, cup, condition) == set()
        assert pairs(shop, cup, ~condition) == set()
        assert pairs(shop, cup & (condition | (Subscription.seats == 1))) == {"bob-cup"}


def test_a_deleted_end_no_longer_matches(shop):
    shop.delete(Customer(id="ada", name="Ada"))
    shop.commit()

    assert pairs(shop, GOLD) == set()
    assert pairs(shop, ~GOLD) == {"bob-pen", "bob-cup"}
    assert len(pairs(shop)) == 5


def test_relations_are_counted_with_conditions_on_their_ends(shop):
    query = shop.query().relations(Subscription)

    assert query.where(GOLD | LARGE).count() == 4
    assert query.where(~GOLD).sum(Subscription.seats) == 6.0
    assert query.count_where(CHEAP) == 2
    assert query.avg(right(Subscription).price) == (2.0 + 9.0 + 2.0 + 9.0) / 4


@pytest.mark.req("SQL-037")
def test_under_as_of_a_condition_on_an_end_looks_at_the_end_as_it_was(shop):
    shop.ensure(Customer(id="ada", name="Ada", tier="basic"))
    shop.commit()
    shop.delete(Customer(id="bob", name="Bob"))
    shop.ensure(Product(sku="cup", price=1.0))
    shop.commit()
    query = shop.query().relations(Subscription)

    def at(commit_id, condition):
        found = query.where(condition).as_of(commit_id).collect()
        return {f"{r.left_key}-{r.right_key}" for r in found}

    assert at(1, GOLD) == {"ada-pen", "ada-ink"}
    assert at(2, GOLD) == set()
    assert at(1, ~GOLD & CHEAP) == {"bob-pen"}
    assert at(3, ~GOLD & CHEAP) == {"ada-pen"}
    assert at(2, CHEAP | LARGE) == {"ada-pen", "ada-ink", "bob-pen", "cy-ink"}
    assert at(3, CHEAP) == {"ada-pen", "bob-pen", "bob-cup"}
    assert at(0, CHEAP | ~CHEAP) == set()


def test_under_as_of_the_ends_are_those_of_that_state(shop):
    shop.ensure(Customer(id="ada", name="Ada", tier="basic"))
    shop.delete(Product(sku="ink", price=9.0))
    shop.commit()
    ink = shop.query().relations(Subscription).where(Subscription.right_key == "ink")

    then, now = ink.as_of(1).first(), ink.first()

    assert (then.left.tier, then.right.price) == ("gold", 9.0)
    assert now.left.tier == "basic"
    with pytest.raises(EndpointDeleted):
        _ = now.right


def test_in_history_the_ends_are_the_current_ones(shop):
    shop.ensure(Customer(id="ada", name="Ada", tier="lead"))
    shop.ensure(Subscription(left_key="ada", right_key="pen", seats=2))
    shop.commit()
    versions = shop.query().relations(Subscription).with_history()

    pen = versions.where(Subscription.left_key == "ada", Subscription.right_key == "pen").collect()

    assert [(r.seats, r.left.tier) for r in pen] == [(1, "lead"), (2, "lead")]
    assert versions.where(GOLD).collect() == []
    assert versions.where(left(Subscription).tier == "lead").count() == 3


def test_under_as_of_an_end_deleted_by_then_is_missing(shop):
    shop.delete(Customer(id="ada", name="Ada"))
    shop.commit()
    shop.ensure(Customer(id="ada", name="Ada", tier="new"))
    shop.commit()
    query = shop.query().relations(Subscription).where(Subscription.left_key == "ada").as_of(2)

    without = query.first()

    assert without.right.price == 9.0
    with pytest.raises(EndpointDeleted, match="left end"):
        _ = without.left
    assert query.where(left(Subscription).tier.is_null()).collect() == []
    assert query.where(left(Subscription).id == "ada").collect() == []
    assert query.as_of(3).first().left.tier == "new"


@pytest.mark.req("SQL-036")
def test_a_condition_on_an_end_that_the_relation_does_not_declare_is_an_error(session):
    session.ensure([Customer(id="ada", name="Ada"), Tag(left_key="ada", right_key="x", word="new")])
    session.commit()

    for end in (left, right):
        with pytest.raises(ValueError, match=r"does not say what its (left|right) end is"):
            _ = end(Tag).name
    [tag] = session.query().relations(Tag).where(Tag.word == "new").collect()
    with pytest.raises(ValueError, match="left end"):
        _ = tag.left
    assert (tag.left_key, tag.right_key) == ("ada", "x")


def test_an_end_has_only_the_fields_of_its_entity(session):
    with pytest.raises(QueryError, match="Customer has no field 'price'"):
        _ = left(Subscription).price
    with pytest.raises(QueryError, match="not part of a question for Visit"):
        session.query().relations(Visit).where(GOLD)
