"""Commits on PostgreSQL that collide with others, or lose the server on the way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from ontologia import Event, Field, HandlerContext, Session, on_event
from ontologia.errors import ConnectionLostError, DatabaseError, HeadMismatchError
from ontologia.store.postgres.database import lock_key
from ontologia.testing import ManualClock
from tests.shop import Product

Open = Callable[..., Session]
Sql = Callable[..., list[list[Any]]]


class Bought(Event):
    sku: Field[str]


def eventually(condition: Callable[[], object]) -> bool:
    """Wait for another thread, or the server, to have come somewhere."""
    for _ in range(2000):
        if condition():
            return True
        time.sleep(0.005)
    return False


# -- collisions -------------------------------------------------------------------------------


class Noting(ManualClock):
    """Writes down who slept how long."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)


def collide(sql: Sql, code: str, times: int) -> None:
    """Let the server refuse so many commits, as it refuses one that collided with another."""
    sql(
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT "
        f"AS $$BEGIN IF nextval('tries') <= {times} THEN "
        f"RAISE EXCEPTION 'collided' USING ERRCODE = '{code}'; END IF; RETURN NEW; END$$",
        "CREATE TRIGGER refusing BEFORE INSERT ON commits FOR EACH ROW EXECUTE FUNCTION refuse()",
    )


@pytest.mark.req("SQL-072", "SQL-074")
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_commit_that_collided_is_done_again_after_a_wait_that_doubles(
    open_session: Open, sql: Sql, code: str
) -> None:
    clock = Noting()
    session = open_session(settings={"clock": clock}, entity_types=[Product])
    collide(sql, code, times=3)
    session.ensure(Product(sku="a", price=1.0))
    ordered = Bought(sku="a")

    assert session.commit(event=ordered) == 1

    waits = [slept - 0.01 * 2**retry for retry, slept in enumerate(clock.slept)]
    assert len(waits) == 3
    assert all(0 <= wait <= 0.01 for wait in waits)
    assert [each["id"] for each in session.event_store.list_events("default")] == [ordered.id]
    assert sql("SELECT COUNT(*) FROM entity_history") == [[1]]


@pytest.mark.req("SQL-072", "SQL-073")
@pytest.mark.parametrize("most", [0, 3])
def test_after_the_last_retry_nothing_is_written_and_everything_is_still_queued(
    open_session: Open, sql: Sql, most: int
) -> None:
    session = open_session(settings={"commit_max_retries": most}, entity_types=[Product])
    collide(sql, "40001", times=1000)
    session.ensure(Product(sku="a", price=1.0))

    with pytest.raises(HeadMismatchError) as error:
        session.commit(event=Bought(sku="a"))

    assert error.value.max_retries == most
    assert sql("SELECT last_value FROM tries") == [[most + 1]]
    assert session.head == 0
    assert session.event_store.list_events("default") == []
    sql("DROP TRIGGER refusing ON commits")
    assert session.commit() == 1


@pytest.mark.req("SQL-072")
def test_two_that_wait_for_each_other_end_with_both_written(uri: str, open_session: Open) -> None:
    server, _, schema = uri.partition("?schema=")
    session = open_session(
        uri=f"{uri}&options=-c%20deadlock_timeout%3D300ms", entity_types=[Product]
    )
    unit = session.unit()
    unit.ensure(Product(sku="a", price=1.0))
    event = Bought(sku="a")
    done: list[int | None] = []
    commit = threading.Thread(target=lambda: done.append(unit.commit(event=event, dedup_key="k")))

    with psycopg.connect(server, options="-c deadlock_timeout=60s") as other:
        other.execute(
            f"INSERT INTO {schema}.dedup VALUES "
            f"('default', '{Bought.__event_type__}', 'k', 'theirs')".encode()
        )
        commit.start()
        with psycopg.connect(server, autocommit=True) as look:
            blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
            pid = other.info.backend_pid
            assert eventually(lambda: look.execute(blocked, (pid,)).fetchone())
        other.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("commits", schema),))
    commit.join()

    assert done == [1]
    assert event.id == "theirs"


# -- losing the server ----------------------------------------------------------------------------


class Line:
    """The way to the server, which can be cut when a COMMIT goes over it."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.cut = ""
        """What becomes of the next COMMIT: cut off "before" the server has it, or "after", with its
        answer; or it comes "late", when the server was asked a second time what became of it."""
        self._open: list[socket.socket] = []
        self._late: tuple[socket.socket, bytes] | None = None
        self._asked = 0
        self.marked = b"COMMIT\0"
        """What is in the message that is cut off."""
        self.always = False
        """Whether every such message is, and not only the next."""
        self._doorman = threading.Thread(target=self._accept, daemon=True)
        self._doorman.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if b"pg_xact_status(" in data:
                    self._ask()
                if self.cut and self.marked in data:
                    cut, self.cut = self.cut, self.cut if self.always else ""
                    if cut == "before":
                        break
                    source.shutdown(socket.SHUT_RDWR)
                    if cut == "late":
                        self._late = target, data
                        return
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> None:
        self._asked += 1
        if self._late is not None and self._asked == 2:
            server, data = self._late
            server.sendall(data)

    def deliver_late(self) -> None:
        """Let the server have what was held back, and wait until it is through with it."""
        assert self._late is not None
        server, data = self._late
        # The other direction is carried by a thread, which ends when nobody takes the answer.
        server.sendall(data)
        assert eventually(lambda: server.fileno() == -1 or _is_shut(server))

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)  # wakes who accepts; nothing is opened after that
        self._doorman.join()
        self._door.close()
        for end in self._open:
            end.close()


def _is_shut(end: socket.socket) -> bool:
    try:
        end.getpeername()
    except OSError:
        return True
    return False


@pytest.fixture
def line(uri: str) -> Iterator[Line]:
    parts = urlsplit(uri)
    assert parts.hostname is not None
    assert parts.port is not None
    line = Line((parts.hostname, parts.port))
    yield line
    line.close()


def through(line: Line, uri: str) -> str:
    return uri.replace(f":{urlsplit(uri).port}/", f":{line.port}/")


@pytest.mark.parametrize("cut", ["after", "late"])
def test_a_commit_whose_answer_was_lost_is_found_and_not_done_again(
    line: Line, uri: str, open_session: Open, sql: Sql, cut: str
) -> None:
    session = open_session(uri=through(line, uri), entity_types=[Product])
    session.ensure(Product(sku="a", price=1.0))
    event = Bought(sku="a")

    line.cut = cut
    assert session.commit(event=event) == 1

    assert line.cut == ""
    assert session.commit() is None  # nothing is queued any more
    assert session.head == 1
    assert sql("SELECT entity_key FROM entity_history") == [["a"]]
    assert sql("SELECT id FROM events") == [[event.id]]


def test_a_commit_that_did_not_arrive_is_said_to_be_taken_back_and_is_still_queued(
    line: Line, uri: str, open_session: Open, sql: Sql
) -> None:
    session = open_session(uri=through(line, uri), entity_types=[Product])
    session.ensure(Product(sku="a", price=1.0))

    line.cut = "before"
    with pytest.raises(DatabaseError, match="the server took it back"):
        session.commit(event=Bought(sku="a"))

    assert session.head == 0
    assert sql("SELECT id FROM events") == []
    assert session.commit() == 1


@pytest.mark.parametrize("cut", ["before", "after", "late"])
def test_an_event_whose_answer_was_lost_is_sent_again_and_stored_once(
    line: Line, uri: str, open_session: Open, sql: Sql, cut: str
) -> None:
    session = open_session(uri=through(line, uri))
    event = Bought(sku="a")

    line.cut, line.marked = cut, b'{"sku":"a"}'
    session.event_store.enqueue(event, "default")
    assert line.cut == ""
    if cut == "late":
        line.deliver_late()

    assert sql("SELECT id FROM events") == [[event.id]]
    assert sql("SELECT event_id FROM incoming") == [[event.id]]
    assert session.event_store.check() == []


def test_events_that_are_sent_again_are_stored_all_or_none(
    line: Line, uri: str, open_session: Open, sql: Sql
) -> None:
    session = open_session(uri=through(line, uri))
    events = [Bought(sku=f"s{number}") for number in range(100)]

    line.cut, line.marked = "after", b'"s99'
    session.commit(event=events)

    assert line.cut == ""
    assert sql("SELECT id FROM events ORDER BY seq") == [[event.id] for event in events]
    assert session.event_store.check() == []


def test_an_event_for_which_no_server_comes_back_may_or_may_not_be_stored(
    line: Line, uri: str, open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ontologia.store.postgres.database._FIND_OUT", 0.0)
    session = open_session(uri=through(line, uri))
    line.cut, line.marked, line.always = "after", b'{"sku":"a"}', True

    with pytest.raises(ConnectionLostError, match="does not say whether it was"):
        session.event_store.enqueue(Bought(sku="a"), "default")


@pytest.mark.req("ONT-118", "NEW-060")
@pytest.mark.parametrize("cut", ["after", "late"])
def test_a_commit_that_acknowledges_and_whose_answer_was_lost_did_both(
    line: Line, uri: str, open_session: Open, sql: Sql, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ontologia.engine.acks.GATHER", 3600.0)
    monkeypatch.setattr("ontologia.engine.acks._FEW", 1)  # each goes with the next commit
    monkeypatch.setattr("ontologia.engine.inbox._BATCH_TIME", 3600.0)  # the last two go together
    session = open_session(uri=through(line, uri), entity_types=[Product])
    session.commit(event=[Bought(sku=sku) for sku in "abc"])
    calls: list[str] = []
    acked: list[Any] = []

    @on_event(Bought, name="riding")
    def handler(ctx: HandlerContext[Bought]) -> None:
        calls.append(ctx.event.sku)
        ctx.ensure(Product(sku=ctx.event.sku, price=1.0))
        if ctx.event.sku == "c":
            line.cut = cut
        ctx.commit()
        acked.append(sql("SELECT COUNT(*) FROM event_claims WHERE ack_at IS NOT NULL")[0][0])

    session.run([handler], max_iterations=1)

    assert line.cut == ""
    assert calls == ["a", "b", "c"]
    assert acked == [0, 1, 2]
    assert sql("SELECT COUNT(*) FROM event_claims WHERE ack_at IS NOT NULL") == [[3]]
    assert session.head == 3
