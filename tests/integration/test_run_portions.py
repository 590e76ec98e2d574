"""How much a run takes at a time, how long it pauses, and what ends a pause."""

from __future__ import annotations

import pytest

from ontologia import Event, Field, on_event
from ontologia.clock import SYSTEM_CLOCK
from tests.integration.running import running, statuses, until


class Job(Event):
    number: Field[int] = 0


class Alarm(Event):
    number: Field[int] = 0


class Unheard(Event):
    number: Field[int] = 0


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


@pytest.mark.req("ONT-103", "SQL-142")
@pytest.mark.parametrize(
    ("limit", "claimed"), [(1, [1, 1, 1, 1]), (3, [3, 2, 1, 1]), (100, [4, 3, 2, 1])]
)
def test_a_handler_claims_no_more_than_its_limit_at_a_time(open_session, limit, claimed):
    session, seen = open_session(settings={"event_claim_limit": limit, "ack_batch_size": 1}), []

    @on_event(Job)
    def look(ctx):
        seen.append(statuses(session).count("claimed"))

    announce(session, 1, 2, 3, 4)
    session.run([look], max_iterations=1)

    assert seen == claimed


@pytest.mark.req("ONT-103")
def test_a_large_backlog_does_not_hold_up_what_is_more_urgent(open_session):
    session, seen = open_session(settings={"event_claim_limit": 4}), []

    @on_event(Alarm, priority=300)
    def hear(ctx):
        seen.append("alarm")

    @on_event(Job, priority=200)
    def work(ctx):
        seen.append(ctx.event.number)
        if ctx.event.number in (5, 20):
            ctx.emit(Alarm())

    @on_event(Unheard, priority=100)
    def idle(ctx):
        raise AssertionError

    announce(session, *range(40))
    session.run([hear, work, idle], max_iterations=1)

    first, second = (place for place, each in enumerate(seen) if each == "alarm")
    assert first - seen.index(5) <= 8
    assert second - seen.index(20) <= 8


@pytest.mark.req("ONT-102", "ONT-104", "ONT-159", "ONT-161")
@pytest.mark.parametrize("interval", [250, 1000])
def test_the_limit_ends_an_iteration_and_the_interval_is_slept(open_session, clock, interval):
    settings = {"max_events_per_iteration": 2, "event_poll_interval_ms": interval}
    session, times, began = open_session(settings=settings), [], clock.now()

    @on_event(Job)
    def note(ctx):
        times.append((clock.now() - began).total_seconds() * 1000 / interval)

    announce(session, 1, 2, 3, 4, 5)
    session.run([note], max_iterations=3)

    assert times == [0, 0, 1, 1, 2]
    assert statuses(session) == ["acked"] * 5


@pytest.mark.req("ONT-102")
def test_an_interval_of_zero_lifts_the_rate_limit(open_session, clock):
    settings = {"max_events_per_iteration": 1, "event_poll_interval_ms": 0}
    session, seen, began = open_session(settings=settings), [], clock.now()

    announce(session, 1, 2, 3)
    session.run([collector(seen)], max_iterations=3)

    assert seen == [1, 2, 3]
    assert clock.now() == began


@pytest.mark.req("ONT-159", "ONT-160")
def test_all_handlers_share_the_limit_and_nothing_is_left_leased(open_session):
    session, seen = (
        open_session(settings={"max_events_per_iteration": 5, "event_claim_limit": 3}),
        [],
    )

    @on_event(Job, name="other", priority=1)
    def other(ctx):
        seen.append(-ctx.event.number)

    announce(session, 1, 2, 3, 4)
    session.run([collector(seen), other], max_iterations=1)

    # A pass: three for the one, two for the other; then the limit is reached.
    assert seen == [1, 2, 3, -1, -2]
    consumers = {each["name"]: each for each in session.event_store.list_consumers("default")}
    assert [consumers[name]["claimed"] for name in ("collector", "other")] == [0, 0]
    assert [consumers[name]["ready"] for name in ("collector", "other")] == [1, 2]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-104", "ONT-159", "NEW-021")
def test_with_several_workers_an_iteration_still_runs_what_it_claimed(open_session):
    session, seen = open_session(settings={"max_events_per_iteration": 5}), []

    announce(session, *range(12))
    session.run([collector(seen)], max_iterations=1, workers=3)
    assert sorted(seen) == [0, 1, 2, 3, 4]

    session.run([collector(seen)], max_iterations=2, workers=3)
    assert sorted(seen) == list(range(12))
    assert session.event_store.check() == []


@pytest.mark.req("ONT-161")
def test_an_idle_loop_waits_no_longer_than_until_something_is_due(open_session, clock):
    session, times, began = (
        open_session(settings={"event_poll_interval_ms": 60_000}),
        [],
        clock.now(),
    )

    @on_event(Job)
    def note(ctx):
        times.append((clock.now() - began).total_seconds())

    session.defer(Job(), delay=12.5)
    session.run([note], max_iterations=2)

    assert times == [12.5]


@pytest.mark.req("ONT-091", "ONT-161", "ONT-165")
def test_a_run_goes_on_when_there_is_nothing_to_do_and_a_new_event_wakes_it(open_session):
    # Ten minutes of polling: what is seen earlier than that was seen because of the wake.
    settings = {"clock": SYSTEM_CLOCK, "event_poll_interval_ms": 600_000}
    session, other, seen = open_session(settings=settings), open_session(settings=settings), []

    with running(session, [collector(seen)]) as thread:
        for number in range(5):
            announce((session, other)[number % 2], number)
            until(lambda n=number: len(seen) == n + 1)
            until(lambda n=number: statuses(session) == ["acked"] * (n + 1))
        assert thread.is_alive()

    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.req("ONT-159", "ONT-161", "ONT-163")
def test_after_the_limit_nothing_but_a_stop_ends_the_pause(open_session):
    settings = {
        "clock": SYSTEM_CLOCK, "event_poll_interval_ms": 600_000, "max_events_per_iteration": 1,
    }  # fmt: skip
    session, seen = open_session(settings=settings), []
    announce(session, 1, 2)

    with running(session, [collector(seen)]):
        until(lambda: seen)
        announce(session, 3)
        until(lambda: statuses(session).count("acked") == 1)

    assert seen == [1]
    assert statuses(session) == ["acked", "pending", "pending"]
