"""SIGINT and SIGTERM: a clean end, with everything that was not done left for others at once."""

from __future__ import annotations

import signal

import pytest

from ontologia import Session
from tests.faults.children import ask, assert_sound, place_orders
from tests.integration.processes import PATIENCE, Process

WORK = """
import threading, time
from ontologia import on_event
from tests.faults.workers import Placed, Receipt, Shipped

workers, listening = int(sys.argv[2]), sys.argv[3] == "listening"
session = Session(sys.argv[1], config=OntologiaConfig(shutdown_grace_ms=600_000))
lock = threading.Lock()
inside = []

@on_event(Placed, name="receipt")
def handle(ctx):
    ctx.ensure(Receipt(id=ctx.event.number, order=ctx.event.number))
    ctx.commit()
    ctx.emit(Shipped(number=ctx.event.number))
    if int(ctx.event.number) >= 9:
        with lock:
            inside.append(ctx.event.number)
            if len(inside) == workers:
                say("inside")
        if listening:
            listen()
        # In small pieces: a signal that comes right before a long wait begins is seen after it.
        while not listening:
            time.sleep(0.01)

session.run([handle], workers=workers)
session.close()
say("returned")
"""

LEFT = """
SELECT COUNT(ack_at), SUM(attempts), COUNT(due_at), COUNT(dead_lettered_at) FROM event_claims
"""


def finish(process: Process) -> int:
    """Its exit code. Long before the grace for handlers is over, or it did not end at once."""
    return process.popen.wait(PATIENCE)


def take_the_rest(path) -> list[str]:
    """What another session can claim, now."""
    with Session(str(path)) as session:
        events = session.event_store.claim(
            "default", "receipt", session.session_id, ["faults.placed"], 100, 60_000
        )
    return [event.number for event in events]


@pytest.mark.req("ONT-162", "NEW-026")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_in_the_middle_of_a_batch_ends_the_run_and_hands_the_rest_back(path, number):
    place_orders(path, 50)

    with Process(WORK, path, 1, "listening") as process:
        process.hear("inside")
        process.popen.send_signal(number)
        process.tell()  # the handler comes to its end, and no other begins
        process.hear("returned")
        code = finish(process)
        assert process.errors() == ""

    assert code == 0
    assert ask(path, LEFT) == [(10, 0, 0, 0)]
    shipped = "SELECT COUNT(*) FROM events WHERE type = 'faults.shipped'"
    assert ask(path, shipped) == [(10,)]
    stopped = "SELECT COUNT(*) FROM sessions WHERE metadata ->> 'stopped_at' IS NOT NULL"
    assert ask(path, stopped)[0][0] >= 1
    assert_sound(path)
    assert take_the_rest(path) == [str(each) for each in range(10, 50)]


@pytest.mark.req("NEW-026", "ONT-162")
@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_second_signal_ends_at_once_with_the_claims_handed_back(path, first, second, workers):
    place_orders(path, 50)

    with Process(WORK, path, workers, "busy") as process:
        process.hear("inside")
        process.popen.send_signal(first)
        process.popen.send_signal(second)
        code = finish(process)
        errors = process.errors()

    assert code == -signal.SIGINT, errors  # Python's end by KeyboardInterrupt
    assert "KeyboardInterrupt" in errors
    [(acked, attempts, due, dead)] = ask(path, LEFT)
    assert (attempts, due, dead) == (0, 0, 0)
    assert_sound(path)
    rest = take_the_rest(path)
    assert len(rest) == 50 - acked
    assert set(map(str, range(9 + workers, 50))) <= set(rest)
    assert acked <= 9


@pytest.mark.req("ONT-162", "NEW-026")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_ends_a_run_that_waits_for_work(path, number):
    place_orders(path, 3)
    program = """
    import time
    from ontologia import on_event
    from tests.faults.workers import Placed

    @on_event(Placed, name="audit")
    def handle(ctx):
        say("handled", ctx.event.number)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Session(sys.argv[1], config=OntologiaConfig(event_poll_interval_ms=600_000)) as session:
        session.run([handle])
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    report(before == after)
    """

    with Process(program, path) as process:
        handled = [process.hear("handled") for _ in range(3)]
        process.popen.send_signal(number)
        assert process.report() is True

    assert handled == ["0", "1", "2"]
    assert ask(path, LEFT) == [(3, 0, 0, 0)]
    assert_sound(path)


@pytest.mark.req("NEW-026", "ONT-162")
def test_a_second_signal_while_the_first_is_being_handled_ends_the_run_too(path):
    place_orders(path, 5)
    # The profiler sees each call and return: one step after the other, the second signal is there.
    program = """
    import faulthandler, gc, time
    from ontologia import on_event
    from tests.faults.workers import Placed

    gc.disable()  # what a callback of a weak reference raises is lost, and so would the interrupt be

    @on_event(Placed, name="audit")
    def handle(ctx):
        sys.setprofile(look)
        os.kill(os.getpid(), signal.SIGTERM)
        sys.setprofile(None)
        if left > 0:
            os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.01)

    def look(frame, event, argument):
        global left
        left -= 1
        if left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

    places = []
    session = Session(sys.argv[1])
    for step in range(1, 60):
        faulthandler.dump_traceback_later(15, exit=True)
        left = step
        try:
            session.run([handle])
            places.append("it returned")
        except KeyboardInterrupt:
            [consumer] = session.event_store.list_consumers("default")
            places.append([consumer["ready"], consumer["claimed"], consumer["backoff"]])
    report(places)
    """

    with Process(program, path) as process:
        assert process.report() == [[5, 0, 0]] * 59

    assert ask(path, LEFT) == [(0, 0, 0, 0)]
    assert_sound(path)


@pytest.mark.req("NEW-026", "ONT-162", "ONT-161")
def test_a_signal_while_the_loop_is_inside_a_lock_ends_the_run(path):
    # After each event the loop pauses. The signal comes at each step inside `threading`.
    program = """
    import faulthandler, threading
    from ontologia import on_event
    from tests.faults.workers import Placed

    @on_event(Placed, name="audit")
    def handle(ctx):
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # if there are not that many steps
        sys.setprofile(look)

    def end(*_):
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.kill(os.getpid(), signal.SIGTERM)

    def look(frame, event, argument):
        global left
        if frame.f_code.co_filename == threading.__file__:
            left -= 1
            if left == 0:
                end()

    signal.signal(signal.SIGALRM, end)
    config = OntologiaConfig(max_events_per_iteration=1, event_poll_interval_ms=10)
    session = Session(sys.argv[1], config=config)
    for step in range(1, 41):
        faulthandler.dump_traceback_later(15, exit=True)
        left = step
        session.commit(event=Placed(number=str(step)))
        session.run([handle])
    report([])
    """

    with Process(program, path) as process:
        assert process.report() == []

    assert ask(path, LEFT) == [(40, 0, 0, 0)]
    assert_sound(path)
