"""Whatever a field is compared with: a documented error, or one answer from everybody."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontologia import Session, left, right
from ontologia.errors import QueryError
from ontologia_conformance.backends import NAMES, Backend
from tests.fuzz.strategies import ANYTHING, TEXT, examples
from tests.fuzz.targets import words
from tests.fuzz.world import FIELDS, Fuzzed, FuzzedLink, ask_both, filled


@pytest.fixture(scope="module", params=[name for name in NAMES if name != "postgres16"])
def session(request, tmp_path_factory):
    backend: Backend = request.getfixturevalue(request.param)
    with backend.store(tmp_path_factory.mktemp("filters")) as uri, closing(Session(uri)) as opened:
        yield filled(opened)


COMPARING = ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]
MATCHING = ["startswith", "endswith", "contains", "like", "ilike"]
TESTING = ["is_null", "is_not_null", "is_true", "is_false"]
EXPRESSIONS = st.one_of(
    st.sampled_from(FIELDS).map(lambda name: lambda: getattr(Fuzzed, name)),
    TEXT.map(lambda dotted: lambda: Fuzzed.data.path(dotted)),
    (TEXT | st.integers(-2, 3) | ANYTHING).map(lambda step: lambda: Fuzzed.data[step]),
    st.lists(TEXT | st.integers(0, 3), max_size=60).map(
        lambda steps: lambda: Fuzzed.data.path(".".join(map(str, steps)))
    ),
    TEXT.map(lambda dotted: lambda: Fuzzed.items.any_path(dotted)),
    TEXT.map(lambda dotted: lambda: Fuzzed.text.path(dotted)),
)
LINKED = st.sampled_from(["note", "weight", "left_key", "right_key"]).map(
    lambda name: lambda: getattr(FuzzedLink, name)
) | st.tuples(st.sampled_from([left, right]), st.sampled_from(FIELDS)).map(
    lambda case: lambda: getattr(case[0](FuzzedLink), case[1])
)
CONDITIONS = st.one_of(
    st.tuples(st.sampled_from(COMPARING), st.tuples(ANYTHING)),
    st.tuples(st.sampled_from(MATCHING), st.tuples(TEXT | ANYTHING)),
    st.tuples(st.just("in_"), st.tuples(st.lists(ANYTHING, max_size=3) | ANYTHING)),
    st.tuples(st.sampled_from(TESTING), st.just(())),
)


def compare(session, cls, expression, how, negated):
    """Ask what is drawn, unless it is refused as it is said."""
    method, values = how
    try:
        said = getattr(expression(), method)(*values)
        condition = ~said if negated else said
    except QueryError:
        return
    ask_both(session, cls, condition)


@examples(250)
@given(expression=EXPRESSIONS, how=CONDITIONS, negated=st.booleans())
def test_the_store_and_the_evaluator_answer_alike_or_refuse(session, expression, how, negated):
    compare(session, Fuzzed, expression, how, negated)


@examples(120)
@given(expression=LINKED, how=CONDITIONS, negated=st.booleans())
def test_the_same_of_a_relation_and_of_what_stands_at_its_ends(session, expression, how, negated):
    compare(session, FuzzedLink, expression, how, negated)


@examples(100)
@given(
    value=ANYTHING,
    method=st.sampled_from(["limit", "offset", "as_of", "history_since", "where", "order_by"]),
)
def test_the_rest_of_a_question_is_understood_or_refused(session, value, method):
    try:
        asked = getattr(session.query().entities(Fuzzed), method)(value)
        asked.collect()
        asked.count()
        asked.first()
    except QueryError:
        pass


PATHS = st.sampled_from([*FIELDS, "data.a.b", "data..", "items.k", "left.text", "right.number"])
OPERATORS = st.sampled_from(
    ["eq", "ne", "lt", "ge", "in", "like", "ilike", "contains", "is_null", "is_not_null"]
)


@examples(150)
@given(
    st.tuples(PATHS | TEXT, OPERATORS | TEXT, TEXT | ANYTHING.map(repr)).map(
        lambda said: "\n".join(said).encode(errors="surrogatepass")
    )
)
@example(b"number\neq\n1e999")
@example(b"price\neq\nsNaN")
@example(b"at\nlt\n9999-12-31T23:59:59-23:59")
def test_a_condition_in_words_is_answered_or_refused(said):
    words(said)
