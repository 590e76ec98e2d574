"""Acks go with the next transaction of the store, whatever that writes, and not with one of their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from ontologia import Event, Field, HandlerContext, on_event
from ontologia.engine import acks, inbox
from ontologia.errors import HeadMismatchError
from ontologia.runtime.session import core_of
from ontologia.store.database import Conflict
from ontologia.store.events.leases import Done
from ontologia.store.rows import Announcement
from tests.integration.running import until
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Boarded(Event):
    number: Field[int]


class Waved(Event):
    number: Field[int]


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch):
    """Acks wait for company, and the thread that would write them stays out of it.

    Whatever the first event of a run takes, the two that follow it are started together.
    """
    monkeypatch.setattr(acks, "GATHER", 3600.0)
    monkeypatch.setattr(acks, "_FEW", 1)
    monkeypatch.setattr(inbox, "_BATCH_TIME", 3600.0)


def board(session, handler):
    """One event, and two more in one group; how the two stand in the end."""
    events = [Boarded(number=number) for number in range(3)]
    session.commit(event=events)
    session.run([handler], max_iterations=1)
    assert session.event_store.check() == []
    return [claim_of(session, event) for event in events[1:]]


def claim_of(session, event):
    [claim] = session.event_store.inspect_event(event.id)["claims"]
    return claim


def acked(session, number):
    listed = session.event_store.list_events(session.namespace, limit=100)
    shown = [session.event_store.inspect_event(each["id"]) for each in listed]
    return [
        claim["ack_at"] is not None
        for each in shown
        if each["type"] == "boarded" and each["payload"]["number"] == number
        for claim in each["claims"]
    ]


@pytest.mark.req("ONT-119", "NEW-045")
def test_a_commit_acknowledges_what_was_done_before_it(session):
    seen = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        before = acked(session, 1)
        ctx.commit()
        seen.append((ctx.event.number, before, acked(session, 1)))

    first, second = board(session, handler)

    assert seen[1:] == [(1, [False], [False]), (2, [False], [True])]
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None
    assert (first["read_commit"], second["read_commit"]) == (1, 2)


def test_a_commit_that_changes_nothing_takes_them_along_too(session):
    seen = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id="c1", name="Ada"))
        ctx.commit()
        seen.append(acked(session, 1))

    board(session, handler)

    assert seen[1:] == [[False], [True]]


def test_a_few_that_are_only_just_done_wait_for_a_later_commit(session, monkeypatch):
    monkeypatch.setattr(acks, "_FEW", 3)
    seen = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        ctx.commit()
        seen.append(acked(session, 1))

    first, second = board(session, handler)

    assert seen[1:] == [[False], [False]]
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None


def test_they_go_with_the_commit_of_any_thread(session):
    seen = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        if ctx.event.number == 2:
            other = threading.Thread(target=place_an_order, args=(session,))
            other.start()
            other.join()
            seen.append(acked(session, 1))

    board(session, handler)

    assert seen == [[True]]


def place_an_order(session):
    session.ensure(Customer(id="c9", name="Bea"))
    session.commit()


def test_what_a_failed_commit_would_have_acknowledged_is_not_forgotten(session):
    calls = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        calls.append(ctx.event.number)
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        ctx.commit(expected_head=77 if ctx.event.number == 2 else None)

    first, second = board(session, handler)

    assert calls == [0, 1, 2]
    assert first["ack_at"] is not None
    assert second["ack_at"] is None
    assert HeadMismatchError.__name__ in second["last_error"]


def test_what_was_emitted_is_stored_once_and_with_its_own_acknowledgement(session):
    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        ctx.emit(Waved(number=ctx.event.number))
        ctx.commit()

    first, second = board(session, handler)

    assert first["ack_at"] is not None
    assert second["ack_at"] is not None
    waved = [e for e in session.event_store.list_events(session.namespace) if e["type"] == "waved"]
    assert len(waved) == 3


def test_an_acknowledgement_whose_lease_is_over_is_not_written_by_a_commit(session, clock, caplog):
    calls = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        calls.append(ctx.event.number)
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        if calls == [0, 1, 2]:
            ctx.renew(3600)
            clock.advance(seconds=60)
        ctx.commit()

    board(session, handler)
    session.run([handler], max_iterations=1)

    assert "done after its lease had run out" in caplog.text
    assert calls == [0, 1, 2, 1]
    assert acked(session, 1) == [True]


def test_what_a_commit_that_collided_acknowledged_is_not_forgotten(
    session, open_session, monkeypatch
):
    """It was taken back, and done again there was nothing to change any more."""
    other = open_session(entity_types=[Customer])
    writer = (
        getattr(core_of(session).store, "_state_writer", None) or core_of(session).store._writer
    )
    begin, calls = writer._begin, []

    @contextmanager
    def colliding(durable, timeout_ms):
        with begin(durable, timeout_ms) as tx:
            yield tx
            if durable and calls == [0, 1, 2]:
                calls.append("collided")
                raise Conflict("others", 0)

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        calls.append(ctx.event.number)
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        if ctx.event.number == 2:
            monkeypatch.setattr(core_of(session).clock, "sleep", lambda _: same_by_another())
        ctx.commit()

    def same_by_another() -> None:
        other.ensure(Customer(id="c2", name="Ada"))
        other.commit()

    monkeypatch.setattr(writer, "_begin", colliding)
    first, second = board(session, handler)

    assert calls == [0, 1, 2, "collided"]
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None


def test_a_commit_that_waits_keeps_no_acknowledgement_from_being_written(session, monkeypatch):
    monkeypatch.setattr(acks, "GATHER", 0.005)
    free = threading.Event()
    monkeypatch.setattr(
        core_of(session).clock, "sleep", lambda _: free.wait(0.001)
    )  # and no time passes
    seen = []

    def hold(begun: threading.Event) -> None:
        with core_of(session).store.long_write("somebody"):
            begun.set()
            free.wait(60)

    def look() -> None:
        until(lambda: acked(session, 1) == [True])
        seen.append("acknowledged while the commit waited")
        free.set()

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        if ctx.event.number == 2:
            begun = threading.Event()
            for target in (lambda: hold(begun), look):
                threading.Thread(target=target, daemon=True).start()
            assert begun.wait(60)
        ctx.commit()

    first, second = board(session, handler)

    assert seen == ["acknowledged while the commit waited"]
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None


def test_what_is_done_while_others_ride_goes_with_a_later_transaction(session, monkeypatch):
    posted = []
    monkeypatch.setattr(session.event_store, "post", posted.append)
    consumer = session.event_store.consumers.register("default", "board", ["boarded"])
    session.commit(event=[Boarded(number=number) for number in range(2)])
    first, second = session.event_store.claims.claim(
        consumer,
        ["boarded"],
        session_id=session.session_id,
        limit=2,
        lease_ms=60_000,
        policy=session.event_store.policy,
    )
    gathered = acks.Acks(session.event_store, 100)

    gathered.add(Done(first))
    assert posted == [gathered]
    assert gathered.take()
    gathered.add(Done(second))
    assert posted == [gathered]  # a second ride would take the place of the first
    gathered.ended(None)
    assert posted == [gathered, gathered]
    gathered.flush()

    assert acked(session, 0) == [False]  # its ride was none
    assert acked(session, 1) == [True]


@pytest.fixture
def claimed(session):
    """Claims of two events, and acks that nobody looks after."""
    consumer = session.event_store.consumers.register("default", "board", ["boarded"])
    session.commit(event=[Boarded(number=number) for number in range(2)])
    claims = session.event_store.claims.claim(
        consumer,
        ["boarded"],
        session_id=session.session_id,
        limit=2,
        lease_ms=60_000,
        policy=session.event_store.policy,
    )
    return acks.Acks(session.event_store, 100), claims


def test_what_a_failed_ride_left_is_looked_after_and_written_by_the_next_flush(session, claimed):
    gathered, [first, _] = claimed
    nudged = []
    gathered.add(Done(first))
    gathered.nudge = lambda: nudged.append(True)
    assert gathered.take()

    landing = threading.Timer(0.05, gathered.ended, [RuntimeError("the ride failed")])
    landing.start()
    gathered.flush()  # waits for the ride, which writes nothing
    landing.join()

    assert acked(session, 0) == [True]
    assert nudged == [True]


def test_an_interrupt_while_they_are_written_loses_none_and_holds_up_no_other(
    session, claimed, monkeypatch
):
    gathered, [first, second] = claimed
    gathered.add(Done(first))
    settle = session.event_store.claims.settle

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(session.event_store.claims, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gathered.flush()
    monkeypatch.setattr(session.event_store.claims, "settle", settle)
    gathered.add(Done(second))
    gathered.flush()

    assert acked(session, 0) == acked(session, 1) == [True]


def test_what_a_lost_claim_emitted_is_not_stored(session, claimed, clock):
    """Another consumer's claim in the same transaction may take the event over before the ack."""
    _, [first, _] = claimed
    row = session.event_store.log.given_row(Waved(number=1), "default")
    acking = session.event_store.claims.acking([Done(first, [Announcement(row)])])
    with session.event_store.transaction(durable=False) as tx:
        clock.advance(seconds=61)
        acking.write(tx)

    assert acking.settled() == ([first], False)
    assert "waved" not in [e["type"] for e in session.event_store.list_events("default")]


def test_with_handler_durability_ack_one_sync_does_for_many_events(open_session, monkeypatch):
    session = open_session(entity_types=[Customer], settings={"handler_durability": "ack"})
    hard = []
    for name in ("_writer", "_state_writer", "_delivery_writer"):
        writer = getattr(core_of(session).store, name, None)
        if writer is not None:
            begin = writer._begin
            monkeypatch.setattr(
                writer, "_begin", lambda d, t, begin=begin: (hard.append(d), begin(d, t))[1]
            )

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        ctx.commit()

    session.commit(event=[Boarded(number=number) for number in range(20)])
    hard.clear()
    session.run([handler], max_iterations=1)

    assert session.query().entities(Customer).count() == 20
    assert sum(hard) <= 8  # of more than twenty transactions
    assert len(hard) > 20
