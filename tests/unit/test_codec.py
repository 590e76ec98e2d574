"""One JSON codec: canonical, and refusing what some store would bend."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from functools import reduce
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontologia import codec
from ontologia.errors import InvalidValueError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


class Level(IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


def _nested(levels):
    return reduce(lambda inside, _: [inside], range(levels - 1), [])


def _shuffled(value):
    """The same value with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(value)}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


def test_text_is_compact_with_sorted_keys_and_unescaped():
    value = {"b": [1, 2.5, None, True], "a": {"é": "日本", "A": 'say "hi"'}}

    assert codec.encode(value) == '{"a":{"A":"say \\"hi\\"","é":"日本"},"b":[1,2.5,null,true]}'


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_what_was_encoded_comes_back_the_same(value):
    for decode in (codec.decode, codec.decode_stored):
        back = decode(codec.encode(value))

        assert back == value
        # == knows neither 1 from 1.0 nor True from 1, and their text does.
        assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_equal_values_give_equal_text_whatever_the_order_of_their_keys(value):
    assert codec.encode(_shuffled(value)) == codec.encode(value)


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_any_other_json_reader_understands_it(value):
    assert json.loads(codec.encode(value)) == value


def test_a_whole_number_and_a_fraction_stay_what_they_are():
    assert codec.encode([1, 1.0, True]) == "[1,1.0,true]"
    assert [type(item) for item in codec.decode("[1,1.0,true]")] == [int, float, bool]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "value: nan is not a JSON number"),
        (-math.inf, "value: -inf is not a JSON number"),
        ("a\0b", r"value: text holds U\+0000"),
        ("\ud800", "value: text holds a lone surrogate"),
        (2**63, "value: 9223372036854775808 does not fit in 64 bits"),
        (-(2**63) - 1, "does not fit in 64 bits"),
        ({1: "x"}, "value: key 1 is int; JSON keys are text"),
        ({"a\0": 1}, r"value key: text holds U\+0000"),
        ((1, 2), "value: tuple is not JSON"),
        ({1, 2}, "value: set is not JSON"),
        (b"bytes", "value: bytes is not JSON"),
        (datetime(2026, 1, 1, tzinfo=UTC), "value: datetime is not JSON"),
        (Decimal("1.5"), "value: Decimal is not JSON"),
        (UUID(int=1), "value: UUID is not JSON"),
        (Level.LOW, "value: Level is not JSON"),
        (Text("x"), "value: Text is not JSON"),
        (object(), "value: object is not JSON"),
    ],
)
def test_what_json_or_a_store_cannot_carry_is_refused(value, message):
    with pytest.raises(InvalidValueError, match=message):
        codec.encode(value)


@pytest.mark.parametrize("bad", [math.nan, "\0", "\udfff", 2**64, object()])
def test_a_refusal_names_the_place(bad):
    value = {"orders": [{"ok": 1}, {"lines": [1, bad]}]}

    with pytest.raises(InvalidValueError, match=r"^Customer\.profile\.orders\[1\]\.lines\[1\]: "):
        codec.encode(value, where="Customer.profile")


def test_numbers_at_the_edge_of_64_bits_are_kept():
    edges = [-(2**63), 2**63 - 1]

    assert codec.decode(codec.encode(edges)) == edges


def test_text_that_only_looks_like_an_escaped_zero_is_kept():
    for text in ("\\u0000", "\\\\u0000", 'C:\\u0000\\"x'):
        assert codec.decode(codec.encode_checked({"path": text})) == {"path": text}


def test_nesting_has_a_limit_that_is_an_error_and_not_a_crash():
    around = _nested(codec.MAX_DEPTH)

    assert codec.decode(codec.encode(around)) == around
    for levels in (codec.MAX_DEPTH + 1, 100_000):
        with pytest.raises(InvalidValueError, match="nested deeper than 200 levels"):
            codec.encode(_nested(levels))


def test_a_value_that_contains_itself_is_refused():
    circle = {}
    circle["again"] = circle

    with pytest.raises(InvalidValueError, match="nested deeper"):
        codec.encode(circle)


def test_checked_values_are_encoded_with_their_text_still_looked_at():
    assert codec.encode_checked({"b": 1, "a": "x"}) == '{"a":"x","b":1}'
    for bad in ("\0", "\ud800", {"k\0": 1}):
        with pytest.raises(InvalidValueError, match=r"^Customer"):
            codec.encode_checked({"text": bad}, where="Customer")


@pytest.mark.parametrize("text", ["", "{", "[1,]", "NaN", "{'a': 1}", b"\xff", '"\\ud800"'])
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(InvalidValueError, match=r"^not JSON: "):
        codec.decode(text)
