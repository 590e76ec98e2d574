"""Preview and apply: the token, the plan, and what is left behind when something goes wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys

import pytest

from ontologia import Entity, Field, Relation
from ontologia.errors import (
    MigrationError,
    MigrationTokenError,
    MissingUpgraderError,
    SchemaOutdatedError,
)
from ontologia.migration import (
    MigrationPreview,
    MigrationResult,
    _compute_migration_token,
    _compute_plan_hash,
)
from ontologia.schema.diff import serialize_diff
from ontologia_conformance.shop import Product

TABLES = (
    "commits",
    "entity_history",
    "relation_history",
    "entity_latest",
    "relation_latest",
    "schema_registry",
    "schema_versions",
    "locks",
)


class Person(Entity):
    """The first version; the functions below give later ones."""

    id: Field[str]
    name: Field[str]


def person_in_parts():
    class Person(Entity):
        id: Field[str]
        first: Field[str]
        last: Field[str]

    return Person


def person_with_nick():
    class Person(Entity):
        id: Field[str]
        name: Field[str]
        nick: Field[str] = Field(default="none")

    return Person


def split_name(fields):
    first, last = fields.pop("name").split()
    return fields | {"first": first, "last": last}


SPLIT = {("Person", 1): split_name}


@pytest.fixture
def contents(direct):
    """Everything the store has written down."""

    def read():
        return {table: direct(f"SELECT * FROM {table}") for table in TABLES}

    return read


@pytest.fixture
def people(open_session):
    """A store with two people, written under the first version of the class."""
    session = open_session(entity_types=[Person])
    session.ensure([Person(id="p1", name="Ada Lovelace"), Person(id="p2", name="Alan Turing")])
    session.commit()
    return session


# -- preview ----------------------------------------------------------------------------------


@pytest.mark.req("SQL-087", "SQL-086")
def test_a_preview_says_what_would_be_done_and_writes_nothing(people, open_session, contents):
    session = open_session(entity_types=[person_in_parts(), Product])
    before = contents()

    preview = session.migrate()

    assert isinstance(preview, MigrationPreview)
    [diff] = preview.diffs
    assert (diff.name, diff.added, diff.removed) == ("Person", ("first", "last"), ("name",))
    assert (preview.objects, preview.head) == ({"Person": 2}, 1)
    assert preview.token
    assert contents() == before


@pytest.mark.req("SQL-086")
def test_what_a_migration_is_told_it_is_told_by_name(people, open_session, contents):
    session = open_session(entity_types=[person_in_parts()], upgraders=SPLIT)
    before = contents()

    with pytest.raises(TypeError):
        session.migrate(False)

    assert contents() == before
    assert session.migrate() == session.migrate(dry_run=True, token=None, force=False)


def test_a_preview_lists_the_upgraders_that_are_still_to_be_written(people, open_session):
    session = open_session(entity_types=[person_in_parts()])

    preview = session.migrate()

    assert preview.missing_upgraders == {"Person": [1]}
    assert "missing upgraders for Person: from version 1" in str(preview)
    assert session.migrate(upgraders=SPLIT).missing_upgraders == {}


def test_a_preview_of_nothing_is_false_and_says_so(people):
    preview = people.migrate()

    assert not preview
    assert preview.diffs == []
    assert str(preview) == "nothing to migrate"


@pytest.mark.req("SQL-088", "SQL-089")
def test_the_token_is_the_hash_of_the_plan_and_the_head_in_base64(people, open_session):
    session = open_session(entity_types=[person_in_parts()])

    preview = session.migrate()

    plan = json.dumps(
        [serialize_diff(diff) for diff in preview.diffs], sort_keys=True, separators=(",", ":")
    )
    plan_hash = hashlib.sha256(plan.encode()).hexdigest()
    assert base64.urlsafe_b64decode(preview.token).decode() == f"{plan_hash}:1"
    assert preview.token == _compute_migration_token(_compute_plan_hash(preview.diffs), 1)


@pytest.mark.req("SQL-089")
def test_the_token_of_an_empty_store_says_none_for_its_head(open_session):
    open_session(entity_types=[Person])
    session = open_session(entity_types=[person_in_parts()])

    preview = session.migrate()

    plan_hash = _compute_plan_hash(preview.diffs)
    assert base64.urlsafe_b64decode(preview.token).decode() == f"{plan_hash}:none"
    assert session.migrate(dry_run=False, token=preview.token).commit_id is None


@pytest.mark.req("SQL-090")
def test_the_hash_of_no_plan_is_known():
    known = "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"

    assert _compute_plan_hash([]) == known
    assert (
        base64.urlsafe_b64decode(_compute_migration_token(known, None)) == f"{known}:none".encode()
    )


ELSEWHERE = """
import sys
from typing import Literal
from ontologia import Entity, Field, Session

def old():
    class Thing(Entity):
        id: Field[str]
        colour: Field[str]
    class Person(Entity):
        id: Field[str]
    return [Thing, Person]

def new():
    class Thing(Entity):
        id: Field[str]
        tags: Field[set[str] | dict[str, int] | None | float]
        colour: Field[Literal["red", "green", "blue"]]
        a: Field[int]
        b: Field[int]
    class Person(Entity):
        id: Field[str]
        name: Field[str]
    return [Person, Thing] if sys.argv[2] == "swapped" else [Thing, Person]

with Session(sys.argv[1], entity_types=old()): pass
with Session(sys.argv[1], entity_types=new()) as session:
    print(session.migrate().token)
"""


@pytest.mark.req("SQL-094")
def test_equal_plans_have_equal_tokens_in_every_process(uri):
    tokens = set()
    for seed, order in (("1", "straight"), ("2", "straight"), ("3", "swapped")):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ELSEWHERE, uri, order],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        tokens.add(done.stdout.strip())

    [token] = tokens
    assert base64.urlsafe_b64decode(token).endswith(b":none")


# -- the token --------------------------------------------------------------------------------


@pytest.mark.req("SQL-091")
def test_without_a_token_nothing_is_applied(people, open_session, contents):
    session = open_session(entity_types=[person_in_parts()], upgraders=SPLIT)
    before = contents()

    with pytest.raises(MigrationTokenError, match="token"):
        session.migrate(dry_run=False)

    assert contents() == before


@pytest.mark.req("SQL-091")
def test_force_needs_no_token(people, open_session):
    session = open_session(entity_types=[person_in_parts()], upgraders=SPLIT)

    result = session.migrate(dry_run=False, force=True)

    assert result.versions == {"Person": 2}


def garbled(token):
    plan_hash = base64.urlsafe_b64decode(token).decode().split(":")[0]
    other_plan = base64.urlsafe_b64encode(f"{'0' * 64}:1".encode()).decode()
    other_head = base64.urlsafe_b64encode(f"{plan_hash}:2".encode()).decode()
    return {
        "empty": "",
        "no base64": "ü",
        "half": token[: len(token) // 2],
        "lower case": token.lower(),
        "other plan": other_plan,
        "other head": other_head,
        "plan hash alone": plan_hash,
    }


@pytest.mark.req("SQL-092")
@pytest.mark.parametrize("kind", list(garbled(base64.b64encode(b"x:1").decode())))
def test_a_wrong_token_is_refused_and_nothing_is_written(people, open_session, contents, kind):
    session = open_session(entity_types=[person_in_parts()], upgraders=SPLIT)
    preview = session.migrate()
    before = contents()

    with pytest.raises(MigrationTokenError):
        session.migrate(dry_run=False, token=garbled(preview.token)[kind])

    assert contents() == before
    assert session.migrate(dry_run=False, token=preview.token)


@pytest.mark.req("SQL-092")
def test_a_token_is_stale_once_the_head_has_moved(people, open_session, contents):
    session = open_session(entity_types=[person_in_parts()], upgraders=SPLIT)
    token = session.migrate().token
    people.ensure(Product(sku="s", price=1.0))
    people.commit()
    before = contents()

    with pytest.raises(MigrationTokenError, match="given at commit 1, and the store is at 2"):
        session.migrate(dry_run=False, token=token)

    assert contents() == before
    assert session.migrate().token != token


@pytest.mark.req("SQL-092")
def test_a_token_is_stale_once_the_plan_is_another(people, open_session, contents):
    token = open_session(entity_types=[person_in_parts()]).migrate().token
    session = open_session(entity_types=[person_with_nick()], upgraders={("Person", 1): dict})
    before = contents()

    with pytest.raises(MigrationTokenError, match="plan"):
        session.migrate(dry_run=False, token=token)

    assert contents() == before


@pytest.mark.req("SQL-094")
def test_the_token_of_one_session_is_good_in_another(people, open_session):
    token = open_session(entity_types=[person_in_parts()]).migrate().token

    result = open_session(entity_types=[person_in_parts()], upgraders=SPLIT).migrate(
        dry_run=False, token=token
    )

    assert result.commit_id == 2


def test_an_empty_plan_needs_no_token_and_writes_nothing(people, contents):
    before = contents()

    result = people.migrate(dry_run=False)

    assert not result
    assert result == MigrationResult([], {}, None)
    assert contents() == before


@pytest.mark.req("SQL-092")
def test_a_store_that_changes_under_the_upgraders_is_not_written_over(
    people, open_session, contents, sql
):
    """A program that knows nothing of the lease wrote while the upgraders ran."""

    def intruded(fields):
        if fields["id"] == "p2":
            sql(
                "INSERT INTO commits(id, created_at) VALUES (2, '2026-01-01T00:00:00.000000+00:00')"
            )
        return split_name(fields)

    session = open_session(entity_types=[person_in_parts()], upgraders={("Person", 1): intruded})
    before = contents()

    with pytest.raises(MigrationTokenError, match="changed while"):
        session.migrate(dry_run=False, force=True)

    after = contents()
    assert len(after.pop("commits")) == len(before.pop("commits")) + 1
    assert after == before


# -- apply ------------------------------------------------------------------------------------


@pytest.mark.req("SQL-093", "SQL-020", "SQL-099")
def test_applying_upgrades_every_object_in_one_commit(people, open_session, sql):
    Newer = person_in_parts()
    session = open_session(entity_types=[Newer], upgraders=SPLIT)

    result = session.migrate(dry_run=False, token=session.migrate().token)

    assert result == MigrationResult(["Person"], {"Person": 2}, 2, 2)
    assert session.query().entities(Newer).collect() == [
        Newer(id="p1", first="Ada", last="Lovelace"),
        Newer(id="p2", first="Alan", last="Turing"),
    ]
    assert sql("SELECT schema_version_id, reason FROM schema_versions") == [
        [1, "initial"],
        [2, "migration"],
    ]
    assert sql("SELECT schema_json FROM schema_registry") == sql(
        "SELECT schema_json FROM schema_versions WHERE schema_version_id = 2"
    )
    assert session.get_commit(2)["metadata"]["migration"] == {"Person": 2}


@pytest.mark.req("SQL-093")
def test_after_applying_commits_work_and_the_next_preview_is_empty(people, open_session):
    Newer = person_in_parts()
    session = open_session(entity_types=[Newer], upgraders=SPLIT)
    session.migrate(dry_run=False, force=True)

    session.ensure(Newer(id="p1", first="Ada", last="King"))

    assert session.commit() == 3
    assert not session.migrate()
    assert not open_session(entity_types=[person_in_parts()]).migrate()


@pytest.mark.req("SQL-099")
def test_a_type_without_objects_needs_no_upgrader_and_no_commit(open_session, sql):
    session = open_session()
    session.ensure(Person(id="p1", name="Ada Lovelace"))
    session.commit()
    session.delete(Person(id="p1", name=""))
    session.commit()  # what it had in the past need not be upgraded

    newer = open_session(entity_types=[person_in_parts()])
    result = newer.migrate(dry_run=False, token=newer.migrate().token)

    assert result == MigrationResult(["Person"], {"Person": 2}, None)
    assert newer.head == 2
    assert sql("SELECT MAX(schema_version_id) FROM schema_versions") == [[2]]


@pytest.mark.req("SQL-099")
def test_what_was_deleted_stays_deleted(people, open_session, sql):
    people.delete(Person(id="p1", name=""))
    people.commit()
    Newer = person_in_parts()
    session = open_session(entity_types=[Newer], upgraders=SPLIT)

    session.migrate(dry_run=False, force=True)

    assert [p.id for p in session.query().entities(Newer).collect()] == ["p2"]
    assert sql("SELECT entity_key FROM entity_history WHERE schema_version_id = 2") == [["p2"]]


class Firm(Entity):
    id: Field[str]


class Knows(Relation[Person, Person]):
    since: Field[int]


class Works(Relation[Person, Firm]):
    role: Field[str] = Field(instance_key=True)
    hours: Field[int]


def dated_relations():
    class Knows(Relation[Person, Person]):
        since: Field[str]

    class Works(Relation[Person, Firm]):
        role: Field[str] = Field(instance_key=True)
        share: Field[float]

    return Knows, Works


@pytest.mark.req("SQL-099", "SQL-093")
def test_relations_are_migrated_like_entities_keyed_ones_too(people, open_session, sql):
    people.ensure(Knows(left_key="p1", right_key="p2", since=1842))
    people.ensure([Works(left_key="p1", right_key="f", role=r, hours=20) for r in ("a", "b")])
    people.commit()
    NewKnows, NewWorks = dated_relations()
    session = open_session(
        relation_types=[NewKnows, NewWorks],
        upgraders={
            ("Knows", 1): lambda fields: {"since": f"{fields['since']}-01-01"},
            ("Works", 1): lambda fields: {"share": fields["hours"] / 40},
        },
    )

    result = session.migrate(dry_run=False, token=session.migrate().token)

    assert result == MigrationResult(["Knows", "Works"], {"Knows": 2, "Works": 2}, 3, 3)
    assert session.query().relations(NewKnows).collect() == [
        NewKnows(left_key="p1", right_key="p2", since="1842-01-01")
    ]
    assert session.query().relations(NewWorks).collect() == [
        NewWorks(left_key="p1", right_key="f", role="a", share=0.5),
        NewWorks(left_key="p1", right_key="f", role="b", share=0.5),
    ]
    assert sql(
        "SELECT left_key, right_key, instance_key FROM relation_history "
        "WHERE commit_id = 3 ORDER BY instance_key"
    ) == [["p1", "p2", ""], ["p1", "f", "a"], ["p1", "f", "b"]]


def test_a_relation_that_loses_its_instance_key_is_not_migrated(people, open_session, contents):
    """Two relations would become one object; which of them cannot be guessed."""

    def unkeyed():
        class Works(Relation[Person, Firm]):
            role: Field[str]
            hours: Field[int]

        return Works

    people.ensure([Works(left_key="p1", right_key="f", role=r, hours=20) for r in ("a", "b")])
    people.commit()
    session = open_session(
        relation_types=[unkeyed()], upgraders={("Works", 1): lambda fields: fields | {"role": "?"}}
    )
    before = contents()

    with pytest.raises(MigrationError):
        session.migrate(dry_run=False, force=True)

    assert contents() == before


def routes(kind):
    """An entity and a relation of one name; the second version of both has a rating."""

    def first():
        class Route(Entity):
            id: Field[str]

        return Route

    def second():
        class Route(Entity):
            id: Field[str]
            rating: Field[int]

        return Route

    def first_relation():
        class Route(Relation[Person, Person]):
            length: Field[int]

        return Route

    def second_relation():
        class Route(Relation[Person, Person]):
            length: Field[int]
            rating: Field[int]

        return Route

    return (first(), first_relation()) if kind == "first" else (second(), second_relation())


@pytest.fixture
def both_routes(open_session):
    """A session with the second version of both, and the classes."""
    Route, Way = routes("first")
    session = open_session()
    session.ensure([Route(id="r1"), Route(id="r2"), Way(left_key="a", right_key="b", length=1)])
    session.commit()
    Route, Way = routes("second")
    upgraders = {
        ("entity", "Route", 1): lambda fields: fields | {"rating": 1},
        ("relation", "Route", 1): lambda fields: fields | {"rating": 2},
    }
    return open_session(entity_types=[Route], relation_types=[Way], upgraders=upgraders), Route, Way


@pytest.mark.req("SQL-079")
def test_an_entity_and_a_relation_of_one_name_are_migrated_each_by_its_own(both_routes):
    session, Route, Way = both_routes

    session.migrate(dry_run=False, token=session.migrate().token)

    assert [route.rating for route in session.query().entities(Route).collect()] == [1, 1]
    assert [way.rating for way in session.query().relations(Way).collect()] == [2]


def test_preview_and_result_count_an_entity_and_a_relation_of_one_name_apart(both_routes):
    session, _, _ = both_routes
    preview = session.migrate()

    result = session.migrate(dry_run=False, token=preview.token)

    assert sum(preview.objects.values()) == 3
    assert len(result.types) == 2


@pytest.mark.req("SQL-079")
def test_an_upgrader_that_could_mean_entity_or_relation_is_refused(open_session, contents):
    Route, Way = routes("first")
    session = open_session()
    session.ensure([Route(id="r1"), Way(left_key="a", right_key="b", length=1)])
    session.commit()
    newer_entity, newer_relation = routes("second")
    newer = open_session(entity_types=[newer_entity], relation_types=[newer_relation])
    before = contents()

    with pytest.raises(MigrationError, match="entity or the relation"):
        newer.migrate(dry_run=False, force=True, upgraders={("Route", 1): dict})

    assert contents() == before


# -- programs of different versions on one store ------------------------------------------------


def test_an_old_program_reads_a_migrated_store_and_may_not_write_it(people, open_session):
    Newer = person_with_nick()
    session = open_session(
        entity_types=[Newer], upgraders={("Person", 1): lambda f: f | {"nick": f["name"][:3]}}
    )
    session.migrate(dry_run=False, force=True)
    session.ensure(Newer(id="p3", name="Grace Hopper"))
    session.commit()

    read = people.query().entities(Person).collect()
    people.ensure(Person(id="p1", name="Ada King"))

    assert [p.name for p in read] == ["Ada Lovelace", "Alan Turing", "Grace Hopper"]
    with pytest.raises(SchemaOutdatedError):
        people.commit()
    assert people.head == 3


def test_an_old_program_whose_field_is_gone_from_the_store_is_told_so(people, open_session):
    open_session(entity_types=[person_in_parts()], upgraders=SPLIT).migrate(
        dry_run=False, force=True
    )

    with pytest.raises(SchemaOutdatedError, match="name"):
        people.query().entities(Person).collect()


def test_a_new_field_with_a_default_can_be_read_before_the_migration(people, open_session):
    Newer = person_with_nick()
    session = open_session(entity_types=[Newer])

    people_read = session.query().entities(Newer).order_by(Newer.name.desc()).collect()

    assert [(p.name, p.nick) for p in people_read] == [
        ("Alan Turing", "none"),
        ("Ada Lovelace", "none"),
    ]


def test_before_the_migration_filters_see_the_default_that_objects_show(people, open_session):
    Newer = person_with_nick()
    session = open_session(entity_types=[Newer])
    question = session.query().entities(Newer)

    assert question.where(Newer.nick == "none").count() == 2
    assert question.where(Newer.nick.is_null()).collect() == []
    assert question.where(Newer.nick == "none").as_of(1).count() == 2


def test_a_new_field_without_a_default_cannot_be_read_before_the_migration(people, open_session):
    Newer = person_in_parts()
    session = open_session(entity_types=[Newer])

    with pytest.raises(SchemaOutdatedError) as caught:
        session.query().entities(Newer).collect()

    assert caught.value.diffs[0].added == ("first", "last")
    assert "migrate" in caught.value.hint


@pytest.mark.req("SQL-096")
def test_without_its_upgrader_a_type_with_objects_is_not_migrated(people, open_session, contents):
    session = open_session(entity_types=[person_in_parts()])
    token = session.migrate().token
    before = contents()

    with pytest.raises(MissingUpgraderError) as caught:
        session.migrate(dry_run=False, token=token)

    assert (caught.value.type_name, caught.value.missing_versions) == ("Person", [1])
    assert contents() == before
    assert session.migrate().token == token
