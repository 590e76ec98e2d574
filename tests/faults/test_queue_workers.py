"""Workers as processes: killed in the middle, stopped by a signal, two beside each other."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from ontologia import Session
from ontologia.queues import DomainEvent, StoreEventQueue
from ontologia_conformance.queue_world import numbers
from tests.faults.children import UNFINISHED, ask, assert_sound, end_leases
from tests.integration.processes import PATIENCE, Process
from tests.integration.running import until

LEASE_MS = 3_600_000

WORK = """
import threading, time
from ontologia.queues import EventWorker, StoreEventQueue
from ontologia.queues.current import delivered

class Env:
    def __init__(self, queue, handler):
        self.queue, self.registry, self.handler = queue, self, handler
    def get_event_handlers(self, name):
        return [self.handler]

def handled(event):
    with open(sys.argv[2], "a") as notes:
        notes.write(f"{event.payload['number']} {delivered.get().attempt}\\n")

def work(handler):
    config = OntologiaConfig(event_claim_lease_ms=int(sys.argv[3]))
    with Session(sys.argv[1], config=config) as session:
        worker = EventWorker(Env(StoreEventQueue(session), handler))
        worker.run_forever()
        report(worker.health_snapshot())
"""

STOP_AT_FIRST = (
    WORK
    + """
def handler(event, env):
    if event.payload["number"] == 0:
        say("inside")
        listen()
    handled(event)

work(handler)
"""
)

DIE_AT_TWO = (
    WORK
    + """
def handler(event, env):
    if event.name == "event.dead_letter":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    handled(event)
    if event.payload["number"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)

work(handler)
"""
)

UNTIL_THE_LAST = (
    WORK
    + """
def handler(event, env):
    handled(event)

def stop():
    listen()
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # the worker does not run yet
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=stop).start()
say("began")
work(handler)
"""
)


def fill(path, count, first=0):
    with Session(str(path)) as session:
        queue = StoreEventQueue(session)
        for number in range(first, first + count):
            queue.enqueue(DomainEvent.build(name="parcel.posted", payload={"number": number}))


def noted(path):
    """(number, attempt) of all that was handled, in order."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]


@pytest.mark.thorough
@pytest.mark.req("EDE-050", "EDE-062")
def test_what_a_killed_worker_had_is_anothers_after_the_lease(path, tmp_path):
    fill(path, 1)
    with Process(STOP_AT_FIRST, path, tmp_path / "notes", LEASE_MS) as process:
        process.hear("inside")
        process.kill()

    with Session(str(path)) as session:
        queue = StoreEventQueue(session)
        assert queue.dequeue(10, 0) == []
        end_leases(path)
        [delivery] = queue.dequeue(10, PATIENCE)

        assert (numbers([delivery]), delivery.attempt_number) == ([0], 2)
    assert noted(tmp_path / "notes") == []
    assert_sound(path)


@pytest.mark.thorough
@pytest.mark.req("EDE-058")
def test_an_event_that_kills_its_worker_buries_itself_and_nobody_else(path, tmp_path):
    fill(path, 9)
    notes = tmp_path / "notes"
    for _ in range(5):
        with Process(DIE_AT_TWO, path, notes, LEASE_MS) as process:
            assert process.popen.wait(PATIENCE) == -signal.SIGKILL
        end_leases(path)

    with Process(DIE_AT_TWO, path, notes, LEASE_MS) as process:
        process.report()

    letters = ask(path, "SELECT last_error, attempts FROM dead_letters")
    assert letters == [("lease expired", 5)]
    outcomes = ask(path, "SELECT attempt, outcome FROM attempts WHERE event_id = "
                         "(SELECT event_id FROM dead_letters) ORDER BY attempt")  # fmt: skip
    assert outcomes == [(number, "lease expired") for number in range(1, 6)]
    assert [attempt for number, attempt in noted(notes) if number == 2] == [1, 2, 3, 4, 5]
    others = Counter(number for number, _ in noted(notes) if number != 2)
    assert sorted(others) == [0, 1, 3, 4, 5, 6, 7, 8]
    # What was done in the last milliseconds before a kill was not written down yet.
    assert max(others.values()) <= 2
    assert max(attempt for number, attempt in noted(notes) if number != 2) <= 2
    assert_sound(path)


@pytest.mark.req("EDE-061", "EDE-062")
def test_a_worker_that_gets_a_signal_finishes_its_event_and_hands_back_the_rest(path, tmp_path):
    fill(path, 5)
    with Process(STOP_AT_FIRST, path, tmp_path / "notes", 60_000) as process:
        process.hear("inside")
        process.popen.send_signal(signal.SIGTERM)
        process.tell()
        health = process.report()

    assert (health["running"], health["succeeded"]) == (False, 1)
    assert noted(tmp_path / "notes") == [(0, 1)]
    with Session(str(path)) as session:
        rest = StoreEventQueue(session).dequeue(10, 0)
        assert numbers(rest) == [1, 2, 3, 4]
        assert {delivery.attempt_number for delivery in rest} == {1}
    assert_sound(path)


@pytest.mark.thorough
@pytest.mark.req("EDE-045", "EDE-050")
def test_two_processes_never_hold_the_same_event(path, tmp_path):
    count = 400
    notes = [tmp_path / "one", tmp_path / "two"]
    fill(path, 1)
    with (
        Process(UNTIL_THE_LAST, path, notes[0], 60_000) as one,
        Process(UNTIL_THE_LAST, path, notes[1], 60_000) as two,
    ):
        one.hear("began")
        two.hear("began")
        fill(path, count - 1, first=1)
        until(lambda: ask(path, UNFINISHED) == [(0,)])
        one.tell()
        two.tell()
        reports = [one.report(), two.report()]

    assert sum(report["succeeded"] for report in reports) == count
    runs = Counter(number for each in notes for number, _ in noted(each))
    assert runs == Counter(range(count))
    assert {attempt for each in notes for _, attempt in noted(each)} == {1}
    assert_sound(path)
