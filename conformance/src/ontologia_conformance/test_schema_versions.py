"""What the store knows of the program's types, and when it refuses to write them."""

from __future__ import annotations

import functools
import hashlib
import json
from random import Random

import apsw
import pytest

from ontologia import Entity, Field, OntologiaConfig, Relation
from ontologia.clock import to_text
from ontologia.errors import MissingUpgraderError, SchemaOutdatedError
from ontologia.store.open import open_store
from ontologia.testing import ManualClock
from ontologia_conformance.backends import SQLITE
from ontologia_conformance.shop import Customer, Product, Subscription

VERSIONS = (
    "SELECT type_kind, type_name, schema_version_id, reason FROM schema_versions "
    "ORDER BY type_kind, type_name, schema_version_id"
)
TABLES = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name",
    "postgres": "SELECT table_name, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = current_schema() ORDER BY 1, 2",
}
COLUMNS = "SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info('{}')"


def person():
    """The first version of a class."""

    class Person(Entity):
        id: Field[str]
        name: Field[str]

    return Person


def person_with_email():
    """The second."""

    class Person(Entity):
        id: Field[str]
        name: Field[str]
        email: Field[str]

    return Person


def add_email(fields):
    return fields | {"email": f"{fields['id']}@example.org"}


UPGRADERS = {("Person", 1): add_email}


def migrate(session):
    return session.migrate(dry_run=False, force=True, upgraders=UPGRADERS)


# -- the tables -------------------------------------------------------------------------------


@SQLITE
@pytest.mark.req("SQL-016")
def test_the_registry_holds_one_schema_a_type(session, sql):
    columns = sql(COLUMNS.format("schema_registry"))

    assert columns == [
        ["type_kind", "TEXT", 1, None, 1],
        ["type_name", "TEXT", 1, None, 2],
        ["schema_json", "TEXT", 1, None, 0],
    ]


@SQLITE
@pytest.mark.req("SQL-017")
def test_the_versions_are_kept_in_a_table_that_allows_each_number_once(open_session, sql):
    open_session(entity_types=[person()])

    assert [column[:3] for column in sql(COLUMNS.format("schema_versions"))] == [
        ["id", "INTEGER", 0],
        ["type_kind", "TEXT", 1],
        ["type_name", "TEXT", 1],
        ["schema_version_id", "INTEGER", 1],
        ["schema_json", "TEXT", 1],
        ["schema_hash", "TEXT", 1],
        ["created_at", "TEXT", 1],
        ["runtime_id", "TEXT", 0],
        ["reason", "TEXT", 0],
        ["fills_json", "TEXT", 0],
    ]
    [[made]] = sql("SELECT sql FROM sqlite_master WHERE name = 'schema_versions'")
    assert "id INTEGER PRIMARY KEY AUTOINCREMENT" in made
    with pytest.raises(apsw.ConstraintError, match="UNIQUE constraint failed"):
        sql("INSERT INTO schema_versions SELECT NULL, type_kind, type_name, schema_version_id, "
            "'{}', '', '', NULL, NULL, NULL FROM schema_versions")  # fmt: skip


@pytest.mark.req("ONT-005")
def test_opening_makes_every_table_and_opening_again_keeps_what_is_in_them(
    open_session, sql, backend
):
    Person = person()
    first = open_session()
    made = {row[0] for row in sql(TABLES[backend.name])}
    first.ensure(Person(id="p1", name="Ada"))
    first.commit()
    first.close()

    second = open_session()

    assert {
        "commits",
        "entity_history",
        "relation_history",
        "schema_registry",
        "schema_versions",
        "locks",
        "sessions",
    } <= made
    assert second.query().entities(Person).collect() == [Person(id="p1", name="Ada")]
    assert second.head == 1


# -- registration -----------------------------------------------------------------------------


@pytest.mark.req("SQL-081")
@pytest.mark.parametrize("listed", [True, False])
def test_lost_versions_are_made_from_the_registry_when_a_store_is_opened(open_session, sql, listed):
    Person, Newer = person(), person_with_email()
    first = open_session()
    first.ensure(Person(id="p1", name="Ada"))
    first.commit()
    first.close()
    sql("DELETE FROM schema_versions")

    second = open_session(entity_types=[Newer] if listed else [])

    assert sql(VERSIONS) == [["entity", "Person", 1, "bootstrap"]]
    second.ensure(Newer(id="p2", name="Alan", email="a@example.org"))
    with pytest.raises(SchemaOutdatedError):
        second.commit()
    migrate(second)
    assert [p.email for p in second.query().entities(Newer).collect()] == ["p1@example.org"]


@pytest.mark.req("SQL-078", "SQL-018", "SQL-020", "ONT-012")
def test_a_type_that_was_not_listed_is_registered_by_its_first_commit(open_session, sql, clock):
    Person = person()
    session = open_session()
    session.ensure(Person(id="p1", name="Ada"))
    before = sql(VERSIONS)

    session.commit()

    assert before == []
    assert sql(VERSIONS) == [["entity", "Person", 1, "initial"]]
    assert sql("SELECT runtime_id, created_at FROM schema_versions") == [
        [session.session_id, to_text(clock.now())]
    ]
    assert sql("SELECT type_kind, type_name, schema_json FROM schema_registry") == sql(
        "SELECT type_kind, type_name, schema_json FROM schema_versions"
    )


@pytest.mark.req("ONT-012")
def test_listed_types_are_registered_when_the_session_is_made(open_session, sql):
    open_session(entity_types=[Customer, Product], relation_types=[Subscription])

    assert sql("SELECT type_kind, type_name FROM schema_registry ORDER BY 1, 2") == [
        ["entity", "Customer"],
        ["entity", "Product"],
        ["relation", "Subscription"],
    ]


@pytest.mark.req("SQL-078")
def test_registering_the_same_schema_again_adds_nothing(open_session, sql):
    for _ in range(3):
        Person = person()  # another class object each time, of the same schema
        session = open_session(entity_types=[Person])
        session.ensure(Person(id="p1", name="Ada"))
        session.commit()

    assert sql(VERSIONS) == [["entity", "Person", 1, "initial"]]
    assert sql("SELECT COUNT(*) FROM schema_registry") == [[1]]


def test_two_sessions_that_meet_a_new_type_at_once_register_it_once(open_session, sql):
    one, other = open_session(), open_session()
    for session, key in ((one, "p1"), (other, "p2")):
        session.ensure(person()(id=key, name="Ada"))

    one.commit()
    other.commit()

    assert sql(VERSIONS) == [["entity", "Person", 1, "initial"]]


def test_two_sessions_with_different_classes_of_one_new_name_do_not_both_write(open_session, sql):
    one, other = open_session(), open_session()
    one.ensure(person()(id="p1", name="Ada"))
    other.ensure(person_with_email()(id="p2", name="Bo", email="bo@example.org"))
    one.commit()

    with pytest.raises(SchemaOutdatedError):
        other.commit()

    assert sql(VERSIONS) == [["entity", "Person", 1, "initial"]]
    assert one.head == 1


@pytest.mark.req("SQL-079")
def test_an_entity_and_a_relation_of_one_name_are_two_types(open_session, sql):
    Place, RouteEntity, RouteRelation = places()
    session = open_session(entity_types=[Place, RouteEntity], relation_types=[RouteRelation])
    session.ensure([RouteEntity(id="r1"), RouteRelation(left_key="a", right_key="b", length=3)])
    session.commit()

    Place, Longer, RouteRelation = places(entity_has_name=True)
    other = open_session(entity_types=[Place, Longer], relation_types=[RouteRelation])
    other.ensure(RouteRelation(left_key="a", right_key="b", length=4))

    assert other.commit() == 2
    other.ensure(Longer(id="r1", name="Silk Road"))
    with pytest.raises(SchemaOutdatedError, match="entity Route"):
        other.commit()
    assert [row for row in sql(VERSIONS) if row[1] == "Route"] == [
        ["entity", "Route", 1, "initial"],
        ["relation", "Route", 1, "initial"],
    ]


def places(*, entity_has_name=False):
    class Place(Entity):
        id: Field[str]

    def entity():
        class Route(Entity):
            id: Field[str]

        return Route

    def named_entity():
        class Route(Entity):
            id: Field[str]
            name: Field[str]

        return Route

    class Route(Relation[Place, Place]):
        length: Field[int]

    return Place, named_entity() if entity_has_name else entity(), Route


@pytest.mark.req("SQL-019")
def test_the_stored_hash_is_the_sha256_of_the_stored_schema(open_session, sql):
    open_session(entity_types=[Customer, Product], relation_types=[Subscription])

    rows = sql("SELECT schema_json, schema_hash FROM schema_versions")

    assert len(rows) == 3
    for schema_json, schema_hash in rows:
        canonical = json.dumps(json.loads(schema_json), sort_keys=True, separators=(",", ":"))
        assert schema_hash == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.req("SQL-084")
def test_the_store_says_its_head_and_the_current_version_of_a_type(open_session, uri, clock):
    store = open_store(uri, OntologiaConfig(), clock, Random())
    unknown = store.get_head_commit_id(), store.get_current_schema_version("entity", "Person")
    Person = person()
    session = open_session()
    session.ensure(Person(id="p1", name="Ada"))
    session.commit()
    migrate(open_session(entity_types=[person_with_email()]))

    current = store.get_current_schema_version("entity", "Person")
    store.close()

    assert unknown == (None, None)
    assert session.head == 2
    assert current["schema_version_id"] == 2
    assert json.loads(current["schema_json"])["fields"].keys() == {"id", "name", "email"}


# -- the version of what is written -----------------------------------------------------------


@pytest.mark.req("SQL-022")
def test_every_row_carries_the_version_its_type_had_when_it_was_written(open_session, sql):
    session = open_session()
    session.ensure([person()(id="p1", name="Ada"), Product(sku="s", price=1.0)])
    session.ensure(Subscription(left_key="p1", right_key="s", seats=1))
    session.commit()
    Newer = person_with_email()
    newer = open_session(entity_types=[Newer])
    migrate(newer)

    newer.ensure(Newer(id="p2", name="Bo", email="bo@example.org"))
    newer.commit()

    rows = (
        "SELECT commit_id, schema_version_id FROM entity_history WHERE entity_type = '{}' "
        "ORDER BY id"
    )
    assert sql(rows.format("Person")) == [[1, 1], [2, 2], [3, 2]]
    assert sql(rows.format("Product")) == [[1, 1]]
    assert sql("SELECT schema_version_id FROM relation_history") == [[1]]


def person_with_level(kind):
    class Person(Entity):
        id: Field[str]
        name: Field[str]
        level: Field[kind]

    return Person


@pytest.mark.req("SQL-110", "SQL-111", "SQL-018")
def test_versions_have_no_gaps_and_every_row_has_one_that_exists(open_session, sql):
    session = open_session()
    session.ensure([person()(id="p1", name="Ada"), Product(sku="s", price=1.0)])
    session.commit()
    for number, kind in enumerate((int, str, float), start=1):
        newer = open_session(entity_types=[person_with_level(kind)])
        with pytest.raises(MissingUpgraderError):
            newer.migrate(dry_run=False, force=True)
        step = {("Person", number): functools.partial(with_level, kind)}
        newer.migrate(dry_run=False, force=True, upgraders=step)
        session.ensure(Subscription(left_key="p1", right_key="s", seats=number))
        session.commit()

    numbers = "SELECT schema_version_id FROM schema_versions WHERE type_name = '{}' ORDER BY id"
    assert sql(numbers.format("Person")) == [[1], [2], [3], [4]]
    assert sql(numbers.format("Product")) == [[1]]
    assert sql("SELECT COUNT(DISTINCT schema_version_id) FROM entity_history") == [[4]]
    for kind in ("entity", "relation"):
        assert not sql(
            f"SELECT h.{kind}_type, h.schema_version_id FROM {kind}_history h "
            f"LEFT JOIN schema_versions v ON v.type_kind = '{kind}' AND v.type_name = "
            f"h.{kind}_type AND v.schema_version_id = h.schema_version_id WHERE v.id IS NULL"
        )


def with_level(kind, fields):
    return fields | {"level": kind(7)}


# -- drift ------------------------------------------------------------------------------------


@pytest.mark.req("SQL-080")
def test_opening_with_a_changed_class_leaves_the_stored_schema_alone(open_session, sql):
    open_session(entity_types=[person()])
    before = sql("SELECT * FROM schema_registry"), sql("SELECT * FROM schema_versions")
    Newer = person_with_email()

    session = open_session(entity_types=[Newer])
    session.ensure(Newer(id="p1", name="Ada", email="ada@example.org"))
    with pytest.raises(SchemaOutdatedError) as caught:
        session.commit()

    assert (sql("SELECT * FROM schema_registry"), sql("SELECT * FROM schema_versions")) == before
    assert session.head == 0
    [diff] = caught.value.diffs
    assert (diff.kind, diff.name, diff.from_version) == ("entity", "Person", 1)
    assert diff.added == ("email",)


@pytest.mark.req("SQL-080")
def test_a_refused_commit_goes_through_once_the_store_was_migrated(open_session):
    open_session(entity_types=[person()])
    Newer = person_with_email()
    session = open_session(entity_types=[Newer])
    session.ensure(Newer(id="p1", name="Ada", email="ada@example.org"))
    with pytest.raises(SchemaOutdatedError):
        session.commit()

    migrate(session)

    assert session.commit() == 1
    assert session.query().entities(Newer).first().email == "ada@example.org"


@pytest.mark.req("SQL-076")
def test_a_commit_is_refused_when_another_session_migrated_after_ensure(open_session, sql):
    Person = person()
    session = open_session(entity_types=[Person])
    session.ensure(Person(id="p1", name="Ada"))
    session.commit()
    session.ensure(Person(id="p1", name="Ada Lovelace"))
    migrate(open_session(entity_types=[person_with_email()]))

    with pytest.raises(SchemaOutdatedError) as caught:
        session.commit()

    assert caught.value.diffs[0].removed == ("email",)
    assert session.head == 2  # the migration's
    assert sql("SELECT COUNT(*) FROM entity_history") == [[2]]
    assert session.discard() == 1


class ActingClock(ManualClock):
    """Does something, once, when somebody waits."""

    act = None

    def sleep(self, seconds):
        if self.act is not None:
            act, self.act = self.act, None
            act()
        super().sleep(seconds)


@pytest.mark.req("SQL-076")
def test_the_check_is_made_within_the_write_transaction_and_not_before_it(open_session, sql):
    waiting = ActingClock()
    Person = person()
    session = open_session(entity_types=[Person], settings={"clock": waiting})
    session.ensure(Person(id="p1", name="Ada"))
    sql("INSERT INTO locks VALUES ('ontology_write', 'an import', '2026', '2999')")

    def meanwhile():
        sql("DELETE FROM locks")
        migrate(open_session(entity_types=[person_with_email()]))

    waiting.act = meanwhile
    with pytest.raises(SchemaOutdatedError):
        session.commit()

    assert waiting.act is None
    assert session.head == 0


@pytest.mark.req("SQL-077")
def test_a_type_that_the_commit_does_not_touch_may_have_drifted(open_session):
    open_session(entity_types=[person()])
    session = open_session(entity_types=[person_with_email(), Product])

    session.ensure(Product(sku="s", price=1.0))

    assert session.commit() == 1
    with pytest.raises(SchemaOutdatedError):
        session.validate()


def test_a_refused_commit_registers_nothing_either(open_session, sql):
    open_session(entity_types=[person()])
    Newer = person_with_email()
    session = open_session()
    session.ensure([Product(sku="s", price=1.0), Newer(id="p1", name="Ada", email="a@b.c")])

    with pytest.raises(SchemaOutdatedError):
        session.commit()

    assert sql(VERSIONS) == [["entity", "Person", 1, "initial"]]
    assert session.head == 0


@pytest.mark.req("SQL-076")
def test_a_dry_run_is_refused_like_the_commit_it_stands_for(open_session):
    open_session(entity_types=[person()])
    Newer = person_with_email()
    session = open_session()
    session.ensure(Newer(id="p1", name="Ada", email="ada@example.org"))

    with pytest.raises(SchemaOutdatedError):
        session.commit(dry_run=True)


def test_another_default_or_index_is_no_other_schema(open_session):
    def adorned():
        class Person(Entity):
            id: Field[str] = Field(primary_key=True)
            name: Field[str] = Field(default="nobody", index=True)

        return Person

    open_session(entity_types=[person()])
    Adorned = adorned()
    session = open_session(entity_types=[Adorned])

    session.validate()
    session.ensure(Adorned(id="p1"))

    assert session.commit() == 1
    assert not session.migrate()


# -- validate ---------------------------------------------------------------------------------


def test_validate_says_nothing_when_classes_and_store_agree(open_session):
    session = open_session(entity_types=[person(), Customer])

    assert session.validate() is None


def test_validate_raises_with_every_type_that_differs_and_writes_nothing(open_session, sql):
    def products():
        class Product(Entity):
            sku: Field[str] = Field(primary_key=True)
            price: Field[int]

        return Product

    open_session(entity_types=[person(), Product, Customer])
    before = sql(VERSIONS)
    session = open_session(entity_types=[products(), person_with_email(), Customer])

    with pytest.raises(SchemaOutdatedError) as caught:
        session.validate()

    assert [diff.name for diff in caught.value.diffs] == ["Person", "Product"]
    assert caught.value.diffs[1].changed == (("price", "float", "int"),)
    assert "migrate" in caught.value.hint
    assert sql(VERSIONS) == before


def test_validate_is_content_again_after_the_migration(open_session):
    open_session(entity_types=[person()])
    session = open_session(entity_types=[person_with_email()])

    migrate(session)

    assert session.validate() is None


@pytest.mark.req("SQL-006")
def test_a_new_field_changes_no_table(open_session, sql, backend):
    tables = TABLES[backend.name]
    first = person()
    old = open_session(entity_types=[first])
    old.ensure(first(id="p1", name="Ada"))
    old.commit()
    before = sql(tables)

    new = open_session(entity_types=[person_with_email()])
    migrate(new)

    assert sql(tables) == before
    [[stored]] = sql("SELECT fields_json FROM entity_history ORDER BY id DESC LIMIT 1")
    assert json.loads(stored) == {"email": "p1@example.org", "id": "p1", "name": "Ada"}
