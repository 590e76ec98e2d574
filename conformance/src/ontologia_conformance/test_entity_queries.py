"""Asking for entities: the current version of each, filtered, ordered, a page at a time."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, left
from ontologia.errors import QueryError, QueryTypeError
from ontologia_conformance.shop import Customer, Product, Subscription


class Runner(Entity):
    number: Field[int] = Field(primary_key=True)
    team: Field[str] = "red"
    seconds: Field[float | None] = None
    notes: Field[dict[str, object]] = Field(default_factory=dict)


@pytest.fixture
def race(session):
    """Five runners, two of whom have not finished."""
    session.ensure([
        Runner(number=2, team="red", seconds=61.5),
        Runner(number=10, team="blue", seconds=59.0),
        Runner(number=7, team="blue", seconds=61.5),
        Runner(number=1, team="red"),
        Runner(number=30, team="green"),
    ])  # fmt: skip
    session.commit()
    return session


def numbers(query):
    return [runner.number for runner in query.collect()]


# -- which objects --------------------------------------------------------------------------------


@pytest.mark.req("SQL-027")
def test_the_current_state_has_each_key_once_in_its_newest_version(session):
    for tier in ("bronze", "silver", "gold"):
        session.ensure([Customer(id="c1", name="Ada", tier=tier), Customer(id="c2", name="Bob")])
        session.commit()

    found = session.query().entities(Customer).collect()

    assert [(c.id, c.tier) for c in found] == [("c1", "gold"), ("c2", "standard")]
    assert [c.meta().commit_id for c in found] == [3, 1]


@pytest.mark.req("SQL-026")
def test_a_point_read_finds_the_newest_version_of_its_key(session):
    for tier in ("bronze", "silver", "gold"):
        session.ensure(Customer(id="c1", name="Ada", tier=tier))
        session.commit()

    customer = session.query().entities(Customer).where(Customer.id == "c1").first()

    assert (customer.tier, customer.meta().commit_id) == ("gold", 3)


@pytest.mark.req("SQL-032", "SQL-026")
def test_a_question_without_an_answer_is_an_empty_list_or_none(session):
    never_stored = session.query().entities(Product)
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
    nobody = session.query().entities(Customer).where(Customer.id == "c2")

    assert (never_stored.collect(), never_stored.first()) == ([], None)
    assert (nobody.collect(), nobody.first(), nobody.count()) == ([], None, 0)


@pytest.mark.req("SQL-033")
def test_an_object_whose_old_version_matched_is_not_found_by_it(session):
    session.ensure(Customer(id="c1", name="Ada", tier="gold"))
    session.commit()
    session.ensure(Customer(id="c1", name="Ada", tier="lead"))
    session.commit()

    gold = session.query().entities(Customer).where(Customer.tier == "gold")
    lead = session.query().entities(Customer).where(Customer.tier == "lead")

    assert (gold.collect(), gold.count()) == ([], 0)
    assert [customer.id for customer in lead.collect()] == ["c1"]


def test_types_do_not_see_each_others_objects_though_keys_are_equal(session):
    session.ensure([Customer(id="x", name="Ada"), Product(sku="x", price=1)])
    session.commit()
    session.delete(Product(sku="x", price=1))
    session.commit()

    assert session.query().entities(Customer).count() == 1
    assert session.query().entities(Product).count() == 0


@pytest.mark.req("SQL-115")
def test_a_point_read_and_a_scan_agree_for_every_key(race):
    race.ensure(Runner(number=7, team="green", seconds=58.0))
    race.delete(Runner(number=30))
    race.commit()

    scanned = race.query().entities(Runner).collect()

    for runner in scanned:
        [found] = race.query().entities(Runner).where(Runner.number == runner.number).collect()
        assert (found, found.meta()) == (runner, runner.meta())
    assert race.query().entities(Runner).where(Runner.number == 30).first() is None
    assert len(scanned) == 4


def test_a_key_that_is_a_number_is_asked_for_as_a_number(race):
    query = race.query().entities(Runner)

    assert numbers(query.where(Runner.number == 10)) == [10]
    assert numbers(query.where(Runner.number == 10.0)) == [10]
    assert numbers(query.where(Runner.number == 1.5)) == []
    assert sorted(numbers(query.where(Runner.number.in_([1, 2, 99])))) == [1, 2]
    assert sorted(numbers(query.where(Runner.number > 2))) == [7, 10, 30]
    assert sorted(numbers(query.where(Runner.number != 7))) == [1, 2, 10, 30]


def test_a_key_that_is_text_may_be_compared_in_every_way(session):
    session.ensure(Customer(id=key, name=key) for key in ("a", "ab", "b", "B"))
    session.commit()

    def keys(condition):
        return [c.id for c in session.query().entities(Customer).where(condition).collect()]

    assert keys(Customer.id.startswith("a")) == ["a", "ab"]
    assert keys(Customer.id.contains("b")) == ["ab", "b"]
    assert keys(Customer.id > "a") == ["ab", "b"]
    assert keys(Customer.id.in_(["b", "B", "zz"])) == ["B", "b"]
    assert keys(Customer.id.is_null()) == []


# -- in which order -------------------------------------------------------------------------------


def test_objects_are_ordered_by_fields_the_first_one_first(race):
    query = race.query().entities(Runner)

    by_team = query.order_by(Runner.team, Runner.number.desc())
    by_time = query.order_by(Runner.seconds.desc(), Runner.number)

    assert numbers(by_team) == [10, 7, 30, 2, 1]
    assert numbers(by_time) == [2, 7, 10, 1, 30]


def test_order_by_may_be_said_in_several_steps(race):
    query = race.query().entities(Runner)

    assert numbers(query.order_by(Runner.team).order_by(Runner.number.desc())) == numbers(
        query.order_by(Runner.team, Runner.number.desc())
    )


def test_a_number_sorts_as_a_number_also_where_it_is_the_key(race):
    query = race.query().entities(Runner)

    assert numbers(query.order_by(Runner.number)) == [1, 2, 7, 10, 30]
    assert numbers(query.order_by(Runner.number.desc())) == [30, 10, 7, 2, 1]


def test_missing_values_sort_before_all_others_and_last_when_descending(race):
    query = race.query().entities(Runner)

    assert numbers(query.order_by(Runner.seconds, Runner.number)) == [1, 30, 10, 2, 7]
    assert numbers(query.order_by(Runner.seconds.desc(), Runner.number))[-2:] == [1, 30]


def test_ties_and_no_order_at_all_go_by_key(session):
    session.ensure(Customer(id=key, name="same") for key in ("b", "c", "a"))
    session.commit()
    query = session.query().entities(Customer)

    assert [c.id for c in query.collect()] == ["a", "b", "c"]
    assert [c.id for c in query.order_by(Customer.name).collect()] == ["a", "b", "c"]
    assert [c.id for c in query.order_by(Customer.name.desc()).collect()] == ["a", "b", "c"]


def test_values_of_many_types_in_free_json_sort_by_type_and_then_by_value(session):
    values = {"a": "ten", "b": 10, "c": True, "d": None, "e": 9.5, "f": [1], "g": False, "h": "Ten"}
    session.ensure(Customer(id=key, name=key, profile={"x": v}) for key, v in values.items())
    session.ensure(Customer(id="i", name="i"))
    session.commit()

    ordered = session.query().entities(Customer).order_by(Customer.profile["x"]).collect()

    assert [customer.id for customer in ordered] == ["d", "i", "g", "c", "e", "b", "h", "a", "f"]


# -- how many -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [
        (2, None, [1, 2]),
        (2, 2, [7, 10]),
        (None, 3, [10, 30]),
        (None, 0, [1, 2, 7, 10, 30]),
        (0, None, []),
        (9, 4, [30]),
        (2, 9, []),
    ],
)
def test_a_page_is_cut_from_the_ordered_whole(race, limit, offset, expected):
    query = race.query().entities(Runner).order_by(Runner.number)

    query = query if limit is None else query.limit(limit)
    query = query if offset is None else query.offset(offset)

    assert numbers(query) == expected


def test_first_is_the_first_in_order_within_the_page(race):
    query = race.query().entities(Runner).order_by(Runner.number.desc())

    assert query.first().number == 30
    assert query.offset(2).first().number == 7
    assert query.limit(3).first().number == 30
    assert query.limit(0).first() is None
    assert query.offset(5).first() is None


# -- a question is data ---------------------------------------------------------------------------


def test_each_step_gives_a_new_question_and_leaves_the_old_one_alone(race):
    everyone = race.query().entities(Runner)

    everyone.where(Runner.team == "red").order_by(Runner.number).limit(1).offset(1).as_of(0)

    assert len(everyone.collect()) == 5


def test_a_question_can_be_asked_again_and_sees_what_came_since(race):
    red = race.query().entities(Runner).where(Runner.team == "red")
    before = red.count()

    race.ensure(Runner(number=99, team="red"))
    race.commit()

    assert (before, red.count()) == (2, 3)


def test_conditions_in_several_wheres_must_all_hold(race):
    red = race.query().entities(Runner).where(Runner.team == "red")

    assert numbers(red.where(Runner.number > 1)) == [2]
    assert numbers(
        race.query().entities(Runner).where(Runner.team == "red", Runner.number > 1)
    ) == [2]
    assert len(red.where().collect()) == 2


def test_queued_objects_are_not_part_of_the_state(session):
    session.ensure(Customer(id="c1", name="Ada"))

    assert session.query().entities(Customer).collect() == []


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda q: q.where(Customer.tier == "gold"), QueryError),
        (lambda q: q.where(left(Subscription).tier == "gold"), QueryError),
        (lambda q: q.where(Runner.team), QueryTypeError),
        (lambda q: q.where(True), QueryTypeError),
        (lambda q: q.order_by(Customer.name), QueryError),
        (lambda q: q.order_by("team"), QueryTypeError),
        (lambda q: q.limit(-1), QueryTypeError),
        (lambda q: q.limit(True), QueryTypeError),
        (lambda q: q.offset("1"), QueryTypeError),
        (lambda q: q.as_of(-1), QueryTypeError),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_when_it_is_put(session, ask, error):
    with pytest.raises(error):
        ask(session.query().entities(Runner))


def test_a_query_takes_the_class_it_says(session):
    with pytest.raises(TypeError):
        session.query().entities(Subscription)
    with pytest.raises(TypeError):
        session.query().relations(Customer)
