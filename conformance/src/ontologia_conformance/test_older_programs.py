"""Programs of an older version of a type beside those of a newer one."""

from __future__ import annotations

from enum import Enum
from threading import Barrier, Thread
from typing import Any

import pytest

from ontologia import Entity, Field, Relation
from ontologia.errors import SchemaOutdatedError
from ontologia_conformance.test_compatible_changes import apply, entity

COMPATIBLE = {"auto_migrate": "compatible"}

Old = entity(size=int, note=(str, Field(default="")))
New = entity(
    size=int,
    note=(str, Field(default="")),
    tier=(str, Field(default="basic")),
    by=(str | None, Field(default=None)),
)


@pytest.fixture
def both(open_session) -> tuple[Any, Any]:
    """A session of an older program, and one of a newer, which has been migrated to."""
    old = open_session(entity_types=[Old])
    old.ensure([Old(id="a", size=1), Old(id="b", size=2)])
    old.commit()
    new = open_session(entity_types=[New])
    apply(new)
    return old, new


@pytest.mark.req("NEW-142")
def test_an_older_program_keeps_the_fields_that_it_does_not_know(both):
    old, new = both
    new.update(New, "a", tier="gold", by="ann")
    new.commit()

    found = old.one(Old, "a")
    found.size = 5
    old.ensure([found, Old(id="c", size=3)])
    old.update(Old, "b", size=7)
    old.commit()
    old.ensure(Old(id="a", size=6))
    old.commit()

    assert new.one(New, "a") == New(id="a", size=6, tier="gold", by="ann")
    assert new.one(New, "b") == New(id="b", size=7, tier="basic", by=None)
    assert new.one(New, "c") == New(id="c", size=3, tier="basic", by=None)
    wanted = new.query().entities(New).where(New.tier == "gold")
    assert [each.id for each in wanted.collect()] == ["a"]
    assert new.diff(3, 4).updated[0].fields == {"size": (5, 6)}


@pytest.mark.req("NEW-142")
def test_an_older_program_reads_and_asks_about_what_it_knows(both):
    old, new = both
    new.ensure(New(id="a", size=9, tier="gold"))
    new.commit()

    assert old.one(Old, "a") == Old(id="a", size=9)
    assert vars(old.one(Old, "a")).keys() == {"id", "size", "note"}
    asked = old.query().entities(Old)
    assert [each.id for each in asked.where(Old.size >= 2).order_by(Old.id).collect()] == ["a", "b"]
    assert asked.where(Old.size == 9).collect() == [Old(id="a", size=9)]
    assert not old.migrate()
    old.validate()


@pytest.mark.req("NEW-142")
def test_what_an_older_program_reads_as_it_is_wanted_is_not_written(both):
    old, new = both
    new.ensure(New(id="a", size=1, tier="gold"))
    new.commit()

    old.ensure(Old(id="a", size=1))
    assert old.commit() is None
    old.ensure(old.one(Old, "a"))
    assert old.commit() is None

    old.ensure(Old(id="a", size=2))
    old.commit()
    old.ensure(Old(id="a", size=2))  # and now it was an older program that wrote it
    assert old.commit() is None
    assert new.one(New, "a").tier == "gold"


@pytest.mark.req("NEW-142")
def test_an_object_that_is_deleted_and_made_anew_by_an_older_program_has_the_defaults(both):
    old, new = both
    new.update(New, "a", tier="gold")
    new.commit()

    old.delete(old.one(Old, "a"))
    old.commit()
    old.create(Old(id="a", size=1))
    old.commit()

    assert new.one(New, "a").tier == "basic"


@pytest.mark.req("NEW-142")
def test_a_value_that_an_older_program_has_no_type_for_is_an_error(open_session):
    class Few(Enum):
        A = "a"

    class More(Enum):
        A = "a"
        B = "b"

    before = entity(size=int, kind=Few, name=str, n=int)
    after = entity(size=float, kind=More, name=str | None, n=int | str)
    old = open_session(entity_types=[before])
    old.ensure(before(id="a", size=1, kind=Few.A, name="x", n=1))
    old.commit()
    new = open_session(entity_types=[after])
    apply(new)

    fitting = {"size": 2.0, "kind": More.A, "name": "y", "n": 2}
    new.ensure(after(id="a", **fitting))
    new.commit()
    assert old.one(before, "a") == before(id="a", size=2, kind=Few.A, name="y", n=2)
    for other in ({"size": 2.5}, {"kind": More.B}, {"name": None}, {"n": "2"}):
        new.ensure(after(id="a", **{**fitting, **other}))
        commit = new.commit()
        with pytest.raises(SchemaOutdatedError):
            old.one(before, "a")
        with pytest.raises(SchemaOutdatedError):
            old.query().entities(before).where(before.n == 2).collect()
        old.update(before, "a", size=3)
        with pytest.raises(SchemaOutdatedError):
            old.commit()
        old.discard()
        assert new.head == commit


@pytest.mark.req("NEW-142")
def test_a_field_that_was_removed_is_an_error_unless_the_older_program_has_a_default(open_session):
    before = entity(size=int, note=(str, Field(default="-")))
    old = open_session(entity_types=[before])
    old.ensure(before(id="a", size=1, note="x"))
    old.commit()
    noteless = entity(size=int)
    new = open_session(entity_types=[noteless])
    apply(new)
    new.ensure([noteless(id="a", size=2), noteless(id="b", size=3)])
    new.commit()

    assert old.one(before, "a") == before(id="a", size=2, note="-")
    asked = old.query().entities(before).where(before.note == "-").order_by(before.id)
    assert [each.id for each in asked.collect()] == ["a", "b"]

    sizeless = entity()
    newest = open_session(entity_types=[sizeless])
    apply(newest)
    newest.ensure(sizeless(id="c"))
    newest.commit()
    with pytest.raises(SchemaOutdatedError):
        new.one(noteless, "c")
    assert new.one(noteless, "b").size == 3


@pytest.mark.req("NEW-142")
def test_an_older_program_is_outdated_after_a_breaking_change(open_session, both):
    old, _ = both
    newer = entity(size=int, note=str, tier=str, by=str | None, more=int)
    step = {("Tool", 2): lambda fields: fields | {"more": 1}}
    newest = open_session(entity_types=[newer], upgraders=step)
    newest.migrate(dry_run=False, force=True)

    old.ensure(Old(id="a", size=5))

    with pytest.raises(SchemaOutdatedError):
        old.commit()
    assert newest.one(newer, "a").size == 1


@pytest.mark.req("NEW-142")
def test_an_older_program_is_outdated_when_values_became_unique(open_session):
    """It does not look whether another object has the value."""
    before = entity(code=str | None)
    after = entity(code=(str | None, Field(default=None, unique=True)))
    old = open_session(entity_types=[before])
    old.ensure(before(id="a", code="x"))
    old.commit()
    apply(open_session(entity_types=[after]))

    old.ensure(before(id="b", code="x"))

    with pytest.raises(SchemaOutdatedError):
        old.commit()


@pytest.mark.req("NEW-142")
def test_fields_of_a_type_that_became_open_are_kept(open_session, both):
    old, _ = both

    class Tool(Entity):
        __open__ = True
        id: Field[str]
        size: Field[int]
        note: Field[str] = Field(default="")
        tier: Field[str] = Field(default="basic")
        by: Field[str | None] = Field(default=None)

    newest = open_session(entity_types=[Tool])
    apply(newest)
    newest.ensure(Tool(id="a", size=1, by=None, colour="red"))
    newest.commit()

    old.update(Old, "a", size=5)
    old.commit()

    assert newest.one(Tool, "a") == Tool(id="a", size=5, by=None, colour="red")


@pytest.mark.req("NEW-142")
def test_relations_of_older_programs(open_session):
    def types(*, new: bool) -> tuple[Any, Any]:
        Tool = entity()

        class Uses(Relation[Tool, Tool]):
            since: Field[int]
            if new:
                often: Field[bool] = Field(default=True)

        return Tool, Uses

    OldTool, OldUses = types(new=False)
    NewTool, NewUses = types(new=True)
    old = open_session(entity_types=[OldTool], relation_types=[OldUses])
    old.ensure([OldTool(id="a"), OldTool(id="b")])
    old.commit()
    old.ensure(OldUses(left_key="a", right_key="b", since=1))
    old.commit()
    new = open_session(entity_types=[NewTool], relation_types=[NewUses])
    apply(new)
    new.update(NewUses, ("a", "b"), often=False)
    new.commit()

    [found] = old.query().relations(OldUses).where(OldUses.since == 1).collect()
    found.since = 2
    old.ensure(found)
    old.commit()

    [kept] = new.query().relations(NewUses).collect()
    assert (kept.since, kept.often) == (2, False)


# -- auto_migrate -----------------------------------------------------------------------------------


@pytest.mark.req("NEW-143")
def test_a_session_applies_compatible_changes_when_it_opens_if_it_is_told_to(open_session, sql):
    old = open_session(entity_types=[Old])
    old.ensure(Old(id="a", size=1))
    old.commit()
    # It takes up types when they are used, as well.
    late = open_session(settings=COMPATIBLE)

    new = open_session(entity_types=[New], settings=COMPATIBLE)

    assert not new.migrate()
    assert sql("SELECT COUNT(*) FROM schema_versions WHERE type_name = 'Tool'") == [[2]]
    again = open_session(entity_types=[Old], settings=COMPATIBLE)  # a deploy that is taken back
    again.update(Old, "a", size=2)
    again.commit()
    late.update(New, "a", tier="gold")
    late.commit()
    assert new.one(New, "a") == New(id="a", size=2, tier="gold", by=None)
    assert sql("SELECT COUNT(*) FROM schema_versions WHERE type_name = 'Tool'") == [[2]]


@pytest.mark.req("NEW-143")
def test_a_type_that_is_first_used_later_is_migrated_then(open_session):
    old = open_session(entity_types=[Old])
    old.ensure(Old(id="a", size=1))
    old.commit()

    late = open_session(settings=COMPATIBLE)
    late.update(New, "a", tier="gold")
    late.commit()

    assert old.one(Old, "a") == Old(id="a", size=1)
    assert late.one(New, "a").tier == "gold"


@pytest.mark.req("NEW-143")
def test_what_is_breaking_or_has_an_upgrader_is_not_applied_at_the_start(open_session):
    Other = entity("Other", size=int)
    old = open_session(entity_types=[Old, Other])
    old.ensure([Old(id="a", size=1), Other(id="a", size=1)])
    old.commit()
    Text = entity("Other", size=str)
    code = entity(size=int, note=(str, Field(default="", unique=True)))

    new = open_session(entity_types=[New, Text], settings=COMPATIBLE)

    assert [diff.name for diff in new.migrate().diffs] == ["Other"]
    new.ensure(Text(id="b", size="1"))
    with pytest.raises(SchemaOutdatedError):
        new.commit()
    upgraders = {("Tool", 2): lambda fields: fields}
    more = entity(size=int, note=str, tier=str, by=str | None, more=(int, Field(default=0)))
    stepping = open_session(entity_types=[more], settings=COMPATIBLE, upgraders=upgraders)
    assert [diff.name for diff in stepping.migrate().diffs] == ["Tool"]
    made = open_session(entity_types=[code], settings=COMPATIBLE)
    assert [diff.name for diff in made.migrate().diffs] == ["Tool"]


@pytest.mark.req("NEW-143")
def test_an_old_program_that_starts_once_more_does_not_take_a_type_back(open_session):
    old = open_session(entity_types=[Old])
    old.ensure(Old(id="a", size=1))
    old.commit()
    Later = entity(size=int, note=(str, Field(default="")), more=int)
    step = {("Tool", 1): lambda fields: fields | {"more": 7}}
    new = open_session(entity_types=[Later], upgraders=step)
    new.migrate(dry_run=False, force=True)

    again = open_session(entity_types=[Old], settings=COMPATIBLE)

    again.ensure(Old(id="b", size=1))
    with pytest.raises(SchemaOutdatedError):
        again.commit()
    new.ensure(Later(id="b", size=1, more=2))
    new.commit()
    assert new.one(Later, "a").more == 7


@pytest.mark.req("NEW-143")
def test_programs_that_start_together_make_one_version(open_session, sql):
    old = open_session(entity_types=[Old])
    old.ensure(Old(id="a", size=1))
    old.commit()
    start, errors = Barrier(4), []

    def open_one() -> None:
        start.wait()
        try:
            open_session(entity_types=[New], settings=COMPATIBLE)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            errors.append(error)

    threads = [Thread(target=open_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert sql("SELECT COUNT(*) FROM schema_versions WHERE type_name = 'Tool'") == [[2]]
