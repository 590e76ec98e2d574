"""Chains of events that do not end by themselves are ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ontologia import (
    Event,
    EventLoopLimitError,
    Field,
    on_event,
)
from ontologia.errors import InvalidValueError
from ontologia.runtime.session import core_of
from tests.integration.running import claim_of, stored


class Charge(Event):
    number: Field[int] = 0


class Charged(Event):
    number: Field[int] = 0


class Rescheduled(Event):
    number: Field[int] = 0


class Ping(Event):
    pass


class Pong(Event):
    pass


def announce(session, event: Event) -> str:
    session.commit(event=event)
    assert event.id is not None
    return event.id


@pytest.fixture
def session(open_session):
    session = open_session(settings={"event_max_attempts": 4})
    yield session
    assert session.event_store.check() == []


@pytest.mark.req("ONT-098", "ONT-111")
@pytest.mark.parametrize("how", ["emit", "commit"])
def test_by_default_a_chain_has_twenty_hops(session, how):
    depths = []

    @on_event(Ping)
    def again(ctx):
        depths.append(ctx.event.chain_depth)
        ctx.emit(Ping()) if how == "emit" else ctx.commit(event=Ping())

    announce(session, Ping())
    with pytest.raises(EventLoopLimitError, match="max_event_chain_depth is 20"):
        session.run([again])

    assert depths == list(range(21))


@pytest.mark.req("ONT-097", "ONT-098", "ONT-099", "ONT-203")
@pytest.mark.parametrize("how", ["emit", "commit"])
def test_two_handlers_that_answer_each_other_are_stopped_at_the_limit(open_session, how):
    session = open_session(settings={"max_event_chain_depth": 5})
    depths = []

    def answer(ctx, event):
        depths.append(ctx.event.chain_depth)
        ctx.emit(event) if how == "emit" else ctx.commit(event=event)

    @on_event(Ping)
    def ping(ctx):
        answer(ctx, Pong())

    @on_event(Pong)
    def pong(ctx):
        answer(ctx, Ping())

    @on_event(Charge, priority=1)
    def bystander(ctx):
        depths.append("charge")

    root = announce(session, Ping())
    with pytest.raises(EventLoopLimitError) as caught:
        session.run([ping, pong, bystander])

    assert depths == [0, 1, 2, 3, 4, 5]
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.depth, caught.value.root_event_id) == (6, root)
    rows = stored(session, "ping") + stored(session, "pong")
    assert sorted(row["chain_depth"] for row in rows) == [0, 1, 2, 3, 4, 5]
    [letter] = session.event_store.list_dead_letters("default")
    assert (letter["type"], letter["attempts"]) == ("pong", 1)
    assert letter["last_error"].startswith("EventLoopLimitError: ")

    announce(session, Charge())
    session.run([ping, pong, bystander], max_iterations=1)
    assert depths[6:] == ["charge"]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-098", "ONT-099")
def test_a_handler_may_catch_the_limit_and_what_waits_behind_an_escape_is_handed_back(open_session):
    session = open_session(settings={"max_event_chain_depth": 0})
    seen = []

    @on_event(Charge)
    def emit(ctx):
        seen.append((ctx.event.number, ctx.attempt))
        try:
            ctx.emit(Charged())
        except EventLoopLimitError:
            if ctx.event.number == 2:
                raise

    ids = [announce(session, Charge(number=n)) for n in range(1, 5)]
    with pytest.raises(EventLoopLimitError):
        session.run([emit])
    assert seen == [(1, 1), (2, 1)]
    assert claim_of(session, ids[0])["ack_at"] is not None

    session.run([emit], max_iterations=1)

    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert stored(session, "charged") == []
    assert session.event_store.check() == []


LATER = {
    "emit": lambda ctx, event: ctx.emit(event, delay=1),
    "commit": lambda ctx, event: ctx.commit(event=event, delay=timedelta(seconds=1)),
    "defer": lambda ctx, event: ctx.session.defer(event, delay=1.0),
    "at": lambda ctx, event: ctx.emit(
        event, at=core_of(ctx.session).clock.now() + timedelta(seconds=1)
    ),
}


@pytest.mark.req("ONT-097", "ONT-098")
@pytest.mark.parametrize("how", LATER)
def test_a_handler_that_reschedules_itself_runs_for_ever(open_session, clock, how):
    session = open_session(settings={"max_event_chain_depth": 2})
    seen = []

    @on_event(Rescheduled)
    def again(ctx):
        seen.append((ctx.event.number, ctx.event.chain_depth, ctx.event.root_event_id))
        LATER[how](ctx, Rescheduled(number=ctx.event.number + 1))
        ctx.emit(Charged())

    @on_event(Charged)
    def charged(ctx):
        assert ctx.event.chain_depth == 1

    root = announce(session, Rescheduled())
    for _ in range(6):
        session.run([again, charged], max_iterations=1)
        clock.advance(seconds=1)

    assert seen == [(number, 0, root) for number in range(6)]
    assert session.event_store.list_dead_letters("default") == []
    [first] = session.trace(root).events
    assert sorted(each.type for each in first.followers) == ["charged", "rescheduled"]
    assert len(stored(session, "rescheduled")) == 6


@pytest.mark.req("ONT-098")
def test_a_shorter_delay_goes_on_with_the_count(open_session, clock):
    session = open_session(settings={"max_event_chain_depth": 2})

    @on_event(Rescheduled)
    def again(ctx):
        ctx.emit(Rescheduled(), delay=0.9)

    announce(session, Rescheduled())
    for _ in range(2):
        session.run([again], max_iterations=1)
        clock.advance(seconds=1)
    with pytest.raises(EventLoopLimitError, match="max_event_chain_depth is 2"):
        session.run([again], max_iterations=1)

    assert [row["chain_depth"] for row in stored(session, "rescheduled")] == [0, 1, 2]


@pytest.mark.req("ONT-099")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_logs_the_limit_goes_on(open_session, caplog, workers):
    session = open_session(settings={"max_event_chain_depth": 0})
    seen = []

    @on_event(Charge, priority=200)
    def emit(ctx):
        ctx.emit(Charged())

    @on_event(Ping)
    def ping(ctx):
        seen.append("ping")
        session.stop()

    announce(session, Charge())
    announce(session, Ping())
    session.run([emit, ping], workers=workers, on_chain_limit="log")

    assert seen == ["ping"]
    [letter] = session.event_store.list_dead_letters("default")
    assert letter["last_error"].startswith("EventLoopLimitError: ")
    assert "a dead letter now: EventLoopLimitError: " in caplog.text
    with pytest.raises(InvalidValueError, match="on_chain_limit is 'raise' or 'log'"):
        session.run([emit], on_chain_limit="ignore")
