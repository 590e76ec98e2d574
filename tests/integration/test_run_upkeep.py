"""Beside a run: who is taken for gone and who is not, and a thread that goes on."""

from __future__ import annotations

import logging
import threading

import pytest

from ontologia import Event, Field, on_event
from ontologia.clock import to_text
from ontologia.runtime.session import core_of
from tests.integration.running import PATIENCE, running, until

pytestmark = pytest.mark.each_database

DAY = 24 * 3600


class Job(Event):
    number: Field[int] = 0


class Bill(Event):
    number: Field[int] = 0


class Unheard(Event):
    pass


def noting(event_cls, seen):
    @on_event(event_cls, name=event_cls.__event_type__)
    def note(ctx):
        seen.append(ctx.event.number)

    return note


def announce(session, cls, *numbers: int) -> None:
    for number in numbers:
        session.commit(event=cls(number=number))


def types(session) -> list[str]:
    return [each["type"] for each in session.event_store.list_events("default", 1000)]


def beat(session, clock, seconds: float) -> None:
    """Let time pass, and wait until the running session has said that it is alive."""
    clock.advance(seconds=seconds)
    target = to_text(clock.now())

    def heard() -> bool:
        for each in session.event_store.list_sessions("default"):
            if each["session_id"] == session.session_id and each["last_heartbeat"] >= target:
                return True
        clock.advance(seconds=0.1)  # the thread beside the run may have begun only now
        return False

    until(heard)


# -- who is taken for gone ------------------------------------------------------------------------


@pytest.fixture
def two_services_off(open_session, clock):
    """Two services were run; work for the second waits, handed out; then all is off for 8 days."""
    jobs, bills = open_session(), open_session()
    jobs.run([noting(Job, [])], max_iterations=1)
    bills.run([noting(Bill, [])], max_iterations=1)
    announce(jobs, Bill, 1, 2)
    jobs.run([noting(Job, [])], max_iterations=1)
    for session in (jobs, bills):
        session.close()
    clock.advance(seconds=8 * DAY)


@pytest.mark.req("ONT-150", "ONT-151")
@pytest.mark.parametrize("alive", [0, 5, 120, 2 * 3600], ids="{} s".format)
def test_after_a_week_of_silence_who_starts_first_waits_for_the_others(
    two_services_off, open_session, clock, alive
):
    first, seen = open_session(), []
    with running(first, [noting(Job, [])]):
        beat(first, clock, 5)
        if alive:
            beat(first, clock, alive)
        assert first.event_store.collect_events("default") == 0
    open_session().run([noting(Bill, seen)], max_iterations=1)

    assert seen == [1, 2]
    assert first.event_store.check() == []


@pytest.mark.req("ONT-150", "ONT-151")
def test_after_a_week_of_silence_the_second_to_start_waits_for_the_third(
    two_services_off, open_session, clock
):
    seen = []
    for _ in range(3):
        early = open_session()
        with running(early, [noting(Job, [])]):
            beat(early, clock, 5)
            assert early.event_store.collect_events("default") == 0
    open_session().run([noting(Bill, seen)], max_iterations=1)

    assert seen == [1, 2]


@pytest.mark.thorough
@pytest.mark.req("ONT-150", "ONT-151")
def test_who_is_not_seen_while_others_are_alive_is_gone_in_the_end(open_session, clock, caplog):
    settings = {"event_retention_ms": 120_000, "event_gc_interval_ms": 86_400_000}
    session, seen = open_session(settings=settings), []
    session.run([noting(Bill, seen)], max_iterations=1)
    announce(session, Bill, 1)
    with running(session, [noting(Job, [])]), caplog.at_level(logging.WARNING):
        until(lambda: session.event_store.list_consumers("default")[0]["ready"])
        for _ in range(20):
            beat(session, clock, 5)
        assert session.event_store.collect_events("default") == 0  # not for so long yet
        for _ in range(30):
            beat(session, clock, 5)
        assert session.event_store.collect_events("default") == 1

    assert "consumer bill of bill" in caplog.text
    assert "consumer job" not in caplog.text
    assert session.event_store.check() == []


@pytest.mark.req("ONT-150")
def test_what_a_running_session_has_not_finished_is_kept_however_short_the_retention(
    open_session, clock
):
    settings = {"event_retention_ms": 1, "event_claim_limit": 1, "event_gc_interval_ms": 1000}
    session, go, seen = open_session(settings=settings), threading.Event(), []

    @on_event(Job)
    def work(ctx):
        seen.append(ctx.event.number)
        assert go.wait(PATIENCE)

    announce(session, Job, *range(5))
    with running(session, [work]):
        until(lambda: seen)
        clock.advance(seconds=4)  # and the next heartbeat comes in a second
        assert session.event_store.collect_events("default") == 0
        go.set()
        until(lambda: len(seen) == 5)

    assert seen == list(range(5))
    assert session.event_store.list_dead_letters("default") == []
    assert session.event_store.check() == []


# -- the thread beside ----------------------------------------------------------------------------


@pytest.mark.req("ONT-107", "ONT-165", "SQL-142")
@pytest.mark.parametrize("what", ["heartbeat", "fire_due", "_wake"])
def test_heartbeats_go_on_whatever_fails_beside_them(session, clock, monkeypatch, what):
    """An error that nobody foresaw, in the thread that keeps the session alive."""
    failed = threading.Event()
    owner = core_of(session).scheduler if what == "fire_due" else session.event_store
    real = getattr(owner, what)

    def fail_once(*given):
        if threading.current_thread().name == "ontologia-keeper" and not failed.is_set():
            failed.set()
            raise RuntimeError("nobody foresaw it")
        return real(*given)

    monkeypatch.setattr(owner, what, fail_once)

    @on_event(Job)
    def tell(ctx):
        ctx.emit(Unheard())
        if what == "_wake" and ctx.event.number == 2:  # by now another one of its group is done
            until(failed.is_set)

    announce(session, Job, 0, 1, 2)
    with running(session, [tell]):
        until(lambda: types(session).count("unheard") == 3)
        clock.advance(seconds=5)
        until(failed.is_set)
        for _ in range(3):
            beat(session, clock, 5)

    assert session.event_store.check() == []
