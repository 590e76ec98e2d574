"""An event whose handler never returns, and workers that have it one after the other.

The settings are those that every program has, but for the lease and the backoff, which are shorter.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

from ontologia import Event, Field, Session, on_event
from tests.integration.processes import PATIENCE, Process
from tests.integration.running import running, until

WORKER = """
import os, signal, threading, time
from ontologia import Event, Field, on_event

def send_again(number, _):
    # One that comes before the run hears signals.
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()

signal.signal(signal.SIGTERM, send_again)

class ShaftJammed(Event):
    number: Field[int]

class ShaftOiled(Event):
    number: Field[int]

@on_event(ShaftJammed, name="jam", lease=0.3, backoff=(0.01, 0.02))
def jam(ctx):
    say("jam", ctx.attempt)
    while True:
        time.sleep(3600)

@on_event(ShaftOiled, name="oil")
def oil(ctx):
    say("oil")

say("ready")
listen()
with Session(sys.argv[1]) as session:
    session.run([jam, oil])
say("ended")
"""


class ShaftJammed(Event):
    number: Field[int]


class ShaftOiled(Event):
    number: Field[int]


def test_workers_go_on_and_end_when_a_handler_never_returns(uri):
    with Session(uri) as session, ExitStack() as stack:
        workers = [stack.enter_context(Process(WORKER, uri)) for _ in range(3)]
        for each in workers:
            each.hear("ready")
        session.commit(event=ShaftJammed(number=0))
        for each in workers:
            each.tell()
        session.commit(event=[ShaftOiled(number=n) for n in range(10)])
        until(lambda: _is_acked(session, 10))
        until(lambda: session.event_store.list_dead_letters("default"))

        session.commit(event=[ShaftOiled(number=n) for n in range(10)])
        until(lambda: _is_acked(session, 20))
        for each in workers:
            _end(each)
        _check_letter(session)


def test_a_lone_worker_runs_others_before_it_tries_the_event_again_and_survives_it(uri):
    with Session(uri) as session, Process(WORKER, uri) as worker:
        worker.hear("ready")
        session.commit(event=[ShaftJammed(number=0), ShaftOiled(number=0)])
        worker.tell()
        heard = set()
        while "jam 2" not in heard:
            line = worker.popen.stdout.readline()
            assert line, worker.errors()
            heard.add(line.strip())
        assert "oil" in heard
        until(lambda: session.event_store.list_dead_letters("default"))

        session.commit(event=ShaftOiled(number=1))
        until(lambda: _is_acked(session, 2))
        worker.hear("oil")
        _end(worker)
        _check_letter(session)


def test_workers_of_one_process_go_on_beside_a_handler_that_never_returns(uri):
    """It is not taken for one that has killed its process, which would run alone."""
    opened, hung, oiled = threading.Event(), [], []

    @on_event(ShaftJammed, name="jam", lease=0.3, backoff=(0.01, 0.02))
    def jam(ctx):
        hung.append(ctx.attempt)
        opened.wait(PATIENCE)

    @on_event(ShaftOiled, name="oil")
    def oil(ctx):
        oiled.append(ctx.event.number)

    with Session(uri) as session:
        session.commit(event=ShaftJammed(number=0))
        with running(session, [jam, oil], workers=2):
            for number in range(2):
                until(lambda number=number: len(hung) > number)
                with session.unit() as unit:
                    unit.commit(event=ShaftOiled(number=number))
                until(lambda number=number: len(oiled) > number)
            until(lambda: session.event_store.list_dead_letters("default"))
            opened.set()
        _check_letter(session)


def _end(worker: Process) -> None:
    worker.popen.send_signal(signal.SIGTERM)
    rest, _ = worker.popen.communicate(timeout=PATIENCE)
    assert rest.split()[-1] == "ended", worker.errors()
    assert worker.popen.returncode == 0


def _check_letter(session: Session) -> None:
    [letter] = session.event_store.list_dead_letters("default")
    told = session.event_store.inspect_event(letter["event_id"])
    # On a busy machine a lease may end before a process has looked; `test_handler_timeouts` has
    # their order.
    assert {each["outcome"] for each in told["attempts"]} <= {"timed out", "lease expired"}
    assert [each["attempt"] for each in told["attempts"]] == list(range(1, 11))
    assert session.event_store.check() == []


def _is_acked(session: Session, number: int) -> bool:
    events = session.event_store.list_events("default", 100)
    return sum(each["status"] == "acked" for each in events) == number
