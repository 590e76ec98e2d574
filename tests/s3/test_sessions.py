"""Sessions whose handlers get their events from a bucket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ontologia import (
    AsyncSession,
    Entity,
    Event,
    Field,
    HandlerContext,
    OntologiaConfig,
    Retry,
    Session,
    on_event,
)
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.errors import StoreOpenError
from ontologia.store.s3 import S3EventStore
from ontologia_conformance.seaweed import SECRET_KEY
from tests.s3.proxy import Proxy
from tests.servers import own_server

PATIENCE = 30.0  # seconds; only a hang takes that long


class Order(Entity):
    id: Field[str] = Field(primary_key=True)
    shipped: Field[int] = Field(default=0)


class OrderPlaced(Event):
    order_id: Field[str]


class OrderShipped(Event):
    order_id: Field[str]


@pytest.fixture
def open_shop(path: Path, s3_uri: str) -> Iterator[Callable[..., Session]]:
    """Sessions on one database and one bucket, closed at the end."""
    opened: list[Session] = []

    def open_(place: Path = path, **settings: Any) -> Session:
        config = OntologiaConfig(**({"event_poll_interval_ms": 20} | settings))
        opened.append(Session(str(place), entity_types=[Order], config=config, event_store=s3_uri))
        return opened[-1]

    yield open_
    for session in opened:
        session.close()


def place(session: Session, *ids: str) -> list[str]:
    """Commit an order for each id, with its event; the ids of the events."""
    events = [OrderPlaced(order_id=each) for each in ids]
    for each, event in zip(ids, events, strict=True):
        session.ensure(Order(id=each))
        session.commit(event=event)
    return [str(event.id) for event in events]


def run(session: Session, *handlers: Any, until: threading.Event, **options: Any) -> None:
    """Run until the event is set."""
    stopper = threading.Thread(target=lambda: (until.wait(PATIENCE), session.stop()))
    stopper.start()
    session.run(list(handlers), **options)
    stopper.join()
    assert until.is_set()


def in_bucket(uri: str) -> list[str]:
    with S3EventStore(uri) as store:
        return sorted(each["type"] for each in store.list_events("default"))


@pytest.mark.req("ONT-186", "C-083")
def test_handlers_run_from_the_bucket_and_what_they_emit_comes_there(
    open_shop: Callable[..., Session], s3_uri: str
) -> None:
    done, shipped = threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        order = ctx.one(Order, ctx.event.order_id)
        order.shipped += 1
        ctx.ensure(order)
        ctx.commit()
        ctx.emit(OrderShipped(order_id=order.id))

    @on_event(OrderShipped, name="shop.bill")
    def bill(ctx: HandlerContext[OrderShipped]) -> None:
        shipped.append(ctx.event)
        if len(shipped) == 3:
            done.set()

    session = open_shop()
    [first, *_] = place(session, "a", "b", "c")
    run(session, ship, bill, until=done)

    assert sorted(event.order_id for event in shipped) == ["a", "b", "c"]
    assert {event.chain_depth for event in shipped} == {1}
    assert first in {event.root_event_id for event in shipped}
    assert [each.shipped for each in session.query().entities(Order).collect()] == [1, 1, 1]
    session.close()
    with S3EventStore(s3_uri) as store:
        assert store.check() == []
        [(_, ended)] = [(s["session_id"], s["stopped_at"]) for s in store.list_sessions("default")]
        assert ended is not None
        assert [each["status"] for each in store.list_events("default")] == ["acked"] * 6


@pytest.mark.req("ONT-186", "C-083")
def test_a_commit_that_failed_brings_nothing_to_the_bucket(
    open_shop: Callable[..., Session], s3_uri: str
) -> None:
    session = open_shop()
    place(session, "a")
    session.ensure(Order(id="b"))
    with pytest.raises(Exception, match="expected head 99"):
        session.commit(event=OrderPlaced(order_id="b"), expected_head=99)
    session.discard()
    session.close()

    assert in_bucket(s3_uri) == ["order.placed"]


@pytest.mark.req("C-083")
def test_close_carries_what_was_committed(open_shop: Callable[..., Session], s3_uri: str) -> None:
    session = open_shop()
    place(session, *map(str, range(20)))

    session.close()

    assert len(in_bucket(s3_uri)) == 20


@pytest.mark.req("C-083")
def test_what_a_session_left_behind_the_next_one_carries(
    open_shop: Callable[..., Session],
    path: Path,
    s3_uri: str,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = open_shop(shutdown_grace_ms=200)
    proxy.fail("PUT", status=503, times=10_000)
    place(session, "a", "b")
    session.close()
    assert "2 events are not in s3://" in caplog.text
    assert in_bucket(s3_uri) == []
    proxy.faults.clear()
    with Session(str(path), entity_types=[Order]) as local:
        place(local, "c")  # one that knows of no bucket

    open_shop().close()

    assert in_bucket(s3_uri) == ["order.placed"] * 3


@pytest.mark.req("C-083")
def test_what_was_retained_before_the_bucket_came_is_not_announced_in_it(
    open_shop: Callable[..., Session], path: Path, s3_uri: str
) -> None:
    with Session(str(path), entity_types=[Order]) as local:
        place(local, "a")

    session = open_shop()
    later = place(session, "b")
    session.close()

    with S3EventStore(s3_uri) as store:
        assert [each["id"] for each in store.list_events("default")] == later


KILLED = """
import os, sys
from tests.s3.test_sessions import Order, Session, place
session = Session(sys.argv[1], entity_types=[Order], event_store=sys.argv[2])
place(session, *map(str, range(10)))
os._exit(9)
"""


@pytest.mark.thorough
@pytest.mark.req("C-083")
def test_what_a_process_left_behind_that_was_killed_arrives_once(
    open_shop: Callable[..., Session], path: Path, s3_uri: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), s3_uri],
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
        timeout=60,
        check=False,
    )
    assert ended.returncode == 9
    done, placed = threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        placed.append(ctx.event.order_id)
        if len(set(placed)) == 10:
            done.set()

    # What the dead process had claimed of its outbox comes when those leases end.
    with Session(str(path), config=OntologiaConfig(event_claim_lease_ms=1)) as local:
        outbox = f"outbox:{s3_uri}"
        for each in local.event_store.list_events("default"):
            local.event_store.abandon(outbox, each["id"])
    run(open_shop(), ship, until=done)

    assert sorted(placed) == sorted(map(str, range(10)))
    assert in_bucket(s3_uri) == ["order.placed"] * 10


@pytest.mark.thorough
@pytest.mark.req("ONT-186")
def test_sessions_on_two_databases_share_the_events_of_one_bucket(
    open_shop: Callable[..., Session], tmp_path: Path
) -> None:
    done, placed, lock = threading.Event(), [], threading.Lock()

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        with lock:
            placed.append(ctx.event.order_id)
            if len(placed) == 30:
                done.set()

    here, there = open_shop(tmp_path / "here.db"), open_shop(tmp_path / "there.db")
    place(here, *(f"h{number}" for number in range(15)))
    place(there, *(f"t{number}" for number in range(15)))
    other = threading.Thread(target=lambda: run(there, ship, until=done))
    other.start()
    run(here, ship, until=done)
    other.join()

    assert len(placed) == len(set(placed)) == 30


PAUSED = """
import sys
from ontologia import OntologiaConfig, on_event
from tests.s3.test_sessions import Order, OrderPlaced, Session

@on_event(OrderPlaced, name="shop.ship")
def ship(ctx):
    print("begun", flush=True)
    sys.stdin.readline()
    try:
        ctx.ensure(Order(id="late"))
        ctx.commit()
    except BaseException as error:
        print(type(error).__name__, flush=True)
        ctx.session.stop()
        raise

config = OntologiaConfig(event_claim_lease_ms=1000)
with Session(sys.argv[1], entity_types=[Order], config=config, event_store=sys.argv[2]) as session:
    session.run([ship])
"""


@pytest.mark.req("ONT-185")
def test_a_worker_that_was_paused_past_its_lease_is_fenced(
    open_shop: Callable[..., Session], path: Path, s3_uri: str
) -> None:
    """Its commit writes nothing, and its end changes nothing of the other's claim."""
    session = open_shop()
    [event_id] = place(session, "a")
    done = threading.Event()

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        done.set()

    with subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(path), s3_uri],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as paused:
        assert paused.stdin is not None
        assert paused.stdout is not None
        assert paused.stdout.readline() == "begun\n"
        paused.send_signal(signal.SIGSTOP)
        run(session, ship, until=done)
        paused.send_signal(signal.SIGCONT)
        paused.stdin.write("\n")
        paused.stdin.flush()
        assert paused.stdout.readline() == "LeaseExpiredError\n"
        assert paused.wait(PATIENCE) == 0

    assert session.query().entities(Order).where(Order.id == "late").collect() == []
    assert session.bucket_events is not None
    shown = session.bucket_events.inspect_event(event_id)
    assert shown is not None
    [claim] = shown["claims"]
    assert claim["ack_at"] is not None
    assert claim["session_id"] == session.session_id


@pytest.mark.thorough
@pytest.mark.req("ONT-185")
def test_a_failure_is_retried_and_then_a_dead_letter_in_the_bucket(
    open_shop: Callable[..., Session], s3_uri: str
) -> None:
    done, attempts = threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship", max_attempts=3)
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise Retry("not yet", after=0)
        raise OSError("no van")

    @on_event(EventDeadLetter, name="shop.tell")
    def tell(ctx: HandlerContext[EventDeadLetter]) -> None:
        done.set()

    session = open_shop(event_backoff_base_ms=1)
    [event_id] = place(session, "a")
    run(session, ship, tell, until=done)

    assert attempts == [1, 2, 3]
    with S3EventStore(s3_uri) as store:
        [letter] = store.list_dead_letters("default")
        assert (letter["event_id"], letter["handler"]) == (event_id, "shop.ship")
        assert letter["last_error"] == "OSError: no van"
        shown = store.inspect_event(event_id)
        assert shown is not None
        assert [each["outcome"] for each in shown["attempts"]] == ["retry", "failed", "failed"]
        assert "no van" in shown["attempts"][-1]["traceback"]


@pytest.mark.thorough
@pytest.mark.req("ONT-185")
def test_a_deferred_event_waits_in_the_database(
    open_shop: Callable[..., Session], s3_uri: str
) -> None:
    done = threading.Event()

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        done.set()

    session = open_shop()
    session.commit(event=OrderPlaced(order_id="a"), delay=0.3)
    assert in_bucket(s3_uri) == []
    run(session, ship, until=done)

    assert in_bucket(s3_uri) == ["order.placed"]


async def _async_commit(path: Path, s3_uri: str) -> None:
    async with AsyncSession(path, entity_types=[Order], event_store=s3_uri) as session:
        await session.commit(event=OrderPlaced(order_id="a"))


@pytest.mark.req("ONT-186")
def test_an_async_session_has_a_bucket_too(path: Path, s3_uri: str) -> None:
    asyncio.run(_async_commit(path, s3_uri))

    assert in_bucket(s3_uri) == ["order.placed"]


# -- what cannot be opened ------------------------------------------------------------------------


def test_wrong_credentials_are_told_when_the_session_is_opened(
    path: Path, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASOMEBODY")

    with pytest.raises(StoreOpenError, match="does not accept the credentials") as caught:
        Session(str(path), event_store=s3_uri)

    assert "AKIASOMEBODY" not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)
    Session(str(path)).close()


@pytest.mark.parametrize("uri", ["gs://bucket/events", "events", "s3://no-such-bucket/events"])
def test_an_event_store_that_is_none_is_refused(path: Path, s3_uri: str, uri: str) -> None:
    with pytest.raises(StoreOpenError, match="bucket"):
        Session(str(path), event_store=uri)


def test_a_bucket_that_is_away_keeps_no_session_from_committing(
    open_shop: Callable[..., Session],
    s3_uri: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        session = open_shop(shutdown_grace_ms=100)
    assert "events wait in the database" in caplog.text

    place(session, "a")
    session.close()

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    open_shop().close()
    assert in_bucket(s3_uri) == ["order.placed"]


@pytest.mark.req("ONT-185")
def test_an_idle_worker_sends_at_most_two_requests_a_poll_however_much_is_retained(
    open_shop: Callable[..., Session], proxy: Proxy
) -> None:
    done, polled, acked = threading.Event(), threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        acked.append(ctx.event.order_id)
        if len(acked) == 20:
            done.set()

    @on_event(OrderShipped, name="shop.bill")
    def bill(ctx: HandlerContext[OrderShipped]) -> None:
        raise AssertionError("there is none")

    session = open_shop()
    place(session, *map(str, range(20)))
    run(session, ship, bill, until=done)
    idle = threading.Thread(target=lambda: run(session, ship, bill, until=polled))
    idle.start()
    await_polls(proxy, 5)  # until what it begins with is over
    proxy.seen.clear()
    await_polls(proxy, 20)
    seen = list(proxy.seen)
    polled.set()
    idle.join()

    polls = sum("unfinished" in each.path for each in seen)
    assert len(seen) <= 2 * polls
    # One listing for both handlers; the other requests are heartbeats and the like.
    assert [each.kind for each in seen].count("LIST") == polls


def await_polls(proxy: Proxy, number: int) -> None:
    """Wait until the markers were listed this many times more."""
    deadline = time.monotonic() + PATIENCE
    before = sum("unfinished" in each.path for each in list(proxy.seen))
    while sum("unfinished" in each.path for each in list(proxy.seen)) < before + number:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.thorough
@pytest.mark.req("ONT-186")
def test_a_worker_of_the_command_line_has_a_bucket_too(
    open_shop: Callable[..., Session], path: Path, s3_uri: str, tmp_path: Path
) -> None:
    session = open_shop()
    place(session, "a")
    (tmp_path / "shipping.py").write_text(SHIPPING)

    done = subprocess.run(
        [*(sys.executable, "-m", "ontologia", "run", "shipping", "--event-store", s3_uri)],
        cwd=tmp_path,
        env={**os.environ, "ONTOLOGIA_DATASTORE_URI": str(path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "stopped: 1 done, 0 failed attempts" in done.stdout


SHIPPING = """
from ontologia import Event, Field, on_event

class OrderPlaced(Event):
    order_id: Field[str]

@on_event(OrderPlaced, name="shop.ship")
def ship(ctx):
    ctx.session.stop()
"""


@pytest.mark.thorough
@pytest.mark.req("ONT-185", "ONT-186")
def test_a_session_on_postgresql_has_a_bucket_too(s3_uri: str) -> None:
    """Its commits are fenced by the lease, and what its handlers emit is carried."""
    done, placed = threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship")
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        placed.append(ctx.event.order_id)
        ctx.update(Order, ctx.event.order_id, shipped=1)
        ctx.commit(event=OrderShipped(order_id=ctx.event.order_id))

    @on_event(OrderShipped, name="shop.bill")
    def bill(ctx: HandlerContext[OrderShipped]) -> None:
        done.set()

    with (
        own_server() as server,
        Session(server.uri, entity_types=[Order], event_store=s3_uri) as session,
    ):
        place(session, "a")
        run(session, ship, bill, until=done)
        assert placed == ["a"]
        assert session.one(Order, "a").shipped == 1
    assert in_bucket(s3_uri) == ["order.placed", "order.shipped"]


@pytest.mark.req("ONT-185", "ONT-139")
def test_a_handler_that_hangs_is_timed_out_and_its_event_run_again(
    open_shop: Callable[..., Session], s3_uri: str
) -> None:
    done, hangs, attempts = threading.Event(), threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship", timeout=timedelta(seconds=0.2))
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            hangs.wait(PATIENCE)
        else:
            done.set()

    session = open_shop(event_backoff_base_ms=1)
    [event_id] = place(session, "a")
    try:
        run(session, ship, until=done)
    finally:
        hangs.set()

    assert attempts == [1, 2]
    assert session.bucket_events is not None
    shown = session.bucket_events.inspect_event(event_id)
    assert shown is not None
    assert shown["claims"][0]["ack_at"] is not None
    assert [each["attempt"] for each in shown["attempts"]] == [1]


@pytest.mark.req("ONT-132")
def test_a_handler_that_renews_keeps_its_event(open_shop: Callable[..., Session]) -> None:
    done, attempts = threading.Event(), []

    @on_event(OrderPlaced, name="shop.ship", lease=timedelta(seconds=0.5), renew=True)
    def ship(ctx: HandlerContext[OrderPlaced]) -> None:
        attempts.append(ctx.attempt)
        assert ctx.lease_until is not None
        before = ctx.lease_until
        deadline = time.monotonic() + PATIENCE
        while ctx.lease_until == before:  # until the keeper has renewed it
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ctx.renew(30)
        ctx.commit()
        done.set()

    session = open_shop()
    place(session, "a")
    run(session, ship, until=done)

    assert attempts == [1]
