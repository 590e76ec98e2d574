"""A session closes within seconds, also beside a server that is gone, or there and silent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ontologia import Event, HandlerContext, OntologiaConfig, Session, on_event
from ontologia.clock import SYSTEM_CLOCK
from ontologia.engine.source import StoreSource
from ontologia.errors import ConnectionLostError, OntologiaError
from ontologia.runtime.session import core_of
from ontologia.store.open import open_store
from ontologia.store.postgres import database
from ontologia.store.postgres.wire import Statement
from tests.integration.running import PATIENCE, until
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia.store.postgres.store import PostgresStore
    from ontologia_conformance.servers import Postgres


class BellRung(Event):
    pass


_PROCESS = Statement("SELECT pg_backend_pid()")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


@pytest.fixture
def store(server: Postgres) -> Iterator[PostgresStore]:
    opened: Any = open_store(server.uri, OntologiaConfig(), SYSTEM_CLOCK, Random(1))
    yield opened
    opened.close()


@contextmanager
def frozen(store: Any) -> Iterator[None]:
    """The server process of the one connection of a store answers nothing."""
    [(process,)] = store.database.all(_PROCESS)
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class Doing(threading.Thread):
    """Something that another thread does, and what it raised."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self.error: OntologiaError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._action()
        except OntologiaError as error:
            self.error = error

    def ended(self) -> bool:
        self.join(PATIENCE)
        return not self.is_alive()


@pytest.mark.parametrize("measures", [False, True])
def test_an_idle_session_closes_beside_a_server_that_is_silent(
    server: Postgres, measures: bool
) -> None:
    """Also if it is time to ask the server for its clock."""
    session = Session(server.uri)
    clock: Any = core_of(session).clock
    with frozen(core_of(session).store):
        if measures:
            clock._asked = None

        assert Doing(session.close).ended()


def test_a_running_session_closes_while_the_server_is_down(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CONNECTING_MS", 1_000_000)

    @on_event(BellRung, name="bell")
    def ring(ctx: HandlerContext[BellRung]) -> None:
        rung.set()

    rung = threading.Event()
    session = Session(server.uri)
    store: Any = core_of(session).store
    running = Doing(lambda: session.run([ring]))
    session.commit(event=BellRung())
    assert rung.wait(PATIENCE)
    server.halt()
    try:
        until(lambda: store.database._waiting)
        assert Doing(session.close).ended()
        assert running.ended()
    finally:
        server.start()


def test_an_answer_that_is_waited_for_is_given_up_while_the_session_closes(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CLOSING_ANSWER", 0.2)
    with frozen(store):
        asking = Doing(lambda: store.database.all(_PROCESS))
        until(lambda: store.database._lent)
        store.hurry()

        assert asking.ended()
    assert isinstance(asking.error, ConnectionLostError)
    assert "does not answer" in asking.error.args[0]


def test_a_slow_answer_is_waited_for_until_then(store: PostgresStore) -> None:
    slow = Statement("SELECT pg_sleep(0.5), 1")  # several looks long
    store.hurry()

    assert [row[1] for row in store.database.all(slow)] == [1]


def test_a_connection_that_is_waited_for_is_given_up_while_the_session_closes(
    server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CONNECTING_MS", 1_000_000)
    server.halt()
    try:
        asking = Doing(lambda: store.database.all(_PROCESS))
        until(lambda: store.database._waiting)
        store.hurry()

        assert asking.ended()
    finally:
        server.start()
    assert isinstance(asking.error, ConnectionLostError)


def test_a_connection_is_waited_for_in_vain_only_once_while_the_session_closes(
    server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acks, claims and the end of the session each want one."""
    monkeypatch.setattr(database, "_CONNECTING_MS", 1_000_000)
    monkeypatch.setattr(database, "_CLOSING_CONNECT", 0.1)
    server.halt()
    try:
        store.hurry()
        first = Doing(lambda: store.database.all(_PROCESS))
        assert first.ended()
        monkeypatch.setattr(database, "_CLOSING_CONNECT", 1_000_000)

        others = [Doing(lambda: store.database.all(_PROCESS)) for _ in range(3)]

        assert all(each.ended() for each in others)
    finally:
        server.start()
    assert all(isinstance(each.error, ConnectionLostError) for each in [first, *others])


def test_the_last_steps_do_not_wait_as_long_as_an_outage_lasts(server: Postgres) -> None:
    """While it lasts the pauses of a run grow to 3 s."""
    with Session(server.uri) as session:
        source = StoreSource(core_of(session), [])
        for _ in range(8):
            source.outage.note(ConnectionLostError("gone"))
        tries: list[None] = []
        looks: list[None] = []

        def step() -> None:
            tries.append(None)
            if len(tries) == 1:
                raise ConnectionLostError("gone")

        def hurry() -> bool:  # it is asked every 50 ms
            looks.append(None)
            return False

        source._insist(step, hurry)

    assert len(tries) == 2
    assert len(looks) <= 6


def test_a_server_that_comes_back_while_the_session_closes_is_asked_again(
    server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CLOSING_CONNECT", 0.1)
    server.halt()
    try:
        store.hurry()
        with pytest.raises(ConnectionLostError):
            store.database.all(_PROCESS)
    finally:
        server.start()

    def answered() -> bool:
        try:
            return bool(store.database.all(_PROCESS))
        except ConnectionLostError:
            return False

    until(answered)


def test_connections_that_other_threads_have_are_waited_for(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back: the server is there."""
    with ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(store.database.read())
        monkeypatch.setattr(database, "_CLOSING_CONNECT", 0.0)
        store.hurry()
        asking = Doing(lambda: store.database.all(_PROCESS))
        asking.join(0.3)  # it would raise at once

    assert asking.ended()
    assert asking.error is None
