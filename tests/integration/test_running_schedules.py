"""Schedules of a running session: each tick once, whoever runs, whatever the clock does."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from ontologia import Event, Field, Schedule, on_event
from ontologia.testing import ManualClock

QUARTERS = "*/15 * * * *"


class Cleanup(Event):
    days: Field[int] = 90
    priority: int = 50


class Report(Event):
    name: Field[str] = "r"


class Job(Event):
    pass


@pytest.fixture
def settings():
    """A poll interval that is never the reason for an iteration: the next tick is."""
    return {"event_poll_interval_ms": 86_400_000}


@pytest.fixture
def session(open_session, settings, listening):
    session = open_session(settings=settings)
    yield session
    assert session.event_store.check() == []


def noting(clock, times, **options):
    """A handler that notes when it was called, in minutes since midnight."""

    @on_event(Cleanup, name="noting", **options)
    def note(ctx):
        at = clock.now()
        times.append(at.hour * 60 + at.minute + at.second / 60)

    return note


def stored(session, event_type="cleanup"):
    listed = session.event_store.list_events(session.namespace, limit=1000)
    return [session.event_store.inspect_event(e["id"]) for e in listed if e["type"] == event_type]


@pytest.mark.req("ONT-073", "ONT-074", "ONT-079", "ONT-167")
def test_a_schedule_announces_its_event_at_its_times(session, clock):
    times = []

    session.run([noting(clock, times)], schedules=[Schedule(Cleanup(), QUARTERS)], max_iterations=5)

    assert times == [15, 30, 45, 60]


@pytest.mark.req("ONT-075", "ONT-202")
def test_each_firing_is_an_event_of_its_own_and_the_template_stays_as_it_is(session, clock):
    template = Cleanup(days=7, priority=33)

    session.run([noting(clock, [])], schedules=[Schedule(template, QUARTERS)], max_iterations=4)

    rows = stored(session)
    assert len({row["id"] for row in rows}) == 3
    for row in rows:
        assert (row["root_event_id"], row["chain_depth"]) == (row["id"], 0)
        assert (row["correlation_id"], row["causation_id"]) == (row["id"], None)
        assert (row["payload"], row["priority"]) == ({"days": 7}, 33)
        assert (row["source"], row["namespace"]) == (f"schedule:{QUARTERS}", "default")
    assert (template.id, template.created_at, template.root_event_id) == (None, None, None)
    assert (template.priority, template.model_dump()) == (33, {"days": 7})


@pytest.mark.req("ONT-076")
def test_a_tick_fires_once_however_often_the_loop_looks(open_session, clock):
    session, times = open_session(settings={"event_poll_interval_ms": 5_000}), []

    session.run(
        [noting(clock, times)], schedules=[Schedule(Cleanup(), "* * * * *")], max_iterations=30
    )

    assert clock.now().minute == 2
    assert times == [1, 2]


@pytest.mark.req("ONT-077")
def test_schedules_fire_independently(session, clock):
    seen = []

    @on_event(Cleanup)
    def cleanup(ctx):
        seen.append((clock.now().minute, ctx.event.days))

    @on_event(Report)
    def report(ctx):
        seen.append((clock.now().minute, ctx.event.name))

    schedules = [
        Schedule(Cleanup(days=1), "*/20 * * * *"),
        Schedule(Cleanup(days=2), "*/20 * * * *"),
        Schedule(Report(name="half"), "*/30 * * * *"),
    ]
    session.run([cleanup, report], schedules=schedules, max_iterations=5)

    assert sorted(seen, key=str) == [
        (0, "half"), (0, 1), (0, 2), (20, 1), (20, 2), (30, "half"), (40, 1), (40, 2),
    ]  # fmt: skip


@pytest.mark.req("ONT-078")
def test_a_schedule_is_over_with_the_run_it_was_given_to(session, clock):
    times = []
    handler = noting(clock, times)

    session.run([handler], schedules=[Schedule(Cleanup(), QUARTERS)], max_iterations=2)
    for _ in range(3):
        clock.advance(seconds=3600)
        session.run([handler], max_iterations=2)

    assert times == [15]


@pytest.mark.req("ONT-079")
def test_without_a_handler_a_scheduled_event_waits_for_one(session, clock):
    @on_event(Job)
    def other(ctx):
        pass

    times = []
    session.run([other], schedules=[Schedule(Cleanup(), QUARTERS)], max_iterations=3)
    assert [each["status"] for each in session.event_store.list_events("default")] == [
        "unsubscribed"
    ] * 2

    session.run([noting(clock, times)], max_iterations=1)
    assert times == [30, 30]


@pytest.mark.req("ONT-080")
def test_a_schedule_fires_in_the_namespace_of_its_session(open_session, settings, clock):
    here, times = open_session(namespace="here", settings=settings), []
    there = open_session(namespace="there", settings=settings)

    here.run([noting(clock, [])], schedules=[Schedule(Cleanup(), QUARTERS)], max_iterations=2)
    there.run([noting(clock, times)], max_iterations=1)
    assert (len(stored(here)), stored(there), times) == (1, [], [])

    # The same schedule, in its own namespace, has ticks of its own.
    clock.advance(seconds=-900)
    there.run([noting(clock, times)], schedules=[Schedule(Cleanup(), QUARTERS)], max_iterations=2)
    assert times == [15]


@pytest.mark.req("ONT-081")
def test_schedules_come_and_go_while_the_session_runs(session, clock):
    times, removed = [], []
    schedule, half = Schedule(Cleanup(), QUARTERS), Schedule(Report(), "*/30 * * * *")

    @on_event(Report)
    def change(ctx):
        if clock.now().hour == 0:
            session.add_schedule(schedule)
            session.add_schedule(Schedule(Cleanup(), QUARTERS))
        elif clock.now() > began + timedelta(hours=1, minutes=20):
            removed.extend([session.remove_schedule(schedule), session.remove_schedule(schedule)])

    began = clock.now()
    session.run([change, noting(clock, times)], schedules=[half], max_iterations=9)

    assert times == [45, 60, 75, 90]
    assert removed[:2] == [True, False]
    assert not any(removed[2:])


@pytest.mark.req("ONT-081")
def test_a_schedule_that_was_added_stays_for_the_next_run_and_a_wrong_one_is_refused(
    session, clock
):
    times = []
    session.add_schedule(Schedule(Cleanup(), QUARTERS))

    session.run([noting(clock, times)], max_iterations=2)
    clock.advance(seconds=2 * 3600 + 60)
    session.run([noting(clock, times)], max_iterations=2)

    assert times == [15, 150]
    with pytest.raises(TypeError, match="Schedule"):
        session.add_schedule("* * * * *")
    with pytest.raises(TypeError, match="Schedule"):
        session.run([noting(clock, times)], schedules=[Cleanup()], max_iterations=1)


@pytest.mark.req("ONT-082")
def test_two_sessions_with_one_schedule_fire_each_tick_once(open_session, settings):
    """Each has a clock of its own, so that each comes to every tick by itself."""
    seen, ticks, start = [], 40, threading.Barrier(2)

    @on_event(Job)
    def other(ctx):
        pass

    @on_event(Cleanup)
    def note(ctx):
        seen.append(ctx.event.id)

    def work(session) -> None:
        start.wait()
        schedule = Schedule(Cleanup(), QUARTERS)
        session.run([other], schedules=[schedule], max_iterations=ticks + 1)

    sessions = [open_session(settings=settings | {"clock": ManualClock()}) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.config.clock.now() for each in sessions} == {datetime(2026, 1, 1, 10, tzinfo=UTC)}
    sessions[0].run([note], max_iterations=1)

    assert len(seen) == len(set(seen)) == len(stored(sessions[0])) == ticks
    assert sessions[0].event_store.check() == []


@pytest.mark.req("ONT-083")
def test_what_was_missed_while_nobody_ran_is_not_made_up_for(session, clock):
    times = []
    handler = noting(clock, times)
    schedule = Schedule(Cleanup(), QUARTERS)

    session.run([handler], schedules=[schedule], max_iterations=2)
    clock.advance(seconds=2 * 3600 + 60)
    session.run([handler], schedules=[schedule], max_iterations=2)

    assert times == [15, 150]


@pytest.mark.req("ONT-083")
def test_of_ticks_that_passed_during_a_long_handler_the_last_fires(session, clock):
    times = []

    @on_event(Job, priority=200)
    def long(ctx):
        ctx.renew(seconds=7200)
        clock.advance(seconds=3600 + 60)

    session.commit(event=Job())
    schedule = Schedule(Cleanup(), QUARTERS)
    session.run([long, noting(clock, times)], schedules=[schedule], max_iterations=2)

    assert times == [61, 75]


@pytest.mark.req("NEW-063")
def test_a_clock_that_steps_back_during_a_run_fires_no_tick_again(session, clock):
    times = []

    @on_event(Cleanup)
    def step_back(ctx):
        times.append(clock.now().minute)
        if len(times) == 2:
            clock.advance(seconds=-12 * 60)

    session.run([step_back], schedules=[Schedule(Cleanup(), QUARTERS)], max_iterations=5)

    assert times == [15, 30, 45, 0]


@pytest.mark.req("NEW-063")
def test_a_clock_that_steps_back_between_runs_fires_no_tick_again(
    session, open_session, clock, settings
):
    times, schedule = [], Schedule(Cleanup(), QUARTERS)
    handler = noting(clock, times)

    session.run([handler], schedules=[schedule], max_iterations=3)
    clock.advance(seconds=-20 * 60)
    open_session(settings=settings).run([handler], schedules=[schedule], max_iterations=4)

    assert times == [15, 30, 45]


@pytest.mark.req("NEW-063")
def test_a_clock_that_steps_back_keeps_the_order_of_events(session, open_session, clock):
    numbers = []

    @on_event(Report)
    def note(ctx):
        numbers.append(ctx.event.name)

    for name in "abcdef":
        (session if name < "d" else open_session()).commit(event=Report(name=name))
        clock.advance(seconds=-600)
    session.run([note], max_iterations=1)

    assert numbers == list("abcdef")


@pytest.mark.req("ONT-074", "SQL-144")
def test_a_scheduled_event_is_retried_and_buried_like_any_other(open_session, settings):
    session = open_session(settings=settings | {"event_max_attempts": 2})
    attempts = []

    @on_event(Cleanup)
    def fail(ctx):
        attempts.append(ctx.attempt)
        raise ValueError("no broom")

    session.run([fail], schedules=[Schedule(Cleanup(), "0 2 * * *")], max_iterations=3)

    assert attempts == [1, 2]
    [letter] = session.event_store.list_dead_letters("default")
    assert letter["last_error"] == "ValueError: no broom"
    assert session.event_store.check() == []
