"""Conflicts in handlers: the event runs again at once on fresh state, and no attempt is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ontologia import Discard, Entity, Event, Field, HandlerContext, Retry, on_event
from ontologia.engine import runner
from ontologia.errors import LockContentionError, ObjectExistsError, StateConflictError
from ontologia.runtime.session import core_of
from ontologia.store.turn import Turns
from tests.integration.running import PATIENCE, statuses


class Seat(Entity):
    id: Field[str]
    free: Field[int]


class Ticket(Entity):
    id: Field[str]
    seat: Field[str]


class TicketWanted(Event):
    ticket: Field[str]


class TicketSold(Event):
    ticket: Field[str]


class World:
    """One row of seats, and somebody else who takes from it."""

    def __init__(self, session, other, sql) -> None:
        self.session, self.other, self._sql = session, other, sql
        with session.unit() as unit:
            unit.ensure(Seat(id="a", free=10))
        self.event = TicketWanted(ticket="t1")
        session.commit(event=self.event)

    def disturb(self) -> None:
        """Another program takes a seat."""
        self.other.transact(_take)

    def claim(self) -> tuple[str, int, int]:
        """Status, attempts and conflicts of the event's one claim."""
        [listed] = [
            each
            for each in self.session.event_store.list_events(self.session.namespace)
            if each["id"] == self.event.id
        ]
        [row] = self._sql("SELECT attempts, conflicts FROM event_claims")
        return (listed["status"], *row)


def _take(unit) -> None:
    seat = unit.one(Seat, "a")
    seat.free -= 1
    unit.ensure(seat)


@pytest.fixture
def world(session, open_session, sql) -> World:
    return World(session, open_session(), sql)


def free(session) -> int:
    return session.one(Seat, "a").free


def sell(ctx) -> None:
    seat = ctx.one(Seat, "a")
    seat.free -= 1
    ctx.ensure(seat)


def test_a_conflict_runs_the_handler_again_and_counts_no_attempt(world, session, caplog):
    attempts = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        attempts.append(ctx.attempt)
        sell(ctx)
        if len(attempts) < 4:
            world.disturb()
        ctx.emit(TicketSold(ticket=ctx.event.ticket))
        ctx.commit()

    with caplog.at_level(logging.INFO, "ontologia"):
        session.run([handler], max_iterations=1)

    assert attempts == [1, 1, 1, 1]
    assert free(session) == 6
    assert world.claim() == ("acked", 0, 3)
    assert session.event_store.inspect_event(world.event.id)["attempts"] == []
    listed = session.event_store.list_events(session.namespace)
    assert sorted(each["type"] for each in listed) == ["ticket.sold", "ticket.wanted"]
    assert "conflict" not in caplog.text


@pytest.mark.req("ONT-046")
def test_a_handler_that_swallows_a_conflict_is_run_again(world, session):
    calls = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        sell(ctx)
        if len(calls) == 1:
            world.disturb()
        try:
            ctx.commit()
        except StateConflictError:
            return

    session.run([handler], max_iterations=1)

    assert len(calls) == 2
    assert free(session) == 8
    assert world.claim()[0] == "acked"


def test_a_commit_can_be_made_again_inside_the_handler(world, session):
    calls = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        ctx.emit(TicketSold(ticket=ctx.event.ticket))
        sell(ctx)
        world.disturb()
        with pytest.raises(StateConflictError):
            ctx.commit()
        sell(ctx)
        assert ctx.commit() == 3

    session.run([handler], max_iterations=1)

    assert calls == [1]
    assert free(session) == 8
    assert world.claim() == ("acked", 0, 0)
    assert sorted(statuses(session)) == ["acked", "unsubscribed"]


def test_a_handler_that_discards_after_a_conflict_is_done(world, session):
    calls = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        sell(ctx)
        world.disturb()
        with pytest.raises(StateConflictError):
            ctx.commit()
        assert ctx.discard() == 1

    session.run([handler], max_iterations=1)

    assert calls == [1]
    assert free(session) == 9
    assert world.claim()[0] == "acked"


@pytest.mark.parametrize(
    ("error", "status", "attempts"),
    [(Retry("later", after=60), "pending", 1), (Discard("no"), "dead_lettered", 1)],
    ids=["retry", "discard"],
)
def test_what_a_handler_says_after_a_conflict_counts(world, session, error, status, attempts):
    calls = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        sell(ctx)
        world.disturb()
        try:
            ctx.commit()
        except StateConflictError:
            raise error from None

    session.run([handler], max_iterations=1)

    assert calls == [1]
    assert world.claim() == (status, attempts, 0)


@contextmanager
def held_up(world, session) -> Iterator[None]:
    """Another program writes, and the session waits for it for 20 ms, as it does at no other time."""
    store = core_of(session).store
    config = store.config
    with core_of(world.other).store.write():
        store.config = config.model_copy(update={"lock_timeout_ms": 20})
        try:
            yield
        finally:
            store.config = config


def test_too_many_conflicts_in_a_row_are_one_failure(world, open_session):
    session = open_session(settings={"event_max_conflicts": 3})
    calls = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        sell(ctx)
        world.disturb()
        ctx.commit()

    session.run([handler], max_iterations=1)

    assert len(calls) == 3
    assert world.claim() == ("pending", 1, 3)
    [attempt] = session.event_store.inspect_event(world.event.id)["attempts"]
    assert attempt["outcome"] == "failed"
    assert attempt["error"].startswith(
        "3 conflicts in a row, the last: StateConflictError: Seat 'a'"
    )
    assert "transact" not in attempt["error"]  # which a handler may not call


def test_a_commit_that_others_held_up_for_too_long_counts_no_attempt(world, session, caplog):
    attempts = []

    @on_event(TicketWanted, name="sell", max_attempts=1)
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        attempts.append(ctx.attempt)
        sell(ctx)
        if len(attempts) == 1:
            with held_up(world, session):
                ctx.commit()
        ctx.commit()

    session.run([handler], max_iterations=2)

    assert attempts == [1, 1]
    assert world.claim()[:2] == ("acked", 0)
    assert session.event_store.inspect_event(world.event.id)["attempts"] == []
    assert "runs again later, no attempt counted" in caplog.text


def test_a_handler_that_is_always_held_up_runs_again_after_its_backoff(world, session):
    """Not at once, or a handler that writes to another store, which is locked, would not rest."""
    calls = []

    @on_event(TicketWanted, name="sell", max_attempts=1)
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(ctx.attempt)
        raise LockContentionError("another program", 5000)

    session.run([handler], max_iterations=1)

    assert calls == [1]
    assert world.claim()[:2] == ("pending", 0)


def test_a_handler_that_holds_itself_up_ends_as_a_dead_letter(world, open_session):
    """Its own transaction holds what its commit waits for: that does not pass."""
    session = open_session(settings={"event_max_conflicts": 3})
    calls = []

    @on_event(TicketWanted, name="sell", max_attempts=2)
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(ctx.attempt)
        sell(ctx)
        with held_up(world, session):
            ctx.commit()

    session.run([handler], max_iterations=20)

    assert calls == [1, 1, 1, 2, 2, 2]
    assert world.claim()[:2] == ("dead_lettered", 2)
    told = session.event_store.inspect_event(world.event.id)["attempts"]
    assert [each["attempt"] for each in told] == [1, 2]
    assert all(
        each["error"].startswith("held up 3 times in a row, the last: LockContentionError: ")
        for each in told
    )


def test_a_failure_begins_the_count_of_held_up_runs_anew(world, open_session):
    session = open_session(settings={"event_max_conflicts": 2})
    busy = LockContentionError("another program", 1)
    ends = [busy, RuntimeError("no"), busy, None]

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        if (error := ends.pop(0)) is not None:
            raise error

    session.run([handler], max_iterations=20)

    assert ends == []
    assert world.claim()[:2] == ("acked", 1)


def test_reruns_take_turns_by_the_object_they_had_a_conflict_about(world, session, monkeypatch):
    keys, preferred = [], Turns.preferred

    def noted(self, key, timeout_ms):
        keys.append(key)
        return preferred(self, key, timeout_ms)

    monkeypatch.setattr(Turns, "preferred", noted)

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        sell(ctx)
        if not keys:
            world.disturb()
        ctx.commit()

    session.run([handler], max_iterations=1)

    assert keys == [("Seat", "a")]
    assert free(session) == 8


def test_an_object_that_exists_is_an_ordinary_failure(world, session):
    calls = []
    with session.unit() as unit:
        unit.ensure(Ticket(id="t1", seat="a"))

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        ctx.create(Ticket(id=ctx.event.ticket, seat="a"))
        with pytest.raises(ObjectExistsError):
            ctx.commit()
        raise RuntimeError("sold twice")

    session.run([handler], max_iterations=1)

    assert calls == [1]
    assert world.claim() == ("pending", 1, 0)


@pytest.mark.req("ONT-037")
def test_a_handler_that_commits_nothing_of_what_it_queued_fails(world, session):
    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        sell(ctx)

    session.run([handler], max_iterations=1)

    assert free(session) == 10
    assert world.claim() == ("pending", 1, 0)
    [attempt] = session.event_store.inspect_event(world.event.id)["attempts"]
    assert "UncommittedChangesError" in attempt["error"]
    assert "Seat 'a'" in attempt["error"]


def test_two_handlers_that_change_different_objects_never_conflict(world, session, sql):
    with session.unit() as unit:
        unit.ensure(Seat(id="b", free=10))

    def selling(id: str):
        @on_event(TicketWanted, name=f"sell {id}")
        def handler(ctx: HandlerContext[TicketWanted]) -> None:
            seat = ctx.one(Seat, id)
            seat.free -= 1
            ctx.ensure(seat)
            ctx.commit()

        return handler

    session.run([selling("a"), selling("b")], max_iterations=1, workers=2)

    claims = sql("SELECT conflicts FROM event_claims WHERE ack_at IS NOT NULL")
    assert [tuple(row) for row in claims] == [(0,), (0,)]
    assert [session.one(Seat, id).free for id in "ab"] == [9, 9]


def test_checked_reads_of_a_handler(world, session):
    calls = []

    @on_event(TicketWanted, name="sell", reads="checked")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(ctx.one(Seat, "a").free)
        if len(calls) == 1:
            world.disturb()
        ctx.commit(event=TicketSold(ticket="t1"))

    session.run([handler], max_iterations=1)

    assert calls == [10, 9]
    assert sorted(statuses(session)) == ["acked", "unsubscribed"]


def test_what_is_emitted_rests_on_checked_reads_too(world, session):
    calls = []

    @on_event(TicketWanted, name="sell", reads="checked")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(ctx.one(Seat, "a").free)
        if len(calls) == 1:
            world.disturb()
        ctx.emit(TicketSold(ticket=str(calls[-1])))

    session.run([handler], max_iterations=1)

    assert calls == [10, 9]
    assert world.claim() == ("acked", 0, 1)
    listed = session.event_store.list_events(session.namespace)
    [sold] = [each["id"] for each in listed if each["type"] == "ticket.sold"]
    assert session.event_store.inspect_event(sold)["payload"] == {"ticket": "9"}


def test_a_handler_has_its_own_way_to_run_again(world, session):
    said = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        with pytest.raises(RuntimeError, match="the handler itself is run again") as error:
            ctx.session.transact(_take)
        said.append(str(error.value))

    session.run([handler], max_iterations=1)

    assert "ctx.commit" in said[0]


def test_async_handlers_are_run_again_too(world, session):
    calls = []

    @on_event(TicketWanted, name="sell")
    async def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        sell(ctx)
        if len(calls) < 3:
            world.disturb()
        ctx.commit()

    session.run([handler], max_iterations=1)

    assert len(calls) == 3
    assert free(session) == 7


def test_a_run_that_stops_gives_the_event_back_after_a_conflict(world, session):
    calls = []

    @on_event(TicketWanted, name="sell")
    def handler(ctx: HandlerContext[TicketWanted]) -> None:
        calls.append(1)
        sell(ctx)
        world.disturb()
        ctx.session.stop()
        ctx.commit()

    session.run([handler], max_iterations=1)

    assert calls == [1]
    assert world.claim() == ("pending", 0, 0)


def test_runs_after_a_conflict_take_turns(open_session, monkeypatch):
    """Together they would conflict again: commits that wait together are written together."""
    monkeypatch.setattr(runner, "_TAKE_TURNS_MS", PATIENCE * 1000)
    # Of its lease a run waits for a tenth.
    session = open_session(settings={"event_claim_lease_ms": int(PATIENCE * 10_000)})
    with session.unit() as unit:
        unit.ensure(Seat(id="a", free=0))
    session.commit(event=[TicketWanted(ticket=str(number)) for number in range(8)])
    first, lock = threading.Barrier(8), threading.Lock()
    runs, at_once, most = {}, 0, 0

    @on_event(TicketWanted, name="count")
    def count(ctx: HandlerContext[TicketWanted]) -> None:
        nonlocal at_once, most
        with lock:
            again = runs[ctx.event_id] = runs.get(ctx.event_id, 0) + 1
        seat = ctx.one(Seat, "a")
        if again == 1:
            first.wait(60)  # all eight have read the same version
        else:
            with lock:
                at_once += 1
                most = max(most, at_once)
        seat.free += 1
        ctx.ensure(seat)
        try:
            ctx.commit()
        finally:
            if again > 1:
                with lock:
                    at_once -= 1

    session.run([count], max_iterations=1, workers=8)

    assert session.one(Seat, "a").free == 8
    assert most == 1
    assert sorted(runs.values()) == [1] + [2] * 7  # each that lost once won then
