"""Walking from entities along relations: via, in either direction, one step or several."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import EndpointDeleted, QueryError


class Person(Entity):
    name: Field[str] = Field(primary_key=True)
    age: Field[int] = 30


class Band(Entity):
    title: Field[str] = Field(primary_key=True)
    style: Field[str] = "rock"


class City(Entity):
    number: Field[int] = Field(primary_key=True)
    name: Field[str] = ""


class PlaysIn(Relation[Person, Band]):
    instrument: Field[str] = Field(instance_key=True)
    since: Field[int] = 2000


class ComesFrom(Relation[Band, City]):
    pass


class Knows(Relation[Person, Person]):
    years: Field[int] = 1


class Likes(Relation):
    pass


@pytest.fixture
def music(session):
    """Ada plays two instruments in one band and sings in another; Cy plays nothing."""
    session.ensure([Person(name="ada", age=40), Person(name="bob", age=20), Person(name="cy")])
    session.ensure([Band(title="fog"), Band(title="owl", style="jazz")])
    session.ensure([City(number=7, name="Oslo"), City(number=12, name="Rome")])
    session.ensure([
        PlaysIn(left_key="ada", right_key="fog", instrument="drums", since=1999),
        PlaysIn(left_key="ada", right_key="fog", instrument="voice", since=2005),
        PlaysIn(left_key="ada", right_key="owl", instrument="voice", since=2010),
        PlaysIn(left_key="bob", right_key="owl", instrument="bass", since=2012),
        ComesFrom(left_key="fog", right_key=7),
        ComesFrom(left_key="owl", right_key=12),
    ])  # fmt: skip
    session.commit()
    return session


def people(session):
    return session.query().entities(Person)


def ways(query):
    """Each way as text: where it starts, and the keys of each relation."""
    return [
        " ".join(
            [str(path.source.meta().key), *(f"{r.left_key}>{r.right_key}" for r in path.relations)]
        )
        for path in query.collect()
    ]


# -- ways -----------------------------------------------------------------------------------------


def test_one_step_gives_a_way_for_each_relation_of_each_entity(music):
    assert ways(people(music).via(PlaysIn)) == [
        "ada ada>fog", "ada ada>fog", "ada ada>owl", "bob bob>owl",
    ]  # fmt: skip


def test_a_way_has_its_source_its_relations_and_their_ends(music):
    path = people(music).where(Person.name == "bob").via(PlaysIn).via(ComesFrom).first()

    plays, comes = path.relations
    assert (path.source.name, path.source.age, path.source.meta().commit_id) == ("bob", 20, 1)
    assert (plays.instrument, plays.since, plays.meta().instance_key) == ("bass", 2012, "bass")
    assert (plays.left, plays.right.style) == (path.source, "jazz")
    assert (comes.left, comes.right.name) == (plays.right, "Rome")


def test_relations_are_walked_backward_where_the_right_end_fits(music):
    bands = music.query().entities(Band)

    assert ways(bands.where(Band.title == "owl").via(PlaysIn)) == ["owl ada>owl", "owl bob>owl"]
    [path] = music.query().entities(City).where(City.number == 7).via(ComesFrom).collect()
    assert (path.source.name, path.relations[0].left.title) == ("Oslo", "fog")
    assert path.relations[0].right == path.source


def test_a_chain_may_turn_around(music):
    from_city = music.query().entities(City).via(ComesFrom).via(PlaysIn)

    assert ways(from_city.where(City.name == "Rome")) == ["12 owl>12 ada>owl", "12 owl>12 bob>owl"]
    [city, band] = from_city.where(City.name == "Rome").first().relations
    assert (city.right.name, band.left.name) == ("Rome", "ada")


def test_an_entity_without_relations_has_no_way(music):
    assert ways(people(music).where(Person.name == "cy").via(PlaysIn)) == []
    assert people(music).where(Person.name == "cy").via(PlaysIn).first() is None


def test_ways_follow_the_keys_unless_told_otherwise(music):
    query = people(music).via(PlaysIn)

    def instruments(found):
        return [path.relations[0].instrument for path in found.collect()]

    assert instruments(query) == ["drums", "voice", "voice", "bass"]
    assert instruments(query.order_by(PlaysIn.since.desc())) == ["bass", "voice", "voice", "drums"]
    assert instruments(query.order_by(Person.age)) == ["bass", "drums", "voice", "voice"]
    assert instruments(query.order_by(right(PlaysIn).style, PlaysIn.since)) == [
        "voice", "bass", "drums", "voice",
    ]  # fmt: skip


def test_ways_follow_the_keys_also_where_an_index_finds_the_relations(session):
    class Rates(Relation[Person, Band]):
        stars: Field[int] = Field(default=0, index=True)

    session.ensure([Person(name="ada"), *(Band(title=title) for title in "abc")])
    session.ensure(
        Rates(left_key="ada", right_key=title, stars=stars)
        for title, stars in [("a", 5), ("b", 4), ("c", 3)]
    )
    session.commit()

    rated = people(session).via(Rates).where(Rates.stars > 1)

    assert ways(rated) == ["ada ada>a", "ada ada>b", "ada ada>c"]


def test_ways_are_paged_as_ways(music):
    query = people(music).via(PlaysIn)

    assert ways(query.limit(2)) == ways(query)[:2]
    assert ways(query.offset(3)) == ways(query)[3:]
    assert ways(query.limit(1).offset(2)) == ["ada ada>owl"]
    assert query.offset(3).first().source.name == "bob"


# -- conditions -----------------------------------------------------------------------------------


def test_conditions_may_speak_of_the_start_the_relation_and_its_ends(music):
    query = people(music).via(PlaysIn)

    assert ways(query.where(Person.age < 30)) == ["bob bob>owl"]
    assert ways(query.where(PlaysIn.since < 2000)) == ["ada ada>fog"]
    assert ways(query.where(right(PlaysIn).style == "jazz")) == ["ada ada>owl", "bob bob>owl"]
    assert ways(query.where(left(PlaysIn).age == 40, PlaysIn.instrument == "voice")) == [
        "ada ada>fog", "ada ada>owl",
    ]  # fmt: skip
    assert ways(query.where((Person.age < 30) | (PlaysIn.since < 2000))) == [
        "ada ada>fog", "bob bob>owl",
    ]  # fmt: skip


def test_conditions_may_speak_of_the_second_step(music):
    query = people(music).via(PlaysIn).via(ComesFrom)

    assert ways(query.where(right(ComesFrom).name == "Rome")) == [
        "ada ada>owl owl>12", "bob bob>owl owl>12",
    ]  # fmt: skip
    assert ways(query.where(left(ComesFrom).style == "rock", PlaysIn.since > 2000)) == [
        "ada ada>fog fog>7",
    ]  # fmt: skip


def test_a_condition_put_before_the_step_holds_for_the_start(music):
    assert ways(people(music).where(Person.age < 30).via(PlaysIn)) == ["bob bob>owl"]


@pytest.fixture
def friends(session):
    """ada knows bob (1 year) and cy (9); bob knows dee (9); cy knows dee (1)."""
    session.ensure(Person(name=name) for name in ("ada", "bob", "cy", "dee"))
    for one, other, years in [
        ("ada", "bob", 1),
        ("ada", "cy", 9),
        ("bob", "dee", 9),
        ("cy", "dee", 1),
    ]:
        session.ensure(Knows(left_key=one, right_key=other, years=years))
    session.commit()
    return session


def test_a_relation_of_a_type_with_itself_is_walked_forward(friends):
    query = people(friends)

    assert ways(query.where(Person.name == "ada").via(Knows)) == ["ada ada>bob", "ada ada>cy"]
    assert ways(query.via(Knows).via(Knows)) == ["ada ada>bob bob>dee", "ada ada>cy cy>dee"]
    first = query.via(Knows).via(Knows).first()
    assert (first.relations[0].right.name, first.relations[1].left.name) == ("bob", "bob")


def test_a_condition_that_could_mean_either_of_two_steps_is_refused(friends):
    twice = people(friends).via(Knows).via(Knows)

    with pytest.raises(QueryError, match="either of 2 steps"):
        twice.where(Knows.years == 1)
    with pytest.raises(QueryError, match="either of 2 steps"):
        twice.order_by(right(Knows).name)


def test_a_condition_put_between_two_equal_steps_is_refused_as_well(friends):
    """It was put where it could mean one step only; it must not silently move to another."""
    once = people(friends).via(Knows).where(Knows.years == 1)

    with pytest.raises(QueryError, match="either of 2 steps"):
        once.via(Knows).collect()


# -- states ---------------------------------------------------------------------------------------


def test_a_walk_under_as_of_sees_that_state_and_no_other(music):
    music.ensure([Person(name="ada", age=41), Band(title="owl", style="folk")])
    music.delete(PlaysIn(left_key="ada", right_key="fog", instrument="drums"))
    music.ensure(PlaysIn(left_key="cy", right_key="fog", instrument="harp"))
    music.commit()
    query = people(music).via(PlaysIn)

    assert ways(query.as_of(1)) == ["ada ada>fog", "ada ada>fog", "ada ada>owl", "bob bob>owl"]
    assert ways(query) == ["ada ada>fog", "ada ada>owl", "bob bob>owl", "cy cy>fog"]
    assert ways(query.as_of(0)) == []
    jazz = query.where(right(PlaysIn).style == "jazz")
    assert (len(jazz.as_of(1).collect()), len(jazz.collect())) == (2, 0)
    then = query.as_of(1).where(Person.name == "ada").via(ComesFrom).first()
    assert (then.source.age, then.relations[0].instrument) == (40, "drums")


def test_a_deleted_start_has_no_ways_and_a_deleted_end_is_named(music):
    music.delete([Person(name="bob"), Band(title="fog")])
    music.commit()

    paths = people(music).via(PlaysIn).collect()

    assert [path.relations[0].right_key for path in paths] == ["fog", "fog", "owl"]
    with pytest.raises(EndpointDeleted, match="right end of PlaysIn:ada:fog"):
        _ = paths[0].relations[0].right
    assert paths[2].relations[0].right.style == "jazz"
    assert ways(people(music).via(PlaysIn).where(right(PlaysIn).title == "fog")) == []


# -- what makes no sense --------------------------------------------------------------------------


def test_a_step_must_start_where_the_walk_has_come_to(session):
    with pytest.raises(QueryError, match=r"via\(ComesFrom\) does not start at Person"):
        people(session).via(ComesFrom)
    with pytest.raises(QueryError, match="does not start at City"):
        people(session).via(PlaysIn).via(ComesFrom).via(Knows)
    with pytest.raises(QueryError, match="does not say what its left end is"):
        people(session).via(Likes)
    with pytest.raises(TypeError):
        people(session).via(Band)


def test_a_walk_goes_through_one_state_and_not_through_history(session):
    with pytest.raises(QueryError, match="history"):
        people(session).with_history().via(PlaysIn)
    with pytest.raises(QueryError, match="not part of a question for Person via PlaysIn"):
        people(session).via(PlaysIn).where(City.name == "Rome")
