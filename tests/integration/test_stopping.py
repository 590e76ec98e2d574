"""The end of a run: what is running comes to its end, what is not is handed back."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from ontologia import Event, Field, LeaseExpiredError, on_event
from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import HandlerError, InvalidValueError, SessionClosedError
from ontologia.runtime.session import core_of
from tests.integration.running import PATIENCE, claim_of, running, statuses, until
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Job(Event):
    number: Field[int] = 0


class Done(Event):
    number: Field[int] = 0


def announce(session, *numbers: int) -> list[str]:
    events = [Job(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def collector(seen, **options):
    @on_event(Job, name="collector", **options)
    def collect(ctx):
        seen.append(ctx.event.number)

    return collect


@pytest.fixture
def session(open_session):
    session = open_session()
    yield session
    if not core_of(session).closed:
        assert session.event_store.check() == []


# -- stopping -------------------------------------------------------------------------------------


@pytest.mark.req("ONT-160", "ONT-162", "ONT-163")
@pytest.mark.parametrize("how", ["stop", "signal"])
def test_stopping_hands_back_what_was_not_run_without_a_mark_against_it(session, open_session, how):
    seen, other_seen = [], []

    @on_event(Job, name="collector")
    def stopping(ctx):
        seen.append(ctx.event.number)
        if len(seen) == 2:
            session.stop() if how == "stop" else signal.raise_signal(signal.SIGINT)

    ids = announce(session, 1, 2, 3, 4, 5)
    before = signal.getsignal(signal.SIGINT)
    session.run([stopping])

    assert seen == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before
    for event_id in ids[2:]:
        [claim] = session.event_store.inspect_event(event_id)["claims"]
        assert (claim["attempts"], claim["ack_at"]) == (0, None)
    [listed] = session.event_store.list_sessions("default")
    assert listed["stopped_at"] is not None
    open_session().run([collector(other_seen)], max_iterations=1)
    assert other_seen == [3, 4, 5]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-162", "NEW-026")
def test_a_second_signal_ends_at_once_and_what_was_interrupted_is_handed_back(session):
    seen, done = [], []

    @on_event(Job, name="collector")
    def slow(ctx):
        seen.append(ctx.attempt)
        ctx.emit(Done())
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        done.append(1)

    announce(session, 1)
    with pytest.raises(KeyboardInterrupt):
        session.run([slow])

    assert (seen, done) == ([1], [])
    assert statuses(session) == ["pending"]
    session.run([collector(seen)], max_iterations=1)
    assert seen == [1, 1]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-163")
def test_a_session_can_be_stopped_from_another_thread_and_run_again(open_session):
    settings = {"clock": SYSTEM_CLOCK, "event_poll_interval_ms": 600_000}
    session, seen = open_session(settings=settings), []

    for number in range(3):
        with running(session, [collector(seen)]):
            announce(session, number)
            until(lambda n=number: len(seen) == n + 1)
    session.stop()

    assert seen == [0, 1, 2]
    assert statuses(session) == ["acked"] * 3


def test_one_session_runs_once_at_a_time(session):
    caught = []

    @on_event(Job)
    def again(ctx):
        with pytest.raises(RuntimeError, match="running already"):
            session.run([again], max_iterations=1)
        caught.append(1)

    announce(session, 1)
    session.run([again], max_iterations=1)

    assert caught == [1]


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"workers": True}, {"max_iterations": 0}, {"start": "later"}]
)
def test_a_run_that_makes_no_sense_is_refused(session, wrong):
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        session.run([collector([])], **wrong)
    with pytest.raises(HandlerError):
        session.run(None)


# -- what runs when it is stopped -----------------------------------------------------------------


@pytest.mark.req("ONT-163")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_stop_lets_what_runs_come_to_its_end(session, workers):
    started, go_on, done = threading.Semaphore(0), threading.Event(), []

    @on_event(Job)
    def handle(ctx):
        started.release()
        assert go_on.wait(PATIENCE)
        ctx.emit(Done())
        done.append(ctx.event.number)

    ids = announce(session, *range(10))
    with running(session, [handle], workers=workers):
        for _ in range(workers):
            assert started.acquire(timeout=PATIENCE)
        session.stop()
        go_on.set()

    assert len(done) == workers
    acked = [each for each in ids if claim_of(session, each)["ack_at"]]
    assert len(acked) == workers
    assert all(claim_of(session, each)["attempts"] == 0 for each in ids)


@pytest.mark.req("NEW-020")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_coroutine_that_outlasts_the_grace_is_cancelled_and_its_event_handed_back(
    open_session, workers
):
    settings = {"shutdown_grace_ms": 100, "clock": SYSTEM_CLOCK}
    session, started, ended = open_session(settings=settings), threading.Event(), []

    @on_event(Job)
    async def endless(ctx):
        ctx.emit(Done())
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    [event_id] = announce(session, 1)
    with running(session, [endless], workers=workers):
        assert started.wait(PATIENCE)

    assert ended == ["cancelled"]
    claim = claim_of(session, event_id)
    assert (claim["attempts"], claim["ack_at"], claim["dead_lettered_at"]) == (0, None, None)
    assert [e["status"] for e in session.event_store.list_events("default")] == ["pending"]
    assert session.event_store.check() == []


@pytest.mark.thorough
@pytest.mark.req("NEW-021", "NEW-026")
def test_a_function_that_outlasts_the_grace_can_write_nothing_any_more(open_session):
    settings = {"shutdown_grace_ms": 50, "clock": SYSTEM_CLOCK}
    session, caught = open_session(settings=settings), []
    started, go_on, over = threading.Event(), threading.Event(), threading.Event()

    @on_event(Job)
    def endless(ctx):
        started.set()
        assert go_on.wait(PATIENCE)
        ctx.ensure(Customer(id="c1", name="late"))
        try:
            ctx.commit(event=Done())
        except LeaseExpiredError as error:
            caught.append(error)
            raise
        finally:
            over.set()

    [event_id] = announce(session, 1)
    with running(session, [endless], workers=2):
        assert started.wait(PATIENCE)

    assert claim_of(session, event_id)["attempts"] == 0
    taken = session.event_store.claim(
        "default", claim_of(session, event_id)["handler_id"], "x", ["job"], 1, 60_000
    )
    assert [event.id for event in taken] == [event_id]
    go_on.set()
    assert over.wait(PATIENCE)
    until(lambda: not any(t.name.startswith("ontologia-worker") for t in threading.enumerate()))
    assert (len(caught), session.head) == (1, 0)
    assert [e["type"] for e in session.event_store.list_events("default")] == ["job"]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-163")
def test_closing_a_running_session_stops_it_first(open_session):
    session, seen = open_session(settings={"clock": SYSTEM_CLOCK}), threading.Event()

    @on_event(Job)
    def handle(ctx):
        seen.set()

    [event_id] = announce(session, 1)
    with running(session, [handle]) as thread:
        assert seen.wait(PATIENCE)
        session.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    with pytest.raises(SessionClosedError):
        session.commit()
    assert claim_of(open_session(), event_id)["ack_at"] is not None


def test_a_handler_that_closes_its_session_is_acknowledged_before(session, open_session):
    @on_event(Job)
    def handle(ctx):
        ctx.session.close()
        ctx.emit(Done())

    first, second = announce(session, 1, 2)
    session.run([handle])

    with pytest.raises(SessionClosedError):
        session.commit()
    other = open_session()
    assert claim_of(other, first)["ack_at"] is not None
    assert sorted(e["status"] for e in other.event_store.list_events("default")) == [
        "acked", "pending", "unsubscribed",
    ]  # fmt: skip
    assert other.event_store.inspect_event(second)["claims"][0]["attempts"] == 0
    assert other.event_store.check() == []
