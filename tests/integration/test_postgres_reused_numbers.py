"""A crashed server gives transaction numbers a second time: theirs is not taken for ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ontologia import Event, Field, Session
from ontologia.errors import ConnectionLostError
from ontologia.runtime.session import core_of
from tests.servers import ask, own_server
from tests.shop import Customer

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

# Nothing is on disk before a commit asks for it.
_LAZY = ("wal_writer_delay=10s", "autovacuum=off", "checkpoint_timeout=1h")
NUMBER = "SELECT pg_current_xact_id()::text"


class Told(Event):
    number: Field[int]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server(durable=True, settings=_LAZY) as server:
        yield server


@pytest.fixture
def session(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with Session(server.uri, entity_types=[Customer]) as session:
        yield session


def crash_at_the_next_commit(
    session: Session, server: Postgres, monkeypatch: pytest.MonkeyPatch, *, reused: bool
) -> None:
    """Kill the server when it is about to be sent a COMMIT; have its number given to another."""
    database: Any = core_of(session).store.database  # type: ignore[attr-defined]
    commit = database._commit

    def crash(wire: Any, notice: Any, tx: Any) -> Any:
        monkeypatch.setattr(database, "_commit", commit)
        [[number]] = wire.connection.execute(NUMBER).fetchall()
        server.kill()
        server.start()
        given = 0
        while reused and given < int(number):
            given = int(ask(server.uri, NUMBER)[0][0])
        assert not reused or given == int(number)
        return commit(wire, notice, tx)

    monkeypatch.setattr(database, "_commit", crash)


def named() -> Told:
    event = Told(number=1)
    event.id = "told"
    return event


CALLS: dict[str, Callable[[Session], object]] = {
    "a commit": lambda session: session.commit(),
    "a commit with an event": lambda session: session.commit(event=Told(number=1)),
    "an event with its own id": lambda session: session.event_store.enqueue(named(), "default"),
    "a deferred event": lambda session: session.defer(Told(number=1), delay=60),
}


@pytest.mark.parametrize("reused", [True, False], ids=["given again", "not given again"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_was_lost_in_a_crash_is_said_to_be_lost(
    session: Session,
    server: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Session], object],
    reused: bool,
) -> None:
    head = session.head
    session.ensure(Customer(id=f"c{head}", name=str(reused)))
    crash_at_the_next_commit(session, server, monkeypatch, reused=reused)

    with pytest.raises(ConnectionLostError, match="the server took it back"):
        call(session)

    assert session.head == head
    assert ask(server.uri, "SELECT COUNT(*) FROM events") == [(0,)]
    assert ask(server.uri, "SELECT COUNT(*) FROM deferred_events") == [(0,)]
    session.discard()
