"""Figures about many objects: scalar, grouped, filtered, of any state."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum

import pytest

from ontologia import Entity, Field, left, right
from ontologia.errors import QueryError, QueryTypeError
from ontologia.query import avg, avg_len, count, count_where, max, min, sum
from ontologia_conformance.shop import Customer, Product, Subscription


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Sale(Entity):
    id: Field[str] = Field(primary_key=True)
    shop: Field[str | None] = None
    amount: Field[int | None] = None
    weight: Field[float | None] = None
    paid: Field[bool] = True
    tags: Field[list[str] | None] = None
    info: Field[dict[str, object]] = Field(default_factory=dict)


@pytest.fixture
def sales(session):
    session.ensure([
        Sale(id="a", shop="north", amount=10, weight=1.5, tags=["x", "y"], info={"box": {"w": 4}}),
        Sale(id="b", shop="north", amount=30, weight=2.5, tags=[], paid=False,
             info={"box": {"w": 8}}),
        Sale(id="c", shop="south", amount=5, tags=["x"], info={"box": {"w": "heavy"}}),
        Sale(id="d", shop="south", weight=-1.0, info={"box": {}}),
        Sale(id="e", amount=100, tags=["x", "y", "z", "x"], info={"box": True}),
    ])  # fmt: skip
    session.commit()
    return session


def all_sales(session):
    return session.query().entities(Sale)


# -- scalars --------------------------------------------------------------------------------------


@pytest.mark.req("SQL-052", "SQL-054")
def test_figures_over_all_objects_leave_missing_values_out(sales):
    query = all_sales(sales)

    assert query.count() == 5
    assert (query.sum(Sale.amount), query.avg(Sale.amount)) == (145.0, 145 / 4)
    assert (query.min(Sale.amount), query.max(Sale.amount)) == (5, 100)
    assert (query.sum(Sale.weight), query.avg(Sale.weight)) == (3.0, 1.0)
    assert (query.min(Sale.shop), query.max(Sale.shop)) == ("north", "south")


@pytest.mark.req("SQL-052")
def test_sum_and_avg_are_floats_and_min_and_max_keep_the_type_of_the_field(sales):
    query = all_sales(sales)

    assert isinstance(query.sum(Sale.amount), float)
    assert isinstance(query.avg(Sale.amount), float)
    assert isinstance(query.max(Sale.amount), int)
    assert isinstance(query.max(Sale.weight), float)


@pytest.mark.req("SQL-055", "SQL-054")
def test_over_nothing_a_count_is_zero_and_all_else_none(sales):
    empty = all_sales(sales).where(Sale.id == "nobody")
    never_stored = sales.query().entities(Product)

    assert (empty.count(), empty.count_where(Sale.paid.is_true())) == (0, 0)
    assert (empty.sum(Sale.amount), empty.avg(Sale.amount), empty.avg_len(Sale.tags)) == (None,) * 3
    assert (empty.min(Sale.amount), empty.max(Sale.shop)) == (None, None)
    assert (never_stored.count(), never_stored.sum(Product.price)) == (0, None)


@pytest.mark.req("SQL-055")
def test_over_objects_that_all_lack_the_value_the_answer_is_none(sales):
    query = all_sales(sales).where(Sale.id == "d")

    assert query.count() == 1
    assert (query.sum(Sale.amount), query.avg(Sale.amount), query.max(Sale.amount)) == (None,) * 3
    assert query.avg_len(Sale.tags) is None


@pytest.mark.req("SQL-053")
def test_the_mean_length_counts_objects_that_have_a_list(sales):
    query = all_sales(sales)

    assert query.avg_len(Sale.tags) == (2 + 0 + 1 + 4) / 4
    assert query.where(Sale.shop == "south").avg_len(Sale.tags) == 1.0
    assert query.avg_len(Sale.info["box"]) is None  # objects, text and truth values are no lists


@pytest.mark.req("SQL-056")
def test_figures_about_a_nested_value_take_the_numbers_there(sales):
    weight = Sale.info.path("box.w")
    query = all_sales(sales)

    assert (query.sum(weight), query.avg(weight)) == (12.0, 6.0)
    assert query.min(weight) == 4
    assert query.max(Sale.info["box"]["w"]) == "heavy"  # text comes after numbers
    assert query.where(weight > 4).count() == 1


@pytest.mark.req("SQL-056")
def test_figures_honour_filters_and_the_state_asked_about(sales):
    sales.ensure(Sale(id="a", shop="north", amount=1000))
    sales.delete(Sale(id="b"))
    sales.commit()
    north = all_sales(sales).where(Sale.shop == "north")

    assert (north.count(), north.sum(Sale.amount), north.max(Sale.amount)) == (1, 1000.0, 1000)
    then = north.as_of(1)
    assert (then.count(), then.sum(Sale.amount), then.min(Sale.amount)) == (2, 40.0, 10)
    assert (then.avg_len(Sale.tags), north.avg_len(Sale.tags)) == (1.0, None)
    assert (north.as_of(0).count(), north.as_of(0).sum(Sale.amount)) == (0, None)


def test_figures_are_about_all_that_is_found_in_any_order_and_never_about_a_page(sales):
    query = all_sales(sales).order_by(Sale.amount.desc())

    assert (query.count(), query.sum(Sale.amount)) == (5, 145.0)
    for page in (query.limit(2), query.offset(1), query.limit(0)):
        with pytest.raises(QueryError, match="limit and offset"):
            page.count()
        with pytest.raises(QueryError, match="limit and offset"):
            page.group_by(Sale.shop)


def test_count_where_counts_those_that_satisfy_a_condition(sales):
    query = all_sales(sales)

    assert query.count_where(Sale.amount > 9) == 3
    assert query.where(Sale.shop == "north").count_where(~Sale.paid.is_true()) == 1
    assert query.count_where(~(Sale.amount > 9)) == 1


def test_history_is_counted_by_versions(sales):
    sales.ensure(Sale(id="a", amount=1))
    sales.commit()
    sales.delete(Sale(id="a"))
    sales.commit()
    query = all_sales(sales)

    assert query.with_history().count() == 7
    assert query.history_since(1).count() == 2
    assert query.with_history().where(Sale.id == "a").sum(Sale.amount) == 10 + 1 + 1


def test_values_of_every_ordered_type_have_a_least_and_a_greatest(session):
    class Event(Entity):
        id: Field[int] = Field(primary_key=True)
        at: Field[datetime]
        day: Field[date]
        price: Field[Decimal]
        size: Field[Size]

    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 9, tzinfo=UTC)
    session.ensure([
        Event(id=1, at=late, day=date(2026, 1, 9), price=Decimal("9.50"), size=Size.SMALL),
        Event(id=2, at=early, day=date(2026, 1, 10), price=Decimal("10.00"), size=Size.LARGE),
    ])  # fmt: skip
    session.commit()

    [least, greatest] = (
        session.query().entities(Event).agg(
            id=one(Event.id), at=one(Event.at), day=one(Event.day), price=one(Event.price),
            size=one(Event.size),
        )[0]
        for one in (min, max)
    )  # fmt: skip

    assert (least["at"], greatest["at"]) == (early, late)
    assert (least["day"], greatest["day"]) == (date(2026, 1, 9), date(2026, 1, 10))
    assert [str(found["price"]) for found in (least, greatest)] == ["9.50", "10.00"]
    assert (least["size"], greatest["size"]) == (Size.LARGE, Size.SMALL)
    assert (least["id"], greatest["id"]) == (1, 2)


# -- several at once, and groups ------------------------------------------------------------------


def test_several_figures_come_as_one_dict_by_the_names_given(sales):
    found = all_sales(sales).where(Sale.amount.is_not_null()).agg(
        n=count(), total=sum(Sale.amount), mean=avg(Sale.amount), least=min(Sale.amount),
        most=max(Sale.amount), paid=count_where(Sale.paid.is_true()), tags=avg_len(Sale.tags),
    )  # fmt: skip

    assert found == [
        {"n": 4, "total": 145.0, "mean": 36.25, "least": 5, "most": 100, "paid": 3, "tags": 1.75}
    ]


def test_groups_come_in_the_order_of_what_they_are_grouped_by(sales):
    found = all_sales(sales).group_by(Sale.shop).agg(n=count(), total=sum(Sale.amount))

    assert found == [
        {"shop": None, "n": 1, "total": 100.0},
        {"shop": "north", "n": 2, "total": 40.0},
        {"shop": "south", "n": 2, "total": 5.0},
    ]


def test_groups_may_be_made_by_several_fields_and_by_what_is_inside_them(sales):
    two = all_sales(sales).group_by(Sale.shop, Sale.paid).agg(n=count())
    inside = all_sales(sales).group_by(Sale.info["box"]["w"]).agg(n=count())

    assert [(row["shop"], row["paid"], row["n"]) for row in two] == [
        (None, True, 1), ("north", False, 1), ("north", True, 1), ("south", True, 2),
    ]  # fmt: skip
    assert [(row["info.box.w"], row["n"]) for row in inside] == [
        (None, 2), (4, 1), (8, 1), ("heavy", 1),
    ]  # fmt: skip


def test_truth_values_and_numbers_in_free_json_are_groups_of_their_own(session):
    values = [True, 1, 1.0, "1", False, 0, None]
    session.ensure(Sale(id=str(n), info={"v": value}) for n, value in enumerate(values))
    session.commit()

    found = all_sales(session).group_by(Sale.info["v"]).agg(n=count())

    assert [(repr(row["info.v"]), row["n"]) for row in found] == [
        ("None", 1), ("False", 1), ("True", 1), ("0", 1), ("1", 2), ("'1'", 1),
    ]  # fmt: skip


def test_groups_of_typed_values_are_keyed_by_those_values(session):
    class Bill(Entity):
        id: Field[int] = Field(primary_key=True)
        price: Field[Decimal]
        size: Field[Size] = Size.SMALL

    session.ensure([
        Bill(id=1, price=Decimal("2.0")), Bill(id=2, price=Decimal(10)),
        Bill(id=3, price=Decimal("2.00"), size=Size.LARGE),
    ])  # fmt: skip
    session.commit()
    query = session.query().entities(Bill)

    assert query.group_by(Bill.price).agg(n=count()) == [
        {"price": Decimal(2), "n": 2}, {"price": Decimal(10), "n": 1},
    ]  # fmt: skip
    dear = query.group_by(Bill.size).having(max(Bill.price) > Decimal(9)).agg(n=count())
    assert dear == [{"size": Size.SMALL, "n": 2}]
    assert query.group_by(Bill.size).agg(n=count()) == [
        {"size": Size.LARGE, "n": 1}, {"size": Size.SMALL, "n": 2},
    ]  # fmt: skip


def test_having_keeps_groups_by_their_figures(sales):
    groups = all_sales(sales).group_by(Sale.shop)

    def shops(*conditions):
        return [row["shop"] for row in groups.having(*conditions).agg(n=count())]

    assert shops(count() > 1) == ["north", "south"]
    assert shops(sum(Sale.amount) >= 40) == [None, "north"]
    assert shops(count() > 1, sum(Sale.amount) < 40) == ["south"]
    assert shops((count() == 1) | (max(Sale.amount) == 30)) == [None, "north"]
    assert shops(~(count() == 2)) == [None]
    assert shops(min(Sale.weight) > 0) == ["north"]  # unknown where there is no weight
    assert shops(count_where(Sale.paid.is_false()) != 0) == ["north"]


def test_groups_are_ordered_and_paged_as_groups(sales):
    groups = all_sales(sales).group_by(Sale.shop)

    def shops(query):
        return [row["shop"] for row in query.agg(n=count())]

    assert shops(groups.order_by(sum(Sale.amount).desc())) == [None, "north", "south"]
    assert shops(groups.order_by(sum(Sale.amount))) == ["south", "north", None]
    assert shops(groups.order_by(Sale.shop.desc())) == ["south", "north", None]
    assert shops(groups.order_by(count().desc(), Sale.shop.desc())) == ["south", "north", None]
    assert shops(groups.limit(1)) == [None]
    assert shops(groups.offset(1)) == ["north", "south"]
    assert shops(groups.order_by(Sale.shop.desc()).limit(1).offset(1)) == ["north"]


def test_groups_honour_filters_and_the_state_asked_about(sales):
    sales.delete(Sale(id="a"))
    sales.commit()
    groups = all_sales(sales).where(Sale.amount > 7)

    now = groups.group_by(Sale.shop).agg(n=count())
    then = groups.as_of(1).group_by(Sale.shop).agg(n=count())

    assert [(row["shop"], row["n"]) for row in now] == [(None, 1), ("north", 1)]
    assert [(row["shop"], row["n"]) for row in then] == [(None, 1), ("north", 2)]
    assert groups.where(Sale.id == "nobody").group_by(Sale.shop).agg(n=count()) == []


def test_a_group_field_and_a_figure_of_the_same_name_do_not_overwrite_each_other(sales):
    with pytest.raises(QueryError, match="shop"):
        all_sales(sales).group_by(Sale.shop).agg(shop=count())


# -- relations ------------------------------------------------------------------------------------


def test_relations_are_grouped_by_what_stands_at_their_ends(session):
    session.ensure([
        Customer(id="ada", name="Ada", tier="gold"), Customer(id="bob", name="Bob"),
        Product(sku="pen", price=2.0), Product(sku="ink", price=9.0),
        Subscription(left_key="ada", right_key="pen", seats=1),
        Subscription(left_key="ada", right_key="ink", seats=2),
        Subscription(left_key="bob", right_key="pen", seats=4),
    ])  # fmt: skip
    session.commit()
    query = session.query().relations(Subscription)

    by_tier = query.group_by(left(Subscription).tier).agg(
        seats=sum(Subscription.seats), dearest=max(right(Subscription).price)
    )

    assert by_tier == [
        {"left.tier": "gold", "seats": 3.0, "dearest": 9.0},
        {"left.tier": "standard", "seats": 4.0, "dearest": 2.0},
    ]
    by_key = query.group_by(Subscription.right_key).having(count() > 1).agg(n=count())
    assert by_key == [{"right_key": "pen", "n": 2}]
    assert query.where(right(Subscription).price > 5).as_of(1).sum(Subscription.seats) == 2.0


# -- values inside JSON ---------------------------------------------------------------------------


@pytest.mark.req("SQL-056")
def test_having_puts_truth_values_before_numbers_and_text(session):
    session.ensure([
        Sale(id="a", shop="one", info={"x": 1}),
        Sale(id="b", shop="text", info={"x": "true"}),
        Sale(id="c", shop="truth", info={"x": True}),  # not among what min and max look at
        Sale(id="d", shop="nothing"),
    ])  # fmt: skip
    session.commit()
    groups = all_sales(session).group_by(Sale.shop)

    def shops(condition):
        return [row["shop"] for row in groups.having(condition).agg(n=count())]

    for figure in (max(Sale.info["x"]), min(Sale.info["x"])):
        for value in (True, False):
            assert shops(figure == value) == shops(figure < value) == shops(figure <= value) == []
            for after in (figure != value, figure > value, figure >= value):
                assert shops(after) == ["one", "text"]


@pytest.mark.req("SQL-056")
def test_a_position_is_no_name_and_a_name_no_position_where_groups_are_made(session):
    session.ensure([
        Sale(id="a", info={"0": "named"}),
        Sale(id="b", info={"list": ["first"]}),
    ])  # fmt: skip
    session.commit()
    query = all_sales(session)

    def groups(path):
        return [list(row.values()) for row in query.group_by(path).agg(n=count())]

    assert groups(Sale.info[0]) == [[None, 2]]
    assert groups(Sale.info["list"]["0"]) == [[None, 2]]
    assert groups(Sale.info["0"]) == [[None, 1], ["named", 1]]
    assert groups(Sale.info["list"][0]) == [[None, 1], ["first", 1]]


@pytest.mark.req("SQL-053", "SQL-056")
def test_zero_has_no_sign_in_groups_and_figures(session):
    session.ensure([Sale(id="a", weight=-0.0, info={"x": -0.0})])
    session.commit()
    query = all_sales(session)

    found = [query.min(Sale.weight), query.max(Sale.info["x"])]
    found += [row["weight"] for row in query.group_by(Sale.weight).agg(n=count())]

    assert [repr(value) for value in found] == ["0.0"] * 3
    assert query.first().weight.hex() == "-0x0.0p+0"  # what was stored has it


# -- what makes no sense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda q: q.sum(Sale.shop),
        lambda q: q.avg(Sale.paid),
        lambda q: q.avg_len(Sale.amount),
        lambda q: q.sum("amount"),
        lambda q: q.sum(Sale.info.any_path("x")),
        lambda q: q.sum(Product.price),
        lambda q: q.count_where(Customer.tier == "gold"),
        lambda q: q.count_where(True),
        lambda q: q.where(count() > 1),
        lambda q: q.group_by(),
        lambda q: q.group_by("shop"),
        lambda q: q.group_by(Sale.shop).agg(),
        lambda q: q.group_by(Sale.shop).agg(n=3),
        lambda q: q.group_by(Sale.shop).having(Sale.amount > 1),
        lambda q: q.group_by(Sale.shop).having(count() > "1"),
        lambda q: q.group_by(Sale.shop).having(count() > 2**63),
        lambda q: q.group_by(Sale.shop).having(sum(Sale.amount) < -(2**63) - 1),
        lambda q: q.group_by(Sale.shop).having(count() > 10**5000),
        lambda q: q.group_by(Sale.shop).having(avg(Sale.amount) < Decimal("Infinity")),
        lambda q: q.group_by(Sale.shop).having(avg(Sale.amount) < Decimal("sNaN")),
        lambda q: q.group_by(Sale.shop).order_by(Sale.amount),
    ],
)  # fmt: skip
def test_a_figure_that_makes_no_sense_is_refused(session, ask):
    with pytest.raises((QueryError, QueryTypeError)):
        ask(all_sales(session))
