"""What was read must be unchanged when it is written back: on every store."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationInfo, field_validator, model_validator

from ontologia import Entity, Event, Field, Relation, Session, later, left
from ontologia.errors import (
    EndpointDeleted,
    InvalidTypeError,
    InvalidValueError,
    NotFoundError,
    ObjectExistsError,
    QueryError,
    RecordExists,
    SessionClosedError,
    StateConflictError,
)


class Crate(Entity):
    id: Field[str]
    apples: Field[int] = Field(default=0)
    label: Field[str | None] = Field(default=None)
    packed: Field[datetime | None] = Field(default=None)


class Truck(Entity):
    number: Field[int] = Field(primary_key=True)
    driver: Field[str] = Field(default="")


class LoadedOn(Relation[Crate, Truck]):
    row: Field[int] = Field(default=0)


class Inspected(Relation[Crate, Truck]):
    day: Field[str] = Field(instance_key=True)
    passed: Field[bool] = Field(default=True)


class Shelf(Entity):
    id: Field[str]
    height: Field[int]
    width: Field[int]

    @model_validator(mode="after")
    def narrow(self) -> Shelf:
        if self.width > self.height:
            raise ValueError("wider than high")
        return self


class Tag(Entity):
    id: Field[str]
    text: Field[str]

    @field_validator("text")
    @classmethod
    def stripped(cls, value: str) -> str:
        return value.strip()


class Span(Relation[Crate, Truck]):
    day: Field[str] = Field(instance_key=True)
    low: Field[int] = Field(default=0)
    high: Field[int] = Field(default=0)

    @field_validator("high")
    @classmethod
    def above(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data["low"]:
            raise ValueError("below")
        return value

    @model_validator(mode="after")
    def named(self) -> Span:
        if not (self.left_key and self.right_key and self.day) or self.low > self.high:
            raise ValueError("not in order")
        return self


class CrateMoved(Event):
    crate: Field[str]


class CrateDue(Event):
    crate: Field[str]


def write(session: Session, *objects: Any) -> int:
    """Commit on a unit of its own, whatever is there."""
    with session.unit() as unit:
        unit.ensure(objects, overwrite=True)
        number = unit.commit()
    assert number is not None
    return number


@pytest.fixture
def crate(session) -> Crate:
    """Read from the store, at commit 1."""
    write(session, Crate(id="c1", apples=10))
    found: Crate = session.one(Crate, "c1")
    return found


# -- ensure and delete ----------------------------------------------------------------------------


def test_what_was_read_and_changed_is_written(session, crate):
    crate.apples -= 1
    session.ensure(crate)

    assert session.commit() == 2
    assert session.one(Crate, "c1").apples == 9


@pytest.mark.req("C-010")
@pytest.mark.parametrize("how", ["ensure", "delete"])
def test_what_another_commit_changed_is_a_conflict(session, crate, how):
    other = write(session, Crate(id="c1", apples=7))
    crate.apples -= 1
    getattr(session, how)(crate)
    session.ensure(Crate(id="c2"))

    with pytest.raises(StateConflictError) as caught:
        session.commit(event=CrateMoved(crate="c1"))

    error = caught.value
    assert (error.type_name, error.key, error.read, error.found) == ("Crate", "c1", 1, other)
    assert error.written_by == f"session {session.session_id}"
    assert "Crate 'c1' was read at version 1 and changed in commit 2" in str(error)
    assert session.one(Crate, "c1").apples == 7
    assert session.query().entities(Crate).count() == 1
    assert session.event_store.list_events(session.namespace) == []


def test_the_version_counts_and_not_the_value(session, crate):
    write(session, Crate(id="c1", apples=9))
    write(session, Crate(id="c1", apples=10))
    crate.apples = 11
    session.ensure(crate)

    with pytest.raises(StateConflictError):
        session.commit()


def test_what_is_written_back_as_it_was_read_is_a_conflict_too(session, crate):
    """Nothing would change, and yet the caller has seen another version."""
    write(session, Crate(id="c1", apples=9))
    write(session, Crate(id="c1", apples=10))
    session.ensure(crate)

    with pytest.raises(StateConflictError):
        session.commit()


def test_other_objects_may_change_in_between(session, crate):
    write(session, Crate(id="c2", apples=1))
    crate.apples = 9
    session.ensure(crate)

    assert session.commit() == 3


def test_what_was_deleted_in_between_is_not_written_back(session, crate):
    with session.unit() as unit:
        unit.delete(Crate(id="c1"))
    session.ensure(crate)

    with pytest.raises(StateConflictError, match="deleted in commit 2") as caught:
        session.commit()

    assert caught.value.found == 0
    assert session.get(Crate, "c1") is None  # what is queued is known to be stale
    assert session.query().entities(Crate).count() == 0


def test_deleting_what_was_deleted_in_between_is_fine(session, crate):
    with session.unit() as unit:
        unit.delete(Crate(id="c1"))
    session.delete(crate)

    assert session.commit() is None


def test_deleting_what_was_deleted_and_made_again_is_a_conflict(session, crate):
    with session.unit() as unit:
        unit.delete(Crate(id="c1"))
    write(session, Crate(id="c1", apples=10))
    session.delete(crate)

    with pytest.raises(StateConflictError):
        session.commit()


@pytest.mark.parametrize("how", ["ensure", "delete"])
def test_overwrite_writes_whatever_is_there(session, crate, how):
    write(session, Crate(id="c1", apples=7))
    crate.apples = 1
    getattr(session, how)(crate, overwrite=True)

    assert session.commit() == 3
    left = [each.apples for each in session.query().entities(Crate).collect()]
    assert left == ([1] if how == "ensure" else [])


def test_a_constructed_object_states_the_whole_truth(session, crate):
    write(session, Crate(id="c1", apples=7, label="fuji"))
    session.ensure(Crate(id="c1", apples=1))

    assert session.commit() == 3
    assert session.one(Crate, "c1") == Crate(id="c1", apples=1)


def test_a_written_object_carries_its_new_version(session):
    made = Crate(id="c1", apples=10)
    session.ensure(made)
    assert session.commit() == 1
    assert made.meta().commit_id == 1

    made.apples = 9
    session.ensure(made)
    assert session.commit() == 2
    write(session, Crate(id="c1", apples=3))
    made.apples = 8
    session.ensure(made)

    with pytest.raises(StateConflictError) as caught:
        session.commit()
    assert caught.value.read == 2


def test_an_object_that_was_true_already_carries_the_version_it_has(session, crate):
    same = Crate(id="c1", apples=10)
    session.ensure(same)

    assert session.commit() is None
    assert same.meta().commit_id == crate.meta().commit_id


def test_what_was_deleted_by_this_program_can_be_ensured_again(session, crate):
    session.delete(crate)
    session.commit()
    session.ensure(crate)

    assert session.commit() == 3
    assert crate.meta().commit_id == 3


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda obj: pickle.loads(pickle.dumps(obj))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_is_of_the_same_version(session, crate, copied):
    other = copied(crate)
    write(session, Crate(id="c1", apples=7))
    other.apples = 1
    session.ensure(other)

    assert other.meta() == crate.meta()
    with pytest.raises(StateConflictError):
        session.commit()


def test_the_key_of_a_stored_object_cannot_be_assigned(session, crate):
    crate.id = "c1"
    with pytest.raises(InvalidValueError, match="is the key of a stored object"):
        crate.id = "c2"
    assert crate.id == "c1"

    made = Crate(id="c3")
    made.id = "c4"
    session.ensure(made)
    session.commit()
    with pytest.raises(InvalidValueError):
        made.id = "c5"


# -- after a conflict -----------------------------------------------------------------------------


def test_read_again_change_again_commit_again(session, crate):
    write(session, Crate(id="c1", apples=7))
    crate.apples -= 1
    session.ensure([crate, Crate(id="c2")])
    with pytest.raises(StateConflictError):
        session.commit()

    with pytest.raises(StateConflictError):  # the stale entry is still queued
        session.commit()
    fresh = session.one(Crate, "c1")
    assert fresh.apples == 7
    fresh.apples -= 1
    session.ensure(fresh)

    assert session.commit() == 3
    assert session.one(Crate, "c1").apples == 6
    assert session.get(Crate, "c2") is not None


def test_what_is_not_stale_stays_visible_after_a_conflict(session, crate):
    write(session, Crate(id="c1", apples=7))
    session.ensure([crate, Crate(id="c2", apples=2)])
    with pytest.raises(StateConflictError):
        session.commit()

    assert session.one(Crate, "c2").apples == 2
    assert session.discard() == 2
    assert session.get(Crate, "c2") is None
    assert session.commit() is None


def test_every_stale_object_is_named(session, crate):
    write(session, Crate(id="c2"))
    second = session.one(Crate, "c2")
    write(session, Crate(id="c1", apples=1), Crate(id="c2", apples=1))
    session.ensure([crate, second])

    with pytest.raises(StateConflictError, match="and so were 1 more") as caught:
        session.commit()

    assert caught.value.conflicts == [("Crate", "c1", 1, 3), ("Crate", "c2", 2, 3)]
    session.ensure([session.one(Crate, "c1"), session.one(Crate, "c2")])
    assert session.commit() is None


def test_a_preview_raises_what_the_commit_would(session, crate):
    write(session, Crate(id="c1", apples=7))
    session.ensure(crate)

    with pytest.raises(StateConflictError):
        session.commit(dry_run=True)


def test_what_is_stale_is_as_if_it_were_not_queued(session, crate):
    """Update and create after a conflict replace the stale entry."""
    with session.unit() as unit:
        unit.delete(Crate(id="c1"))
    session.ensure(crate)
    with pytest.raises(StateConflictError):
        session.commit()
    session.create(Crate(id="c1", apples=1))
    assert session.commit() == 3

    stale = session.one(Crate, "c1")
    write(session, Crate(id="c1", apples=5))
    session.delete(stale)
    with pytest.raises(StateConflictError):
        session.commit()
    session.update(Crate, "c1", label="fuji")
    assert session.one(Crate, "c1") == Crate(id="c1", apples=5, label="fuji")
    assert session.commit() == 5


def test_what_exists_already_is_shown_after_the_error(session, crate):
    """Get or create: after ObjectExistsError the stored object is read, changed and written."""
    session.create(Crate(id="c1", apples=1))
    with pytest.raises(ObjectExistsError):
        session.commit()
    found = session.one(Crate, "c1")
    assert found.apples == 10
    found.apples += 1
    session.ensure(found)

    assert session.commit() == 2


def test_what_could_not_be_updated_can_be_created(session):
    session.update(Crate, "c9", apples=1)
    with pytest.raises(NotFoundError):
        session.commit()
    session.create(Crate(id="c9", apples=1))

    assert session.commit() == 1


def test_a_stale_read_hides_no_update(session, crate):
    unit = session.unit(reads="checked")
    unit.one(Crate, "c1")
    unit.update(Crate, "c1", label="fuji")
    write(session, Crate(id="c1", apples=3))
    with pytest.raises(StateConflictError) as caught:
        unit.commit()

    assert len(caught.value.conflicts) == 1
    assert unit.one(Crate, "c1") == Crate(id="c1", apples=3, label="fuji")
    assert unit.commit() == 3


def test_a_preview_shows_what_is_stale_as_stored(session, crate):
    write(session, Crate(id="c1", apples=7))
    session.ensure(crate)
    with pytest.raises(StateConflictError):
        session.commit(dry_run=True)

    assert session.one(Crate, "c1").apples == 7
    session.discard()


# -- which instance has which version -----------------------------------------------------------------


def _changed_later(session, obj) -> None:
    """Nobody else has written since the commit: whoever is not up to date must conflict."""
    obj.apples += 1
    session.ensure(obj)
    session.commit()


@pytest.mark.parametrize("how", ["read", "constructed", "created"])
def test_an_instance_that_lacks_an_update_on_top_of_it_is_outdated(session, how):
    if how == "read":
        write(session, Crate(id="c1", apples=10))
    obj = session.one(Crate, "c1") if how == "read" else Crate(id="c1", apples=10)
    (session.create if how == "created" else session.ensure)(obj)
    session.update(Crate, "c1", label="fuji")
    session.commit()

    with pytest.raises(StateConflictError):
        _changed_later(session, obj)

    assert session.one(Crate, "c1").label == "fuji"
    session.discard()


@pytest.mark.parametrize("how", ["constructed", "created", "overwritten", "read", "updated"])
def test_an_instance_that_was_read_from_the_queue_has_the_version_it_is_written_at(session, how):
    number = 0
    if how in ("read", "updated"):
        number = write(session, Crate(id="c1", apples=10))
    match how:
        case "constructed":
            session.ensure(Crate(id="c1", apples=10))
        case "created":
            session.create(Crate(id="c1", apples=10))
        case "overwritten":
            session.ensure(Crate(id="c1", apples=10), overwrite=True)
        case "read":
            mine = session.one(Crate, "c1")
            mine.label = "gala"
            session.ensure(mine)
        case "updated":
            session.update(Crate, "c1", label="gala")
    seen = session.one(Crate, "c1")
    assert session.commit() == number + 1
    assert seen.meta().commit_id == number + 1

    seen.apples += 1
    session.ensure(seen)
    assert session.commit() == number + 2
    write(session, Crate(id="c1", apples=0))
    with pytest.raises(StateConflictError):
        _changed_later(session, seen)
    session.discard()


@pytest.mark.parametrize("how", ["another", "from the queue", "created"])
def test_a_constructed_object_that_was_replaced_in_the_queue_is_outdated(session, how):
    mine = Crate(id="c1", apples=1)
    (session.create if how == "created" else session.ensure)(mine)
    newer = Crate(id="c1", apples=1) if how == "another" else session.one(Crate, "c1")
    newer.label = "gala"
    session.ensure(newer)
    session.commit()

    with pytest.raises(StateConflictError):
        _changed_later(session, mine)
    assert session.one(Crate, "c1").label == "gala"
    session.discard()


def test_an_instance_from_the_queue_is_outdated_if_something_else_was_written(session):
    session.ensure(Crate(id="c1", apples=1))
    seen = session.one(Crate, "c1")
    session.ensure(Crate(id="c1", apples=2))
    session.commit()

    with pytest.raises(StateConflictError):
        _changed_later(session, seen)
    session.discard()


def test_an_object_that_is_written_to_two_stores_has_a_version_in_each(session, crate, tmp_path):
    with Session(str(tmp_path / "other.db")) as other:
        other.ensure(crate)
        other.commit()
        write(session, Crate(id="c1", apples=50))
        write(other, Crate(id="c1", apples=60))

        for store in (session, other):
            for obj in (crate, copy.copy(crate), copy.deepcopy(crate)):
                store.ensure(obj)
                with pytest.raises(StateConflictError):
                    store.commit()
                store.discard()


# -- the past, and other stores ---------------------------------------------------------------------


def test_the_past_cannot_be_written_back_unless_it_is_current(session, crate):
    write(session, Crate(id="c1", apples=7))
    old = session.one(Crate, "c1", as_of=1)
    [_, now] = session.query().entities(Crate).with_history().collect()
    session.ensure(old)
    with pytest.raises(StateConflictError, match="overwrite=True"):
        session.commit()

    session.ensure(now)
    assert session.commit() is None
    session.ensure(old, overwrite=True)
    assert session.commit() == 3
    assert session.one(Crate, "c1").apples == 10


def test_a_deleted_object_can_be_brought_back_unless_another_one_is_there(session, crate):
    session.delete(crate)
    session.commit()
    [_, gone] = session.query().entities(Crate).with_history().collect()
    assert gone.meta().deleted
    session.ensure(gone)
    assert session.commit() == 3

    session.delete(session.one(Crate, "c1"))
    session.commit()
    gone = session.query().entities(Crate).with_history().collect()[-1]
    write(session, Crate(id="c1", apples=1))
    session.ensure(gone)
    with pytest.raises(StateConflictError, match="did not exist"):
        session.commit()


def test_an_object_of_another_store_is_written_as_it_is(session, crate, tmp_path):
    write(session, Crate(id="c1", apples=7))
    with Session(str(tmp_path / "other.db")) as other:
        other.ensure(crate)
        assert other.commit() == 1
        assert other.one(Crate, "c1").apples == 10

    session.ensure(crate)
    with pytest.raises(StateConflictError):  # it is at an old version here
        session.commit()
    session.discard()


# -- get and one ----------------------------------------------------------------------------------


def test_get_gives_none_and_one_raises(session):
    assert session.get(Crate, "c1") is None
    with pytest.raises(NotFoundError, match="there is no Crate 'c1'"):
        session.one(Crate, "c1")


def test_what_is_queued_is_seen_first(session, crate):
    with session.unit() as unit:
        unit.ensure(Crate(id="c2", apples=2))
        crate.apples = 3
        unit.ensure(crate)
        assert unit.one(Crate, "c2").apples == 2
        assert unit.one(Crate, "c1").apples == 3
        assert unit.one(Crate, "c1").meta().commit_id == 1
        assert session.get(Crate, "c2") is None
        unit.delete(crate)
        assert unit.get(Crate, "c1") is None
        unit.discard()
        assert unit.one(Crate, "c1").apples == 10


def test_what_is_seen_first_is_as_conditional_as_it_was(session, crate):
    crate.apples = 3
    session.ensure(crate)
    again = session.one(Crate, "c1")
    again.apples += 1
    session.ensure(again)
    write(session, Crate(id="c1", apples=7))

    with pytest.raises(StateConflictError):
        session.commit()


def test_the_past_by_number_and_by_time(session, clock, crate):
    before = clock.now()
    clock.advance(seconds=60)
    write(session, Crate(id="c1", apples=7))
    session.ensure(Crate(id="c1", apples=1))

    assert session.one(Crate, "c1", as_of=1).apples == 10
    assert session.one(Crate, "c1", as_of=2).apples == 7
    assert session.one(Crate, "c1", as_of=before).apples == 10
    assert session.get(Crate, "c1", as_of=before - timedelta(days=1)) is None
    assert session.get(Crate, "c1", as_of=0) is None
    session.discard()


@pytest.mark.parametrize(
    ("key", "as_of", "error"),
    [
        (5, None, InvalidTypeError),
        ("", None, InvalidValueError),
        (("c1", "c2"), None, TypeError),
        ("c1", -1, QueryError),
        ("c1", "1", QueryError),
        ("c1", datetime(2026, 1, 1), InvalidValueError),
    ],
)
def test_what_is_no_key_and_no_moment_is_refused(session, key, as_of, error):
    with pytest.raises(error):
        session.get(Crate, key, as_of=as_of)


def test_keys_that_are_no_text(session):
    write(session, Truck(number=7, driver="Ada"))

    assert session.one(Truck, 7).driver == "Ada"
    session.update(Truck, 7, driver="Bob")
    session.commit()
    assert session.one(Truck, 7).driver == "Bob"
    with pytest.raises(InvalidValueError):
        session.get(Truck, "seven")


def test_relations_by_their_ends_and_instance(session):
    write(session, Crate(id="c1"), Truck(number=7))
    write(session, LoadedOn(left_key="c1", right_key=7, row=1))
    write(session, Inspected(left_key="c1", right_key=7, day="mon"))

    loaded = session.one(LoadedOn, ("c1", 7))
    assert (loaded.row, loaded.right.number) == (1, 7)
    loaded.row = 2
    session.ensure(loaded)
    assert session.one(LoadedOn, ("c1", 7)).row == 2
    session.commit()
    assert session.get(Inspected, ("c1", 7, "tue")) is None
    session.update(Inspected, ("c1", 7, "mon"), passed=False)
    session.commit()
    assert session.one(Inspected, ("c1", 7, "mon")).passed is False
    with pytest.raises(InvalidTypeError, match="left, right, day"):
        session.get(Inspected, ("c1", 7))

    stale = session.one(LoadedOn, ("c1", 7))
    write(session, LoadedOn(left_key="c1", right_key=7, row=9))
    session.ensure(stale)
    with pytest.raises(StateConflictError, match="'c1:7'"):
        session.commit()


# -- update and create ------------------------------------------------------------------------------


def test_update_changes_the_named_fields_of_whatever_is_there(session, crate):
    session.update(Crate, "c1", label="fuji")
    write(session, Crate(id="c1", apples=7, label="gala"))

    assert session.commit() == 3
    assert session.one(Crate, "c1") == Crate(id="c1", apples=7, label="fuji")


def test_what_is_queued_to_be_updated_is_seen_so(session, crate):
    when = datetime(2026, 1, 2, tzinfo=UTC)
    session.update(Crate, "c1", label="fuji", packed=when)
    session.update(Crate, "c1", apples=3)

    seen = session.one(Crate, "c1")
    assert (seen.apples, seen.label, seen.packed) == (3, "fuji", when)
    assert seen.meta().commit_id == 1
    session.commit()
    assert session.one(Crate, "c1") == seen


def test_update_of_what_is_queued_as_a_whole(session, crate):
    session.ensure(Crate(id="c2", apples=1))
    session.update(Crate, "c2", apples=2)
    crate.label = "gala"
    session.ensure(crate)
    session.update(Crate, "c1", apples=3)
    session.commit()

    assert session.one(Crate, "c2").apples == 2
    assert session.one(Crate, "c1") == Crate(id="c1", apples=3, label="gala")


def test_update_of_what_is_not_there(session):
    session.update(Crate, "c9", apples=1)
    with pytest.raises(NotFoundError, match="there is no Crate 'c9'"):
        session.commit(event=CrateMoved(crate="c9"))

    assert session.event_store.list_events(session.namespace) == []
    assert session.discard() == 1
    session.delete(Crate(id="c9"))
    with pytest.raises(NotFoundError, match="deleted by this unit"):
        session.update(Crate, "c9", apples=1)
    session.discard()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"pears": 1}, "'pears' is not a field"),
        ({"id": "c2"}, "is the key"),
        ({"apples": "many"}, "apples"),
        ({"apples": 2**70}, "apples"),
        ({"label": "\0"}, "U\\+0000|label"),
    ],
)
def test_update_refuses_at_the_call_what_does_not_fit(session, fields, match):
    with pytest.raises(InvalidValueError, match=match):
        session.update(Crate, "c1", **fields)
    assert session.discard() == 0


def test_update_is_seen_by_the_validators_of_the_whole(session):
    write(session, Shelf(id="s1", height=3, width=2))
    session.update(Shelf, "s1", width=5)
    with pytest.raises(
        InvalidValueError, match=r"update of Shelf 's1'.*wider than high.*; nothing"
    ):
        session.commit()
    session.discard()
    session.update(Shelf, "s1", width=5, height=6)

    assert session.commit() == 2
    assert session.one(Shelf, "s1") == Shelf(id="s1", height=6, width=5)


def test_what_validators_refuse_cannot_be_read_from_the_queue_and_ensured(session):
    write(session, Shelf(id="s1", height=3, width=2))
    session.update(Shelf, "s1", width=5)
    with pytest.raises(InvalidValueError, match=r"update of Shelf 's1'.*wider than high"):
        session.get(Shelf, "s1")
    session.update(Shelf, "s1", height=6)

    assert session.one(Shelf, "s1") == Shelf(id="s1", height=6, width=5)
    assert session.commit() == 2


def test_what_is_queued_shows_what_validators_make_of_it(session):
    write(session, Tag(id="t1", text="a"))
    session.update(Tag, "t1", text="  b ")

    assert session.one(Tag, "t1").text == "b"
    session.commit()
    assert session.one(Tag, "t1").text == "b"


def test_update_on_top_of_what_is_queued_is_seen_by_the_validators(session):
    session.ensure(Shelf(id="s1", height=3, width=2))
    with pytest.raises(InvalidValueError, match="wider than high"):
        session.update(Shelf, "s1", width=5)
    assert session.one(Shelf, "s1").width == 2
    session.discard()


def test_update_is_seen_by_validators_that_look_at_other_fields(session):
    write(session, Span(left_key="c1", right_key=7, day="mon", low=1, high=2))
    key = ("c1", 7, "mon")
    for fields in ({"high": 0}, {"low": 5}, {"low": 9, "high": 8}):
        session.update(Span, key, **fields)
        with pytest.raises(InvalidValueError):
            session.commit()
        session.discard()
    with pytest.raises(InvalidValueError, match="high"):
        session.update(Span, key, high="tall")
    session.update(Span, key, low=5, high=6)

    session.commit()
    assert (session.one(Span, key).low, session.one(Span, key).high) == (5, 6)


def test_an_object_is_created_once(session, crate):
    session.create([Crate(id="c2"), Crate(id="c3")])
    assert session.commit() == 2
    session.create(Crate(id="c1"))
    with pytest.raises(ObjectExistsError, match="there is a Crate 'c1' already") as caught:
        session.commit(event=CrateMoved(crate="c1"))

    assert not isinstance(caught.value, StateConflictError)
    assert RecordExists is ObjectExistsError
    assert session.event_store.list_events(session.namespace) == []
    session.discard()


def test_what_is_queued_already_cannot_be_created(session):
    session.create(Crate(id="c2"))
    with pytest.raises(ObjectExistsError, match="queued in this unit of work already"):
        session.create(Crate(id="c2"))
    with pytest.raises(ObjectExistsError):
        session.create([Crate(id="c3"), Crate(id="c3")])
    assert session.discard() == 1


@pytest.mark.parametrize("then", ["ensure", "delete"])
def test_what_is_created_must_not_be_there_whatever_follows(session, crate, then):
    """A creation that is changed before the commit is still one."""
    made = Crate(id="c1")
    session.create(made)
    made.apples = 2
    getattr(session, then)(made)

    with pytest.raises(ObjectExistsError):
        session.commit()
    assert session.discard() == 1
    assert session.one(Crate, "c1").apples == 10


def test_what_is_deleted_can_be_created_in_the_same_commit(session, crate):
    session.delete(crate)
    session.create(Crate(id="c1", apples=1))
    assert session.commit() == 2

    stale = session.one(Crate, "c1")
    write(session, Crate(id="c1", apples=5))
    session.delete(stale)
    session.create(Crate(id="c1", apples=2))
    with pytest.raises(StateConflictError):
        session.commit()


# -- checked reads ----------------------------------------------------------------------------------


def test_unchecked_reads_may_change(session, crate):
    unit = session.unit()
    unit.one(Crate, "c1")
    write(session, Crate(id="c1", apples=1))
    unit.ensure(Crate(id="c2"))

    assert unit.commit() == 3


def _by_key(unit) -> None:
    unit.one(Crate, "c1")


def _by_query(unit) -> None:
    assert unit.query().entities(Crate).where(Crate.apples > 5).collect()


def _by_path(unit) -> None:
    assert unit.query().entities(Crate).via(LoadedOn).collect()


def _by_end(unit) -> None:
    [relation] = unit.query().relations(LoadedOn).collect()
    assert relation.left.apples == 10


def _by_end_of_key(unit) -> None:
    assert unit.one(LoadedOn, ("c1", 7)).left.apples == 10


def _by_filter_on_an_end(unit) -> None:
    assert unit.query().relations(LoadedOn).where(left(LoadedOn).apples == 10).collect()


def _by_order_of_an_end(unit) -> None:
    assert unit.query().relations(LoadedOn).order_by(left(LoadedOn).apples).collect()


_CHECKED = [
    *(_by_key, _by_query, _by_path, _by_end, _by_end_of_key),
    *(_by_filter_on_an_end, _by_order_of_an_end),
]


@pytest.mark.parametrize("read", _CHECKED)
@pytest.mark.parametrize("event_only", [False, True])
def test_checked_reads_must_be_unchanged(session, crate, read, event_only):
    write(session, Truck(number=7), LoadedOn(left_key="c1", right_key=7))
    unit = session.unit(reads="checked")
    read(unit)
    write(session, Crate(id="c1", apples=9))
    if not event_only:
        unit.ensure(Crate(id="c2"))

    with pytest.raises(StateConflictError, match="Crate 'c1'"):
        unit.commit(event=CrateMoved(crate="c1"))

    assert session.event_store.list_events(session.namespace) == []
    read_again = unit.one(Crate, "c1")
    assert read_again.apples == 9
    unit.commit(event=CrateMoved(crate="c1"))
    assert len(session.event_store.list_events(session.namespace)) == 1


def test_the_ends_that_a_path_leads_to_must_be_unchanged(session, crate):
    write(session, Truck(number=7), LoadedOn(left_key="c1", right_key=7))
    unit = session.unit(reads="checked")
    assert unit.query().entities(Crate).via(LoadedOn).collect()
    write(session, Truck(number=7, driver="ann"))

    with pytest.raises(StateConflictError, match="Truck '7'"):
        unit.commit(event=CrateMoved(crate="c1"))
    unit.discard()


def test_an_end_that_was_not_there_must_still_not_be_there(session, crate):
    write(session, LoadedOn(left_key="c1", right_key=7))
    unit = session.unit(reads="checked")
    [relation] = unit.query().relations(LoadedOn).collect()
    with pytest.raises(EndpointDeleted):
        _ = relation.right
    write(session, Truck(number=7))

    with pytest.raises(StateConflictError, match="Truck '7' did not exist"):
        unit.commit(event=CrateMoved(crate="c1"))
    unit.discard()


def test_the_hint_is_about_what_was_only_read(session, crate):
    unit = session.unit(reads="checked")
    mine = unit.one(Crate, "c1")
    write(session, Crate(id="c1", apples=9))
    unit.ensure(mine, overwrite=True)

    with pytest.raises(StateConflictError) as caught:
        unit.commit()
    assert "reads='checked'" in str(caught.value)
    assert "overwrite" not in str(caught.value)
    unit.discard()


def test_what_was_not_found_must_still_not_be_there(session):
    unit = session.unit(reads="checked")
    assert unit.get(Crate, "c1") is None
    write(session, Crate(id="c1"))
    unit.ensure(Crate(id="c2"))

    with pytest.raises(StateConflictError, match="did not exist when it was read"):
        unit.commit()


def test_what_a_checked_unit_wrote_itself_is_what_it_has_read(session, crate):
    unit = session.unit(reads="checked")
    mine = unit.one(Crate, "c1")
    mine.apples = 9
    unit.ensure(mine)
    unit.commit()
    mine.apples = 8
    unit.ensure(mine)

    assert unit.commit() == 3


@pytest.mark.parametrize(
    "read",
    [
        lambda unit: unit.query().entities(Crate).count(),
        lambda unit: unit.query().entities(Crate).sum(Crate.apples),
        lambda unit: unit.one(Crate, "c1", as_of=1),
        lambda unit: unit.query().entities(Crate).as_of(1).collect(),
        lambda unit: unit.query().entities(Crate).where(Crate.apples < 0).collect(),
    ],
    ids=["count", "sum", "past", "past query", "what appears"],
)
def test_what_is_not_checked(session, crate, read):
    unit = session.unit(reads="checked")
    read(unit)
    write(session, Crate(id="c1", apples=-1))
    unit.ensure(Crate(id="c2"))

    assert unit.commit() == 3


def test_reads_is_checked_or_nothing(session):
    with pytest.raises(InvalidValueError, match="reads is 'checked'"):
        session.unit(reads="serializable")
    with pytest.raises(InvalidTypeError, match="reads is 'checked'"):
        session.unit(reads=True)


# -- transact ---------------------------------------------------------------------------------------


def test_transact_calls_again_on_fresh_state(session, crate):
    calls: list[int] = []

    def take(unit):
        mine = unit.one(Crate, "c1")
        calls.append(mine.apples)
        if len(calls) < 3:
            write(session, Crate(id="c1", apples=mine.apples - 1))
        mine.apples -= 1
        unit.ensure(mine)
        return mine.apples

    assert session.transact(take) == 7
    assert calls == [10, 9, 8]
    assert session.one(Crate, "c1").apples == 7


def test_calls_of_transact_after_a_conflict_take_turns(session, crate, monkeypatch):
    """All threads read the same version, and all but one conflict; of the others none does again."""
    monkeypatch.setattr("ontologia.runtime.unit.TAKE_TURNS", 60.0)  # however slow the machine is
    together, overlapping = threading.Barrier(4), threading.Event()
    calls: list[int] = []
    inside: list[int] = []

    def take(unit):
        calls.append(threading.get_ident())
        first = calls.count(calls[-1]) == 1
        crate = unit.one(Crate, "c1")
        if first:
            together.wait(60)
        else:
            inside.append(1)
            if len(inside) > 1:
                overlapping.set()
            overlapping.wait(0.05)
        crate.apples += 1
        unit.ensure(crate)
        if not first:
            unit.commit()
            inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: session.transact(take, retries=1), range(4)))

    assert len(calls) == 7
    assert not overlapping.is_set()
    assert session.one(Crate, "c1").apples == 14


def test_transact_gives_up(session, crate):
    calls: list[int] = []

    def take(unit):
        mine = unit.one(Crate, "c1")
        calls.append(mine.apples)
        write(session, Crate(id="c1", apples=mine.apples - 1))
        unit.ensure(mine)

    with pytest.raises(StateConflictError) as caught:
        session.transact(take, retries=2)
    assert calls == [10, 9, 8]
    assert "called the function 3 times" in caught.value.__notes__[0]
    assert "Raise retries=" in str(caught.value)


def test_transact_commits_unless_the_function_did(session, crate):
    def take(unit):
        unit.update(Crate, "c1", apples=1)
        return unit.commit(event=CrateMoved(crate="c1"))

    assert session.transact(take) == 2
    assert session.head == 2
    assert len(session.event_store.list_events(session.namespace)) == 1


def test_transact_does_not_repeat_what_was_committed(session, crate):
    calls = []

    def twice(unit):
        calls.append(1)
        stale = unit.one(Crate, "c1")
        unit.ensure(Crate(id="c2", apples=len(calls)))
        unit.commit()
        write(session, Crate(id="c1", apples=1))
        unit.ensure(stale)

    with pytest.raises(StateConflictError):
        session.transact(twice)
    assert calls == [1]


def test_transact_raises_other_errors_at_once(session, crate):
    calls = []

    def fail(unit):
        calls.append(1)
        unit.ensure(Crate(id="c2"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        session.transact(fail)
    assert calls == [1]
    assert session.get(Crate, "c2") is None

    def exists(unit):
        calls.append(1)
        unit.create(Crate(id="c1"))

    with pytest.raises(ObjectExistsError):
        session.transact(exists)
    assert calls == [1, 1]


def test_transact_with_checked_reads_sees_no_write_skew(session):
    """Each of two keeps the sum above zero alone; both together would not."""
    write(session, Crate(id="c1", apples=1), Crate(id="c2", apples=1))
    entered = threading.Barrier(2, timeout=60)
    first_calls: list[str] = []

    def take(name):
        def function(unit):
            both = [unit.one(Crate, "c1"), unit.one(Crate, "c2")]
            if name not in first_calls:
                first_calls.append(name)
                entered.wait()
            if sum(each.apples for each in both) > 1:
                mine = unit.one(Crate, name)
                mine.apples -= 1
                unit.ensure(mine)

        return lambda: session.transact(function, reads="checked")

    threads = [threading.Thread(target=take(name)) for name in ("c1", "c2")]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert sum(each.apples for each in session.query().entities(Crate).collect()) == 1


async def _later(unit) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "retries", "error"),
    [
        (_later, 1, InvalidTypeError),
        (lambda unit: None, True, InvalidTypeError),
        (lambda unit: None, -1, InvalidValueError),
    ],
)
def test_transact_refuses_what_it_cannot_call(session, function, retries, error):
    with pytest.raises(error):
        session.transact(function, retries=retries)


# -- events with a commit ---------------------------------------------------------------------------


def test_some_events_of_a_commit_come_later(session, clock):
    now, due = CrateMoved(crate="c1"), CrateDue(crate="c1")
    session.ensure(Crate(id="c1"))
    assert session.commit(event=[now, later(due, delay=900)]) == 1

    listed = session.event_store.list_events(session.namespace)
    assert [each["type"] for each in listed] == ["crate.moved"]
    assert now.id is not None
    assert due.id not in (None, now.id)


def test_each_event_has_its_own_key(session):
    session.commit(event=[later(CrateMoved(crate=each), dedup_key=each) for each in "ab"])
    session.commit(event=[later(CrateMoved(crate=each), dedup_key=each) for each in "bc"])

    assert len(session.event_store.list_events(session.namespace)) == 3


@pytest.mark.req("ONT-060")
@pytest.mark.parametrize("event", ["", {}, b"", "job.posted", 5, [1], ["crate.moved"], CrateMoved])
def test_what_is_no_event_is_refused(session, event):
    session.ensure(Crate(id="c1"))
    with pytest.raises(TypeError, match="event="):
        session.commit(event=event)
    assert session.head == 0
    session.discard()


def test_when_an_event_is_due_is_said_once(session):
    with pytest.raises(InvalidValueError, match="one of them is enough"):
        session.commit(event=later(CrateMoved(crate="c1"), delay=3), delay=4)
    with pytest.raises(InvalidValueError, match="later needs"):
        later(CrateMoved(crate="c1"))
    with pytest.raises(InvalidTypeError):
        later("crate.moved", delay=3)


@pytest.mark.parametrize("given", ["x", b"x", 5, {}, [1], CrateMoved(crate="c1"), None])
@pytest.mark.parametrize("how", ["ensure", "delete", "create"])
def test_what_is_no_object_is_a_type_error(session, given, how):
    with pytest.raises(TypeError):
        getattr(session, how)(given)


def test_a_closed_session_reads_nothing(open_session):
    session = open_session()
    session.close()
    for use in (session.get, session.one):
        with pytest.raises(SessionClosedError):
            use(Crate, "c1")
