"""The loop of `run`: what it claims, in which portions, when it waits and how it ends."""

from __future__ import annotations

import asyncio
import logging
import threading

import apsw
import pytest

from ontologia import Event, Field, on_event
from ontologia.errors import IntegrityError
from ontologia.runtime.session import core_of
from ontologia.testing import ManualClock
from ontologia_conformance.backends import SQLITE
from tests.integration.running import PATIENCE, statuses
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Job(Event):
    number: Field[int] = 0


class Step(Event):
    left: Field[int] = 0


def announce(session, *numbers: int, **options: int) -> list[str]:
    events = [Job(number=number, **options) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def collector(seen, **options):
    @on_event(Job, name="collector", **options)
    def collect(ctx):
        seen.append(ctx.event.number)

    return collect


# -- what is run ----------------------------------------------------------------------------------


@pytest.mark.req("ONT-095", "ONT-096", "ONT-179")
def test_what_was_committed_before_anybody_ran_is_handled_by_whoever_runs(open_session):
    writer, seen = open_session(), []
    writer.ensure(Customer(id="c1", name="Ada"))
    assert writer.commit(event=Job(number=1)) == 1
    writer.close()

    @on_event(Job)
    def read(ctx):
        seen.append(ctx.query().entities(Customer).first().name)

    runner = open_session()
    runner.run([read], max_iterations=1)

    assert seen == ["Ada"]
    assert statuses(runner) == ["acked"]


@pytest.mark.req("ONT-153", "ONT-154")
def test_each_event_gets_a_context_of_its_own_from_a_session_that_is_registered(session):
    contexts, listed = [], []

    @on_event(Job)
    def keep(ctx):
        contexts.append(ctx)
        listed.extend(session.event_store.list_sessions("default"))

    ids = announce(session, 1, 2, 3)
    session.run([keep], max_iterations=1)

    assert [ctx.event.id for ctx in contexts] == ids
    assert len(set(map(id, contexts))) == 3
    assert listed[0]["session_id"] == session.session_id
    assert listed[0]["metadata"]["consumers"] == [keep.__ontologia_handler__.id]
    assert (listed[0]["stopped_at"], listed[0]["is_dead"]) == (None, False)


@pytest.mark.req("ONT-118", "ONT-136")
def test_what_is_acknowledged_is_never_handled_again(session, open_session, clock):
    seen: dict[str, list[int]] = {"one": [], "two": []}

    @on_event(Job, name="one")
    def one(ctx):
        seen["one"].append(ctx.event.number)

    @on_event(Job, name="two")
    def two(ctx):
        seen["two"].append(ctx.event.number)

    announce(session, 1, 2)
    session.run([one], max_iterations=1)
    for _ in range(5):
        clock.advance(seconds=86400)
        session.run([one], max_iterations=2)
        open_session().run([one], max_iterations=2)
    assert seen == {"one": [1, 2], "two": []}

    session.run([one, two], max_iterations=1)
    assert seen == {"one": [1, 2], "two": [1, 2]}
    assert session.event_store.check() == []


@pytest.mark.req("ONT-158")
def test_what_handlers_announce_to_each_other_is_drained_in_one_iteration(session, clock):
    seen, began = [], clock.now()

    @on_event(Step)
    def go_on(ctx):
        seen.append(ctx.event.left)
        if ctx.event.left:
            ctx.emit(Step(left=ctx.event.left - 1))

    session.commit(event=Step(left=9))
    session.run([go_on], max_iterations=1)

    assert seen == list(range(9, -1, -1))
    assert clock.now() == began
    assert session.event_store.check() == []


@pytest.mark.req("NEW-011", "ONT-104")
def test_a_thousand_waiting_events_are_one_iteration_with_the_default_settings(session, clock):
    @on_event(Step)
    def sow(ctx):
        for number in range(1001):
            ctx.emit(Job(number=number))

    seen, began = [], clock.now()
    session.commit(event=Step())
    session.run([sow], max_iterations=1)
    session.run([collector(seen)], max_iterations=1)

    assert seen == list(range(1000))
    assert clock.now() == began
    assert statuses(session).count("claimed") == 0


@pytest.mark.req("NEW-028")
def test_what_the_program_queued_before_a_run_is_still_queued_after_it(session):
    @on_event(Job)
    def commit(ctx):
        ctx.ensure(Customer(id="c2", name="Bob"))
        ctx.commit()

    announce(session, 1)
    session.ensure(Customer(id="c1", name="Ada"))
    session.run([commit], max_iterations=1)
    assert [c.id for c in session.query().entities(Customer).collect()] == ["c2"]

    assert session.commit() == 2
    assert [c.id for c in session.query().entities(Customer).collect()] == ["c1", "c2"]


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.req("ONT-157", "SQL-143")
@pytest.mark.parametrize(
    "error", [ValueError, StopIteration, asyncio.CancelledError, RecursionError]
)
def test_a_handler_that_raises_stops_neither_the_loop_nor_the_next_event(session, error):
    seen = []

    @on_event(Job)
    def picky(ctx):
        seen.append(ctx.event.number)
        if ctx.event.number == 1:
            raise error("no")

    first, _ = announce(session, 1, 2)
    session.run([picky], max_iterations=1)

    assert seen == [1, 2]
    [claim] = session.event_store.inspect_event(first)["claims"]
    assert (claim["attempts"], claim["last_error"]) == (1, f"{error.__name__}: no")
    assert session.event_store.check() == []


def test_a_handler_that_ends_the_program_ends_the_run_and_has_used_up_an_attempt(session):
    @on_event(Job)
    def leave(ctx):
        raise SystemExit(3)

    first, second = announce(session, 1, 2)
    with pytest.raises(SystemExit) as caught:
        session.run([leave])

    assert caught.value.code == 3
    attempts = [
        session.event_store.inspect_event(e)["claims"][0]["attempts"] for e in (first, second)
    ]
    assert attempts == [1, 0]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-156", "ONT-164")
def test_what_is_emitted_and_the_acknowledgement_are_stored_together_or_not_at_all(
    session, open_session, clock, refuse
):
    allow = refuse("events", "type = 'job'")

    @on_event(Step)
    def emit(ctx):
        ctx.emit(Job(number=ctx.attempt))

    session.commit(event=Step())
    with pytest.raises(IntegrityError, match="refused"):
        session.run([emit], max_iterations=1)
    assert statuses(session) == ["claimed"]

    allow()
    clock.advance(seconds=30)
    open_session().run([emit], max_iterations=1)

    assert sorted(statuses(session)) == ["acked", "unsubscribed"]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-164")
def test_an_error_of_the_store_itself_ends_the_run(session, refuse):
    seen = []
    announce(session, 1)
    allow = refuse("event_claims", "handler_id = 'collector'")

    with pytest.raises(IntegrityError, match="refused"):
        session.run([collector(seen)], max_iterations=1)

    assert seen == []
    allow()
    session.run([collector(seen)], max_iterations=1)
    assert seen == [1]


@pytest.mark.req("ONT-164")
@SQLITE
def test_a_database_that_is_busy_for_a_while_ends_nothing(open_session, path, caplog):
    blocker = apsw.Connection(str(path))
    blocker.set_busy_timeout(int(PATIENCE * 1000))

    class Freeing(ManualClock):
        def sleep(self, seconds: float) -> None:
            if blocker.in_transaction:
                blocker.execute("ROLLBACK")
                store.config = config
            super().sleep(seconds)

    session, seen = open_session(settings={"clock": Freeing()}), []
    store = core_of(session).store
    config = store.config

    @on_event(Job)
    def block(ctx):
        seen.append((ctx.event.number, ctx.attempt))
        if ctx.event.number == 1:
            blocker.execute("BEGIN IMMEDIATE")
            # For no longer than it is blocked.
            store.config = config.model_copy(update={"lock_timeout_ms": 20})

    announce(session, 1, 2)
    watchdog = threading.Timer(PATIENCE / 4, session.stop)
    watchdog.start()
    with caplog.at_level(logging.WARNING, "ontologia"):
        session.run([block], max_iterations=3)
    watchdog.cancel()

    assert seen == [(1, 1), (2, 1)]
    assert statuses(session) == ["acked", "acked"]
    assert "busy" in caplog.text
    blocker.close()
