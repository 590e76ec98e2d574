"""Handlers as consumers: paused, new, forgotten, and what is remembered of their attempts."""

from __future__ import annotations

from typing import Any

import pytest

from ontologia import Event, Field, on_event
from ontologia.errors import ConsumerBusyError
from ontologia.runtime.session import core_of
from tests.integration.running import running, statuses, until
from tests.shop import Customer


class Order(Event):
    number: Field[int] = 0


def announce(session, *numbers: int, **options: Any) -> list[str]:
    events = [Order(number=number) for number in numbers]
    for event in events:
        session.commit(event=event, **options)
    return [event.id for event in events]


def collector(seen: list, name: str = "collector"):
    @on_event(Order, name=name)
    def collect(ctx):
        seen.append(ctx.event.number)

    return collect


@pytest.mark.req("NEW-027")
def test_a_paused_handler_gets_nothing_until_it_is_resumed_by_whomever(session, open_session):
    seen, other = [], []
    session.run([collector(seen)], max_iterations=1)
    assert session.event_store.pause("default", "collector") is True
    assert session.event_store.pause("default", "nobody") is False
    assert session.event_store.pause("elsewhere", "collector") is False

    announce(session, 1)
    restarted = open_session()
    restarted.run([collector(seen), collector(other, "other")], max_iterations=3)
    assert (seen, other) == ([], [1])
    paused = {c["name"]: c["paused_at"] for c in session.event_store.list_consumers("default")}
    assert paused["collector"] is not None
    assert paused["other"] is None

    assert restarted.event_store.resume("default", "collector") is True
    session.run([collector(seen)], max_iterations=1)
    assert seen == [1]
    assert session.event_store.check() == []


@pytest.mark.req("NEW-030", "ONT-140")
@pytest.mark.parametrize(("start", "handled"), [("retained", [1, 2, 3]), ("now", [3])])
def test_a_new_handler_gets_what_is_retained_unless_it_starts_now(session, start, handled):
    seen, old = [], []
    announce(session, 1, 2)
    session.run([collector(old, "old")], max_iterations=1)

    session.run([collector(old, "old"), collector(seen)], max_iterations=1, start=start)
    announce(session, 3)
    session.run([collector(old, "old"), collector(seen)], max_iterations=1, start=start)

    assert (seen, old) == (handled, [1, 2, 3])
    assert session.event_store.check() == []


@pytest.mark.req("NEW-030")
@pytest.mark.parametrize(("start", "verb"), [("retained", "gets"), ("now", "skips")])
def test_a_new_consumer_is_told_of_with_the_events_it_gets(session, caplog, start, verb):
    caplog.set_level("INFO", "ontologia.store.events.consumers")
    announce(session, 1, 2)
    session.run([collector([], "old")], max_iterations=1)  # which dispatches both
    announce(session, 3)  # still incoming
    caplog.clear()

    session.run([collector([], "old"), collector([])], max_iterations=1, start=start)
    session.run([collector([], "old"), collector([])], max_iterations=1, start=start)

    assert [record.getMessage() for record in caplog.records] == [
        f"consumer collector is new to order in namespace 'default': it {verb} 3 retained events"
    ]


@pytest.mark.req("NEW-030")
def test_consumers_that_a_run_does_not_run_are_named_with_what_waits(session, caplog):
    caplog.set_level("INFO", "ontologia.runtime.handler_engine")
    session.run([collector([], "gone"), collector([], "idle")], max_iterations=1)
    announce(session, 1, 2)
    session.run([collector([], "idle")], max_iterations=1)
    announce(session, 3)  # still incoming
    caplog.clear()

    session.run([collector([])], max_iterations=1)
    session.run([collector([], name) for name in ("collector", "gone", "idle")], max_iterations=1)

    named = [each.getMessage() for each in caplog.records if "does not run" in each.getMessage()]
    [line] = named
    assert line.endswith("that this program does not run: gone (3 waiting), idle (1 waiting)")


@pytest.mark.req("NEW-030")
def test_a_handler_can_be_forgotten_but_not_while_a_live_session_runs_it(
    session, open_session, clock
):
    caught, operator = [], open_session()

    @on_event(Order, name="collector")
    def collect(ctx):
        with pytest.raises(ConsumerBusyError, match=session.session_id):
            operator.event_store.forget("default", "collector")
        caught.append(ctx.event.number)

    announce(session, 1)
    session.run([collect], max_iterations=1)
    announce(session, 2)
    [listed] = operator.event_store.list_consumers("default")
    assert (listed["name"], listed["types"]) == ("collector", ["order"])

    assert operator.event_store.forget("default", "collector") is True
    assert operator.event_store.forget("default", "collector") is False
    assert operator.event_store.list_consumers("default") == []
    # What it finished stays finished, and what waited is new to a handler of that name.
    open_session().run([collector(caught)], max_iterations=1)
    assert caught == [1, 2]
    assert operator.event_store.check() == []


@pytest.mark.req("NEW-030")
def test_a_handler_that_was_forgotten_while_it_waited_goes_on(session, open_session):
    """As when its process stood still, and somebody took it for dead."""
    seen, operator = [], open_session()
    with running(session, [collector(seen)]):
        announce(operator, 1)
        until(lambda: statuses(operator) == ["acked"])  # and it waits, having served somebody
        core_of(session).end_session()
        assert operator.event_store.forget("default", "collector") is True
        announce(operator, 2)
        until(lambda: seen == [1, 2])

    assert [each["name"] for each in operator.event_store.list_consumers("default")] == [
        "collector"
    ]
    assert operator.event_store.check() == []


@pytest.mark.req("NEW-040")
def test_each_attempt_knows_the_state_it_began_with_and_each_commit_its_attempt(session):
    seen = []

    @on_event(Order, name="write")
    def write(ctx):
        seen.append((ctx.event.id, ctx.attempt, session.head))
        ctx.ensure(Customer(id=str(ctx.event.number), name=str(ctx.attempt)))
        ctx.commit()
        if ctx.attempt == 1:
            raise ValueError("once more")

    ids = announce(session, 1, 2)
    session.run([write], max_iterations=4)

    assert sorted(each[:2] for each in seen) == [(i, n) for i in sorted(ids) for n in (1, 2)]
    for event_id in ids:
        told = session.event_store.inspect_event(event_id)
        began = [told["attempts"][0]["read_commit"], told["claims"][0]["read_commit"]]
        assert began == [head for each, _, head in seen if each == event_id]
    metadata = [session.get_commit(n)["metadata"] for n in range(1, 5)]
    assert [(each["event_id"], each["attempt"]) for each in metadata] == [e[:2] for e in seen]
    assert {each["handler_id"] for each in metadata} == {"write"}
    assert {each["session_id"] for each in metadata} == {session.session_id}


@pytest.mark.req("NEW-040")
def test_attempts_that_were_started_together_know_what_each_began_with(session):
    heads = {}

    @on_event(Order, name="write")
    def write(ctx):
        heads[ctx.event.id] = session.head
        ctx.ensure(Customer(id=str(ctx.event.number), name="x"))
        ctx.commit()
        if ctx.event.number == 30:
            raise ValueError("not this one")

    ids = announce(session, *range(40))  # started in groups that grow
    session.run([write], max_iterations=1)

    told = [session.event_store.inspect_event(event_id) for event_id in ids]
    assert [each["claims"][0]["read_commit"] for each in told] == [heads[each] for each in ids]
    assert told[30]["attempts"][0]["read_commit"] == heads[ids[30]] == 30
