"""What hypothesis draws: values of every kind that a program could hand over by mistake."""

from __future__ import annotations

from datetime import timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st

from ontologia_conformance import tiers
from tests.fuzz.world import Fuzzed, Hue, Rank, fuzzed

examples = partial(tiers.examples, suppress_health_check=list(HealthCheck), print_blob=True)


class Word(str):
    """Text that is not quite text."""

    __slots__ = ()


class Whole(int):
    """A number that is not quite a number."""


class Sly:
    """Equal to everything, and ordered after it."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return False


TEXT = st.text(max_size=8) | st.sampled_from(
    [
        "",
        "a",
        "5",
        "%",
        "_",
        "\\",
        "\0",
        "\ud800",
        "\\u0000",
        "😀",
        "ß",
        "İ",
        "true",
        "null",
        "a.b",
        ".",
    ]
)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([0, 1, -0.0, 1e308, 5e-324, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400])
)  # fmt: skip
ZONES = st.none() | st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s)))
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none() | st.booleans() | NUMBERS | TEXT,
    st.binary(max_size=4) | st.decimals() | st.fractions() | st.complex_numbers() | st.uuids(),
    st.datetimes(timezones=ZONES) | st.dates() | st.times(timezones=ZONES) | st.timedeltas(),
    st.sampled_from([Hue.RED, Rank.HIGH, Word("a"), Whole(1), Sly(), Sly, object(), ...]),
    st.sampled_from([Decimal("sNaN"), Decimal("1e400"), Decimal("-0"), fuzzed("1"), Fuzzed]),
    st.sampled_from([Fuzzed.text, Fuzzed.data["a"], Fuzzed.text == "a", len, print, range(3)]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(TEXT | st.integers() | st.none(), inner, max_size=3),
        st.frozensets(TEXT, max_size=2),
    ),
    max_leaves=6,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
