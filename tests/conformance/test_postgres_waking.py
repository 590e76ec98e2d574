"""An idle session on PostgreSQL is woken by what other processes write."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import psycopg
import pytest

from ontologia import Event, Field, OntologiaConfig, Session, on_event
from ontologia.errors import HeadMismatchError
from ontologia.runtime.context import attempt_of
from ontologia.runtime.session import core_of
from ontologia.store.postgres import database, watch
from ontologia.store.postgres.wire import Wire
from tests.integration.processes import Process
from tests.integration.running import running, statuses, until
from tests.shop import Product

FOR_AN_HOUR = OntologiaConfig(event_poll_interval_ms=3_600_000)

ANNOUNCE = """
from ontologia import Event, Field

class Bell(Event):
    number: Field[int]

session = Session(sys.argv[1])
say("ready")
while (line := listen()):
    session.commit(event=Bell(number=int(line)))
    say("rung")
"""


class Bell(Event):
    number: Field[int]


@pytest.fixture
def heard(uri):
    """The numbers that an idle session has heard; it polls once an hour."""
    numbers: list[int] = []

    @on_event(Bell, name="hear")
    def hear(ctx):
        numbers.append(ctx.event.number)

    with Session(uri, config=FOR_AN_HOUR) as session, running(session, [hear]):
        until(lambda: session.event_store.list_consumers("default"))
        yield numbers


def _ring(other: Process, number: int) -> None:
    other.tell(str(number))
    other.hear("rung")


@pytest.mark.req("NEW-003", "ONT-161")
def test_another_process_wakes_it(uri, heard):
    with Process(ANNOUNCE, uri) as other:
        other.hear("ready")
        for number in range(3):
            _ring(other, number)
            until(lambda number=number: heard == list(range(number + 1)))


@pytest.mark.req("NEW-003")
def test_a_process_is_woken_by_the_word_of_others_and_not_by_its_own(
    postgres_uri, uri, monkeypatch
):
    """Those here were woken when it was sent."""
    woken: list[int] = []
    with Session(uri) as session, psycopg.connect(postgres_uri, autocommit=True) as other:
        channel = core_of(session).store._channel
        watching = core_of(session).store.watch()
        until(lambda: channel.hears)
        until(lambda: watching.wait(0.01))  # what may have come while nobody listened
        turns: list[int] = []
        still_wanted = channel._still_wanted
        monkeypatch.setattr(channel, "_wake_here", lambda: woken.append(1))
        monkeypatch.setattr(channel, "_still_wanted", lambda: turns.append(1) or still_wanted())

        def say(*words: str) -> None:
            with other.transaction():
                for word in words:
                    other.execute("SELECT pg_notify(%s, %s)", (channel._name, word))

        say("theirs", channel._mark)
        until(lambda: len(woken) == 1)
        before = len(turns)
        say(channel._mark)
        until(lambda: len(turns) >= before + 2)  # it came, and nobody was woken
        assert len(woken) == 1
        say(channel._mark, "theirs")
        until(lambda: len(woken) == 2)
        say("theirs")
        until(lambda: len(woken) == 3)
        watching.close()


@pytest.mark.req("NEW-003")
def test_a_listener_that_lost_its_connection_listens_again(postgres_uri, uri, heard):
    with Process(ANNOUNCE, uri) as other:
        other.hear("ready")
        _ring(other, 0)
        until(lambda: heard == [0])
        with psycopg.connect(postgres_uri, autocommit=True) as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify%')"
                " AND datname = current_database()"
            )
        for number in range(1, 4):
            _ring(other, number)
            until(lambda number=number: heard == list(range(number + 1)))


@pytest.mark.req("NEW-003")
def test_where_notifications_do_not_arrive_it_looks_often_and_says_so(
    uri, monkeypatch, caplog, request
):
    monkeypatch.setattr(watch, "_PROBE", 0.0)  # as if the first one had not come back
    monkeypatch.setattr(watch, "_channels", {})  # not one that others have listened on
    numbers = request.getfixturevalue("heard")
    with Process(ANNOUNCE, uri) as other:
        other.hear("ready")
        until(lambda: "do not arrive" in caplog.text)
        for number in range(3):
            _ring(other, number)
            until(lambda number=number: numbers == list(range(number + 1)))


@pytest.mark.req("ONT-161")
def test_another_session_of_its_process_wakes_it(uri, heard):
    with Session(uri) as other:
        for number in range(3):
            other.commit(event=Bell(number=number))
            until(lambda number=number: heard == list(range(number + 1)))


# -- who is claimed for -----------------------------------------------------------------------


class Gong(Event):
    number: Field[int]


@pytest.fixture
def spoken(uri, monkeypatch):
    """Run handlers; what they were given, each with the messages of the run since it was woken."""
    sent: list[int] = []
    exchange, wait = Wire._exchange, watch.Watch.wait

    def counted(wire, then=None):
        if threading.current_thread().name == "ontologia-run":
            sent.append(len(wire._queue))
        return exchange(wire, then)

    def waited(watch, seconds):
        woken = wait(watch, 0.0)
        if not woken:
            idle.set()
            woken = wait(watch, seconds)
        idle.clear()  # a wake for nothing must not make a handler that runs look idle
        sent.clear()
        return woken

    idle = threading.Event()
    monkeypatch.setattr(Wire, "_exchange", counted)
    monkeypatch.setattr(watch.Watch, "wait", waited)
    given: list[tuple[str, int]] = []

    @contextmanager
    def run(**priorities):
        def said(ctx):
            given.append((attempt_of(ctx).claim.handler_id, len(sent)))

        handlers = [
            on_event(kind, name=kind.__event_type__, priority=priority)(lambda ctx: said(ctx))
            for kind in (Bell, Gong)
            if (priority := priorities.get(kind.__event_type__)) is not None
        ]

        def announce(*events):
            until(idle.is_set)
            before = len(given)
            session.commit(event=events)
            until(lambda: len(given) >= before + len(events) and idle.is_set())
            return given[before:]

        session = Session(uri, config=FOR_AN_HOUR)
        with session, running(session, handlers):
            until(lambda: len(session.event_store.list_consumers("default")) == len(handlers))
            until(lambda: core_of(session).store._channel.hears)
            announce(Bell(number=0))
            yield announce

    return run


def test_a_lone_handler_has_its_events_by_the_first_message(spoken):
    with spoken(bell=100) as announce:
        assert announce(Bell(number=1)) == [("bell", 1)]
        assert announce(Bell(number=2)) == [("bell", 1)]


def test_several_handlers_have_theirs_by_a_look_and_a_claim(spoken):
    with spoken(bell=100, gong=100) as announce:
        assert announce(Bell(number=1)) == [("bell", 2)]
        assert announce(Gong(number=2)) == [("gong", 2)]


@pytest.mark.req("ONT-066")
@pytest.mark.parametrize("priority", [100, 900])
def test_nobody_is_claimed_for_while_there_is_something_for_whoever_comes_first(spoken, priority):
    with spoken(bell=priority, gong=100) as announce:
        announce(Gong(number=1))

        served = announce(Gong(number=2), Bell(number=3))

        assert [name for name, _ in served] == ["bell", "gong"]


def test_a_line_that_died_during_the_rest_is_replaced_without_an_outage(
    uri, postgres_uri, monkeypatch, caplog
):
    numbers = []

    @on_event(Bell, name="hear")
    def hear(ctx):
        numbers.append(ctx.event.number)

    monkeypatch.setattr(database, "has_died", lambda _: False)  # as of a line cut further away
    session = Session(uri, config=FOR_AN_HOUR)
    with session, Session(uri) as other, running(session, [hear]):
        other.commit(event=Bell(number=0))
        until(lambda: numbers == [0] and statuses(other) == ["acked"])
        until(lambda: core_of(session).store.database._warm is not None)
        dead = core_of(session).store.database._warm.info.backend_pid
        with psycopg.connect(postgres_uri, autocommit=True) as operator:
            operator.execute("SELECT pg_terminate_backend(%s, 10000)", (dead,))

        other.commit(event=Bell(number=1))
        until(lambda: numbers == [0, 1])

    assert "the run goes on" not in caplog.text


FORK = """
from ontologia import Event, Field, on_event
from ontologia.runtime.session import core_of
from tests.integration.running import until

class Bell(Event):
    number: Field[int]

@on_event(Bell, name="hear")
def hear(ctx):
    say("heard", ctx.event.number)

parent = Session(sys.argv[1])
watch = core_of(parent).store.watch()
until(lambda: watch._channel.hears)
child = os.fork()
if child == 0:
    with Session(sys.argv[1], config=OntologiaConfig(event_poll_interval_ms=3_600_000)) as session:
        session.run([hear])
    os._exit(0)
listen()
os.kill(child, 9)
os.waitpid(child, 0)
"""


@pytest.mark.req("NEW-003")
def test_a_forked_child_hears_for_itself(uri):
    with Process(FORK, uri) as other, Session(uri) as session:
        until(lambda: session.event_store.list_consumers("default"))
        for number in range(3):
            session.commit(event=Bell(number=number))
            assert other.hear("heard") == str(number)
        other.tell("")
        assert other.popen.wait(60) == 0  # killed before it has, it would leave its child behind


@pytest.fixture
def notes(postgres_uri, uri):
    """What arrives on the channel of the store, until there is nothing for a moment."""
    with psycopg.connect(postgres_uri, autocommit=True) as listener:
        listener.execute(f'LISTEN "ontologia_{uri.partition("schema=")[2]}"'.encode())
        yield lambda: [note.payload for note in listener.notifies(timeout=0.5)]


@pytest.mark.req("NEW-003")
@pytest.mark.parametrize("with_state", [False, True])
def test_the_first_notice_goes_with_the_commit_itself(uri, notes, monkeypatch, with_state):
    monkeypatch.setattr(watch.Channel, "_notify", lambda _: None)  # no thread sends any
    with Session(uri, entity_types=[Product]) as session:
        if with_state:
            session.ensure(Product(sku="a", price=1.0))
        session.commit(event=Bell(number=1))
        assert len(notes()) == 1


@pytest.mark.req("NEW-003")
def test_what_comes_soon_after_is_noticed_as_well(uri, notes, monkeypatch):
    monkeypatch.setattr(watch, "_SPACING", 0.2)
    with Session(uri) as session:
        for number in range(5):
            session.commit(event=Bell(number=number))
        assert len(notes()) == 2  # the first, and one for all the others


@pytest.mark.thorough
@pytest.mark.req("NEW-003")
def test_a_commit_that_was_refused_is_not_announced_and_the_next_one_is(uri, notes):
    with Session(uri, entity_types=[Product]) as session:
        session.commit(event=Bell(number=1))
        assert len(notes()) == 1
        session.ensure(Product(sku="a", price=1.0))
        with pytest.raises(HeadMismatchError):
            session.commit(event=Bell(number=2), expected_head=77)
        assert notes() == []
        session.commit(event=Bell(number=3))
        assert len(notes()) == 1


def test_a_server_that_takes_no_notice_keeps_the_event_all_the_same(uri, notes, monkeypatch):
    monkeypatch.setattr(watch, "_NOTIFY", b"SELECT 1 / 0, $1::text, $2::text")
    with Session(uri) as session:
        session.commit(event=Bell(number=1))
        assert len(notes()) == 1  # by the thread, in words of its own
        assert len(session.event_store.list_events("default")) == 1
        session.commit(event=Bell(number=2))
        assert len(session.event_store.list_events("default")) == 2


@pytest.mark.thorough
@pytest.mark.req("NEW-003")
def test_a_notice_whose_connection_died_is_sent_by_another(postgres_uri, uri, notes, monkeypatch):
    monkeypatch.setattr(watch, "_SPACING", 0.2)
    with Session(uri) as session:
        for number in range(4):
            session.commit(event=Bell(number=number))
        assert len(notes()) == 2  # the second by the thread
        with psycopg.connect(postgres_uri, autocommit=True) as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query = 'SELECT pg_notify($1, $2)' AND datname = current_database()"
            )
        for number in range(4):
            session.commit(event=Bell(number=number))
        assert len(notes()) == 2


@pytest.mark.req("NEW-003", "ONT-161")
def test_a_session_that_found_the_database_busy_looks_again_soon(uri, caplog):
    heard: list[int] = []

    @on_event(Bell, name="hear")
    def hear(ctx):
        heard.append(ctx.event.number)

    impatient = OntologiaConfig(event_poll_interval_ms=3_600_000, lock_timeout_ms=100)
    with (
        Session(uri, config=impatient) as session,
        Session(uri) as other,
        running(session, [hear]),
    ):
        until(lambda: other.event_store.list_consumers("default"))
        with other.event_store.transaction() as tx:
            assert tx.lock_dispatch(wait=True)
            with Session(uri) as third:
                third.commit(event=Bell(number=1))
            until(lambda: "the database is busy" in caplog.text)
        until(lambda: heard == [1])
