"""Chains of events that do not end by themselves are ended."""

from __future__ import annotations

import pytest

from ontologia import (
    Event,
    EventLoopLimitError,
    Field,
    on_event,
)
from tests.integration.running import claim_of, stored


class Charge(Event):
    number: Field[int] = 0


class Charged(Event):
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
