"""An idle session is woken by what others write, long before it would look by itself."""

from __future__ import annotations

import threading
from contextlib import closing

import apsw
import pytest

from ontologia import Entity, Event, Field, LeaseExpiredError, Session, on_event
from ontologia.config import OntologiaConfig
from ontologia.runtime.session import core_of
from ontologia.store.sqlite import watch
from tests.integration.processes import Process
from tests.integration.running import PATIENCE, running, until

FOR_AN_HOUR = OntologiaConfig(event_poll_interval_ms=3_600_000)

ANNOUNCE = """
from ontologia import Event, Field

class Ring(Event):
    number: Field[int]

session = Session(sys.argv[1])
say("ready")
for number in range(3):
    listen()
    session.commit(event=Ring(number=number))
    say("rung")
"""


@pytest.fixture(scope="session")
def backend(sqlite):
    """What is said here is about files of SQLite."""
    return sqlite


class Ring(Event):
    number: Field[int]


class Note(Entity):
    id: Field[str]


@pytest.fixture
def heard(path):
    """The numbers that an idle session has heard; it polls once an hour."""
    numbers: list[int] = []

    @on_event(Ring, name="hear")
    def hear(ctx):
        numbers.append(ctx.event.number)

    with Session(str(path), config=FOR_AN_HOUR) as session, running(session, [hear]):
        until(lambda: session.event_store.list_consumers("default"))
        yield numbers


def _ring_from_another_process(path, heard):
    with Process(ANNOUNCE, path) as other:
        other.hear("ready")
        for number in range(3):
            other.tell("ring")
            other.hear("rung")
            until(lambda number=number: heard == list(range(number + 1)))


@pytest.mark.req("NEW-003", "ONT-161")
def test_another_process_wakes_it(path, heard):
    _ring_from_another_process(path, heard)


@pytest.mark.req("NEW-003")
def test_another_process_is_noticed_where_the_system_does_not_tell(path, monkeypatch, request):
    monkeypatch.setattr(watch._Growth, "of", lambda path: None)

    _ring_from_another_process(path, request.getfixturevalue("heard"))


class _SlowDisk(apsw.VFS):
    """Syncs of the write-ahead log wait until they are let go."""

    def __init__(self):
        self.syncing, self.let_go = threading.Event(), threading.Event()
        super().__init__("slow-disk", "")

    def xOpen(self, name, flags):
        disk = self

        class File(apsw.VFSFile):
            def __init__(self):
                super().__init__("", name, flags)
                self._is_log = flags[0] & apsw.SQLITE_OPEN_WAL

            def xSync(self, flags):
                if self._is_log:
                    disk.syncing.set()
                    assert disk.let_go.wait(PATIENCE)
                super().xSync(flags)

        return File()


@pytest.mark.req("NEW-003")
def test_a_commit_that_is_being_synced_when_the_wait_begins_is_noticed(path, monkeypatch):
    """Its last write was before; what is left makes it visible, and the kernel tells of no more."""
    disk = _SlowDisk()

    def write():
        connection = apsw.Connection(str(path), vfs="slow-disk")
        connection.execute("PRAGMA synchronous=FULL; CREATE TABLE late(x)")
        connection.close()

    with Session(str(path)) as session, closing(core_of(session).store.watch()) as waiter:
        writer = threading.Thread(target=write)
        writer.start()
        assert disk.syncing.wait(PATIENCE)
        waiter.settle()
        look = waiter._counter.changed

        def first_look():
            found = look()
            monkeypatch.undo()
            disk.let_go.set()
            writer.join()
            return found

        monkeypatch.setattr(waiter._counter, "changed", first_look)

        assert waiter.wait(PATIENCE)


@pytest.mark.req("ONT-161")
def test_another_session_of_its_process_wakes_it(path, heard):
    with Session(str(path)) as other:
        for number in range(3):
            other.commit(event=Ring(number=number))
            until(lambda number=number: heard == list(range(number + 1)))


@pytest.mark.req("NEW-022")
def test_what_is_deferred_meanwhile_does_not_wait_for_the_next_look(path, heard):
    with Session(str(path)) as other:
        other.defer(Ring(number=0), delay=0.05)
        until(lambda: heard == [0])


def test_a_session_in_memory_is_woken_by_its_own_threads():
    numbers: list[int] = []

    @on_event(Ring, name="hear")
    def hear(ctx):
        numbers.append(ctx.event.number)

    with Session("sqlite://", config=FOR_AN_HOUR) as session, running(session, [hear]):
        until(lambda: session.event_store.list_consumers("default"))
        session.commit(event=Ring(number=7))
        until(lambda: numbers == [7])


@pytest.mark.req("SQL-075", "ONT-047")
def test_a_lease_that_ends_while_the_commit_waits_for_others_is_noticed(open_session, path, clock):
    session, caught = open_session(), []
    blocker = apsw.Connection(str(path))
    blocker.set_busy_timeout(int(PATIENCE * 1000))
    waiting = threading.Event()

    @on_event(Ring)
    def note(ctx):
        if ctx.attempt > 1:
            return
        ctx.ensure(Note(id="late"))
        blocker.execute("BEGIN IMMEDIATE")
        waiting.set()
        try:
            ctx.commit()
        except LeaseExpiredError as error:
            caught.append(error)
            raise

    def free() -> None:
        assert waiting.wait(PATIENCE)
        clock.advance(seconds=31)  # the lease is over; only then can the commit begin
        blocker.execute("ROLLBACK")

    session.commit(event=Ring(number=1))
    thread = threading.Thread(target=free)
    thread.start()
    session.run([note], max_iterations=1)
    thread.join()

    assert len(caught) == 1
    assert session.head == 0
