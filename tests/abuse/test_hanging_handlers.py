"""An event whose handler never returns, and three workers that have it one after the other."""

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

@on_event(ShaftJammed, name="jam", lease=0.3, max_attempts=3)
def jam(ctx):
    while True:
        time.sleep(3600)

@on_event(ShaftOiled, name="oil")
def oil(ctx):
    pass

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
        until(lambda: session.event_store.list_dead_letters("default"))

        session.commit(event=[ShaftOiled(number=n) for n in range(20)])
        until(lambda: _is_acked(session, 20))
        for each in workers:
            each.popen.send_signal(signal.SIGTERM)
            each.hear("ended")
            assert each.popen.wait(PATIENCE) == 0

        [letter] = session.event_store.list_dead_letters("default")
        told = session.event_store.inspect_event(letter["event_id"])
        assert {each["outcome"] for each in told["attempts"]} <= {"timed out", "lease expired"}
        assert [each["attempt"] for each in told["attempts"]] == [1, 2, 3]
        assert session.event_store.check() == []


def test_workers_of_one_process_go_on_beside_a_handler_that_never_returns(uri):
    """It is not taken for one that has killed its process, which would run alone."""
    opened, hung, oiled = threading.Event(), [], []

    @on_event(ShaftJammed, name="jam", lease=0.3, max_attempts=3)
    def jam(ctx):
        hung.append(ctx.attempt)
        opened.wait(PATIENCE)

    @on_event(ShaftOiled, name="oil")
    def oil(ctx):
        oiled.append(ctx.event.number)

    with Session(uri) as session:
        session.commit(event=ShaftJammed(number=0))
        with running(session, [jam, oil], workers=2):
            for number in range(3):
                until(lambda number=number: len(hung) > number)
                with session.unit() as unit:
                    unit.commit(event=ShaftOiled(number=number))
                until(lambda number=number: len(oiled) > number)
            until(lambda: session.event_store.list_dead_letters("default"))
            opened.set()

        [letter] = session.event_store.list_dead_letters("default")
        told = session.event_store.inspect_event(letter["event_id"])
        # A lease may end between the look and the claim; `test_handler_timeouts` has their order.
        assert {each["outcome"] for each in told["attempts"]} <= {"timed out", "lease expired"}
        assert [each["attempt"] for each in told["attempts"]] == [1, 2, 3]


def _is_acked(session: Session, number: int) -> bool:
    events = session.event_store.list_events("default", 100)
    return sum(each["status"] == "acked" for each in events) == number
