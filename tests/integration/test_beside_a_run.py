"""What goes on beside the handlers of a run: heartbeats, renewals, collection."""

from __future__ import annotations

import threading

import pytest

from ontologia import Event, Field, on_event
from ontologia.clock import to_text
from tests.integration.running import running, statuses, until


class Job(Event):
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


# -- heartbeats and collection --------------------------------------------------------------------


@pytest.mark.req("SQL-142", "ONT-107", "ONT-154", "ONT-173")
def test_a_session_beats_during_a_long_handler(session, clock):
    beats = []

    def heartbeat() -> str:
        return session.event_store.list_sessions("default")[0]["last_heartbeat"]

    @on_event(Job)
    def long(ctx):
        ctx.renew(seconds=600)
        for _ in range(4):
            clock.advance(seconds=5)
            until(lambda: heartbeat() == to_text(clock.now()))
            beats.append(heartbeat())

    announce(session, 1)
    session.run([long], max_iterations=1)

    assert len(set(beats)) == 4


@pytest.mark.req("SQL-142", "ONT-165")
def test_an_idle_session_beats_and_is_not_dead(session, clock):
    @on_event(Job)
    def idle(ctx):
        pass

    with running(session, [idle]):
        until(lambda: session.event_store.list_sessions("default")[0]["metadata"].get("consumers"))
        for _ in range(20):
            clock.advance(seconds=5)
            until(
                lambda: (
                    session.event_store.list_sessions("default")[0]["last_heartbeat"]
                    == to_text(clock.now())
                )
            )
        [listed] = session.event_store.list_sessions("default")
        assert (listed["is_dead"], listed["stopped_at"]) == (False, None)


@pytest.mark.req("ONT-106", "ONT-151")
def test_a_running_session_collects_what_is_old_and_finished(session, clock):
    seen, week = [], 7 * 86400
    announce(session, 1)
    session.run([collector(seen)], max_iterations=1)
    clock.advance(seconds=3600)
    [younger] = announce(session, 2)

    with running(session, [collector(seen)]):
        until(lambda: statuses(session) == ["acked", "acked"])
        until(lambda: "ontologia-collect" not in {each.name for each in threading.enumerate()})
        clock.advance(seconds=week - 1800)  # one that is at work is not begun again
        until(lambda: [e["id"] for e in session.event_store.list_events("default")] == [younger])
    assert statuses(session) == ["acked"]
    assert session.event_store.check() == []


# -- leases of a batch ----------------------------------------------------------------------------


@pytest.mark.req("ONT-166")
@pytest.mark.parametrize("slow", [1, 2])
def test_what_waits_behind_a_slow_event_keeps_its_lease(session, clock, slow):
    seen, ids = [], announce(session, 1, 2, 3, 4, 5)

    def leases() -> list[str]:
        found = [session.event_store.inspect_event(each)["claims"][0] for each in ids[slow:]]
        return [claim["lease_until"] for claim in found]

    @on_event(Job)
    def handler(ctx):
        seen.append((ctx.event.number, ctx.attempt))
        if ctx.event.number == slow:
            for _ in range(4):
                ctx.renew()
                before = leases()
                clock.advance(seconds=11)
                until(lambda old=before: all(a < b for a, b in zip(old, leases(), strict=True)))

    session.run([handler], max_iterations=1)

    assert seen == [(number, 1) for number in range(1, 6)]
    assert statuses(session) == ["acked"] * 5
    assert session.event_store.check() == []


@pytest.mark.req("ONT-166", "ONT-170")
def test_what_another_session_took_meanwhile_is_skipped(session, open_session, clock):
    seen, other = [], open_session()

    @on_event(Job)
    def handler(ctx):
        seen.append((ctx.session is other, ctx.event.number, ctx.attempt))
        if len(seen) == 1:
            clock.advance(seconds=30)
            other.run([handler], max_iterations=1)

    announce(session, 1, 2, 3)
    session.run([handler], max_iterations=1)

    # Event 1 was started, so the attempt counts; 2 and 3 were not.
    assert seen == [(False, 1, 1), (True, 1, 2), (True, 2, 1), (True, 3, 1)]
    assert session.event_store.check() == []
