"""A question that makes no sense is refused when it is put, before anybody is asked."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import DefinitionError, QueryError, QueryTypeError
from ontologia.query import QueryBuilder, avg, avg_len, count, count_where, max, min, sum
from ontologia.query.question import Hop
from ontologia.schema.expression import And


class Person(Entity):
    id: Field[str]
    name: Field[str]
    age: Field[int]
    tags: Field[list[str]]


class Car(Entity):
    plate: Field[str] = Field(primary_key=True)
    price: Field[float]


class Owns(Relation[Person, Car]):
    share: Field[float]


class Tows(Relation[Car, Car]):
    load: Field[float]


class Base(Entity, abstract=True):
    created: Field[int]


class Echo:
    """Answers every question with the question."""

    def objects(self, question):
        return [question]

    paths = objects

    def groups(self, question):
        return [{"value": question}]


@pytest.fixture
def query():
    return QueryBuilder(Echo())


@pytest.fixture
def people(query):
    return query.entities(Person)


@pytest.mark.parametrize("wrong", [Owns, Entity, Base, Person(id="1", name="", age=1, tags=[]), 5])
def test_entities_takes_a_class_of_entities(query, wrong):
    with pytest.raises(DefinitionError):
        query.entities(wrong)


@pytest.mark.parametrize("wrong", [Person, Relation, "Owns", None])
def test_relations_takes_a_class_of_relations(query, wrong):
    with pytest.raises(DefinitionError):
        query.relations(wrong)


def test_a_question_is_not_its_answer_and_says_so(query, people):
    """Who forgets collect() sees what is missing, and does not go through nothing."""
    assert repr(people) == "<EntityQuery of Person, not asked yet: collect()>"
    assert repr(query.relations(Owns)) == "<RelationQuery of Owns, not asked yet: collect()>"
    for use in (list, len, bool):
        with pytest.raises(QueryTypeError, match="a question is not its answer"):
            use(people)


# -- where -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign",
    [
        Car.price > 1,
        Owns.share > 1,
        left(Owns).name == "Ada",
        ~(Car.price > 1),
        (Person.age > 1) & ((Person.name == "a") | (Car.price > 1)),
    ],
    ids=["entity", "relation", "endpoint", "not", "nested"],
)
def test_a_condition_on_another_class_is_refused(people, foreign):
    with pytest.raises(QueryError, match="is not part of a question for Person"):
        people.where(foreign)


def test_an_entity_s_own_field_does_not_speak_of_a_relation_s_end(query):
    owned = query.relations(Owns)

    with pytest.raises(QueryError, match=r"Person\.name is not part of a question for Owns"):
        owned.where(Person.name == "Ada")
    [question] = owned.where(left(Owns).name == "Ada", right(Owns).price > 1).collect()
    assert [part.path.side for part in question.where.parts] == ["left", "right"]


@pytest.mark.parametrize("wrong", [True, None, 5, "age > 1", Person.age, lambda p: p.age > 1])
def test_where_takes_conditions_only(people, wrong):
    with pytest.raises(QueryTypeError, match="expected a condition"):
        people.where(wrong)


@pytest.mark.parametrize("wrong", [count() > 1, (Person.age > 1) | (sum(Person.age) > 1)])
def test_aggregates_are_not_compared_in_where(people, wrong):
    with pytest.raises(QueryError, match=r"compared in having\(\.\.\.\), not in where"):
        people.where(wrong)
    with pytest.raises(QueryError, match=r"compared in having\(\.\.\.\), not in where"):
        people.count_where(wrong)


def test_conditions_of_several_calls_all_hold(people):
    adult, named, old = Person.age > 17, Person.name != "", Person.age > 60

    [question] = people.where(adult, named).where(old).collect()

    assert question.where == And((adult, named, old))


def test_a_builder_is_never_changed(people):
    people.where(Person.age > 1).limit(5).order_by(Person.name).as_of(3)

    [question] = people.collect()

    assert (question.where, question.limit, question.order, question.as_of) == (
        None,
        None,
        (),
        None,
    )


# -- order, paging, time ---------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["name", Person.age > 1, count(), None, Person])
def test_order_by_takes_fields_only(people, wrong):
    with pytest.raises(QueryTypeError, match="order_by takes fields"):
        people.order_by(wrong)


@pytest.mark.parametrize("wrong", [Car.price, Car.price.desc(), Person.tags.any_path("a")])
def test_order_by_needs_one_value_of_what_is_asked_for(people, wrong):
    with pytest.raises(QueryError, match="order_by: "):
        people.order_by(wrong)


@pytest.mark.parametrize("method", ["limit", "offset", "as_of", "history_since"])
@pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", None, 2**63])
def test_numbers_of_rows_and_commits_count_from_zero(people, method, wrong):
    with pytest.raises(QueryTypeError, match=f"{method} takes a whole number from 0 on, got"):
        getattr(people, method)(wrong)


def test_zero_is_a_number_like_any_other(people):
    [question] = people.limit(0).offset(0).as_of(0).history_since(0).collect()

    assert (question.limit, question.offset, question.as_of, question.since) == (0, 0, 0, 0)


@pytest.mark.parametrize(("limit", "asked"), [(None, 1), (5, 1), (0, 0)])
def test_first_asks_for_one_and_respects_a_limit_of_none(people, limit, asked):
    limited = people if limit is None else people.limit(limit)

    assert limited.first().limit == asked


# -- via -------------------------------------------------------------------------------------------


def test_via_walks_in_the_direction_that_fits(query, people):
    [there] = people.via(Owns).via(Tows).collect()
    [back] = query.entities(Car).via(Owns).collect()

    assert there.hops == (Hop(Owns.__shape__, "forward"), Hop(Tows.__shape__, "forward"))
    assert back.hops == (Hop(Owns.__shape__, "backward"),)


def test_via_must_connect(query, people):
    with pytest.raises(QueryError, match=r"via\(Tows\) does not start at Person.*from Car to Car"):
        people.via(Tows)
    with pytest.raises(QueryError, match=r"via\(Tows\) does not start at Person"):
        query.entities(Car).via(Owns).via(Tows)
    with pytest.raises(DefinitionError):
        people.via(Car)


def test_via_walks_one_state(people):
    with pytest.raises(QueryError, match="cannot be combined with history"):
        people.with_history().via(Owns)


def test_a_condition_on_a_walk_speaks_of_its_start_its_relations_and_their_ends(people):
    walk = people.via(Owns)

    [question] = walk.where(Person.age > 1, Owns.share > 0.5, right(Owns).price > 1).collect()

    assert len(question.where.parts) == 3
    with pytest.raises(QueryError, match=r"Car\.price is not part of a question for Person via O"):
        walk.where(Car.price > 1)
    with pytest.raises(QueryError, match="could be either of 2 steps"):
        walk.via(Owns).where(Owns.share > 0.5)


# -- aggregates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["tier", Person.age > 1, Person.tags.any_path("a"), 5])
def test_group_by_takes_fields_only(people, wrong):
    with pytest.raises(QueryTypeError, match="group_by takes fields"):
        people.group_by(wrong)


def test_group_by_needs_a_field_of_what_is_asked_for(people):
    with pytest.raises(QueryError, match="needs at least one field"):
        people.group_by()
    with pytest.raises(QueryError, match=r"group_by: Car\.price is not part"):
        people.group_by(Car.price)


def test_agg_takes_named_aggregates_of_what_is_asked_for(people):
    groups = people.group_by(Person.name)

    for ask in (people.agg, groups.agg):
        with pytest.raises(QueryError, match="needs at least one aggregate"):
            ask()
        with pytest.raises(QueryTypeError, match=r"agg\(n=\.\.\.\) takes an aggregate"):
            ask(n=Person.age)
        with pytest.raises(QueryError, match=r"Car\.price is not part"):
            ask(n=sum(Car.price))
        with pytest.raises(QueryError, match=r"Car\.price is not part"):
            ask(n=count_where(Car.price > 1))


def test_an_aggregate_cannot_take_the_name_of_a_group_field(people):
    with pytest.raises(QueryError, match="name"):
        people.group_by(Person.name).agg(name=count())


@pytest.mark.parametrize("wrong", [Person.age > 1, (count() > 1) & (Person.age > 1)])
def test_having_compares_aggregates_only(people, wrong):
    with pytest.raises(QueryError, match=r"having.* compares aggregates"):
        people.group_by(Person.name).having(wrong)


def test_having_looks_at_what_is_asked_for(people):
    groups = people.group_by(Person.name)

    with pytest.raises(QueryTypeError, match="expected a condition like count"):
        groups.having(True)
    for foreign in (sum(Car.price) > 1, ~(count_where(Car.price > 1) > 1)):
        with pytest.raises(QueryError, match=r"Car\.price is not part"):
            groups.having(foreign)


@pytest.mark.parametrize(
    "compare",
    [
        lambda: count() > "1",
        lambda: count() == True,
        lambda: count() != None,
        lambda: count_where(Person.age > 1) < "x",
        lambda: max(Person.name) == 5,
        lambda: min(Person.age) >= "5",
    ],
)
def test_an_aggregate_is_compared_with_values_of_its_type(compare):
    with pytest.raises(QueryTypeError, match="compared with"):
        compare()


def test_groups_are_ordered_by_their_fields_or_by_aggregates(people):
    groups = people.group_by(Person.name)

    with pytest.raises(QueryError, match=r"cannot be ordered by Person\.age: not grouped by it"):
        groups.order_by(Person.age)
    with pytest.raises(QueryTypeError, match="takes fields or aggregates"):
        groups.order_by("name")
    for foreign in (sum(Car.price), count_where(Car.price > 1).desc()):
        with pytest.raises(QueryError, match=r"Car\.price is not part"):
            groups.order_by(foreign)
    with pytest.raises(QueryTypeError, match="limit takes a whole number"):
        groups.limit(-1)


@pytest.mark.parametrize(
    ("aggregate", "wrong"),
    [
        (sum, Person.name),
        (avg, Person.tags.any_path("a")),
        (sum, "age"),
        (avg_len, Person.age),
        (max, count()),
        (min, Person.age > 1),
        (count_where, Person.age),
    ],
)
def test_an_aggregate_of_what_it_cannot_sum_up_is_refused(aggregate, wrong):
    with pytest.raises(QueryTypeError, match=f"^{aggregate.__name__} "):
        aggregate(wrong)


def test_an_aggregate_shows_itself_as_it_is_written():
    assert repr(count()) == "count()"
    assert repr(sum(Person.age)) == "sum(Person.age)"
    assert repr(count_where(Person.age > 1)).startswith("count_where(")
