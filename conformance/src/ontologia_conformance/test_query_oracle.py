"""Random questions of random data: the store, the evaluator and a plain model say the same.

The evaluator (`ontologia.query.evaluate`) answers in place of SQL where the past was written under
another schema. Here it answers everything, beside the store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from ontologia import Entity, Field, Session, codec, query
from ontologia.query import QueryBuilder, Question
from ontologia.runtime.reader import Reader
from ontologia.runtime.session import core_of
from ontologia_conformance import tiers
from ontologia_conformance.query_world import (
    COMPARED,
    ENTITIES,
    FIELDS,
    FREE,
    KEYS,
    LIKE,
    ORDERED,
    RELATIONS,
    TEXTUAL,
    Asked,
    Both,
    Either,
    History,
    Item,
    Leaf,
    Link,
    No,
    Place,
    Row,
    Spot,
    Step,
    Term,
    Thing,
    Visit,
    World,
    claims,
    fingerprint,
    histories,
    leaves,
    open_world,
    places,
    seen,
    sort_key,
    terms,
)

ROOTS = [Thing, Thing, *ENTITIES, *RELATIONS]
NOW = st.none()
COMMITS = st.integers(0, 5)
WALKS = [
    (Thing, (Link,)),
    (Thing, (Step,)),
    (Place, (Visit,)),
    (Thing, (Link, Step)),
    (Thing, (Step, Visit)),
    (Place, (Link, Link)),
]


# A world is large for hypothesis, and cheap all the same.
examples = partial(
    tiers.examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class EvaluatingReader(Reader):
    """Reads everything and answers in Python."""

    def _must_evaluate(self, question: Question) -> bool:
        return bool(
            question.where is not None
            or question.order
            or question.limit is not None
            or question.offset
            or question.aggregates
        )


def both_ways(world: World) -> list[QueryBuilder]:
    """Who is asked: the store, and the evaluator."""
    session = world.session
    reader = EvaluatingReader(
        core_of(session).store, core_of(session).registry, core_of(session).versions
    )
    return [session.query(), QueryBuilder(reader)]


@contextmanager
def opened(history: History, uri: str) -> Iterator[World]:
    world = open_world(uri, history)
    try:
        yield world
    finally:
        world.session.close()


def assert_answered(world: World, asked: Asked) -> None:
    expected = [item.seen() for item in asked.answer(world)]
    for builder in both_ways(world):
        assert [seen(found) for found in asked.query(builder).collect()] == expected


@st.composite
def cases(draw: Any, make: Callable[[Any, History, type, list[Spot]], Any]) -> Any:
    """A history and questions about it."""
    history = draw(histories())
    roots = [draw(st.sampled_from(ROOTS)) for _ in range(draw(st.integers(1, 10)))]
    return history, [make(draw, history, root, places(root)) for root in roots]


# -- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(["==", "!="], marks=pytest.mark.req("SQL-040", "SQL-049", "SQL-051")),
        pytest.param(list(ORDERED), marks=pytest.mark.req("SQL-042")),
        pytest.param(["in_"], marks=pytest.mark.req("SQL-044")),
        pytest.param(["is_null", "is_not_null"], marks=pytest.mark.req("SQL-043")),
        pytest.param(["is_true", "is_false"], marks=pytest.mark.req("SQL-051")),
        pytest.param([o for o in TEXTUAL if o not in LIKE], marks=pytest.mark.req("SQL-045")),
        pytest.param(list(LIKE)),
    ],
    ids=lambda ops: "-".join(ops),
)
@pytest.mark.req("SQL-033", "SQL-035", "SQL-041", "SQL-046", "SQL-047")
@examples(25)
@given(st.data())
def test_a_statement_and_its_negation_match_what_they_are_true_and_false_of(fresh_uri, ops, data):
    def statement(draw: Any, history: History, root: type, where: list[Spot]) -> Asked:
        leaf = draw(leaves(where, history, ops))
        return Asked(root, claims=(leaf if draw(st.booleans()) else No(leaf),))

    history, questions = data.draw(cases(statement))

    with opened(history, fresh_uri()) as world:
        for asked in questions:
            assert_answered(world, asked)


def nested(draw: Any, history: History, root: type, where: list[Spot]) -> Asked:
    return Asked(root, claims=tuple(draw(st.lists(claims(where, history), min_size=1, max_size=2))))


@pytest.mark.req("SQL-048", "SQL-049")
@examples(40)
@given(cases(nested))
def test_joined_and_nested_conditions_follow_three_valued_logic(fresh_uri, case):
    history, questions = case

    with opened(history, fresh_uri()) as world:
        for asked in questions:
            assert_answered(world, asked)


# -- order and states -----------------------------------------------------------------------------


def ordered(draw: Any, history: History, root: type, where: list[Spot]) -> Asked:
    order = st.tuples(terms(where, history), st.booleans())
    return Asked(
        root,
        orders=tuple(draw(st.lists(order, max_size=3))),
        limit=draw(st.none() | st.integers(0, 5)),
        offset=draw(st.none() | st.integers(0, 5)),
        as_of=draw(NOW | COMMITS),
    )


@pytest.mark.req("SQL-032")
@examples(40)
@given(cases(ordered))
def test_order_and_paging_are_those_of_a_sorted_list(fresh_uri, case):
    history, questions = case

    with opened(history, fresh_uri()) as world:
        for asked in questions:
            assert_answered(world, asked)
            assert_first_is_first(world, asked)


def assert_first_is_first(world: World, asked: Asked) -> None:
    expected = [item.seen() for item in asked.answer(world)[:1]]
    found = asked.query(world.session.query()).first()
    assert ([] if found is None else [seen(found)]) == expected


def in_the_past(draw: Any, history: History, root: type, where: list[Spot]) -> Asked:
    chosen = tuple(draw(st.lists(claims(where, history, depth=1), max_size=1)))
    return Asked(root, claims=chosen, as_of=draw(COMMITS))


@pytest.mark.req("SQL-028", "SQL-029", "SQL-037", "SQL-038")
@examples(40)
@given(cases(in_the_past))
def test_the_state_after_any_commit_can_be_asked_for(fresh_uri, case):
    history, questions = case

    with opened(history, fresh_uri()) as world:
        for asked in questions:
            assert_answered(world, asked)
        for root in (*ENTITIES, *RELATIONS):
            assert Asked(root, as_of=0).query(world.session.query()).collect() == []


def with_history(draw: Any, history: History, root: type, where: list[Spot]) -> Asked:
    order = st.tuples(terms(where, history), st.booleans())
    return Asked(
        root,
        claims=tuple(draw(st.lists(claims(where, history, depth=1), max_size=1))),
        orders=tuple(draw(st.lists(order, max_size=1))),
        as_of=draw(NOW | NOW | COMMITS),
        since=draw(st.just(-1) | st.integers(0, 3)),
    )


@pytest.mark.req("SQL-030", "SQL-031", "SQL-038")
@examples(40)
@given(cases(with_history))
def test_every_version_is_found_oldest_first(fresh_uri, case):
    history, questions = case

    with opened(history, fresh_uri()) as world:
        for asked in questions:
            assert_answered(world, asked)
        for cls in ENTITIES:
            for row in rows_ever(world, cls):
                assert_answered(world, Asked(cls, claims=(by_key(row),), since=-1))


@pytest.mark.req("SQL-026", "SQL-027", "SQL-034", "SQL-115")
@examples(20)
@given(histories())
def test_a_point_lookup_agrees_with_a_scan_for_every_key_in_every_state(fresh_uri, history):
    with opened(history, fresh_uri()) as world:
        for as_of in (None, *range(world.head + 1)):
            for cls in (*ENTITIES, *RELATIONS):
                scan = [item.seen() for item in Asked(cls, as_of=as_of).answer(world)]
                found = Asked(cls, as_of=as_of).query(world.session.query()).collect()
                points = [first_by_key(world, row, as_of) for row in rows_ever(world, cls)]

                assert [seen(obj) for obj in found] == scan
                assert [seen(obj) for obj in points if obj is not None] == scan
                assert [seen(obj) for obj in all_by_key(world, cls, as_of)] == scan
        for row in world.at(None):
            if row.cls in ENTITIES:
                none = Asked(row.cls, claims=(by_key(row),)).query(world.session.query())
                assert none.limit(0).collect() == none.offset(1).collect() == []


def by_key(row: Row) -> Leaf:
    """The statement that an entity has this row's key."""
    [name] = KEYS[row.cls]
    return Leaf(Term(row.cls, "own", name, FIELDS[row.cls][name]), "==", row.values[name])


def rows_ever(world: World, cls: type) -> list[Row]:
    """One version of each object that ever was, in the order of the keys."""
    found = {row.key: row for row in world.versions if row.cls is cls}
    return [found[key] for key in sorted(found)]


def first_by_key(world: World, row: Row, as_of: int | None) -> Any:
    asked = Asked(row.cls, as_of=as_of).query(world.session.query())
    same = [getattr(row.cls, name) == row.values[name] for name in KEYS[row.cls]]
    return asked.where(*same).first()


def all_by_key(world: World, cls: type, as_of: int | None) -> list[Any]:
    """Looked up by every first key at once, each one named twice; 1.0 is the key 1."""
    name = KEYS[cls][0]
    keys = [row.values[name] for row in rows_ever(world, cls)]
    keys = [float(key) if isinstance(key, int) else key for key in keys]
    asked = Asked(cls, as_of=as_of).query(world.session.query())
    return asked.where(getattr(cls, name).in_(keys + keys)).collect()


@st.composite
def walks(draw: Any, history: History) -> Asked:
    root, hops = draw(st.sampled_from(WALKS))
    where = places(root, hops)
    order = st.tuples(terms(where, history), st.booleans())
    return Asked(
        root,
        hops,
        claims=tuple(draw(st.lists(claims(where, history, depth=1), max_size=1))),
        orders=tuple(draw(st.lists(order, max_size=2))),
        limit=draw(st.none() | st.none() | st.integers(0, 5)),
        offset=draw(st.none() | st.none() | st.integers(0, 2)),
        as_of=draw(NOW | NOW | COMMITS),
    )


@examples(40)
@given(st.data())
def test_ways_along_relations_are_those_found_by_walking(fresh_uri, data):
    dense = histories(classes=(Thing, Place, *RELATIONS, *RELATIONS), least=16)
    history = data.draw(dense)
    questions = data.draw(st.lists(walks(history), min_size=1, max_size=8))

    with opened(history, fresh_uri()) as world:
        for asked in questions:
            assert_answered(world, asked)
            assert_first_is_first(world, asked)
        for root, hops in WALKS:
            assert_answered(world, Asked(root, hops))
            assert_every_place_can_be_named(world, root, hops)


def assert_every_place_can_be_named(world: World, root: type, hops: tuple[type, ...]) -> None:
    """Ask for the ways that have at some place what the last of them has there."""
    for way in world.walks(root, hops, None)[-1:]:
        for owner, side, cls in places(root, hops):
            name = KEYS[cls][-1]
            term = Term(owner, side, name, FIELDS[cls][name])
            if term.value(way) is not None:
                claim = Leaf(term, "==", term.value(way))
                assert_answered(world, Asked(root, hops, claims=(claim,)))


@pytest.mark.req("SQL-033")
@examples(10)
@given(cases(nested))
def test_a_store_that_is_opened_again_answers_as_the_one_that_was_written(backend, fresh_uri, case):
    history, questions = case

    with TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/world.db" if backend.name == "sqlite" else fresh_uri()
        with opened(history, uri) as world:
            pass
        with Session(uri) as world.session:
            for asked in questions:
                assert_answered(world, asked)


# -- aggregates -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """An aggregate: over a term, or for `count_where` over a claim."""

    function: str
    about: Any = None

    @property
    def aggregate(self) -> Any:
        return self.by(query)

    def by(self, asked: Any) -> Any:
        """Made by the function of that name in `ontologia.query`, or by the method of a query."""
        make = getattr(asked, self.function)
        if self.about is None:
            return make()
        return make(self.about.expr if isinstance(self.about, Term) else self.about.condition)

    def of(self, items: list[Item]) -> Any:
        if self.function == "count":
            return len(items)
        if self.function == "count_where":
            return len([item for item in items if self.about.holds(item) is True])
        values = [self.about.value(item) for item in items]
        if self.function == "avg_len":
            lengths = [len(value) for value in values if isinstance(value, list)]
            return math.fsum(lengths) / len(lengths) if lengths else None
        if self.function in ("min", "max"):
            ranks = (2, 3) if self.about.kind.json else (1, 2, 3)
            single = [value for value in values if sort_key(value)[0] in ranks]
            pick = min if self.function == "min" else max
            return pick(single, key=sort_key, default=None)
        numbers = [float(value) for value in values if sort_key(value)[0] == 2]
        if not numbers:
            return None
        return math.fsum(numbers) / (len(numbers) if self.function == "avg" else 1)

    def same(self, found: Any, items: list[Item]) -> bool:
        """Whether `found` is right; the last digits of a sum depend on the order of adding."""
        expected = self.of(items)
        if expected is None or self.function not in ("sum", "avg"):
            # Of 1 and 1.0, which are one number, either may stand for both.
            return sort_key(found) == sort_key(expected)
        values = [self.about.value(item) for item in items]
        largest = max(abs(float(value)) for value in values if sort_key(value)[0] == 2)
        near = math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12 * largest * len(items))
        return type(found) is float and near


@st.composite
def figures(draw: Any, where: list[Spot], history: History, *, exact: bool = False) -> Figure:
    """Any aggregate; an exact one can be compared, since it does not depend on rounding."""
    function = draw(
        st.sampled_from(["count", "count_where", "sum", "avg", "min", "max", "avg_len"])
    )
    if function == "count":
        return Figure(function)
    if function == "count_where":
        return Figure(function, draw(claims(where, history, depth=1)))
    if function in ("sum", "avg"):
        small = FIELDS[Thing]["few"]
        few = terms(
            where, history, lambda kind: kind is small if exact else kind.number or kind.json
        )
        has_few = not exact or any(spot[2] is Thing for spot in where)
        return Figure(function, draw(few)) if has_few else Figure("count")
    if function == "avg_len":
        return Figure(function, draw(terms(where, history, lambda kind: kind.json)))
    return Figure(function, draw(terms(where, history, lambda kind: not (exact and kind.json))))


def figures_asked(draw: Any, history: History, root: type, where: list[Spot]) -> Any:
    asked = Asked(
        root,
        claims=tuple(draw(st.lists(claims(where, history, depth=1), max_size=1))),
        as_of=draw(NOW | NOW | COMMITS),
        since=draw(NOW | NOW | st.just(-1) | st.integers(0, 3)),
    )
    return asked, draw(st.lists(figures(where, history), min_size=1, max_size=4))


@pytest.mark.req("SQL-052", "SQL-053", "SQL-054", "SQL-055", "SQL-056")
@examples(40)
@given(cases(figures_asked))
def test_figures_are_those_of_the_objects_asked_for(fresh_uri, case):
    history, questions = case

    with opened(history, fresh_uri()) as world:
        for asked, wanted in questions:
            items = asked.matching(world)
            named = {f"f{number}": figure.aggregate for number, figure in enumerate(wanted)}
            for builder in both_ways(world):
                [row] = asked.query(builder).agg(**named)

                for figure, found in zip(wanted, row.values(), strict=True):
                    alone = figure.by(asked.query(builder))
                    assert figure.same(found, items), (figure, found, figure.of(items))
                    assert figure.same(alone, items), (figure, alone, figure.of(items))


@dataclass(frozen=True)
class Having:
    """A statement about a group."""

    figure: Figure
    op: str
    operand: Any

    @property
    def condition(self) -> Any:
        return COMPARED[self.op](self.figure.aggregate, self.operand)

    def holds(self, members: list[Item]) -> bool | None:
        return Leaf(self.figure.about, self.op, self.operand).fits(self.figure.of(members))


@st.composite
def havings(draw: Any, where: list[Spot], history: History, depth: int = 2) -> Any:
    shape = draw(st.sampled_from(["one", "one", "and", "or", "not"])) if depth else "one"
    inner = havings(where, history, depth - 1)
    if shape == "not":
        return No(draw(inner))
    if shape != "one":
        parts = (draw(inner), draw(inner))
        return Both(parts) if shape == "and" else Either(parts)
    figure = draw(figures(where, history, exact=True))
    kind = figure.about.kind if figure.function in ("min", "max") else None
    pool = [0, 1, 2, 0.5, 1.5, -1] if kind is None else kind.pool
    return Having(figure, draw(st.sampled_from(list(COMPARED))), draw(st.sampled_from(pool)))


def groups_asked(draw: Any, history: History, root: type, where: list[Spot]) -> Any:
    few = terms(where, history, lambda kind: 0 < len(kind.pool) <= 5)
    by = draw(st.lists(few | terms(where, history), min_size=1, max_size=2, unique_by=name_of))
    order = st.sampled_from(by) | figures(where, history, exact=True)
    return (
        figures_asked(draw, history, root, where),
        by,
        draw(st.lists(havings(where, history), max_size=1)),
        draw(st.lists(st.tuples(order, st.booleans()), max_size=2)),
        draw(st.none() | st.integers(0, 3)),
        draw(st.none() | st.integers(0, 2)),
    )


def name_of(term: Term) -> str:
    side = [] if term.side == "own" else [term.side]
    return ".".join(map(str, [*side, term.name, *term.steps]))


@pytest.mark.req("SQL-056")
@examples(60)
@given(cases(groups_asked))
def test_groups_are_those_made_by_sorting_into_piles(fresh_uri, case):
    history, questions = case

    with opened(history, fresh_uri()) as world:
        for (asked, wanted), by, having, orders, limit, offset in questions:
            piles = sorted_into_piles(asked.matching(world), by)
            piles = [pile for pile in piles if all(one.holds(pile) is True for one in having)]
            for term, down in reversed(orders):
                piles.sort(key=lambda pile: sort_key(group_value(term, pile)), reverse=down)
            piles = piles[offset or 0 :][:limit]
            for builder in both_ways(world):
                rows = asked.query(builder).group_by(*(term.expr for term in by))
                rows = rows.having(*(one.condition for one in having))
                rows = rows.order_by(*(in_order(term, down) for term, down in orders))
                rows = rows if limit is None else rows.limit(limit)
                rows = rows if offset is None else rows.offset(offset)
                named = {f"f{number}": figure.aggregate for number, figure in enumerate(wanted)}
                found = rows.agg(**named)

                assert len(found) == len(piles)
                for row, pile in zip(found, piles, strict=True):
                    assert_group(row, pile, by, wanted)


def sorted_into_piles(items: list[Item], by: list[Term]) -> list[list[Item]]:
    piles: dict[Any, list[Item]] = {}
    for item in items:
        piles.setdefault(tuple(sort_key(term.value(item)) for term in by), []).append(item)
    return [pile for _, pile in sorted(piles.items(), key=lambda entry: entry[0])]


def group_value(term: Term | Figure, pile: list[Item]) -> Any:
    return term.of(pile) if isinstance(term, Figure) else term.value(pile[0])


def in_order(term: Term | Figure, down: bool) -> Any:
    term = term.aggregate if isinstance(term, Figure) else term.expr
    return term.desc() if down else term


def assert_group(row: dict[str, Any], pile: list[Item], by: list[Term], wanted: Any) -> None:
    assert list(row) == [*map(name_of, by), *(f"f{number}" for number in range(len(wanted)))]
    for term in by:
        assert sort_key(row[name_of(term)]) == sort_key(term.value(pile[0]))
    for number, figure in enumerate(wanted):
        assert figure.same(row[f"f{number}"], pile), (figure, row, figure.of(pile))


MIXED = Term(Thing, "own", "data", FREE, ("a",))


@pytest.mark.req("SQL-052", "SQL-053", "SQL-056")
@examples(40)
@given(histories(), st.booleans())
def test_values_of_every_type_under_one_name_are_ordered_grouped_and_summed(
    fresh_uri, history, down
):
    wanted = [Figure(name, MIXED) for name in ("sum", "avg", "min", "max", "avg_len")]
    named = {f"f{number}": figure.aggregate for number, figure in enumerate(wanted)}

    with opened(history, fresh_uri()) as world:
        asked = Asked(Thing, orders=((MIXED, down),), since=-1)
        assert_answered(world, asked)
        piles = sorted_into_piles(asked.matching(world), [MIXED])
        for builder in both_ways(world):
            [row] = Asked(Thing, since=-1).query(builder).agg(**named)
            groups = Asked(Thing, since=-1).query(builder).group_by(MIXED.expr).agg(**named)
            assert_group(row, asked.matching(world), [], wanted)
            for group, pile in zip(groups, piles, strict=True):
                assert_group(group, pile, [MIXED], wanted)


# -- numbers and text, to the last digit ----------------------------------------------------------


class Priced(Entity):
    id: Field[str] = Field(primary_key=True)
    price: Field[Decimal] = Field(index=True)
    plain: Field[Decimal]


PRICES = st.decimals(allow_nan=False, allow_infinity=False)


@examples(60)
@given(st.lists(PRICES, min_size=1, max_size=5), PRICES | st.floats(-1e9, 1e9))
@example([Decimal("0.1"), Decimal("0.10"), Decimal("9.0"), Decimal("10.0")], 0.1)
@example([Decimal("218635395599.1085052881254")], Decimal("218635395599.1085052881254"))
@example([Decimal("903722156445379730637158.10")], Decimal("903722156445379730637158.1"))
@example([Decimal("0.1")], Decimal("0.1000000000000000000000000000000000001"))
def test_decimals_of_any_length_compare_exactly(fresh_uri, prices, other):
    with Session(fresh_uri()) as session:
        stored = [Priced(id=f"{n}", price=price, plain=price) for n, price in enumerate(prices)]
        session.ensure(stored)
        session.commit()
        for field, literal in itertools.product((Priced.price, Priced.plain), [other, *prices]):
            for compare in COMPARED.values():
                asked = session.query().entities(Priced).where(compare(field, literal))
                exact = Decimal(str(literal))
                expected = [priced for priced in stored if compare(priced.price, exact)]
                assert asked.collect() == expected
            found = session.query().entities(Priced).where(field.in_([literal])).collect()
            assert found == [priced for priced in stored if priced.price == exact]
        for field in (Priced.price, Priced.plain):
            asked = session.query().entities(Priced)
            in_order = [priced.price for priced in asked.order_by(field).collect()]
            assert in_order == sorted(prices)
            assert (asked.min(field), asked.max(field)) == (min(prices), max(prices))


class Figured(Entity):
    id: Field[str] = Field(primary_key=True)
    number: Field[int | float]
    whole: Field[int | None] = Field(index=True)
    real: Field[float | None] = Field(index=True)


LARGE = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**60 - 1, 2**60, 2**60 + 24, 10**18, 2**63 - 1]
LARGE += [float(2**53), float(2**53 + 2), float(2**60), 2.0**63, 1e18, 1.1e18, 1e19, 1e300, 0.5]
LARGE += [-number for number in LARGE] + [-(2**63), 0, -0.0]


def test_whole_numbers_and_floats_beyond_what_a_float_can_count_compare_exactly(fresh_uri):
    with Session(fresh_uri()) as session:
        stored = [
            Figured(
                id=f"{place:02}",
                number=number,
                whole=number if isinstance(number, int) else None,
                real=number if isinstance(number, float) else None,
            )
            for place, number in enumerate(LARGE)
        ]
        session.ensure(stored)
        session.commit()
        asked = session.query().entities(Figured)
        for name, other in itertools.product(("number", "whole", "real"), LARGE):
            there = [each for each in stored if getattr(each, name) is not None]
            for compare in COMPARED.values():
                found = asked.where(compare(getattr(Figured, name), other)).collect()
                assert found == [each for each in there if compare(getattr(each, name), other)]
            found = asked.where(getattr(Figured, name).in_([other])).collect()
            assert found == [each for each in there if getattr(each, name) == other]
        for name in ("number", "whole", "real"):
            field = getattr(Figured, name)
            values = [v for each in stored if (v := getattr(each, name)) is not None]
            in_order = asked.where(field.is_not_null()).order_by(field).collect()
            assert [getattr(each, name) for each in in_order] == sorted(values)
            found = asked.min(field), asked.max(field)
            assert [(type(v), v) for v in found] == [
                (type(v), v) for v in (min(values), max(values))
            ]
            groups = asked.where(field.is_not_null()).group_by(field).agg(n=query.count())
            assert {group[name]: group["n"] for group in groups} == {
                value: values.count(value) for value in values
            }


class Written(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str] = Field(index=True)


@examples(25)
@given(st.lists(st.sampled_from(["", "a", "b", "🦊", "\U0010ffff"]), min_size=1, max_size=6))
def test_long_texts_with_an_index_compare_to_their_last_character(fresh_uri, tails):
    long = "é🦊" * 249
    texts = [long, long + "a", *(long + "x" + tail for tail in tails), *tails]
    texts += [long + "xx" + "🦊" * 5000, long[:-1], long + "b", long + long, long + long + "a"]
    with Session(fresh_uri()) as session:
        stored = [Written(id=f"{n:02}", text=text) for n, text in enumerate(texts)]
        session.ensure(stored)
        session.commit()
        asked = session.query().entities(Written)
        for text in texts:
            for compare in COMPARED.values():
                found = asked.where(compare(Written.text, text)).collect()
                assert found == [each for each in stored if compare(each.text, text)]
            for name, test in TEXTUAL.items():
                found = asked.where(getattr(Written.text, name)(text)).collect()
                assert found == [each for each in stored if test(each.text, text)]
        assert asked.where(Written.text.in_(texts)).collect() == stored
        in_order = [each.text for each in asked.order_by(Written.text.desc()).collect()]
        assert in_order == sorted(texts, reverse=True)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SINGLE = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
SINGLE |= st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SINGLE, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
)


@examples(300)
@given(VALUES)
def test_canonical_text_survives_the_binary_form_to_the_byte(value):
    text = codec.encode(value)
    with closing(apsw.Connection(":memory:")) as database:
        [(again, inside)] = database.execute(
            "SELECT json(jsonb(:text)), json_extract(jsonb('[' || :text || ']'), '$[0]')",
            {"text": text},
        )

    assert again == text
    assert fingerprint(codec.decode(text)) == fingerprint(value)
    if isinstance(value, int | float | str | None):
        assert inside == value
