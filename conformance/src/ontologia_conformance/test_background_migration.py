"""A breaking change in the background: beside the work of others, and whole at every moment."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from threading import Event, Thread, current_thread

import pytest

from ontologia import Entity, Field, Relation
from ontologia.errors import (
    LockContentionError,
    LockLostError,
    MigrationError,
    MissingUpgraderError,
    SchemaOutdatedError,
    TransferError,
    UniqueViolationError,
    UpgraderError,
)
from ontologia.migration import MigrationResult
from ontologia.migration.apply import Migration
from ontologia.runtime.session import core_of
from ontologia.runtime.transfer import export_state
from ontologia.store import staging
from ontologia_conformance.shop import Product
from ontologia_conformance.tiers import samples

TABLES = (
    "commits",
    "entity_history",
    "relation_history",
    "entity_latest",
    "relation_latest",
    "schema_registry",
    "schema_versions",
    "locks",
    "pending_migration",
    "staged_entities",
    "staged_relations",
    "staged_values",
)
STAGING = TABLES[-4:]
BACKGROUND = {"migration_at_once": 0}


class Stop(Exception):
    """What a process dies of."""


class Person(Entity):
    """The first version; the functions below give later ones."""

    id: Field[str]
    name: Field[str] = Field(index=True)


class Knows(Relation[Person, Person]):
    kind: Field[str] = Field(instance_key=True)
    since: Field[int]


def person_in_parts(**options):
    class Person(Entity):
        id: Field[str]
        first: Field[str] = Field(index=True)
        last: Field[str] = Field(**options)

    return Person


def split_name(fields):
    first, last = fields["name"].split()
    return {"id": fields["id"], "first": first, "last": last}


SPLIT = {("Person", 1): split_name}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(staging, "PAGE", 3)


@pytest.fixture
def contents(direct):
    """Everything the store has written down."""

    def read(*tables):
        return {table: direct(f"SELECT * FROM {table}") for table in tables or TABLES}

    return read


@pytest.fixture
def old(open_session):
    """A session of the first version, with eight people."""
    session = open_session(entity_types=[Person, Product])
    session.ensure([Person(id=f"p{n}", name=f"Ada{n} King{n}") for n in range(8)])
    session.commit()
    return session


@pytest.fixture
def migrating(open_session):
    """Open a session that migrates in the background; with `at`, do something at each step."""

    def make(cls=None, upgraders=SPLIT, **settings):
        return open_session(
            entity_types=[cls or person_in_parts()],
            upgraders=upgraders,
            settings=BACKGROUND | settings,
        )

    return make


def apply(session, at=None, **options):
    """Migrate; `at` has what to do by the step, and does it once."""
    todo = dict(at or {})

    def progress(now):
        if act := todo.pop(now.step, None):
            act()

    result = session.migrate(dry_run=False, force=True, progress=progress, **options)
    assert todo == {}, "a step that was not reached"
    return result


def people(session, cls):
    return {each.id: each for each in session.query().entities(cls).collect()}


def interrupted(session, step):
    """Migrate until this step, and die there."""

    def die():
        raise Stop

    with pytest.raises(Stop):
        apply(session, {step: die})


# -- what becomes of it -------------------------------------------------------------------------


@pytest.mark.req("NEW-144")
def test_all_objects_are_upgraded_in_one_commit_with_one_version_each(old, migrating, direct, sql):
    Newer = person_in_parts()
    session = migrating(Newer)

    result = session.migrate(dry_run=False, token=session.migrate().token)

    assert result == MigrationResult(["Person"], {"Person": 2}, 2, 8)
    assert people(session, Newer) == {
        f"p{n}": Newer(id=f"p{n}", first=f"Ada{n}", last=f"King{n}") for n in range(8)
    }
    assert {each.meta().commit_id for each in people(session, Newer).values()} == {2}
    assert session.get_commit(2)["metadata"]["migration"] == {"Person": 2}
    written = direct(
        "SELECT entity_key, commit_id, schema_version_id FROM entity_history ORDER BY id"
    )
    assert [tuple(row) for row in written] == [
        *((f"p{n}", 1, 1) for n in range(8)),
        *((f"p{n}", 2, 2) for n in range(8)),
    ]
    assert sql("SELECT schema_version_id, reason FROM schema_versions ORDER BY id")[-1] == [
        *(2, "migration")
    ]


@pytest.mark.req("NEW-144")
def test_its_changes_are_those_of_one_commit(migrating, old):
    session = migrating()
    session.migrate(dry_run=False, force=True)

    assert session.list_commit_changes(2) == [
        {"entity_id": f"Person:p{n}", "relation_id": None, "change_type": "updated"}
        for n in range(8)
    ]


@pytest.mark.req("NEW-144")
def test_nothing_of_it_is_left_when_it_is_done(old, migrating, contents):
    migrating().migrate(dry_run=False, force=True)

    assert contents(*STAGING, "locks") == {table: [] for table in (*STAGING, "locks")}
    assert migrating().pending_migration() is None


def test_what_older_versions_were_is_upgraded_through_all_steps(old, open_session, migrating):
    """Objects that a compatible change has left as they are."""

    class WithNick(Entity, name="Person"):
        id: Field[str]
        name: Field[str] = Field(index=True)
        nick: Field[str] = Field(default="none")

    class InParts(Entity, name="Person"):
        id: Field[str]
        first: Field[str]
        nick: Field[str]

    open_session(entity_types=[WithNick]).migrate(dry_run=False, force=True)

    def first_name(fields):
        return {"id": fields["id"], "first": fields["name"].split()[0], "nick": fields["nick"]}

    session = migrating(InParts, {("Person", 2): first_name})
    session.migrate(dry_run=False, force=True)

    assert people(session, InParts)["p3"] == InParts(id="p3", first="Ada3", nick="none")


@pytest.mark.req("NEW-144")
def test_relations_are_upgraded_as_entities_are(open_session, old):
    old.ensure(
        [Knows(left_key=f"p{n}", right_key=f"p{n + 1}", kind="friend", since=n) for n in range(7)]
    )
    old.commit()

    class Kent(Relation[Person, Person], name="Knows"):
        kind: Field[str] = Field(instance_key=True)
        year: Field[str]

    def in_years(fields):
        return {"year": str(2000 + fields["since"])}

    session = open_session(
        entity_types=[Person],
        relation_types=[Kent],
        upgraders={("Knows", 1): in_years},
        settings=BACKGROUND,
    )
    seen = []

    def read():
        seen.extend(session.query().relations(Kent).where(Kent.year >= "2003").collect())
        session.ensure(Kent(left_key="p0", right_key="p1", kind="friend", year="1999"))
        session.delete(Kent(left_key="p1", right_key="p2", kind="friend", year=""))
        session.commit()

    result = apply(session, {"moving": read})

    assert result.objects == 7
    assert [each.year for each in seen] == ["2003", "2004", "2005", "2006"]
    assert [each.year for each in session.query().relations(Kent).collect()] == [
        *("1999", "2002", "2003", "2004", "2005", "2006")
    ]
    history = session.query().relations(Kent).where(Kent.left_key == "p1").with_history().collect()
    assert [(each.meta().commit_id, each.meta().deleted) for each in history] == [
        *((2, False), (result.commit_id, False), (result.commit_id + 1, True))
    ]


def test_a_type_whose_objects_were_all_deleted_meanwhile_has_no_commit(old, migrating, contents):
    session = migrating()

    def delete():
        old.delete([Person(id=f"p{n}", name="") for n in range(8)])
        old.commit()

    result = apply(session, {"upgrading": delete})

    assert result == MigrationResult(["Person"], {"Person": 2}, None)
    assert contents(*STAGING) == {table: [] for table in STAGING}


# -- beside others --------------------------------------------------------------------------------


@pytest.mark.req("NEW-145")
def test_what_programs_of_the_old_version_write_meanwhile_is_upgraded_too(old, migrating):
    Newer = person_in_parts()
    session = migrating(Newer)

    def change():
        old.ensure(Person(id="p0", name="Grace Hopper"))  # staged already
        old.ensure(Person(id="p6", name="Alan Turing"))  # not yet
        old.ensure(Person(id="a", name="Emmy Noether"))  # before the position
        old.delete(Person(id="p1", name=""))
        old.delete(Person(id="p7", name=""))
        old.ensure(Product(sku="s", price=1.0))
        assert old.commit() == 2
        assert people(old, Person)["p2"].name == "Ada2 King2"
        old.delete(Person(id="p2", name=""))
        old.commit()
        old.ensure(Person(id="p2", name="Mary Somerville"))
        old.commit()

    result = apply(session, {"upgrading": change})

    found = {id: (each.first, each.last) for id, each in people(session, Newer).items()}
    kept = {f"p{n}": (f"Ada{n}", f"King{n}") for n in (3, 4, 5)}
    assert found == kept | {
        "p0": ("Grace", "Hopper"),
        "p6": ("Alan", "Turing"),
        "a": ("Emmy", "Noether"),
        "p2": ("Mary", "Somerville"),
    }
    assert (result.commit_id, result.objects) == (5, 7)


@pytest.mark.req("NEW-145")
def test_writers_of_the_old_version_are_refused_from_the_switch_on(old, migrating):
    session = migrating()

    def refused():
        old.ensure(Person(id="p0", name="Too Late"))
        with pytest.raises(SchemaOutdatedError):
            old.commit()
        old.discard()
        old.ensure(Product(sku="s", price=1.0))
        assert old.commit() == 3

    apply(session, {"moving": refused})

    assert people(session, next(iter(core_of(session).registry)).cls)["p0"].first == "Ada0"


@pytest.mark.req("NEW-145")
def test_a_program_of_the_new_version_is_told_that_the_migration_is_pending(
    old, migrating, open_session
):
    Newer = person_in_parts()

    def refused():
        early = open_session(entity_types=[Newer], upgraders=SPLIT)
        early.ensure(Newer(id="n", first="Too", last="Early"))
        with pytest.raises(SchemaOutdatedError) as caught:
            early.commit()
        assert "migration of Person is pending: 3 of 8 objects" in str(caught.value)
        early.discard()

    apply(migrating(Newer), {"upgrading": refused})


@pytest.mark.req("NEW-145")
def test_after_the_switch_all_is_of_the_new_version_before_anything_is_in_its_place(
    old, migrating, open_session
):
    Newer = person_in_parts()
    session = migrating(Newer)
    behind = open_session(entity_types=[Newer])  # has no upgrader, and has read nothing yet
    read = open_session(entity_types=[Newer], upgraders=SPLIT)
    with pytest.raises(SchemaOutdatedError):
        people(read, Newer)

    def look():
        for each in (behind, read, session):
            assert people(each, Newer) == {
                f"p{n}": Newer(id=f"p{n}", first=f"Ada{n}", last=f"King{n}") for n in range(8)
            }
            query = each.query().entities(Newer)
            assert [p.id for p in query.where(Newer.first == "Ada7").collect()] == ["p7"]
            assert [p.id for p in query.order_by(Newer.last.desc()).limit(2).collect()] == [
                *("p7", "p6")
            ]
            assert each.one(Newer, "p5").last == "King5"
            assert each.one(Newer, "p5").meta().commit_id == 2
        assert not session.diff(1, 2)  # the versions of before are compared as they read now
        assert len(session.list_commit_changes(2)) == 8
        with core_of(session).store.inventory.read() as inventory:
            stored = list(inventory.objects("entity", "Person"))
        assert {each.version for each in stored} == {2}
        with pytest.raises(SchemaOutdatedError):
            people(old, Person)

    apply(session, {"moving": look})
    look()


@pytest.mark.req("NEW-145")
def test_programs_of_the_new_version_write_while_objects_are_moved(old, migrating, direct):
    Newer = person_in_parts()
    session = migrating(Newer)

    def change():
        session.ensure(Newer(id="p7", first="Ada7", last="King7"))  # as it is: no change
        assert session.commit() is None
        p5 = session.one(Newer, "p5")
        p5.last = "Lovelace"
        session.ensure(p5)
        session.delete(Newer(id="p6", first="", last=""))
        session.ensure(Newer(id="new", first="New", last="Comer"))
        assert session.commit() == 3
        assert session.query().entities(Newer).where(Newer.last == "Lovelace").count() == 1

    apply(session, {"moving": change})

    versions = direct(
        "SELECT entity_key, commit_id, schema_version_id FROM entity_history "
        "WHERE entity_key IN ('p5', 'p6', 'p7', 'new') AND commit_id > 1 ORDER BY id"
    )
    assert sorted(tuple(row) for row in versions) == [
        *(("new", 3, 2), ("p5", 2, 2), ("p5", 3, 2), ("p6", 2, 2), ("p6", 3, 2), ("p7", 2, 2))
    ]
    assert set(people(session, Newer)) == {*(f"p{n}" for n in (0, 1, 2, 3, 4, 5, 7)), "new"}


@pytest.mark.sampled
@pytest.mark.req("NEW-145")
@pytest.mark.parametrize("seed", range(samples(20)))
def test_whatever_is_written_when_everybody_sees_one_version_or_the_other(
    old, migrating, direct, seed
):
    """Commits between any two batches; the model knows what should be there."""
    random = Random(seed)
    Newer = person_in_parts()
    session = migrating(Newer)
    model = {f"p{n}": f"Ada{n} King{n}" for n in range(8)}

    def write(writer, make):
        for _ in range(random.randrange(3)):
            key = f"p{random.randrange(12)}"
            if random.random() < 0.3:
                writer.delete(make(key, "x x"))
                model.pop(key, None)
            else:
                model[key] = f"F{random.randrange(100)} L{random.randrange(100)}"
                writer.ensure(make(key, model[key]))
            if random.random() < 0.5:
                writer.commit()
        writer.commit()

    def make_new(key, name):
        first, last = name.split()
        return Newer(id=key, first=first, last=last)

    def meanwhile(now):
        if now.step == "moving":
            write(session, make_new)
            found = {id: f"{p.first} {p.last}" for id, p in people(session, Newer).items()}
        else:
            write(old, lambda key, name: Person(id=key, name=name))
            found = {id: p.name for id, p in people(old, Person).items()}
        assert found == model

    result = session.migrate(dry_run=False, force=True, progress=meanwhile)

    assert {id: f"{p.first} {p.last}" for id, p in people(session, Newer).items()} == model
    twice = direct(
        "SELECT entity_key FROM entity_history GROUP BY entity_key, commit_id HAVING COUNT(*) > 1"
    )
    assert twice == []
    before = {
        row[0]
        for row in direct(
            "SELECT entity_key FROM entity_history h WHERE fields_json <> 'null' AND id = ("
            " SELECT MAX(id) FROM entity_history l WHERE l.entity_key = h.entity_key"
            f" AND l.commit_id < {result.commit_id or 0})"
        )
    }
    migrated = direct(
        f"SELECT entity_key FROM entity_history WHERE commit_id = {result.commit_id or 0}"
    )
    assert {row[0] for row in migrated} == before
    assert result.objects == len(before)


@pytest.mark.req("NEW-145")
@pytest.mark.parametrize("upgraders", [SPLIT, {}], ids=["with upgraders", "without"])
def test_ends_that_are_looked_at_later_are_of_the_migration_too(
    old, migrating, open_session, upgraders
):
    """Only the ends of a relation are migrated: no row of a new version becomes an object at once."""
    old.ensure(Knows(left_key="p0", right_key="p7", kind="friend", since=1))
    old.commit()
    Newer = person_in_parts()

    class Knowing(Relation[Newer, Newer], name="Knows"):
        kind: Field[str] = Field(instance_key=True)
        since: Field[int]

    reader = open_session(entity_types=[Newer], relation_types=[Knowing], upgraders=upgraders)

    def relation():
        [found] = reader.query().relations(Knowing).collect()
        return found

    relation()  # what the session knows of versions is from before the migration

    def look():
        found = relation()
        assert found.left == Newer(id="p0", first="Ada0", last="King0")
        assert found.right == Newer(id="p7", first="Ada7", last="King7")
        assert found.right.meta().commit_id == 3

    apply(migrating(Newer), {"moving": look})


@pytest.mark.req("NEW-145")
def test_the_last_version_of_an_object_is_the_migrations_before_it_is_moved(old, migrating):
    Newer = person_in_parts()
    session = migrating(Newer)

    def look():
        for key in ("p0", "p7"):  # moved, and not moved
            assert session.why(Newer, key).commit_id == 2
            with core_of(session).store.provenance.read() as trail:
                versions = list(trail.versions("entity", "Person", (key,)))
                before = list(trail.versions("entity", "Person", (key,), before=2))
            assert [(each.commit_id, each.schema_version) for each in versions] == [(2, 2), (1, 1)]
            assert "first" in versions[0].fields
            assert [each.commit_id for each in before] == [1]

    apply(session, {"moving": look})
    look()


@pytest.mark.req("NEW-145")
def test_the_last_version_of_a_relation_is_the_migrations_before_it_is_moved(old, migrating):
    old.ensure([Knows(left_key="p0", right_key=f"p{n}", kind="k", since=n) for n in range(1, 8)])
    old.commit()

    class Since(Relation[Person, Person], name="Knows"):
        kind: Field[str] = Field(instance_key=True)
        year: Field[int]

    session = migrating(Person, {("Knows", 1): lambda fields: {"year": fields["since"]}})
    core_of(session).registry.add(Since)

    def look():
        with core_of(session).store.provenance.read() as trail:
            [now, before] = trail.versions("relation", "Knows", ("p0", "p7", "k"))
        assert (now.commit_id, now.fields, before.commit_id) == (3, '{"year":7}', 2)

    apply(session, {"moving": look})
    look()


def test_an_export_is_refused_while_objects_are_moved(old, migrating):
    Newer = person_in_parts()
    session = migrating(Newer)
    old.ensure(Product(sku="s", price=1.0))
    old.commit()

    def refused():
        with pytest.raises(TransferError, match="Person cannot be exported yet: the migration of"):
            export_state(session)
        assert len(list(export_state(session, types=["Product"]).lines())) == 1
        assert len(list(export_state(session, as_of=2).lines())) == 9

    apply(session, {"moving": refused})
    assert len(list(export_state(session).lines())) == 9


class StandingStill(Thread):
    """A thread that stands still once, right after it has asked what is settling."""

    def __init__(self, monkeypatch, ask):
        super().__init__(target=self._ask, args=(ask,))
        self.asked, self.go = Event(), Event()
        self.found = None
        settling = staging.Staging.settling

        def then_wait(staged):
            found = settling(staged)
            if current_thread() is self and not self.asked.is_set():
                self.asked.set()
                assert self.go.wait(30)
            return found

        monkeypatch.setattr(staging.Staging, "settling", then_wait)

    def _ask(self, ask):
        self.found = ask()


@pytest.mark.req("NEW-145")
def test_a_thread_that_asked_before_the_switch_does_not_hide_it_from_others(
    old, migrating, monkeypatch
):
    Newer = person_in_parts()
    reader, session = migrating(Newer), migrating(Newer)

    def adas():
        return reader.query().entities(Newer).where(Newer.first == "Ada7").count()

    def look():
        with suppress(SchemaOutdatedError):  # its objects are of the old version so far
            people(reader, Newer)

    slow = StandingStill(monkeypatch, look)
    slow.start()
    assert slow.asked.wait(30)
    interrupted(session, "moving")
    other = Thread(target=lambda: seen.append(adas()))
    seen = []
    other.start()
    slow.go.set()
    slow.join()
    other.join()

    assert seen == [1]
    assert adas() == 1


@pytest.mark.req("NEW-145")
def test_a_thread_that_finds_the_switch_tells_the_others_when_it_knows_all(
    old, migrating, monkeypatch
):
    Newer = person_in_parts()
    reader, session = migrating(Newer), migrating(Newer)
    interrupted(session, "moving")

    def adas():
        return reader.query().entities(Newer).where(Newer.first == "Ada7").count()

    seen = []
    slow = StandingStill(monkeypatch, adas)
    slow.start()
    assert slow.asked.wait(30)
    other = Thread(target=lambda: seen.append(adas()))
    other.start()
    slow.go.set()
    slow.join()
    other.join()

    assert (slow.found, seen) == (1, [1])


# -- what goes wrong --------------------------------------------------------------------------------


@pytest.mark.req("NEW-146")
def test_an_upgrader_that_raises_switches_nothing_and_the_next_try_goes_on_from_there(
    old, migrating, contents
):
    upgraded = []

    def failing(fields):
        upgraded.append(fields["id"])
        return split_name(fields) if fields["id"] != "p5" else fields["nothing"]

    kept = [table for table in TABLES if table not in STAGING]
    before = contents(*kept)

    with pytest.raises(UpgraderError, match="Person 'p5'") as caught:
        migrating(upgraders={("Person", 1): failing}).migrate(dry_run=False, force=True)

    assert "--abort" in str(caught.value)
    assert contents(*kept) == before
    assert upgraded == [f"p{n}" for n in range(6)]
    upgraded.clear()

    def mended(fields):
        upgraded.append(fields["id"])
        return split_name(fields)

    Newer = person_in_parts()
    session = migrating(Newer, {("Person", 1): mended})
    assert session.migrate(dry_run=False, force=True).objects == 8
    assert upgraded == [f"p{n}" for n in range(3, 8)]  # three were staged
    assert len(people(session, Newer)) == 8


@pytest.mark.req("NEW-146")
@pytest.mark.parametrize("step", ["upgrading", "catching up", "moving"])
def test_a_migration_that_was_broken_off_goes_on_where_it_stopped(
    old, migrating, contents, clock, step
):
    Newer = person_in_parts()
    session = migrating(Newer)
    at = {"upgrading": lambda: old.ensure(Person(id="p0", name="Late Comer")) or old.commit()}
    if step != "upgrading":

        def die_at(now):
            if now.step == "upgrading" and at:
                at.pop("upgrading")()
            if now.step == step:
                raise Stop

        with pytest.raises(Stop):
            session.migrate(dry_run=False, force=True, progress=die_at)
    else:
        interrupted(session, step)
    old.delete(Person(id="p1", name="")) if step != "moving" else None
    if step != "moving":
        old.commit()

    result = migrating(Newer).migrate(dry_run=False, force=True)

    assert result.versions == {"Person": 2}
    assert result.commit_id == session.head
    found = people(session, Newer)
    assert len(found) == (8 if step == "moving" else 7)
    assert {each.meta().commit_id for each in found.values()} == {result.commit_id}
    assert contents(*STAGING) == {table: [] for table in STAGING}


@pytest.mark.req("NEW-146")
def test_a_process_that_died_is_waited_for_until_its_lease_ends(old, migrating, clock, change):
    session = migrating()
    interrupted(session, "upgrading")
    expires = "2026-01-01T00:10:00.000000+00:00"
    change(f"UPDATE pending_migration SET expires_at = '{expires}'")
    started = clock.monotonic()

    with pytest.raises(LockContentionError, match="the migration waited 10") as caught:
        migrating().migrate(dry_run=False, force=True)

    assert session.session_id in caught.value.holder
    assert "process" in caught.value.holder
    assert clock.monotonic() - started == pytest.approx(10, abs=0.05)
    clock.advance(seconds=600)
    assert migrating().migrate(dry_run=False, force=True).objects == 8


@pytest.mark.req("NEW-146")
def test_of_two_migrations_at_once_the_second_waits_and_names_the_first(old, migrating):
    first = migrating()

    def second():
        with pytest.raises(LockContentionError) as caught:
            migrating(migration_lock_timeout_ms=50).migrate(dry_run=False, force=True)
        assert first.session_id in caught.value.holder
        with pytest.raises(LockContentionError):
            migrating(migration_lock_timeout_ms=50).abort_migration()

    assert apply(first, {"upgrading": second}).objects == 8


@pytest.mark.req("NEW-146")
def test_whoever_lost_the_migration_to_another_stages_nothing_more(old, migrating, clock, contents):
    """A process that was stopped past its lease, while another one finished."""
    session = migrating()

    def paused():
        clock.advance(seconds=60)
        assert migrating().migrate(dry_run=False, force=True).objects == 8

    with pytest.raises(LockLostError):
        apply(session, {"upgrading": paused})

    assert contents(*STAGING) == {table: [] for table in STAGING}
    assert session.head == 2


@pytest.fixture
def before_taking(monkeypatch):
    """Do something once, when a session is about to take a migration over."""

    def arrange(act):
        take = staging.Staging.take

        def then_take(self, *args):
            monkeypatch.setattr(staging.Staging, "take", take)
            act()
            return take(self, *args)

        monkeypatch.setattr(staging.Staging, "take", then_take)

    return arrange


@pytest.mark.req("NEW-146")
def test_what_switched_while_it_was_waited_for_is_moved_and_not_staged_again(
    old, migrating, before_taking, contents
):
    """A second session found it before the switch; the first one dies after it."""
    Newer = person_in_parts()
    first = migrating(Newer)
    interrupted(first, "upgrading")

    def switch_and_die():
        interrupted(first, "moving")
        with migrating(Newer) as writer:
            writer.ensure(Newer(id="p7", first="Grace", last="Hopper"))
            assert writer.commit() == 3

    before_taking(switch_and_die)

    result = migrating(Newer).migrate(dry_run=False, force=True)

    assert result == MigrationResult(["Person"], {"Person": 2}, 2, 8)
    assert contents(*STAGING) == {table: [] for table in STAGING}
    with migrating(Newer) as reader:
        assert people(reader, Newer)["p7"].last == "Hopper"
        assert people(reader, Newer)["p6"].meta().commit_id == 2


@pytest.mark.req("NEW-146")
def test_nothing_is_staged_of_a_migration_that_has_switched(old, migrating, contents):
    """The fence, for a session that has not seen the switch and owns the migration all the same."""
    session = migrating()
    interrupted(session, "upgrading")
    store = core_of(session).store
    seen = store.staging.pending()
    interrupted(session, "moving")
    store.staging.take(seen.plan_hash, seen.owner_id, seen.holder)
    before = contents("staged_entities")

    for act in (store.staging.clear, store.staging.extend):
        with pytest.raises(LockLostError):
            act(seen)

    assert contents("staged_entities") == before != {"staged_entities": []}


@pytest.mark.req("NEW-146")
def test_a_migration_that_another_session_finished_meanwhile_is_nothing_to_do(
    old, migrating, before_taking
):
    first, second = migrating(), migrating()
    token = second.migrate().token
    interrupted(first, "upgrading")
    before_taking(lambda: first.migrate(dry_run=False, force=True))

    assert second.migrate(dry_run=False, token=token) == MigrationResult([], {}, None)
    assert second.head == 2


@pytest.mark.req("NEW-146")
def test_taking_back_what_another_session_finished_meanwhile_does_nothing(
    old, migrating, before_taking
):
    first = migrating()
    interrupted(first, "upgrading")
    before_taking(lambda: first.migrate(dry_run=False, force=True))

    assert migrating().abort_migration() is None


@pytest.mark.req("NEW-146")
def test_taking_back_what_has_switched_meanwhile_leaves_it_to_the_next_session(
    old, migrating, before_taking
):
    first = migrating()
    interrupted(first, "upgrading")
    before_taking(lambda: interrupted(first, "moving"))

    with pytest.raises(MigrationError, match="it cannot be taken back"):
        migrating().abort_migration()

    waits_for_nobody = migrating(migration_lock_timeout_ms=0)
    assert waits_for_nobody.migrate(dry_run=False, force=True).objects == 8


@pytest.mark.req("NEW-146")
@pytest.mark.parametrize("with_another", [False, True])
def test_a_migration_that_cannot_be_made_any_more_is_cleared_by_the_next_one(
    old, migrating, monkeypatch, contents, with_another
):
    """It died after it registered its version, and before it had cleared what it staged."""

    def die(self, pending):
        raise Stop

    def delete():
        old.delete([Person(id=f"p{n}", name="") for n in range(8)])
        old.commit()

    monkeypatch.setattr(staging.Staging, "clear", die)
    with pytest.raises(Stop):
        apply(migrating(), {"upgrading": delete})
    monkeypatch.undo()
    assert contents("pending_migration") != {"pending_migration": []}

    if with_another:

        class Full(Entity, name="Person"):
            id: Field[str]
            full: Field[str]

        Newer = person_in_parts()
        with migrating(Newer) as writer:
            writer.ensure(Newer(id="p0", first="Ada", last="King"))
            writer.commit()
        session = migrating(Full, {("Person", 2): lambda f: {"id": f["id"], "full": f["last"]}})
        assert session.migrate(dry_run=False, force=True).versions == {"Person": 3}
    else:
        assert migrating().migrate(dry_run=False, force=True) == MigrationResult([], {}, None)

    assert contents(*STAGING) == {table: [] for table in STAGING}


@pytest.mark.req("NEW-146")
def test_another_migration_is_refused_while_one_is_pending(old, migrating, open_session):
    interrupted(migrating(), "upgrading")

    class Other(Entity, name="Person"):
        id: Field[str]
        full: Field[str]

    other = migrating(Other, {("Person", 1): lambda f: {"id": f["id"], "full": f["name"]}})
    with pytest.raises(MigrationError, match="a migration of Person is pending"):
        other.migrate(dry_run=False, force=True)

    other.abort_migration()
    assert other.migrate(dry_run=False, force=True).objects == 8


@pytest.mark.req("NEW-146")
def test_before_the_switch_it_can_be_taken_back_and_leaves_nothing(old, migrating, contents):
    before = contents()
    session = migrating(person_in_parts(unique=True))
    interrupted(session, "upgrading")
    assert contents("staged_entities") != {"staged_entities": []}

    pending = session.abort_migration()

    assert (pending.staged, pending.objects, pending.switched) == (3, 8, False)
    assert contents() == before
    assert session.abort_migration() is None


@pytest.mark.req("NEW-146")
def test_after_the_switch_it_cannot_be_taken_back(old, migrating):
    session = migrating()
    interrupted(session, "moving")

    with pytest.raises(MigrationError, match=r"in commit 2, and .* objects are still to be moved"):
        session.abort_migration()

    assert session.pending_migration().commit_id == 2
    assert session.migrate(dry_run=False) == MigrationResult(["Person"], {"Person": 2}, 2, 8)


def test_a_missing_upgrader_is_noticed_before_it_begins(old, migrating, contents):
    before = contents()

    with pytest.raises(MissingUpgraderError):
        migrating(upgraders={}).migrate(dry_run=False, force=True)

    assert contents() == before


# -- unique values ----------------------------------------------------------------------------------


@pytest.mark.req("NEW-147")
def test_objects_that_would_share_a_unique_value_are_found_before_the_switch(old, migrating):
    old.ensure(Person(id="p7", name="Other King0"))
    old.commit()
    Newer = person_in_parts(unique=True)

    with pytest.raises(UniqueViolationError) as caught:
        migrating(Newer).migrate(dry_run=False, force=True)

    assert (caught.value.field, caught.value.value) == ("last", "King0")
    assert {caught.value.key, caught.value.holder} == {"p0", "p7"}
    old.ensure(Person(id="p0", name="Ada0 Byron"))
    old.commit()
    session = migrating(Newer)
    assert session.migrate(dry_run=False, force=True).objects == 8
    assert people(session, Newer)["p0"].last == "Byron"


@pytest.mark.req("NEW-147")
def test_values_that_are_swapped_or_freed_meanwhile_are_no_violation(old, migrating):
    def swap():
        old.ensure([Person(id="p0", name="Ada0 King7"), Person(id="p7", name="Ada7 King0")])
        old.delete(Person(id="p1", name=""))
        old.ensure(Person(id="new", name="Grace King1"))
        old.commit()

    assert apply(migrating(person_in_parts(unique=True)), {"upgrading": swap}).objects == 8


@pytest.mark.req("NEW-147")
def test_a_value_that_is_taken_right_before_the_switch_is_found_in_it(old, migrating, monkeypatch):
    session = migrating(person_in_parts(unique=True))
    store = core_of(session).store
    found = type(store.staging).repeated

    def then_take(self):
        nothing = found(self)
        monkeypatch.undo()
        old.ensure(Person(id="p7", name="Other King0"))
        old.commit()
        return nothing

    monkeypatch.setattr(type(store.staging), "repeated", then_take)

    with pytest.raises(UniqueViolationError):
        session.migrate(dry_run=False, force=True)

    assert session.head == 2
    assert not session.pending_migration().switched


@pytest.mark.req("NEW-147")
def test_values_are_unique_while_objects_are_moved(old, migrating):
    Newer = person_in_parts(unique=True)
    session = migrating(Newer)

    def write():
        for key, last in (("p0", "King7"), ("new", "King0"), ("p7", "King0")):
            session.ensure(Newer(id=key, first="Any", last=last))
            with pytest.raises(UniqueViolationError):
                session.commit()
            session.discard()
        session.ensure(
            [Newer(id="p0", first="A", last="King7"), Newer(id="p7", first="B", last="King0")]
        )
        session.commit()  # swapped
        session.ensure(Newer(id="p6", first="C", last="Free"))
        session.commit()
        session.ensure(Newer(id="new", first="D", last="King6"))
        session.commit()

    apply(session, {"moving": write})

    assert {id: each.last for id, each in people(session, Newer).items()} == {
        **{f"p{n}": f"King{n}" for n in range(1, 6)},
        "p0": "King7",
        "p7": "King0",
        "p6": "Free",
        "new": "King6",
    }


@pytest.mark.req("NEW-147")
def test_a_value_that_is_taken_after_the_lease_ended_is_no_second_one_of_it(
    old, open_session, monkeypatch, clock
):
    """Beside a type whose objects are upgraded, one whose objects stay and get a unique field."""

    class UniquePrice(Entity, name="Product"):
        sku: Field[str] = Field(primary_key=True)
        price: Field[float] = Field(unique=True)

    old.ensure([Product(sku="a", price=1.0), Product(sku="b", price=2.0)])
    old.commit()
    session = open_session(
        entity_types=[person_in_parts(), UniquePrice], upgraders=SPLIT, settings=BACKGROUND
    )
    compare = Migration._duplicates

    def then_stand_still(self, diff, upgraded):
        found = compare(self, diff, upgraded)
        if diff.name == "Product":
            clock.advance(seconds=60)
            old.ensure(Product(sku="b", price=1.0))
            old.commit()
        return found

    monkeypatch.setattr(Migration, "_duplicates", then_stand_still)

    with pytest.raises(LockLostError):
        session.migrate(dry_run=False, force=True)

    assert not session.pending_migration().switched
    monkeypatch.undo()
    with pytest.raises(UniqueViolationError):
        session.migrate(dry_run=False, force=True)


# -- how it goes --------------------------------------------------------------------------------------


def test_progress_says_how_far_each_step_is(old, migrating):
    seen = []

    migrating().migrate(dry_run=False, force=True, progress=seen.append)

    assert [(each.step, each.done, each.objects) for each in seen] == [
        *(("upgrading", 3, 8), ("upgrading", 6, 8), ("upgrading", 8, 8)),
        *(("moving", 3, 8), ("moving", 6, 8), ("moving", 8, 8), ("moving", 8, 8)),
    ]


def test_a_rate_is_the_most_objects_a_second(old, migrating, clock):
    started = clock.monotonic()

    migrating().migrate(dry_run=False, force=True, rate=2)

    assert clock.monotonic() - started == pytest.approx(2 * 8 / 2, abs=0.1)


def test_the_lease_is_kept_while_the_rate_is(old, migrating, clock):
    session = migrating(lock_lease_ms=1_000)
    left = []

    def look(now):
        left.append(session.pending_migration().expires_at - clock.now())

    session.migrate(dry_run=False, force=True, rate=0.5, progress=look)  # three objects: 6 s

    assert min(left).total_seconds() >= 0.5


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_of_nothing_is_refused(old, migrating, rate):
    with pytest.raises(MigrationError, match="rate"):
        migrating().migrate(dry_run=False, force=True, rate=rate)


@pytest.mark.req("NEW-148")
def test_the_switch_waits_for_sessions_that_opened_with_the_old_type(old, migrating, clock):
    waiting = {"migration_wait_for_old_sessions_ms": 5_000}
    with pytest.raises(MigrationError, match=f"still alive .*{old.session_id}"):
        migrating(**waiting).migrate(dry_run=False, force=True)
    assert old.head == 1

    result = apply(migrating(**waiting), {"waiting for sessions": old.close})

    assert (result.commit_id, result.objects) == (2, 8)


def test_what_is_pending_can_be_asked_for(old, migrating):
    session = migrating()
    assert session.pending_migration() is None
    interrupted(session, "upgrading")

    pending = session.pending_migration()

    assert pending.types == [("entity", "Person", 1)]
    assert (pending.objects, pending.staged, pending.switched) == (8, 3, False)
    assert str(pending).startswith(
        "a migration of Person is pending: 3 of 8 objects are upgraded ("
    )
    assert pending.keys == {("entity", "Person")}
