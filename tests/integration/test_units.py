"""A unit: what belongs together, apart from whatever else uses the session."""

from __future__ import annotations

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ontologia import Entity, Event, Field, HandlerContext, Session, Unit, on_event
from ontologia.errors import (
    HeadMismatchError,
    InvalidValueError,
    OntologiaError,
    SessionClosedError,
    StateConflictError,
    UncommittedChangesError,
)
from ontologia.runtime.delta import Delta
from ontologia.runtime.session import core_of
from tests.integration.running import PATIENCE

pytestmark = pytest.mark.each_database


class Guest(Entity):
    id: Field[str]
    table: Field[int]


class GuestSeated(Event):
    guest: Field[str]


def guests(session) -> dict[str, int]:
    return {each.id: each.table for each in session.query().entities(Guest).collect()}


def test_neither_writes_what_the_other_has_queued(session):
    unit = session.unit()
    unit.ensure(Guest(id="ada", table=1))
    session.ensure(Guest(id="bob", table=2))

    assert session.commit() == 1
    assert guests(session) == {"bob": 2}
    assert unit.commit() == 2
    assert guests(session) == {"ada": 1, "bob": 2}
    assert unit.commit() is None


def test_requests_in_threads_do_not_mix(session):
    """All have queued before any commits."""
    together = threading.Barrier(8)
    numbers: dict[str, int | None] = {}

    def request(name: str) -> None:
        with session.unit() as unit:
            unit.ensure(Guest(id=name, table=1))
            unit.ensure(Guest(id=f"{name}'s friend", table=1))
            together.wait(60)
            numbers[name] = unit.commit(event=GuestSeated(guest=name))

    threads = [threading.Thread(target=request, args=(f"guest {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(numbers.values()) == list(range(1, 9))
    for name, number in numbers.items():
        changed = [each["entity_id"] for each in session.list_commit_changes(number)]
        assert sorted(changed) == [f"Guest:{name}", f"Guest:{name}'s friend"]
    assert len(session.event_store.list_events(session.namespace)) == 8


def test_leaving_it_commits_what_is_queued(session):
    with session.unit() as unit:
        unit.ensure(Guest(id="ada", table=1))

    assert guests(session) == {"ada": 1}


def test_leaving_it_by_an_exception_drops_what_is_queued(session):
    def request() -> None:
        with session.unit() as unit:
            unit.ensure(Guest(id="ada", table=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        request()

    assert session.commit() is None
    assert guests(session) == {}


ADA, BOB = {"id": "ada", "table": 1}, {"id": "bob", "table": 2}


@pytest.mark.parametrize("kind", ["unit", "session"])
@pytest.mark.parametrize(
    ("then", "written", "dropped"),
    [
        (lambda _: None, {}, True),
        (lambda unit: unit.commit(dry_run=True), {}, True),
        (lambda unit: unit.ensure(Guest(**ADA)), {"ada": 1}, False),
        (lambda unit: unit.ensure(Guest(id="ada", table=3)), {"ada": 3}, False),
        (lambda unit: unit.commit(), {"ada": 1}, False),
        (lambda unit: (unit.commit(), unit.delete(Guest(**ADA))), {}, False),
        (lambda unit: (unit.discard(), unit.ensure(Guest(**ADA))), {"ada": 1}, False),
    ],
    ids=["nothing", "a look", "again", "anew", "commit", "deletion", "discard"],
)
def test_what_a_commit_was_refused_for_is_not_written_on_leaving(
    session, open_session, caplog, kind, then, written, dropped
):
    """It would be without its event, and without the condition."""
    with session.unit() if kind == "unit" else open_session() as unit:
        unit.ensure(Guest(**ADA))
        with pytest.raises(HeadMismatchError):
            unit.commit(event=GuestSeated(guest="ada"), expected_head=7)
        then(unit)

    assert guests(session) == written
    assert session.event_store.list_events(session.namespace) == []
    assert ("1 objects are dropped" in caplog.text) is dropped


@pytest.mark.parametrize("kind", ["unit", "session"])
@pytest.mark.parametrize(
    "commit",
    [
        lambda unit: unit.commit(event=GuestSeated(guest="x"), expected_head=7),
        lambda unit: unit.commit(event="no event"),
        lambda unit: unit.commit(event=GuestSeated(guest="x")),
    ],
    ids=["refused", "wrong", "done"],
)
def test_a_commit_of_nothing_has_no_say_in_what_is_queued_later(
    session, open_session, caplog, kind, commit
):
    with session.unit() if kind == "unit" else open_session() as unit:
        with contextlib.suppress(OntologiaError, TypeError):
            commit(unit)
        unit.ensure(Guest(**BOB))

    assert guests(session) == {"bob": 2}
    assert caplog.text == ""


@pytest.mark.parametrize("kind", ["unit", "session"])
def test_no_half_of_a_unit_is_written_on_leaving(session, open_session, kind):
    """A commit failed, a part was queued anew, and the rest is still there."""
    session.ensure(Guest(**ADA))
    session.commit()

    def leave() -> None:
        with session.unit() if kind == "unit" else open_session() as unit:
            ada = unit.one(Guest, "ada")
            with session.unit() as other:
                other.update(Guest, "ada", table=9)
            ada.table = 5
            unit.ensure([ada, Guest(**BOB)])
            with pytest.raises(StateConflictError):
                unit.commit(event=GuestSeated(guest="ada"))
            fresh = unit.one(Guest, "ada")
            fresh.table += 1
            unit.ensure(fresh)

    with pytest.raises(
        UncommittedChangesError, match=r"failed to write Guest 'bob', and Guest 'ada'"
    ):
        leave()
    assert guests(session) == {"ada": 9}


def test_a_unit_that_is_forgotten_with_objects_queued_warns(session):
    def forget() -> None:
        session.unit().ensure(Guest(**ADA))
        gc.collect()

    with pytest.warns(ResourceWarning, match="neither committed nor discarded, and 1 queued"):
        forget()


@pytest.mark.req("C-039")
def test_each_thread_has_a_queue_of_its_own(session):
    """Another thread's commit does not write my objects without my event."""
    session.ensure(Guest(**ADA))
    with ThreadPoolExecutor(1) as other:
        assert other.submit(session.commit).result(PATIENCE) is None
        assert other.submit(session.get, Guest, "ada").result(PATIENCE) is None
        other.submit(session.ensure, Guest(**BOB)).result(PATIENCE)
        assert other.submit(session.commit).result(PATIENCE) == 1

    assert guests(session) == {"bob": 2}
    assert session.commit() == 2
    assert guests(session) == {"ada": 1, "bob": 2}


@pytest.mark.req("C-039")
def test_leaving_a_session_commits_the_queue_of_the_thread_that_leaves(
    open_session, session, caplog
):
    with ThreadPoolExecutor(1, thread_name_prefix="kitchen") as other, open_session() as leaving:
        other.submit(leaving.ensure, [Guest(**BOB), Guest(id="eve", table=3)]).result(PATIENCE)
        leaving.ensure(Guest(**ADA))

    assert guests(session) == {"ada": 1}
    assert "2 objects queued by thread kitchen_0; they were not written" in caplog.text


def test_a_thread_does_not_inherit_what_another_left_behind(open_session, caplog):
    """Threads that ended are forgotten, unless they left something to be named at the end."""
    session = open_session()
    for name, leave in (("first", True), ("second", False), ("third", False)):
        work = (lambda: session.ensure(Guest(**BOB))) if leave else session.commit
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join(PATIENCE)

    assert session.head == 0
    assert [name for name, _ in session._threads.left_behind()] == ["first"]
    assert len(session._threads._all) <= 2
    session.close()
    assert "thread first" in caplog.text


def test_a_session_that_is_forgotten_with_objects_queued_warns(uri):
    def forget() -> None:
        session = Session(uri)
        session.ensure(Guest(**ADA))
        core_of(session).store.close()

    def collect() -> None:
        forget()
        gc.collect()

    with pytest.warns(ResourceWarning, match="1 queued objects were not written"):
        collect()


@pytest.mark.parametrize("use", ["ensure", "delete", "discard", "commit", "query"])
def test_it_is_not_used_after_its_end(session, use):
    with session.unit() as unit:
        pass

    given = [Guest(id="ada", table=1)] if use in ("ensure", "delete") else []
    with pytest.raises(SessionClosedError, match="the unit has ended"):
        getattr(unit, use)(*given)


def test_it_does_what_a_session_does(session):
    unit = session.unit()
    unit.ensure([Guest(id="ada", table=1), Guest(id="bob", table=1)])
    preview = unit.commit(dry_run=True)
    assert isinstance(preview, Delta)
    assert [each.key for each in preview.created] == ["ada", "bob"]
    assert unit.discard() == 2

    unit.ensure(Guest(id="ada", table=1))
    with pytest.raises(HeadMismatchError):
        unit.commit(expected_head=7)
    event = GuestSeated(guest="ada")
    assert unit.commit(expected_head=0, event=event, dedup_key="ada") == 1
    assert event.id is not None
    again = GuestSeated(guest="ada")
    unit.commit(event=again, dedup_key="ada")
    assert again.id == event.id

    unit.delete(Guest(id="ada", table=1))
    assert unit.query().entities(Guest).count() == 1
    assert unit.commit() == 2
    assert guests(session) == {}
    with pytest.raises(InvalidValueError):
        unit.commit(delay=3)


def test_a_handler_cannot_get_around_its_fence_by_a_unit(session):
    outside: Unit = session.unit()
    refused = []

    @on_event(GuestSeated, name="seat")
    def seat(ctx: HandlerContext[GuestSeated]) -> None:
        for attempt in (ctx.session.unit, lambda: outside.ensure(Guest(id="ada", table=1))):
            with pytest.raises(RuntimeError, match="seat is a handler") as error:
                attempt()
            refused.append(error)
        assert ctx.event_id == ctx.event.id

    session.commit(event=GuestSeated(guest="ada"))
    session.run([seat], max_iterations=1)

    assert len(refused) == 2
    assert session.event_store.list_dead_letters(session.namespace) == []
    assert [each["status"] for each in session.event_store.list_events("default")] == ["acked"]


def test_a_unit_of_a_closed_session_says_so(open_session):
    session = open_session()
    unit = session.unit()
    session.close()

    with pytest.raises(SessionClosedError, match="the session is closed"):
        unit.ensure(Guest(id="ada", table=1))
    with pytest.raises(SessionClosedError):
        session.unit()
