"""Statements, locks, and servers and processes that vanished are waited for with a limit."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ontologia import Entity, Event, Field, HandlerContext, OntologiaConfig, Session, on_event
from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import DatabaseError, LockContentionError
from ontologia.store.open import open_store
from ontologia.store.postgres.contact import Server
from ontologia.store.postgres.place import place_of
from ontologia.store.postgres.transaction import PostgresTransaction
from ontologia.store.postgres.wire import Statement
from tests.integration.running import PATIENCE
from tests.servers import own_bouncer, own_server

if TYPE_CHECKING:
    from ontologia.store.postgres.database import Database
    from ontologia_conformance.servers import Postgres

LONG = "SELECT pg_sleep(60)"
Open = Callable[..., "Database"]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


@pytest.fixture
def open_(server: Postgres) -> Iterator[Open]:
    opened: list[Any] = []

    def database(uri: str = server.uri, **settings: Any) -> Database:
        opened.append(open_store(uri, OntologiaConfig(**settings), SYSTEM_CLOCK, Random(1)))
        found: Database = opened[-1].database
        return found

    yield database
    for store in opened:
        store.close()


def within(transaction: Callable[[], AbstractContextManager[Any]]) -> None:
    with transaction() as tx:
        tx.one(LONG)


def outside(database: Database) -> None:
    database.all(LONG)


WAYS: dict[str, Callable[[Any], None]] = {
    "a read": lambda database: within(database.read),
    "a write": lambda database: within(database.write),
    "a write of state": lambda database: within(database.write_state),
    "alone": outside,
}


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_a_statement_that_takes_too_long_is_ended_and_the_setting_is_named(
    open_: Open, ask: Callable[[Any], None]
) -> None:
    database = open_(statement_timeout_ms=50)

    with pytest.raises(DatabaseError, match="statement_timeout_ms") as error:
        ask(database)

    assert "statement_timeout_ms=..." in (error.value.hint or "")
    assert database.all("SELECT 1") == [(1,)]


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_so_it_is_behind_a_pooler(
    server: Postgres, open_: Open, ask: Callable[[Any], None]
) -> None:
    with own_bouncer(server) as bouncer:
        database = open_(bouncer.uri, statement_timeout_ms=50)
        with pytest.raises(DatabaseError, match="statement_timeout_ms"):
            ask(database)
        with database.read() as tx:
            assert tx.one("SHOW statement_timeout") == ("50ms",)
        database.close()


def test_so_it_is_in_any_language_of_the_server(open_: Open) -> None:
    database = open_(statement_timeout_ms=50)
    german = """
        DO $$ BEGIN
            PERFORM pg_sleep(60);
        EXCEPTION WHEN query_canceled THEN
            RAISE EXCEPTION 'storniere Anfrage' USING ERRCODE = 'query_canceled';
        END $$"""

    with pytest.raises(DatabaseError, match=r"statement_timeout_ms allows \(storniere Anfrage\)"):
        database.all(german)


def test_what_makes_tables_and_indexes_may_take_as_long_as_it_takes(open_: Open) -> None:
    database = open_(statement_timeout_ms=50)

    with database.write(unlimited=True) as tx:
        assert tx.one("SHOW statement_timeout") == ("0",)
    with database.write() as tx:
        assert tx.one("SHOW statement_timeout") == ("50ms",)


def test_0_is_no_limit_and_a_setting_in_the_uri_wins(server: Postgres, open_: Open) -> None:
    assert open_(statement_timeout_ms=0).all("SHOW statement_timeout") == [("0",)]
    assert open_().all("SHOW statement_timeout") == [("10min",)]
    own = f"{server.uri}?options=-c%20statement_timeout%3D77s"
    assert open_(own).all("SHOW statement_timeout") == [("77s",)]


# -- locks --------------------------------------------------------------------------------------

READS: dict[str, Callable[[Any], Any]] = {
    "in a transaction": lambda database: _head_of(database),
    "alone": lambda database: database.all("SELECT MAX(id) FROM ontologia.commits"),
    "prepared": lambda database: database.all(Statement("SELECT MAX(id) FROM ontologia.commits")),
}


def _head_of(database: Any) -> Any:
    with database.read() as tx:
        return tx.all("SELECT MAX(id) FROM ontologia.commits")


@contextmanager
def table_locked(server: Postgres) -> Iterator[None]:
    with psycopg.connect(server.uri) as other:
        other.execute("LOCK TABLE ontologia.commits")
        yield


@pytest.mark.parametrize("ask", READS.values(), ids=READS)
def test_a_read_waits_for_a_locked_table_no_longer_than_lock_timeout_ms(
    server: Postgres, open_: Open, ask: Callable[[Any], Any]
) -> None:
    database = open_(lock_timeout_ms=50, statement_timeout_ms=2_000)

    with table_locked(server), pytest.raises(LockContentionError, match="a statement waited"):
        ask(database)

    assert ask(database) == [(None,)]


@pytest.mark.parametrize("ask", READS.values(), ids=READS)
def test_so_does_a_read_behind_a_pooler(
    server: Postgres, open_: Open, ask: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_().close()  # makes the tables
    pooler = Server(pooled=True, standby=False)  # nothing may rest on the connection
    monkeypatch.setattr("ontologia.store.postgres.database.first_contact", lambda *_: pooler)
    database = open_(lock_timeout_ms=50, statement_timeout_ms=2_000)

    with table_locked(server), pytest.raises(LockContentionError):
        ask(database)


# -- who holds the lock of commits and is silent ------------------------------------------------


class Crane(Entity):
    id: Field[str] = Field(primary_key=True)


def test_a_process_stopped_in_the_middle_of_a_commit_holds_up_others_for_a_moment_only(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ontologia.store.postgres.database._SILENT_COMMIT_MS", 200)
    stopped = subprocess.Popen(
        [sys.executable, "-c", _STOPS_IN_A_COMMIT, server.uri], stdout=subprocess.PIPE, text=True
    )
    try:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "in the middle\n"

        with Session(server.uri, entity_types=[Crane]) as session:
            session.ensure(Crane(id="b"))
            session.commit()  # waits until the server has ended the other

        stopped.send_signal(signal.SIGCONT)
        said, _ = stopped.communicate(timeout=20)
        assert "was lost" in said
        assert "nothing was written" in said or "was taken back" in said
    finally:
        stopped.kill()
        stopped.wait()
    with Session(server.uri, entity_types=[Crane]) as session:
        assert [each.id for each in session.query().entities(Crane).collect()] == ["b"]


_STOPS_IN_A_COMMIT = """
import os, signal, sys
from ontologia import Entity, Field, Session
from ontologia.errors import ConnectionLostError
from ontologia.store.postgres import database
from ontologia.store.postgres.transaction import PostgresTransaction

class Crane(Entity):
    id: Field[str] = Field(primary_key=True)

database._SILENT_COMMIT_MS = 200
write = PostgresTransaction.write_commit

def stop_first(*given, **named):
    print("in the middle", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return write(*given, **named)

with Session(sys.argv[1], entity_types=[Crane]) as session:
    session.ensure(Crane(id="a"))
    PostgresTransaction.write_commit = stop_first
    try:
        session.commit()
    except ConnectionLostError as error:
        print(error.args[0])
    session.discard()
"""


class CraneMoved(Event):
    pass


@on_event(CraneMoved, name="crane-watch")
def watch_crane(ctx: HandlerContext[CraneMoved]) -> None:
    pass


def test_a_process_stopped_with_the_lock_of_dispatch_holds_up_delivery_for_a_moment_only(
    server: Postgres,
) -> None:
    """Consumers are registered, and events are dispatched, under the same lock."""
    with Session(server.uri) as session:
        session.commit(event=CraneMoved())
        stopped = subprocess.Popen(
            [sys.executable, "-c", _STOPS_IN_A_DISPATCH, server.uri],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "in the middle\n"

            session.run([watch_crane], max_iterations=1)  # waits until the server has ended it

            stopped.send_signal(signal.SIGCONT)
            said, _ = stopped.communicate(timeout=PATIENCE)
            assert "was lost" in said
        finally:
            stopped.kill()
            stopped.wait()
        [consumer] = session.event_store.list_consumers("default")
        assert consumer["name"] == "crane-watch"


_STOPS_IN_A_DISPATCH = """
import os, signal, sys
from ontologia import OntologiaConfig, Session
from ontologia.errors import ConnectionLostError
from ontologia.runtime.session import core_of
from ontologia.store.postgres.wire import Statement

with Session(sys.argv[1], config=OntologiaConfig(lock_timeout_ms=100)) as session:
    try:
        with core_of(session).store.database.write(durable=False) as tx:
            tx.lock_dispatch(wait=True)
            print("in the middle", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            tx.one(Statement("SELECT 1"))
    except ConnectionLostError as error:
        print(error.args[0])
"""


def test_only_what_may_take_long_may_be_silent_for_a_minute(open_: Open) -> None:
    database = open_()
    asked = "SHOW idle_in_transaction_session_timeout"

    with database.state_transaction(Statement("SELECT NULL"), 1_000, durable=True) as tx:
        assert tx.one(asked) == ("4s",)
    for durable in (True, False):  # registrations; claims and dispatch
        with database.write(durable=durable) as tx:
            assert tx.one(asked) == ("4s",)
    for slow in (database.write_state(), database.write(unlimited=True)):  # imports; indexes
        with slow as tx:
            assert tx.one(asked) == ("1min",)


@pytest.mark.parametrize(
    ("lock_timeout_ms", "silent"),
    [(0, "500ms"), (100, "500ms"), (2_000, "1600ms"), (4_000, "3200ms"), (60_000, "4s")],
)
def test_a_commit_is_given_up_before_those_that_wait_for_its_lock_give_up(
    open_: Open, lock_timeout_ms: int, silent: str
) -> None:
    database = open_(lock_timeout_ms=lock_timeout_ms)

    with database.state_transaction(Statement("SELECT NULL"), 1_000, durable=True) as tx:
        assert tx.one("SHOW idle_in_transaction_session_timeout") == (silent,)


def test_a_commit_of_very_many_objects_may_be_silent_for_longer(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ontologia.store.postgres.transaction._CHUNK", 1)
    seen: list[str] = []
    write = PostgresTransaction.write_commit

    def look(self: Any, *given: Any, **named: Any) -> int:
        seen.append(self.tx.one("SHOW idle_in_transaction_session_timeout")[0])
        return write(self, *given, **named)

    with Session(server.uri, entity_types=[Crane]) as session:
        monkeypatch.setattr(PostgresTransaction, "write_commit", look)
        for names in (["x"], ["y", "z"]):
            for name in names:
                session.ensure(Crane(id=name))
            session.commit()

    assert seen == ["4s", "1min"]


def test_the_server_notices_a_machine_that_vanished(open_: Open) -> None:
    asked = (
        "SELECT current_setting('tcp_keepalives_idle')::int, current_setting('tcp_user_timeout')"
    )

    assert open_().all(asked) == [(10, "25000")]


def test_closing_waits_for_no_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server() as server:
        session = Session(server.uri, entity_types=[Crane])
        server.kill()
        monkeypatch.setattr("ontologia.store.postgres.database._CONNECTING_MS", 600_000)

        closing = threading.Thread(target=session.close, daemon=True)
        closing.start()
        closing.join(PATIENCE / 4)

        assert not closing.is_alive()


def test_a_server_that_vanished_is_noticed_within_half_a_minute() -> None:
    ours = conninfo_to_dict(place_of("postgresql://h/d").conninfo)
    silence = int(ours["keepalives_idle"]) + int(ours["keepalives_interval"]) * int(
        ours["keepalives_count"]
    )

    assert silence <= 30
    assert int(ours["tcp_user_timeout"]) <= 30_000
    theirs = place_of("postgresql://h/d?tcp_user_timeout=1000&keepalives_idle=99").conninfo
    assert conninfo_to_dict(theirs)["tcp_user_timeout"] == "1000"
    assert conninfo_to_dict(theirs)["keepalives_idle"] == "99"
