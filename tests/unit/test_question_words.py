"""Filters and orders in words mean what the same expressions of a class mean."""

from __future__ import annotations

import datetime as datetime_module
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import QueryError
from ontologia.query.words import Words, filter_words


class Shop(Entity):
    id: Field[str]
    city: Field[str | None]
    size: Field[int]
    open: Field[bool]
    rent: Field[Decimal]
    since: Field[datetime]
    owner: Field[UUID]
    more: Field[dict[str, Any]]


class Sells(Relation[Shop, Shop]):
    pieces: Field[int]


ID = "12345678-1234-5678-1234-567812345678"
SHOP = Words(Shop.__shape__)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("city", "eq", "Bern"), Shop.city == "Bern"),
        (("$.city", "eq", "Bern"), Shop.city == "Bern"),
        (("$.city", "==", "Bern"), Shop.city == "Bern"),
        (("$.size", ">=", "5"), Shop.size >= 5),
        (("$.more.a.b", "!=", "5"), Shop.more.path("a.b") != 5),
        (("more.$", "eq", "5"), Shop.more["$"] == 5),
        (("$.city", "in_", "Bern,Biel"), Shop.city.in_(["Bern", "Biel"])),
        (("city", "eq", '"Bern"'), Shop.city == "Bern"),
        (("city", "eq", "5"), Shop.city == "5"),
        (("city", "eq", "true"), Shop.city == "true"),
        (("city", "ne", ""), Shop.city != ""),
        (("size", "lt", "5"), Shop.size < 5),
        (("size", "le", "-5"), Shop.size <= -5),
        (("size", "gt", "5.5"), Shop.size > 5.5),  # type: ignore[operator]
        (("open", "eq", "true"), Shop.open == True),
        (("rent", "ge", "9.90"), Shop.rent >= Decimal("9.90")),
        (
            ("since", "lt", "2026-01-01T00:00:00+00:00"),
            Shop.since < datetime(2026, 1, 1, tzinfo=UTC),
        ),
        (("owner", "eq", ID), Shop.owner == UUID(ID)),
        (("more.a.b", "eq", "5"), Shop.more.path("a.b") == 5),
        (("more.a", "eq", '"5"'), Shop.more["a"] == "5"),
        (("more.a", "eq", "five"), Shop.more["a"] == "five"),
        (("more.a", "eq", "false"), Shop.more["a"] == False),
        (("city", "in", "Bern,Biel"), Shop.city.in_(["Bern", "Biel"])),
        (("city", "in", '["Bern", "a,b"]'), Shop.city.in_(["Bern", "a,b"])),
        (("size", "in", "[1, 2]"), Shop.size.in_([1, 2])),
        (("size", "in", "1,2"), Shop.size.in_([1, 2])),
        (("city", "startswith", "B"), Shop.city.startswith("B")),
        (("city", "endswith", "5"), Shop.city.endswith("5")),
        (("city", "contains", "er"), Shop.city.contains("er")),
        (("city", "like", "B_r%"), Shop.city.like("B_r%")),
        (("more.a", "ilike", r"50\%"), Shop.more["a"].ilike(r"50\%")),
        (("city", "is_null"), Shop.city.is_null()),
        (("more.a", "is_not_null"), Shop.more["a"].is_not_null()),
    ],
)
def test_a_filter_in_words_is_the_condition(words, meant):
    names = {"Shop": Shop, "Decimal": Decimal, "UUID": UUID, "datetime": datetime_module}
    assert eval(SHOP.code(*words), names) == meant  # noqa: S307
    assert SHOP.condition(*words) == meant


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("pieces", Sells.pieces),
        ("left_key", Sells.left_key),
        ("left.city", left(Sells).city),
        ("left.$.city", left(Sells).city),
        ("right.more.a", right(Sells).more["a"]),
    ],
)
def test_a_path_of_a_relation_may_begin_at_an_end(path, meant):
    assert Words(Sells.__shape__).expression(path)._path == meant._path


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("city", Shop.city),
        ("Sells.pieces", Sells.pieces),
        ("Sells.right.city", right(Sells).city),
        ("Sells.$.pieces", Sells.pieces),
        ("Sells.right.$.city", right(Sells).city),
    ],
)
def test_a_path_of_a_traversal_may_begin_with_a_relation(path, meant):
    assert Words(Shop.__shape__, [Sells.__shape__]).expression(path)._path == meant._path


def test_an_order_is_a_path_and_a_way():
    assert SHOP.order("city") == SHOP.order("city:asc") == Shop.city.asc()
    assert SHOP.order("more.a:desc") == Shop.more["a"].desc()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("name", "eq", "x"), "Shop has no field 'name'"),
        (("city.name", "eq", "x"), "single value"),
        (("city", "resembles", "x"), "'resembles' compares nothing; write one of eq, ne"),
        (("city", "like", "x\\"), "ends in a backslash"),
        (("size", "ilike", "5"), "Shop.size is not text"),
        (("city", "eq"), "city eq needs a value"),
        (("city", "is_null", "x"), "is_null takes no value"),
        (("size", "eq", "big"), "Shop.size is int and cannot be compared with str 'big'"),
        (("size", "eq", "true"), "Shop.size is int and cannot be compared with str 'true'"),
        (("rent", "eq", "dear"), "Shop.rent is Decimal, got 'dear'"),
        (("since", "lt", "soon"), "Shop.since is datetime, got 'soon'"),
        (("open", "lt", "true"), "truth values have no order"),
        (("size", "contains", "5"), "Shop.size is not text"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, said):
    with pytest.raises(QueryError, match=said):
        SHOP.condition(*words)


def test_an_order_that_means_nothing_is_refused():
    with pytest.raises(QueryError, match="write city:desc or city"):
        SHOP.order("city:down")


def test_a_filter_is_text_or_a_list() -> None:
    assert filter_words("city eq New  York") == ["city", "eq", "New  York"]
    assert filter_words('["a path", "is_null"]') == ["a path", "is_null"]
    assert filter_words('["size", "eq", 5]') == ["size", "eq", "5"]
    for text in ("", "city", '["city", 5, "eq"]', '["city"]', '["city", "eq"', "5"):
        with pytest.raises(QueryError, match="PATH OP VALUE"):
            filter_words(text)


def test_a_filter_at_an_end_of_a_relation_as_python() -> None:
    code = Words(Sells.__shape__).code("left.city", "eq", "it's")
    assert eval(code, {"left": left, "Sells": Sells}) == (left(Sells).city == "it's")  # noqa: S307
