"""What comparing a field of a class says, as data, and what cannot be said."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import QueryError, QueryTypeError
from ontologia.schema.expression import (
    And,
    Compare,
    Expr,
    In,
    IsBool,
    IsNull,
    Like,
    Match,
    Not,
    Or,
    Order,
    Path,
)


class Colour(Enum):
    RED = "red"


class Item(Entity):
    number: Field[int] = Field(primary_key=True)
    name: Field[str]
    price: Field[float]
    sold: Field[bool]
    note: Field[str | None]
    exact: Field[Decimal]
    made: Field[datetime]
    day: Field[date]
    age: Field[timedelta]
    uid: Field[UUID]
    colour: Field[Colour]
    blob: Field[bytes]
    tags: Field[list[str]]
    profile: Field[dict[str, object]]
    anything: Field[Any]


class Links(Relation[Item, Item]):
    slot: Field[int] = Field(instance_key=True)
    weight: Field[float]


NAME = Path("Item", "name", "text")
PRICE = Path("Item", "price", "number")
PROFILE = Path("Item", "profile", "json")


# -- what each operator builds -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "built"),
    [
        (Item.name == "a", Compare(NAME, "==", "a")),
        (Item.name != "a", Compare(NAME, "!=", "a")),
        (Item.price < 1, Compare(PRICE, "<", 1)),
        (Item.price <= 1, Compare(PRICE, "<=", 1)),
        (Item.price > 1.5, Compare(PRICE, ">", 1.5)),
        (Item.price >= 1.5, Compare(PRICE, ">=", 1.5)),
        (1 < Item.price, Compare(PRICE, ">", 1)),  # noqa: SIM300 - the other way round
        (Item.name.in_(["a", "b"]), In(NAME, ("a", "b"))),
        (Item.name.in_(x for x in "ab"), In(NAME, ("a", "b"))),
        (Item.name.in_([]), In(NAME, ())),
        (Item.name.startswith("a%"), Match(NAME, "startswith", "a%")),
        (Item.name.endswith("_"), Match(NAME, "endswith", "_")),
        (Item.name.contains("'"), Match(NAME, "contains", "'")),
        (Item.name.like("a%_"), Like(NAME, "a%_", False)),
        (Item.name.ilike(r"\%"), Like(NAME, r"\%", True)),
        (Item.note.is_null(), IsNull(Path("Item", "note", "text"), True)),
        (Item.note.is_not_null(), IsNull(Path("Item", "note", "text"), False)),
        (Item.sold.is_true(), IsBool(Path("Item", "sold", "bool"), True)),
        (Item.sold.is_false(), IsBool(Path("Item", "sold", "bool"), False)),
        (Item.name.asc(), Order(NAME, descending=False)),
        (Item.name.desc(), Order(NAME, descending=True)),
    ],
)
def test_an_operator_builds_one_plain_statement(condition, built):
    assert condition == built


def test_a_key_is_looked_up_in_its_column():
    assert (Item.number == 1).path == Path("Item", "number", "number", column="key")
    assert (Links.left_key == "1").path == Path("Links", "left_key", "text", column="left_key")
    assert (Links.right_key == "1").path == Path("Links", "right_key", "text", column="right_key")
    assert (Links.slot == 1).path == Path("Links", "slot", "number", column="instance_key")


def test_an_endpoint_s_field_is_a_path_from_the_relation():
    assert (left(Links).name == "a").path == Path("Links", "name", "text", side="left")
    assert (right(Links).number == 1).path == Path("Links", "number", "number", "right", "key")
    assert repr(left(Links)) == "left(Links)"


def test_conditions_combine_and_a_chain_is_one_flat_node():
    a, b, c = Item.name == "a", Item.price > 1, Item.sold.is_true()

    assert a & b & c == And((a, b, c))
    assert a | b | c == Or((a, b, c))
    assert ~a == Not(a)
    assert (a | b) & ~c == And((Or((a, b)), Not(c)))
    assert a & b | c == Or((And((a, b)), c))


def test_a_path_goes_into_json_by_dots_or_by_steps():
    assert (Item.profile.path("a.b") == 1).path == Path("Item", "profile", "json", steps=("a", "b"))
    assert (Item.profile["a"]["b"] == 1).path == (Item.profile.path("a.b") == 1).path
    assert (Item.profile["a.b"] == 1).path.steps == ("a.b",)
    assert (Item.tags[0] == "x").path.steps == (0,)
    assert (Item.profile["a"].path("b.c")["d"] == 1).path.steps == ("a", "b", "c", "d")


def test_any_path_speaks_of_each_element():
    condition = Item.profile["orders"].any_path("line.kind") == "x"

    assert condition.path == Path(
        "Item", "profile", "json", steps=("orders",), each=("line", "kind")
    )
    assert (Item.profile["orders"].any_path("line")["kind"] == "x").path == condition.path


def test_any_path_after_any_path_never_forgets_the_first():
    try:
        found = Item.profile.any_path("orders").any_path("kind") == "x"
    except QueryError:
        return
    assert "orders" in found.path.label


def test_a_field_shows_itself_as_it_is_written():
    assert repr(Item.name) == "Item.name"
    assert repr(Item.profile["a"][0]) == "Item.profile['a'][0]"
    assert repr(left(Links).name) == "left(Links).name"
    assert repr(Item.tags.any_path("a.b")) == "Item.tags.any_path('a.b')"


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "stored"),
    [
        (Item.made == datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00.000000+00:00"),
        (
            Item.made == datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-01T00:00:00.000000+00:00",
        ),
        (Item.day > date(2026, 1, 1), "2026-01-01"),
        (Item.age > timedelta(minutes=1), 60.0),
        (Item.uid == UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Item.colour == Colour.RED, "red"),
        (Item.exact == Decimal("1.10"), "1.10"),
        (Item.exact == 2, "2"),
        (Item.blob == b"x", "78"),
    ],
)
def test_a_value_is_compared_in_the_form_it_is_stored_in(condition, stored):
    assert condition.value == stored
    assert type(condition.value) is type(stored)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (Item.name, 5),
        (Item.name, True),
        (Item.name, b"a"),
        (Item.price, "5"),
        (Item.price, True),
        (Item.price, math.nan),
        (Item.price, math.inf),
        (Item.number, "1"),
        (Item.number, 2**63),
        (Item.sold, 1),
        (Item.sold, "true"),
        (Item.exact, "1.5"),
        (Item.exact, Decimal("NaN")),
        (Item.made, "2026-01-01"),
        (Item.made, date(2026, 1, 1)),
        (Item.uid, "x"),
        (Item.colour, "red"),
        (Item.tags, ["a"]),
        (Item.profile, {}),
        (Item.profile["a"], (1, 2)),
        (Item.anything, object()),
        (Item.name, "a\0"),
        (Item.name, "\ud800"),
        (Item.name, Item.note),
    ],
)
def test_a_value_of_another_type_is_refused_by_every_comparison(field, value):
    for compare in (
        lambda: field == value,
        lambda: field != value,
        lambda: field < value,
        lambda: field >= value,
        lambda: field.in_([value]),
    ):
        with pytest.raises(QueryTypeError):
            compare()


def test_a_refusal_names_the_field_its_type_and_the_value():
    with pytest.raises(QueryTypeError, match=r"Item\.price is float .*compared with str '5'"):
        _ = Item.price == "5"
    with pytest.raises(QueryTypeError, match=r"left\(Links\)\.price is float"):
        _ = left(Links).price == "5"
    with pytest.raises(QueryTypeError, match="compared with values, not with fields"):
        _ = Item.name == Item.note


def test_inside_json_values_of_every_json_type_may_be_compared():
    for value in ("x", 1, 1.5, True, False):
        assert (Item.profile["a"] == value).value is value
        assert (Item.anything != value).value is value


@pytest.mark.req("SQL-050")
@pytest.mark.parametrize("field", [Item.name, Item.note, Item.sold, Item.anything, Item.tags[0]])
def test_comparing_with_none_says_what_to_use_instead(field):
    with pytest.raises(TypeError) as equal:
        _ = field == None
    with pytest.raises(TypeError) as unequal:
        _ = field != None

    assert str(equal.value) == "Use .is_null() instead"
    assert str(unequal.value) == "Use .is_not_null() instead"


def test_none_has_no_order_and_is_no_member():
    for ask in (lambda: Item.price < None, lambda: Item.price.in_([1, None])):
        with pytest.raises(QueryTypeError, match=r"Use \.is_null\(\) instead"):
            ask()


def test_truth_values_have_no_order():
    for ask in (lambda: Item.sold < True, lambda: Item.anything >= False):
        with pytest.raises(QueryTypeError, match="truth values have no order"):
            ask()


# -- misuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: (Item.name == "a") and (Item.price > 1),
        lambda: (Item.name == "a") or (Item.price > 1),
        lambda: not (Item.price > 1),
        lambda: 1 < Item.price < 2,
        lambda: Item.name in ["a", "b"],
        lambda: Item.sold and (Item.price > 1),
        lambda: not Item.sold,
        lambda: Item.sold or (Item.price > 1),
    ],
    ids=["and", "or", "not", "chain", "in", "field and", "not field", "field or"],
)
def test_python_s_own_logic_is_refused_and_corrected(misuse):
    with pytest.raises(QueryTypeError) as caught:
        misuse()

    assert "& | ~" in caught.value.hint
    assert ".in_([...])" in caught.value.hint


def test_a_field_is_neither_a_container_nor_hashable():
    for misuse in (lambda: "a" in Item.tags, lambda: list(Item.tags), lambda: {Item.name}):
        with pytest.raises(TypeError):
            misuse()


def test_only_conditions_combine():
    for wrong in (True, Item.sold, "a", None):
        with pytest.raises(QueryTypeError, match="expected a condition"):
            _ = (Item.name == "a") & wrong
        with pytest.raises(QueryTypeError, match="expected a condition"):
            _ = (Item.name == "a") | wrong


def test_text_is_no_list_of_values():
    with pytest.raises(QueryTypeError, match="takes a list of values, got 'ab'"):
        Item.name.in_("ab")


@pytest.mark.parametrize("pattern", ["\\", "a\\", "%\\\\\\"])
def test_a_pattern_does_not_end_in_a_backslash_that_escapes_nothing(pattern):
    for method in (Item.name.like, Item.name.ilike):
        with pytest.raises(QueryError, match="ends in a backslash"):
            method(pattern)


def test_a_pattern_has_a_length_that_every_database_takes():
    Item.name.like("*" * 10_000)

    with pytest.raises(QueryError, match="at most 10,000 characters, got 10,001"):
        Item.name.ilike("%" * 10_001)


def test_matching_needs_text_on_both_sides():
    with pytest.raises(QueryTypeError, match=r"Item\.price is not text"):
        Item.price.startswith("1")
    with pytest.raises(QueryTypeError, match="takes text, got 1"):
        Item.name.contains(1)
    with pytest.raises(QueryTypeError, match=r"Item\.price is not text; ilike\(\)"):
        Item.price.ilike("1%")
    with pytest.raises(QueryTypeError, match=r"like\(\) takes text, got 1"):
        Item.name.like(1)
    with pytest.raises(QueryTypeError, match=r"Item\.name is not a truth value"):
        Item.name.is_true()


@pytest.mark.parametrize("dotted", ["", ".", "a..b", ".a", "a.", 5, None, b"a", "a\0", "\ud800"])
def test_a_path_that_is_no_path_is_refused(dotted):
    for field in (Item.profile.path, Item.profile.any_path):
        with pytest.raises(QueryError, match=r"Item\.profile"):
            field(dotted)


@pytest.mark.parametrize("step", ["", -1, 2**31, True, 1.5, None, slice(1)])
def test_a_step_that_is_no_step_is_refused(step):
    with pytest.raises(QueryError, match=r"Item\.profile"):
        Item.profile[step]


def test_a_path_has_an_end():
    longest = ".".join(["a"] * 50)

    assert isinstance(Item.profile.path(longest), Expr)
    with pytest.raises(QueryError, match="at most 50 steps"):
        Item.profile.path(longest + ".a")
    with pytest.raises(QueryError, match="at most 50 steps"):
        Item.profile.path(longest)["a"]


@pytest.mark.parametrize("field", [Item.name, Item.price, Item.number, Links.left_key, Item.made])
def test_a_single_value_has_no_inside(field):
    for look in (lambda: field["a"], lambda: field.path("a"), lambda: field.any_path("a")):
        with pytest.raises(QueryTypeError, match="is a single value"):
            look()


def test_a_field_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(QueryError, match="Item has no field 'nmae'") as caught:
        _ = left(Links).nmae
    with pytest.raises(AttributeError):
        _ = Item.nmae

    assert "number, name, price" in caught.value.hint


@pytest.mark.parametrize("wrong", [Item, Relation, 5, "Links"])
def test_only_relations_have_ends(wrong):
    for side in (left, right):
        with pytest.raises(QueryError, match="takes a relation class"):
            side(wrong)
