"""Events that are started together, and what that must not do: punish, hold up or hide others."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from ontologia import Event, EventDeadLetter, Field, on_event
from ontologia.errors import ConnectionLostError
from ontologia.testing import ManualClock
from tests.integration import processes
from tests.integration.running import PATIENCE, claim_of, until


class Job(Event):
    number: Field[int] = 0


class Done(Event):
    number: Field[int] = 0


class Side(Event):
    number: Field[int] = 0


def announce(session, cls, *numbers: int) -> list[str]:
    events = [cls(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def crash(session, clock, name: str, ids: list[str]) -> None:
    """A process claims everything of a handler, starts these, and is never heard of again."""
    store = session.event_store
    store.claim("default", name, "a process that died", ["job"], 100, 1_000)
    for event_id in ids:
        assert store.start(name, event_id, lease_ms=1_000)
    clock.advance(seconds=2)


@pytest.fixture
def session(open_session):
    session = open_session()
    yield session
    assert session.event_store.check() == []


# -- what a kill buries ---------------------------------------------------------------------------

DIE_AT_70 = """
    from tests.integration.test_starting_groups import Job
    from ontologia import on_event

    @on_event(Job, name="work")
    def work(ctx):
        say("ran", ctx.event.number)
        if ctx.event.number == 70:
            os.kill(os.getpid(), signal.SIGKILL)

    config = OntologiaConfig(event_max_attempts=1, event_claim_lease_ms=60_000)
    session = Session(sys.argv[1], config=config)
    for number in range(100):
        session.event_store.enqueue(Job(number=number), "default")
    session.run([work])
    """


@pytest.mark.req("NEW-031", "ONT-139")
def test_where_one_attempt_is_all_a_killed_process_buries_only_what_ran(open_session, uri):
    with processes.Process(DIE_AT_70, uri) as process:
        ran = [int(process.hear("ran")) for _ in range(71)]
        assert process.popen.wait(PATIENCE) == -9
    settings = {
        "clock": ManualClock(datetime.now(UTC) + timedelta(hours=1)),
        "event_max_attempts": 1,
    }
    session, later = open_session(settings=settings), []

    @on_event(Job, name="work")
    def work(ctx):
        later.append(ctx.event.number)

    session.run([work], max_iterations=2)

    assert ran == list(range(71))
    store = session.event_store
    letters = store.list_dead_letters("default", 100)
    buried = {store.inspect_event(each["event_id"])["payload"]["number"] for each in letters}
    assert 70 in buried
    assert buried <= set(ran)
    assert sorted(later) == list(range(71, 100))
    assert store.check() == []


@pytest.mark.req("ONT-139", "ONT-145", "NEW-031")
def test_a_burial_by_the_claim_is_an_error_in_the_log(open_session, clock, caplog):
    session, told = open_session(settings={"event_max_attempts": 1}), []
    first, second = announce(session, Job, 1, 2)
    crash(session, clock, "work", [first])

    @on_event(Job, name="work")
    def work(ctx):
        pass

    @on_event(EventDeadLetter)
    def mourn(ctx):
        told.append(ctx.event.event_id)

    with caplog.at_level(logging.INFO):
        session.run([work, mourn], max_iterations=1)

    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    for word in (first, "work", "lease"):
        assert word in errors[0]
    assert told == [first]
    assert claim_of(session, second)["ack_at"] is not None


# -- after a crash --------------------------------------------------------------------------------


@pytest.mark.req("NEW-031", "NEW-021")
@pytest.mark.parametrize("crashed", [(0, 1, 2), (1, 4), (5,)], ids=str)
def test_what_was_running_when_a_process_died_is_run_alone(session, clock, crashed):
    ids = announce(session, Job, *range(6))
    announce(session, Side, *range(20))
    crash(session, clock, "work", [ids[number] for number in crashed])
    lock, now, together = threading.Lock(), [], []
    intruded, order = threading.Event(), []

    def note(what, again: bool) -> None:
        with lock:
            now.append((what, again))
            order.append(what)
            if len(now) > 1 and any(suspect for _, suspect in now):
                together.append(list(now))
                intruded.set()
        intruded.wait(0.1 if again else 0.005)  # time enough for another worker to begin
        with lock:
            now.remove((what, again))

    @on_event(Job, priority=200, name="work")
    def work(ctx):
        note(ctx.event.number, ctx.attempt > 1)

    @on_event(Side, name="side")
    def side(ctx):
        note(f"side {ctx.event.number}", False)

    session.run([work, side], max_iterations=2, workers=3)

    assert together == []
    assert sorted(map(str, order)) == sorted(
        [*map(str, range(6)), *(f"side {number}" for number in range(20))]
    )
    assert [claim_of(session, each)["attempts"] for each in ids] == [
        int(number in crashed) for number in range(6)
    ]


@pytest.mark.req("NEW-021")
def test_after_what_ran_alone_workers_run_together_again(session, clock):
    ids = announce(session, Job, *range(4))
    crash(session, clock, "work", [ids[0]])
    together, met = threading.Barrier(3), []

    @on_event(Job, name="work")
    def work(ctx):
        if ctx.event.number:
            together.wait(PATIENCE)
            met.append(ctx.event.number)

    session.run([work], max_iterations=1, workers=3)

    assert sorted(met) == [1, 2, 3]
    assert all(claim_of(session, each)["ack_at"] for each in ids)


# -- what is done is seen -------------------------------------------------------------------------


@pytest.mark.req("ONT-156")
def test_what_one_of_a_group_has_done_is_seen_while_the_next_one_runs(session, open_session):
    other, seen = open_session(), []
    ids = announce(session, Job, *range(15))  # groups of 1, 2, 4 and 8

    def visible(number: int) -> bool:
        listed = other.event_store.list_events("default", 1000)
        done = [other.event_store.inspect_event(e["id"]) for e in listed if e["type"] == "done"]
        told = number in [each["payload"]["number"] for each in done]
        return told and claim_of(other, ids[number])["ack_at"] is not None

    @on_event(Job)
    def work(ctx):
        ctx.emit(Done(number=ctx.event.number))
        if ctx.event.number in (4, 9):  # neither is the first of its group
            until(lambda: visible(ctx.event.number - 1))
            seen.append(ctx.event.number)

    session.run([work], max_iterations=1)

    assert seen == [4, 9]


# -- what could not be run ------------------------------------------------------------------------


def test_what_was_put_back_and_lost_meanwhile_is_not_run(session, open_session, clock, monkeypatch):
    ran, claims = [], session.event_store.claims
    release = claims.release

    def lose(*arguments, **options):
        """The database is away, for longer than a lease; another session has it all meanwhile."""
        monkeypatch.setattr(claims, "release", release)
        clock.advance(seconds=3_600)
        other = open_session()
        other.run([other_work], max_iterations=1)
        raise ConnectionLostError("for an hour")

    @on_event(Job, name="work")
    def work(ctx):
        ran.append(ctx.event.number)
        if ctx.event.number == 1:
            raise ValueError

    @on_event(Job, name="work")
    def other_work(ctx):
        ran.append(f"other {ctx.event.number}")

    announce(session, Job, 0, 1, 2)  # the last two are started together
    monkeypatch.setattr(claims, "release", lose)
    session.run([work], max_iterations=1)

    assert ran == [0, 1, "other 1", "other 2"]
