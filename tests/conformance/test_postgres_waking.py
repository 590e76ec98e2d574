"""An idle session on PostgreSQL is woken by what other processes write."""

from __future__ import annotations

import psycopg
import pytest

from ontologia import Event, Field, OntologiaConfig, Session, on_event
from ontologia.store.postgres import watch
from tests.integration.processes import Process
from tests.integration.running import running, until

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
def test_a_listener_that_lost_its_connection_listens_again(postgres_uri, uri, heard):
    with Process(ANNOUNCE, uri) as other:
        other.hear("ready")
        _ring(other, 0)
        until(lambda: heard == [0])
        with psycopg.connect(postgres_uri, autocommit=True) as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                " OR query LIKE 'SELECT pg_notify%'"
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


FORK = """
from ontologia import Event, Field, on_event
from tests.integration.running import until

class Bell(Event):
    number: Field[int]

@on_event(Bell, name="hear")
def hear(ctx):
    say("heard", ctx.event.number)

parent = Session(sys.argv[1])
watch = parent._store.watch()
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
