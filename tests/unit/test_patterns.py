"""SQL patterns where Python answers: the past across a change of schema is asked in memory."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia.query.evaluate import Doc, Item, truth
from ontologia.schema.expression import Expr, Path
from ontologia.schema.fieldtype import ANY
from ontologia.schema.pattern import fixed_start
from ontologia_conformance.query_world import any_pattern, ilike, like

TEXT = st.text(st.sampled_from("aAbBkK\u212aéÉ\u0131İ\u017fsS%_\\*?[].+\n🦊"), max_size=8)
PATH: Expr[str] = Expr(Path("Sign", "text", "json"), ANY)


def answer(method, text, pattern):
    item = Item({("Sign", "own"): Doc({"text": text}, {})}, ())
    return truth(getattr(PATH, method)(pattern), item)


@given(TEXT, TEXT, st.integers(0, 2**32))
def test_a_pattern_means_in_python_what_it_means_character_by_character(text, other, seed):
    for pattern in (any_pattern(Random(seed), text), any_pattern(Random(seed), other)):
        assert answer("like", text, pattern) is like(text, pattern)
        assert answer("ilike", text, pattern) is ilike(text, pattern)


@pytest.mark.parametrize("letter", ["\u212a", "\u017f", "İ", "\u0131", "É"])
def test_only_letters_of_ascii_match_in_either_case(letter):
    for other in {letter.lower(), letter.upper(), letter.casefold()} - {letter}:
        assert answer("ilike", letter, other) is False
        assert answer("ilike", other, letter) is False
    assert answer("ilike", "Kk", "kK") is True


def test_a_pattern_of_many_wildcards_takes_no_more_than_looking_once():
    assert answer("like", "a" * 5_000, "%a" * 500 + "%b") is False


@pytest.mark.parametrize("value", [None, 5, True, ["a"], {"a": 1}])
def test_what_is_no_text_is_neither_like_a_pattern_nor_unlike_it(value):
    assert answer("like", value, "%") is None
    assert answer("ilike", value, "%") is None


@pytest.mark.parametrize(
    ("pattern", "start"),
    [("abc", "abc"), ("ab%c", "ab"), ("_b", ""), (r"a\%b%", "a%b"), (r"\\_", "\\"), ("", "")],
)
def test_a_pattern_says_what_every_text_of_it_begins_with(pattern, start):
    assert fixed_start(pattern) == start
