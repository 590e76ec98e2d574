"""PostgreSQL underneath: opening, losing connections, and errors in our words."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import psycopg
import pytest

from ontologia import Entity, Field, OntologiaConfig, Session
from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    LockContentionError,
    SessionClosedError,
    StoreOpenError,
)
from ontologia.store.events.store import EventStore
from ontologia.store.open import WithEvents, open_event_store
from ontologia.store.postgres.wire import Statement, Wire
from ontologia.store.rows import EventRow
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import POST, ParcelPosted, claim, numbers, post
from ontologia_conformance.schemas import Postgres
from tests.integration.running import until

Open = Callable[..., EventStore]


class Ferry(Entity):
    id: Field[str] = Field(primary_key=True)


Ask = Callable[[str], list[Any]]


def opened(uri: str) -> WithEvents:
    clock = ManualClock()
    return open_event_store(uri, OntologiaConfig(clock=clock), clock, Random(1))


def test_ten_that_open_at_once_make_the_tables_once(backend: Postgres) -> None:
    uri = backend.unmade()
    with ThreadPoolExecutor(10) as threads:
        stores = list(threads.map(opened, [uri] * 10))

    post(stores[0].events, 1)
    assert numbers(claim(stores[9].events)) == [1]
    for store in stores:
        store.close()


def test_opening_again_writes_nothing(open_events: Open, ask: Ask) -> None:
    open_events()
    [[before]] = ask("SELECT xmin::text FROM ontologia_layout")

    open_events()

    assert ask("SELECT xmin::text FROM ontologia_layout") == [(before,)]


def test_a_newer_layout_is_refused(
    event_store: EventStore, change: Callable[[str], int], uri: str
) -> None:
    change("UPDATE ontologia_layout SET version = 99")

    with pytest.raises(StoreOpenError, match="layout 99"):
        opened(uri)


def test_two_schemas_of_one_database_know_nothing_of_each_other(
    postgres_uri: str, event_store: EventStore
) -> None:
    other = opened(f"{postgres_uri}?schema=Other_One")
    post(event_store, 1)

    with event_store.transaction() as tx:
        assert tx.lock_dispatch(wait=True)  # not theirs
        post(other.events, 2)
        assert numbers(claim(other.events)) == [2]

    assert numbers(claim(event_store)) == [1]
    assert other.events.check() == []
    other.close()


def test_connections_that_died_in_the_pool_are_replaced(
    event_store: EventStore, postgres_uri: str
) -> None:
    post(event_store, 1)
    with psycopg.connect(postgres_uri) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'ontologia' AND datname = current_database()"
        )

    post(event_store, 2)

    assert numbers(claim(event_store)) == [1, 2]


def test_a_connection_lost_in_a_transaction_is_an_error_of_ours(
    event_store: EventStore, postgres_uri: str
) -> None:
    def lose_it() -> None:
        with event_store.transaction() as tx:
            [pid] = tx.one("SELECT pg_backend_pid()")
            with psycopg.connect(postgres_uri) as server:
                server.execute("SELECT pg_terminate_backend(%s)", (pid,))
            tx.one("SELECT 1")

    with pytest.raises(DatabaseError, match="was lost"):
        lose_it()

    post(event_store, 1)
    assert numbers(claim(event_store)) == [1]


def test_a_question_that_somebody_ended_is_not_asked_forever(event_store: EventStore) -> None:
    with pytest.raises(ConnectionLostError, match="administrator"):
        event_store._database.all("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_connection_that_comes_back_is_for_whoever_waits(open_events: Open) -> None:
    store = open_events(lock_timeout_ms=30_000)
    for number in range(3):
        post(store, number)  # the connection that was used last is kept at hand
    release, ended = threading.Event(), threading.Event()
    together = threading.Barrier(17)

    def hold(last: threading.Event) -> None:
        with store.transaction():
            together.wait()
            last.wait()

    with ThreadPoolExecutor(17) as threads:
        holders = [threads.submit(hold, release if number else ended) for number in range(16)]
        together.wait()
        database: Any = store._database
        waiter = threads.submit(claim, store)
        until(lambda: database._pool.get_stats().get("requests_waiting"))
        ended.set()  # one of sixteen
        try:
            assert numbers(waiter.result(20)) == [0, 1, 2]
        finally:
            release.set()
        for holder in holders:
            holder.result()


def test_a_failure_that_somebody_swallowed_is_not_a_commit(event_store: EventStore) -> None:
    def go_on_regardless() -> None:
        with event_store.transaction() as tx:
            event_store.log.add(tx, [event_store.log.given_row(ParcelPosted(number=1), POST)])
            with pytest.raises(psycopg.Error, match="division by zero"):
                tx.one("SELECT 1 / 0")

    with pytest.raises(DatabaseError, match="taken back"):
        go_on_regardless()

    assert event_store.list_events(POST) == []


def test_soft_transactions_do_not_wait_for_the_disk(event_store: EventStore) -> None:
    with event_store.transaction(durable=False) as tx:
        assert tx.one("SHOW synchronous_commit") == ("off",)
    with event_store.transaction() as tx:
        assert tx.one("SHOW synchronous_commit") == ("on",)


@pytest.mark.parametrize(
    ("given", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
def test_hard_transactions_wait_for_the_disk_whatever_a_role_is_set_to(
    uri: str, given: str, used: str
) -> None:
    # As `ALTER ROLE … SET synchronous_commit` does: the default of a connection.
    store = opened(f"{uri}&options=-c%20synchronous_commit%3D{given}")
    database: Any = store.events._database
    assert database.all("SHOW synchronous_commit") == [(given,)]

    with database.write() as tx:
        assert tx.one("SHOW synchronous_commit") == (used,)
    with database.write_state() as tx:
        assert tx.one("SHOW synchronous_commit") == (used,)
    with database.write(durable=False) as tx:
        assert tx.one("SHOW synchronous_commit") == ("off",)
    store.close()


@pytest.mark.parametrize("rows", [1, 8])
def test_what_is_appended_waits_for_the_disk_too(uri: str, rows: int) -> None:
    store = opened(f"{uri}&options=-c%20synchronous_commit%3Doff")
    database: Any = store.events._database
    table = f"{database.schema}.noted"
    database.all(
        f"CREATE TABLE {table} (n int, mode text DEFAULT current_setting('synchronous_commit'))"
    )
    statement = Statement(f"INSERT INTO {table}(n) VALUES (%s)")
    statement.bulk = Statement(f"INSERT INTO {table}(n) SELECT unnest(%s::int[])")

    database.append(statement, [(number,) for number in range(rows)])

    assert database.all(f"SELECT DISTINCT mode FROM {table}") == [("on",)]
    database.all(f"DROP TABLE {table}")
    store.close()


@pytest.mark.parametrize("pooled", [True, False])
def test_nothing_is_left_on_a_connection_but_what_is_prepared_on_ones_own(
    open_events: Open, pooled: bool
) -> None:
    """PgBouncer gives every transaction another connection."""
    store = open_events(lock_timeout_ms=1234)
    store._database.pooled = pooled
    with store._database.write() as tx:
        for number in range(10):
            assert tx.all(store._sql["get_event"], {"id": str(number)}) == []

    with store._database.read() as tx:
        for number in range(10):
            assert tx.all(store._sql["get_event"], {"id": str(number)}) == []
        asked = "SELECT COUNT(*) FROM pg_prepared_statements WHERE statement LIKE '%events%'"
        assert tx.one(asked) == (0 if pooled else 1,)
        assert tx.one("SHOW search_path") == ('"$user", public',)
        assert tx.one("SHOW lock_timeout") == ("1234ms",)
        assert tx.one("SHOW transaction_read_only") == ("on",)
        assert tx.one("SHOW transaction_isolation") == ("repeatable read",)


@pytest.mark.parametrize("count", [7, 8, 2_500])
def test_events_stored_together_are_those_stored_one_by_one(
    event_store: EventStore, direct: Any, count: int
) -> None:
    texts = ['a "b" \\c', "{x,NULL}", "", "☃", "it's"]
    rows = [
        event_store.log.given_row(ParcelPosted(number=number), POST)._replace(
            payload=texts[number % 5], source=None if number % 2 else texts[number % 5]
        )
        for number in range(count)
    ]
    with event_store.transaction() as tx:
        event_store.log.add(tx, rows)

    columns = ", ".join(EventRow._fields)
    assert [EventRow(*row) for row in direct(f"SELECT {columns} FROM events ORDER BY seq")] == rows
    assert direct("SELECT event_id FROM incoming ORDER BY seq") == [(row.id,) for row in rows]


def test_waiting_has_an_end(open_events: Open) -> None:
    store, another = open_events(), open_events(lock_timeout_ms=50)

    with store.transaction() as tx:
        tx.lock_dispatch(wait=True)
        with pytest.raises(LockContentionError) as waited:
            claim(another)

    assert waited.value.waited_ms >= 50


@pytest.mark.parametrize("sent", [False, True])
def test_an_interrupt_of_a_commit_stays_one_whatever_the_server_did(
    uri: str, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    sync = Wire.sync

    def interrupted(wire: Wire, *, once: bool = False, then: Any = None) -> bool:
        if not once:
            return sync(wire, once=once, then=then)
        monkeypatch.setattr(Wire, "sync", sync)
        if sent:
            sync(wire, once=once, then=then)
        raise KeyboardInterrupt

    with Session(uri) as session:
        session.ensure(Ferry(id="f1"))
        monkeypatch.setattr(Wire, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.commit()

        assert session.head == (1 if sent else 0)
        assert session.commit() == (None if sent else 1)


def test_a_server_that_is_not_there_is_said_at_once_and_without_the_password() -> None:
    with pytest.raises(
        StoreOpenError, match=r"no connection to postgresql://127.0.0.1:1/"
    ) as error:
        opened("postgresql://me:secret@127.0.0.1:1/app")

    assert "secret" not in str(error.value)


@pytest.mark.parametrize("schema", ["", "a-b", 'x"; DROP', "n" * 64, "1st"])
def test_a_schema_has_a_plain_name(postgres_uri: str, schema: str) -> None:
    with pytest.raises(StoreOpenError, match="names no schema"):
        opened(f"{postgres_uri}?schema={schema}")


@pytest.mark.parametrize("schema", ["information_schema", "pg_catalog", "pg_mine"])
def test_a_schema_of_the_servers_own_is_refused(postgres_uri: str, schema: str) -> None:
    with pytest.raises(StoreOpenError, match="is one of PostgreSQL's own") as refused:
        opened(f"{postgres_uri}?schema={schema}")

    assert "pg_" in (refused.value.hint or "")


def test_an_option_nobody_knows_is_an_error_of_ours(postgres_uri: str) -> None:
    with pytest.raises(StoreOpenError, match="cannot be read"):
        opened(f"{postgres_uri}?colour=red")


def test_a_closed_store_says_so(uri: str) -> None:
    store = opened(uri)
    store.close()
    store.close()

    with pytest.raises(SessionClosedError, match="was closed"):
        post(store.events, 1)


def test_a_session_shows_where_it_is_without_the_password(postgres_uri: str) -> None:
    with Session(postgres_uri.replace("postgres@", "postgres:secret@")) as session:
        assert "127.0.0.1" in repr(session)
        assert "secret" not in repr(session)


def test_without_the_driver_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from ontologia.errors import StoreOpenError\n"
        "from ontologia.store.open import open_event_store\n"
        "try: open_event_store('postgresql://h/d', None, None, None)\n"
        "except StoreOpenError as error: print(error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "pip install 'ontologia[postgres]'"
