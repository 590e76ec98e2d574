"""A server that is away: what a commit says, and how a run waits until it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ontologia import Event, Field, OntologiaConfig, Session, on_event
from ontologia.errors import ConnectionLostError
from ontologia.runtime.session import core_of
from ontologia.store.events.leases import Done
from ontologia.store.postgres import database
from tests.integration.running import PATIENCE, running, statuses, until
from tests.servers import ask, own_server
from tests.shop import Customer

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres


class Rung(Event):
    number: Field[int]


@pytest.fixture(scope="module", params=[18, pytest.param(16, marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    with own_server(version=request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, server: Postgres) -> Iterator[None]:
    """Not ten seconds for a connection; and whatever happens, the server is back at the end."""
    monkeypatch.setattr(database, "_CONNECTING_MS", 300)
    yield
    server.halt()
    server.start()


@pytest.mark.thorough
def test_a_commit_beside_a_server_that_is_away_says_why_and_can_be_made_when_it_is_back(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(server.uri, config=OntologiaConfig(lock_timeout_ms=100)) as session:
        head = session.head
        session.ensure(Customer(id=f"c{head}", name="Ada"))
        server.halt()

        with pytest.raises(ConnectionLostError, match="Connection refused") as error:
            session.commit(event=Rung(number=1))
        assert "Nothing listens" in (error.value.hint or "")

        server.start()
        monkeypatch.setattr(database, "_CONNECTING_MS", PATIENCE * 1000)
        assert session.commit(event=Rung(number=1)) == head + 1
        assert session.commit() is None
        assert session.event_store.check() == []


@pytest.mark.thorough
def test_a_run_waits_says_so_once_and_goes_on(
    server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    @on_event(Rung, name="hear")
    def hear(ctx: Any) -> None:
        heard.append(ctx.event.number)

    def words(what: str) -> int:
        return sum(what in record.getMessage() for record in caplog.records)

    uri = f"{server.uri}?schema=waits"
    # After the outage only a notification can be as fast as this test wants it.
    config = OntologiaConfig(lock_timeout_ms=100, session_heartbeat_interval_ms=200)
    with (
        caplog.at_level(logging.INFO),
        Session(uri, config=config) as session,
        running(session, [hear], workers=2),
    ):
        channel: Any = core_of(session).store._channel  # type: ignore[attr-defined]
        until(lambda: channel.hears)
        server.halt()
        until(lambda: words("goes on as soon as the database can be reached"))
        until(lambda: not channel.hears)
        server.start()
        until(lambda: words("the database is there again"))
        until(lambda: channel.hears)
        with Session(uri) as other:
            other.commit(event=Rung(number=1))
        until(lambda: heard == [1])

    assert words("goes on as soon as the database can be reached") == 1
    assert words("the database is there again") == 1
    assert words("do not arrive, and are asked for again") == 1
    assert words("arrive again") == 1
    assert [
        r for r in caplog.records if r.name == "psycopg.pool" and r.levelname == "WARNING"
    ] == []


@pytest.mark.thorough
def test_a_run_can_be_stopped_while_the_server_is_away(
    server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    @on_event(Rung, name="hear")
    def hear(ctx: Any) -> None:
        pass

    config = OntologiaConfig(lock_timeout_ms=100)
    with Session(f"{server.uri}?schema=stops", config=config) as session:
        with running(session, [hear]):
            until(lambda: session.event_store.list_consumers("default"))
            server.halt()
            until(lambda: "goes on as soon as" in caplog.text)
        server.start()

        assert session.event_store.check() == []


@pytest.mark.thorough
def test_a_run_can_begin_while_the_server_is_away(
    server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    @on_event(Rung, name="hear")
    def hear(ctx: Any) -> None:
        heard.append(ctx.event.number)

    config = OntologiaConfig(lock_timeout_ms=100)
    with Session(f"{server.uri}?schema=begins", config=config) as session:
        session.commit(event=Rung(number=1))
        server.halt()
        with running(session, [hear]):
            until(lambda: "goes on as soon as" in caplog.text)
            server.start()
            until(lambda: heard == [1])


def test_connections_that_died_in_the_pool_are_not_used(server: Postgres) -> None:
    with Session(server.uri) as session, ThreadPoolExecutor(8) as threads:
        together = threading.Barrier(8)

        def wait_within(_: int) -> None:
            with session.event_store.transaction():
                together.wait()

        list(threads.map(wait_within, range(8)))
        ours = "FROM pg_stat_activity WHERE application_name = 'ontologia'"
        until(lambda: ask(server.uri, f"SELECT pg_terminate_backend(pid, 5000) {ours}") == [])

        # It is sent as one, commit included, and so it is not sent a second time by itself.
        with session.event_store.transaction(durable=False):
            pass


def test_threads_that_all_wait_for_a_server_that_is_away_are_told_so(server: Postgres) -> None:
    settings = OntologiaConfig(lock_timeout_ms=100)
    with Session(server.uri, config=settings) as session, ThreadPoolExecutor(20) as threads:
        together = threading.Barrier(16)

        def wait_within(_: int) -> None:
            with session.event_store.transaction():
                together.wait()

        list(threads.map(wait_within, range(16)))  # all connections that there can be
        server.halt()

        def told(_: int) -> None:
            with pytest.raises(ConnectionLostError):
                session.event_store.list_namespaces()

        list(threads.map(told, range(20)))


def test_worker_threads_outlive_acknowledgements_that_do_not_get_through(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    failed: set[str] = set()

    @on_event(Rung, name="hear")
    def hear(ctx: Any) -> None:
        heard.append(ctx.event.number)

    with Session(f"{server.uri}?schema=threads") as session:
        claims = session.event_store.claims
        settle = claims.settle

        def lose(done: Any, starting: Any = (), lease_ms: float = 0) -> Any:
            name = threading.current_thread().name
            if "worker" in name and name not in failed:
                failed.add(name)
                raise ConnectionLostError("the first of each thread")
            return settle(done, starting, lease_ms)

        monkeypatch.setattr(claims, "settle", lose)
        with running(session, [hear], workers=2):
            for number in range(50):
                session.commit(event=Rung(number=number))
                until(lambda number=number: number in heard)
            until(lambda: failed and set(statuses(session)) == {"acked"})

    assert sorted(heard) == list(range(50))


def test_an_attempt_whose_start_a_crash_has_taken_back_leaves_no_broken_rule(
    server: Postgres,
) -> None:
    """The claim was on disk, and that it was started was not."""
    uri, types = f"{server.uri}?schema=unstarted", [Rung.__event_type__]
    with Session(uri) as session:
        session.commit(event=Rung(number=1))
        store, mine = session.event_store, session.session_id
        hear = store.consumers.register("default", "hear", types)
        options = {"limit": 1, "lease_ms": 60_000, "policy": store.policy}
        [claim] = store.claims.claim(hear, types, session_id=mine, **options)
        store.claims.settle([], [claim], 60_000)
        ask(uri, "UPDATE event_claims SET started_at = NULL, read_commit = NULL")

        claim.read_commit, claim.moved = 1, True  # others had committed when its turn came
        store.claims.settle([Done(claim)])

        assert store.check() == []
        assert statuses(session) == ["acked"]
