"""What was done before is acknowledged by the next commit of a handler, and not by one of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from ontologia import Event, Field, HandlerContext, on_event
from ontologia.errors import HeadMismatchError
from ontologia.runtime import acks, feed
from ontologia.store.database import Conflict
from tests.integration.running import until
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Boarded(Event):
    number: Field[int]


class Waved(Event):
    number: Field[int]


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch):
    """Acknowledgements wait for company, and the thread that would write them stays out of it.

    Whatever the first event of a run takes, the two that follow it are started together.
    """
    monkeypatch.setattr(acks, "GATHER", 3600.0)
    monkeypatch.setattr(acks, "_RIPE", 0.0)
    monkeypatch.setattr(feed, "_GROUP_TIME", 3600.0)


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


def test_what_is_only_just_done_waits_for_a_later_commit(session, monkeypatch):
    monkeypatch.setattr(acks, "_RIPE", 3600.0)
    seen = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        ctx.commit()
        seen.append(acked(session, 1))

    first, second = board(session, handler)

    assert seen[1:] == [[False], [False]]
    assert (first["read_commit"], second["read_commit"]) == (1, 2)
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None


def test_a_commit_that_changes_nothing_writes_no_acknowledgement(session):
    seen = []

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        ctx.ensure(Customer(id="c1", name="Ada"))
        ctx.commit()
        seen.append(acked(session, 1))

    first, second = board(session, handler)

    assert seen[1:] == [[False], [False]]
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None


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
    begin, calls = session._store.write, []

    @contextmanager
    def colliding(**options):
        with begin(**options) as tx:
            yield tx
            if options.get("claim") is not None and calls == [0, 1, 2]:
                calls.append("collided")
                raise Conflict("others", 0)

    @on_event(Boarded, name="board")
    def handler(ctx: HandlerContext[Boarded]) -> None:
        calls.append(ctx.event.number)
        ctx.ensure(Customer(id=f"c{ctx.event.number}", name="Ada"))
        if ctx.event.number == 2:
            monkeypatch.setattr(session._clock, "sleep", lambda _: same_by_another())
        ctx.commit()

    def same_by_another() -> None:
        other.ensure(Customer(id="c2", name="Ada"))
        other.commit()

    monkeypatch.setattr(session._store, "write", colliding)
    first, second = board(session, handler)

    assert calls == [0, 1, 2, "collided"]
    assert first["ack_at"] is not None
    assert second["ack_at"] is not None


def test_a_commit_that_waits_keeps_no_acknowledgement_from_being_written(session, monkeypatch):
    monkeypatch.setattr(acks, "GATHER", 0.005)
    free = threading.Event()
    monkeypatch.setattr(session._clock, "sleep", lambda _: free.wait(0.001))  # and no time passes
    seen = []

    def hold(begun: threading.Event) -> None:
        with session._store.long_write("somebody"):
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
