"""The functions that bring old objects to the present: registered, chained, and run on reading."""

from __future__ import annotations

import functools
import itertools
import textwrap
from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest

from ontologia import Entity, Field, Relation, left, load_upgraders, upgrader
from ontologia.errors import (
    DefinitionError,
    MissingUpgraderError,
    UpgraderError,
)
from ontologia.migration import _chain_upgraders
from ontologia.query import count

_numbers = itertools.count(1)


class Person(Entity):
    """The first version: a name. The second has it in parts, the third a title, too."""

    id: Field[str]
    name: Field[str]


class Knows(Relation[Person, Person]):
    since: Field[int]


def second():
    class Person(Entity):
        id: Field[str]
        first: Field[str]
        last: Field[str]

    class Knows(Relation[Person, Person]):
        since: Field[int]

    return Person, Knows


def third():
    class Person(Entity):
        id: Field[str]
        first: Field[str]
        last: Field[str]
        title: Field[str]

    class Knows(Relation[Person, Person]):
        since: Field[int]

    return Person, Knows


def split_name(fields):
    first, last = fields.pop("name").split()
    return fields | {"first": first, "last": last}


def add_title(fields):
    return fields | {"title": f"Prof. {fields['last']}"}


STEPS = {("Person", 1): split_name, ("Person", 2): add_title}


@pytest.fixture
def contents(direct):
    """Everything the store has written down."""

    def read():
        tables = ("commits", "entity_history", "entity_latest", "schema_registry")
        tables += ("schema_versions", "relation_history", "relation_latest", "locks")
        return {table: direct(f"SELECT * FROM {table}") for table in tables}

    return read


@pytest.fixture
def people(open_session):
    """Commit 1: Ada and Alan, who know each other. Commit 2: Ada has married."""
    session = open_session(entity_types=[Person], relation_types=[Knows])
    session.ensure([Person(id="p1", name="Ada Byron"), Person(id="p2", name="Alan Turing")])
    session.ensure(Knows(left_key="p1", right_key="p2", since=1936))
    session.commit()
    session.ensure(Person(id="p1", name="Ada Lovelace"))
    session.commit()
    return session


@pytest.fixture
def migrated(people, open_session):
    """The same store, brought to the third version in two steps: commits 3 and 4."""
    for classes in (second(), third()):
        session = open_session(entity_types=[classes[0]], upgraders=STEPS)
        session.migrate(dry_run=False, force=True)


# -- registration -----------------------------------------------------------------------------


@pytest.fixture
def type_name():
    """A name of its own: what the decorator registers stays for the whole process."""
    return f"Thing{next(_numbers)}"


def thing(name, *fields):
    """A class with this name and an `id` and these fields, all text."""
    annotations = dict.fromkeys(("id", *fields), Field[str])
    return type(Entity)(name, (Entity,), {"__annotations__": annotations, "__module__": __name__})


def store_one(open_session, type_name):
    old = thing(type_name)
    session = open_session(entity_types=[old])
    session.ensure(old(id="t1"))
    session.commit()


@pytest.mark.req("SQL-100")
def test_the_decorator_registers_an_upgrader_for_every_session(open_session, type_name):
    store_one(open_session, type_name)

    @upgrader(type_name, from_version=1)
    def add_colour(fields):
        return fields | {"colour": "red"}

    Newer = thing(type_name, "colour")
    session = open_session(entity_types=[Newer])
    session.migrate(dry_run=False, force=True)

    assert session.query().entities(Newer).first() == Newer(id="t1", colour="red")
    assert add_colour({"id": "t2"}) == {"id": "t2", "colour": "red"}  # still a plain function


@pytest.mark.req("SQL-100")
@pytest.mark.parametrize("place", ["Session", "migrate"])
def test_upgraders_can_be_given_to_the_session_or_to_the_migration(open_session, type_name, place):
    store_one(open_session, type_name)
    steps = {(type_name, 1): lambda fields: fields | {"colour": "blue"}}
    Newer = thing(type_name, "colour")

    if place == "Session":
        session = open_session(entity_types=[Newer], upgraders=steps)
        session.migrate(dry_run=False, force=True)
    else:
        session = open_session(entity_types=[Newer])
        session.migrate(dry_run=False, force=True, upgraders=steps)

    assert session.query().entities(Newer).first().colour == "blue"
    assert session.query().entities(Newer).as_of(1).first().colour == "blue"


@pytest.mark.req("SQL-100")
def test_upgraders_are_loaded_from_a_module(open_session, type_name, tmp_path, monkeypatch):
    store_one(open_session, type_name)
    module = f"upgraders_of_{type_name.lower()}"
    source = f"""
        from ontologia import upgrader

        @upgrader("{type_name}", from_version=1)
        def add_colour(fields):
            fields["colour"] = "green"
            return fields

        @upgrader("{type_name}", from_version=2)
        def add_size(fields):
            return fields | {{"size": "big"}}
    """
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)

    loaded = load_upgraders(module)

    assert [(key, step.__name__) for key, step in loaded.items()] == [
        ((type_name, 1), "add_colour"),
        ((type_name, 2), "add_size"),
    ]
    assert load_upgraders(module) == loaded
    Newer = thing(type_name, "colour")
    session = open_session(entity_types=[Newer])
    session.migrate(dry_run=False, force=True)
    assert session.query().entities(Newer).first().colour == "green"


def test_an_upgrader_of_the_session_wins_over_a_registered_one(open_session, type_name):
    store_one(open_session, type_name)
    upgrader(type_name, from_version=1)(lambda fields: fields | {"colour": "registered"})
    Newer = thing(type_name, "colour")
    own = {(type_name, 1): lambda fields: fields | {"colour": "own"}}
    session = open_session(entity_types=[Newer], upgraders=own)

    session.migrate(dry_run=False, force=True)

    assert session.query().entities(Newer).first().colour == "own"


def test_one_step_cannot_have_two_upgraders(type_name):
    upgrader(type_name, from_version=1)(split_name)
    upgrader(type_name, from_version=1)(split_name)  # a module imported again is no conflict

    with pytest.raises(DefinitionError, match="two upgraders"):
        upgrader(type_name, from_version=1)(add_title)


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0], ids=repr)
def test_versions_are_counted_from_one(version):
    with pytest.raises(DefinitionError, match="counts from 1"):
        upgrader("Person", from_version=version)


# -- the chain --------------------------------------------------------------------------------


@pytest.mark.req("SQL-095")
def test_a_chain_applies_every_step_in_order_each_to_the_result_of_the_last():
    def went_through(number, fields):
        return {"path": [*fields["path"], number]}

    steps = {("T", n): functools.partial(went_through, n) for n in (3, 1, 2, 4)}

    assert _chain_upgraders(steps, "T", 1, 4)({"path": []}) == {"path": [1, 2, 3]}
    assert _chain_upgraders(steps, "T", 3, 5)({"path": []}) == {"path": [3, 4]}


@pytest.mark.req("SQL-096")
def test_a_chain_names_every_step_that_is_missing():
    steps = {("T", 2): dict, ("Other", 1): dict, ("T", 5): dict}

    with pytest.raises(MissingUpgraderError) as caught:
        _chain_upgraders(steps, "T", 1, 5)

    assert (caught.value.type_name, caught.value.missing_versions) == ("T", [1, 3, 4])
    assert "from version 1, 3, 4" in str(caught.value)
    assert '@upgrader("T", from_version=1)' in caught.value.hint


@pytest.mark.req("SQL-098")
def test_from_a_version_to_itself_nothing_is_needed_and_nothing_is_changed():
    fields = {"a": [1]}

    assert _chain_upgraders({}, "T", 3, 3)(fields) == {"a": [1]}


@pytest.mark.req("SQL-097")
def test_a_chain_leaves_what_it_was_given_as_it_was():
    def careless(fields):
        fields["tags"].append("new")
        fields.pop("name")
        return fields

    fields = {"name": "x", "tags": ["old"]}

    assert _chain_upgraders({("T", 1): careless}, "T", 1, 2)(fields) == {"tags": ["old", "new"]}
    assert fields == {"name": "x", "tags": ["old"]}


# -- what upgraders may do wrong --------------------------------------------------------------


def fails_on_the_second(fields):
    if fields["id"] == "p2":
        raise LookupError("no such name")
    return split_name(fields)


WRONG = {
    "raises in the middle": fails_on_the_second,
    "gives nothing": lambda fields: None,
    "gives a list": lambda fields: [fields],
    "gives a word": lambda fields: "fields",
    "forgets a field": lambda fields: {"id": fields["id"], "first": "Ada"},
    "adds a field": lambda fields: split_name(fields) | {"middle": "K."},
    "keeps the old field": lambda fields: fields | {"first": "A", "last": "B"},
    "gives the wrong type": lambda fields: split_name(fields) | {"last": 7},
    "gives what is not unicode": lambda fields: split_name(fields) | {"last": "\ud800"},
    "changes the key": lambda fields: split_name(fields) | {"id": "p3"},
    "forgets the key": lambda fields: {"first": "Ada", "last": "Lovelace"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_upgrader_that_does_wrong_leaves_everything_as_it_was(
    people, open_session, contents, wrong
):
    session = open_session(entity_types=[second()[0]], upgraders={("Person", 1): WRONG[wrong]})
    preview = session.migrate()
    before = contents()

    with pytest.raises(UpgraderError, match=r"Person 'p[12]'") as caught:
        session.migrate(dry_run=False, token=preview.token)

    assert caught.value.type_name == "Person"
    assert contents() == before
    assert session.migrate() == preview


def test_the_error_of_an_upgrader_is_the_cause_of_ours(people, open_session):
    session = open_session(
        entity_types=[second()[0]], upgraders={("Person", 1): fails_on_the_second}
    )

    with pytest.raises(UpgraderError, match=r"no such name.*; nothing was written") as caught:
        session.migrate(dry_run=False, force=True)

    assert caught.value.key == "p2"
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Decimal, "much"), (date, 5), (date, "soon"), (UUID, 5), (bytes, 5)],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_a_value_that_cannot_be_its_type_is_the_upgraders_error_too(open_session, kind, value):
    store_one(open_session, "Thing")
    session = open_session(
        entity_types=[typed_thing(kind)], upgraders={("Thing", 1): lambda f: f | {"value": value}}
    )

    with pytest.raises(UpgraderError, match="Thing 't1'"):
        session.migrate(dry_run=False, force=True)
    assert session.head == 1


def typed_thing(kind):
    class Thing(Entity):
        id: Field[str]
        value: Field[kind]

    return Thing


@pytest.mark.parametrize(
    "value", ["9.50", Decimal("9.50")], ids=["as it is stored", "as python has it"]
)
def test_an_upgrader_may_give_json_or_the_typed_value(open_session, value):
    store_one(open_session, "Thing")
    Newer = typed_thing(Decimal)
    session = open_session(
        entity_types=[Newer], upgraders={("Thing", 1): lambda f: f | {"value": value}}
    )

    session.migrate(dry_run=False, force=True)

    question = session.query().entities(Newer)
    assert question.where(Newer.value > 9).first().value == Decimal("9.50")
    assert question.where(Newer.value > 9).as_of(1).first().value == Decimal("9.50")


# -- the past, in today's words ---------------------------------------------------------------


@pytest.fixture
def now(migrated, open_session):
    """A session of the third version, with every upgrader, and its classes."""
    Newer, NewKnows = third()
    session = open_session(entity_types=[Newer], relation_types=[NewKnows], upgraders=STEPS)
    return session, Newer, NewKnows


@pytest.mark.req("SQL-099", "SQL-095")
def test_every_state_of_the_past_is_read_in_the_words_of_the_present(now):
    session, Newer, _ = now
    question = session.query().entities(Newer).where(Newer.id == "p1")

    states = [question.as_of(commit).first() for commit in (1, 2, 3, 4)]

    assert [(p.first, p.last, p.title) for p in states] == [
        ("Ada", "Byron", "Prof. Byron"),
        ("Ada", "Lovelace", "Prof. Lovelace"),
        ("Ada", "Lovelace", "Prof. Lovelace"),
        ("Ada", "Lovelace", "Prof. Lovelace"),
    ]
    assert [p.meta().commit_id for p in states] == [1, 2, 3, 4]


@pytest.mark.req("SQL-099")
def test_history_reaches_across_every_change_of_schema(now):
    session, Newer, _ = now
    question = session.query().entities(Newer)

    history = [(p.meta().commit_id, p.id, p.title) for p in question.with_history().collect()]

    assert history == [
        (1, "p1", "Prof. Byron"),
        (1, "p2", "Prof. Turing"),
        (2, "p1", "Prof. Lovelace"),
        (3, "p1", "Prof. Lovelace"),
        (3, "p2", "Prof. Turing"),
        (4, "p1", "Prof. Lovelace"),
        (4, "p2", "Prof. Turing"),
    ]
    since = question.history_since(1).collect()
    assert [(p.meta().commit_id, p.id, p.title) for p in since] == history[2:]


@pytest.mark.req("SQL-099")
def test_a_deletion_shows_the_fields_before_it_upgraded(people, open_session):
    people.delete(Person(id="p2", name=""))
    people.commit()
    Newer, _ = second()
    session = open_session(entity_types=[Newer], upgraders=STEPS)
    session.migrate(dry_run=False, force=True)

    *_, deletion = session.query().entities(Newer).where(Newer.id == "p2").with_history().collect()

    assert deletion.meta().deleted
    assert (deletion.first, deletion.last) == ("Alan", "Turing")


@pytest.mark.req("SQL-099")
def test_filters_on_the_past_see_fields_that_it_did_not_have(now):
    session, Newer, _ = now
    question = session.query().entities(Newer)

    assert [p.id for p in question.where(Newer.title == "Prof. Byron").as_of(1).collect()] == ["p1"]
    assert question.where(Newer.title == "Prof. Lovelace").as_of(1).collect() == []
    assert question.where(~(Newer.last == "Byron")).as_of(1).first().id == "p2"
    assert question.where(Newer.title.is_null()).as_of(1).count() == 0
    byrons = question.where(Newer.last.startswith("By")).with_history().collect()
    assert [p.meta().commit_id for p in byrons] == [1]


@pytest.mark.req("SQL-099")
def test_order_and_bounds_on_the_past_go_by_upgraded_values(now):
    session, Newer, _ = now
    question = session.query().entities(Newer).as_of(1).order_by(Newer.title.desc())

    assert [p.last for p in question.collect()] == ["Turing", "Byron"]
    assert [p.last for p in question.limit(1).offset(1).collect()] == ["Byron"]
    assert question.first().last == "Turing"


@pytest.mark.req("SQL-099")
def test_aggregates_over_the_past_count_upgraded_values(now):
    session, Newer, _ = now
    question = session.query().entities(Newer)

    assert question.as_of(1).min(Newer.title) == "Prof. Byron"
    assert question.as_of(1).count_where(Newer.first == "Ada") == 1
    assert question.where(Newer.title == "Prof. Turing").with_history().count() == 3
    groups = question.with_history().group_by(Newer.last).having(count() > 1).agg(n=count())
    assert groups == [{"last": "Lovelace", "n": 3}, {"last": "Turing", "n": 3}]


@pytest.mark.req("SQL-099")
def test_the_ends_of_past_relations_are_upgraded_and_filtered_so(now):
    session, Newer, NewKnows = now
    question = session.query().relations(NewKnows).as_of(1)

    [found] = question.where(left(NewKnows).title == "Prof. Byron").collect()

    assert (found.left.last, found.right.title) == ("Byron", "Prof. Turing")
    assert question.where(left(NewKnows).title == "Prof. Lovelace").collect() == []
    ways = session.query().entities(Newer).via(NewKnows).as_of(1)
    assert [way.source.title for way in ways.where(Newer.last == "Byron").collect()] == [
        "Prof. Byron"
    ]


@pytest.mark.req("SQL-099")
def test_the_past_of_relations_is_upgraded_too(people, open_session):
    def dated():
        class Knows(Relation[Person, Person]):
            year: Field[str]

        return Knows

    Dated = dated()
    session = open_session(
        relation_types=[Dated], upgraders={("Knows", 1): lambda f: {"year": f"AD {f['since']}"}}
    )
    session.migrate(dry_run=False, force=True)
    session.ensure(Dated(left_key="p1", right_key="p2", year="AD 1940"))
    session.commit()
    question = session.query().relations(Dated)

    assert [r.year for r in question.with_history().collect()] == ["AD 1936", "AD 1936", "AD 1940"]
    assert question.where(Dated.year == "AD 1936").as_of(1).count() == 1
    assert question.where(Dated.year == "AD 1936").collect() == []


@pytest.mark.req("SQL-099")
def test_a_difference_across_the_change_shows_what_changed_and_not_how_it_was_written(now):
    session, _, _ = now

    [change] = session.diff(1, 4).updated

    assert change.key == "p1"
    assert change.fields == {
        "last": ("Byron", "Lovelace"),
        "title": ("Prof. Byron", "Prof. Lovelace"),
    }
    assert not session.diff(2, 4)


@pytest.mark.req("SQL-099", "SQL-097")
def test_old_versions_stay_in_the_store_as_they_were_written(now, sql):
    session, Newer, _ = now
    session.query().entities(Newer).with_history().collect()

    rows = sql("SELECT fields_json FROM entity_history WHERE commit_id < 3 ORDER BY id")

    assert rows == [
        ['{"id":"p1","name":"Ada Byron"}'],
        ['{"id":"p2","name":"Alan Turing"}'],
        ['{"id":"p1","name":"Ada Lovelace"}'],
    ]


@pytest.mark.req("SQL-096")
def test_without_upgraders_the_present_is_read_and_the_past_names_what_is_missing(
    migrated, open_session
):
    Newer, _ = third()
    session = open_session(entity_types=[Newer])
    question = session.query().entities(Newer)

    assert [p.title for p in question.collect()] == ["Prof. Lovelace", "Prof. Turing"]
    for asked in (question.as_of(1), question.with_history(), question.history_since(0)):
        with pytest.raises(MissingUpgraderError) as caught:
            asked.collect()
        assert (caught.value.type_name, caught.value.missing_versions) == ("Person", [1, 2])
        assert "cannot be read" in str(caught.value)
        assert "nothing was written" not in str(caught.value)
    with pytest.raises(MissingUpgraderError, match="from version 2;"):
        question.as_of(3).where(Newer.title == "Prof. Turing").count()


def test_an_old_program_still_reads_its_own_past(migrated, people):
    question = people.query().entities(Person)

    assert [p.name for p in question.as_of(1).collect()] == ["Ada Byron", "Alan Turing"]
    assert question.where(Person.name == "Ada Lovelace").as_of(2).count() == 1


def test_an_upgrader_that_fails_on_the_past_says_on_which_object(migrated, open_session):
    Newer, _ = third()
    broken = STEPS | {("Person", 1): fails_on_the_second}
    session = open_session(entity_types=[Newer], upgraders=broken)
    question = session.query().entities(Newer)

    with pytest.raises(UpgraderError, match=r"Person 'p2'.*; this version of it cannot be read"):
        question.as_of(1).collect()

    assert question.as_of(1).where(Newer.id == "p1").first().last == "Byron"
    assert question.count() == 2


def test_a_session_reads_the_past_through_upgraders_once_another_has_migrated(open_session):
    """What it learned of the versions before the migration does not hold after it."""

    def with_nick():
        class Person(Entity):
            id: Field[str]
            name: Field[str]
            nick: Field[str] = Field(default="none")

        return Person

    old = open_session()
    old.ensure(Person(id="p1", name="Ada"))
    old.commit()
    steps = {("Person", 1): lambda fields: fields | {"nick": fields["name"].lower()}}
    Nicked = with_nick()
    session = open_session(entity_types=[Nicked], upgraders=steps)
    before = session.query().entities(Nicked).as_of(1).first().nick

    open_session(entity_types=[with_nick()], upgraders=steps).migrate(dry_run=False, force=True)

    assert before == "none"
    assert session.query().entities(Nicked).first().nick == "ada"
    assert session.query().entities(Nicked).as_of(1).first().nick == "ada"
