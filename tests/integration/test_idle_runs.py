"""A run that waits: with whatever is open, and whatever is due that nobody can claim."""

from __future__ import annotations

import threading
import time

import pytest

from ontologia import Event, Field, on_event
from ontologia.clock import SYSTEM_CLOCK
from ontologia.store.events.claims import Claims
from tests.integration import processes
from tests.integration.running import PATIENCE, running, until

pytestmark = pytest.mark.each_database


class Job(Event):
    number: Field[int] = 0


class Bill(Event):
    number: Field[int] = 0


@on_event(Job, name="job")
def job(ctx):
    raise AssertionError("it is paused")


@pytest.mark.req("ONT-164")
def test_a_process_with_more_than_a_thousand_open_files_can_run(tmp_path):
    program = """
        import resource
        from tests.integration.test_idle_runs import Job
        from ontologia import on_event

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
        files = [open(os.devnull) for _ in range(1_100)]
        seen = []

        @on_event(Job)
        def handle(ctx):
            seen.append(ctx.event.number)
            if len(seen) == 3:
                ctx.session.stop()
            else:  # and the loop waits for it
                ctx.session.defer(Job(number=len(seen)), delay=0.03)

        session = Session(sys.argv[1])
        session.commit(event=Job(number=0))
        session.run([handle])
        report([seen, files[-1].fileno() > 1024])
        """
    assert processes.run(program, tmp_path / "test.db") == [[0, 1, 2], True]


def test_an_idle_run_with_a_due_event_that_nobody_can_claim_waits_the_poll_interval(
    open_session, clock
):
    for prepare, handlers in ((pause_jobs, [job]), (lambda _: None, [])):
        session = open_session()
        prepare(session)
        session.defer(Job(), delay=0.5)
        clock.advance(seconds=60)
        began = clock.now()

        session.run(handlers, max_iterations=4)

        assert (clock.now() - began).total_seconds() == 3


def pause_jobs(session) -> None:
    session.run([job], max_iterations=1)
    assert session.event_store.pause("default", "job")


@pytest.mark.parametrize("why", ["paused", "no handlers", "workers are busy"])
def test_a_due_event_that_nobody_can_claim_does_not_keep_a_core_busy(
    open_session, monkeypatch, why
):
    session, looks, go = open_session(settings={"clock": SYSTEM_CLOCK}), [], threading.Event()
    begun = threading.Semaphore(0)

    @on_event(Bill)
    def hold(ctx):
        begun.release()
        assert go.wait(PATIENCE)

    handlers = {"paused": [job], "no handlers": [], "workers are busy": [hold]}[why]
    if why == "paused":
        pause_jobs(session)
    if why == "workers are busy":
        for number in range(6):  # more than workers: what is due is not even claimed
            session.commit(event=Bill(number=number))
    real = Claims.peek
    monkeypatch.setattr(Claims, "peek", lambda *given: looks.append(1) or real(*given))

    with running(session, handlers, workers=2):
        if why == "workers are busy":
            assert begun.acquire(timeout=PATIENCE)
            assert begun.acquire(timeout=PATIENCE)
        session.defer(Job(), delay=0)
        until(lambda: looks)
        time.sleep(0.3)  # what is counted is how often it looks in real time
        seen = len(looks)
        go.set()

    assert seen <= 20
    assert session.event_store.check() == []
