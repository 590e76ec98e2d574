"""Leases: kept while there is life, over at their end, and worth nothing after it."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest

from ontologia import Session
from ontologia_conformance.tiers import samples
from tests.faults import hardships, workers
from tests.faults.checker import problems_at_the_end
from tests.faults.children import (
    Child,
    ask,
    assert_all_done_once,
    assert_runs_are_accounted_for,
    assert_sound,
    end_leases,
    noted,
    place_orders,
    wait_for_rows,
    wait_until_finished,
)
from tests.faults.figures import FENCED, tally
from tests.faults.workers import HANDLERS

LEASE = {"event_claim_lease_ms": 400, "event_backoff_base_ms": 5}
LONG_LEASE = {"event_claim_lease_ms": 3_600_000}


@pytest.mark.thorough
@pytest.mark.req("ONT-166", "ONT-172")
def test_a_slow_batch_keeps_its_leases_with_one_process_and_with_two(tmp_path):
    """100 events of 0.12 s, all claimed at once under a lease of 5 s: its full size."""
    places = {count: tmp_path / str(count) for count in (1, 2)}
    with ExitStack() as stack:
        children: dict[int, list[Child]] = {}
        for count, folder in places.items():
            folder.mkdir()
            place_orders(folder / "test.db", 100)
            options = (str(folder / "test.db"), {"event_claim_lease_ms": 5_000})
            children[count] = [
                stack.enter_context(Child(folder, workers.work, *options, [workers.slow_audit]))
                for _ in range(count)
            ]
        for count, folder in places.items():
            for child in children[count]:
                child.hear("running")
            wait_until_finished(folder / "test.db", *children[count])
            for child in children[count]:
                child.stop()

    for folder in places.values():
        path = folder / "test.db"
        assert len(noted(folder)) == 100
        assert set(noted(folder).values()) == {1}
        ends = "SELECT COUNT(ack_at), SUM(attempts), COUNT(dead_lettered_at) FROM event_claims"
        assert ask(path, ends) == [(100, 0, 0)]
        assert_sound(path)


@pytest.mark.req("ONT-170", "ONT-172", "ONT-139")
def test_the_events_of_a_dead_worker_are_anothers_when_its_lease_is_over_and_not_before(
    path, tmp_path
):
    place_orders(path, 10)
    held = "SELECT event_id, session_id, lease_token FROM event_claims WHERE due_at IS NOT NULL"

    with Child(tmp_path, workers.work, str(path), LONG_LEASE, [workers.asking_audit]) as dying:
        dying.hear("running")
        dying.hear("inside")
        with Child(tmp_path, workers.work, str(path), LONG_LEASE, [workers.audit]) as other:
            other.hear("running")
            dying.kill()
            leases = sorted(ask(path, held))
            [new] = place_orders(path, 1)
            acked = f"SELECT COUNT(*) FROM event_claims WHERE event_id = '{new}' AND ack_at > ''"
            wait_for_rows(path, acked, [(1,)], other)  # it has claimed since
            kept = sorted(ask(path, held))
            end_leases(path)
            wait_until_finished(path, other)
            other.stop()

    assert len(leases) >= 6  # number 4, and those after it
    assert kept == leases
    attempts = sorted(ask(path, "SELECT attempts, COUNT(*) FROM event_claims GROUP BY 1"))
    assert [count for count, _ in attempts][-1] == 1  # the one it was at, and none twice
    assert ask(path, "SELECT COUNT(*) FROM event_claims WHERE ack_at IS NULL") == [(0,)]
    assert_sound(path)


REFUSED = {
    "renew": "LeaseExpiredError",
    "ack": None,
    "release": None,
    "abandon": None,
    "renew by name": False,
    "start": False,
    "defer": "LeaseExpiredError",
    "commit": "LeaseExpiredError",
    "commit of the session": "LeaseExpiredError",
}


def let_it_sleep(child: Child, path: Path) -> None:
    """SIGSTOP at a moment when it does not write: as long as it would sleep, nobody else could."""
    while True:
        child.signal(signal.SIGSTOP)
        while "T (stopped)" not in _status(child):
            os.sched_yield()
        if _can_be_written(path):
            return
        child.signal(signal.SIGCONT)
        os.sched_yield()


def _can_be_written(path: Path) -> bool:
    connection = apsw.Connection(str(path))
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


def _status(child: Child) -> str:
    with open(f"/proc/{child.process.pid}/status") as status:
        return status.read()


@pytest.mark.req("ONT-046", "ONT-047", "ONT-048", "ONT-049", "ONT-121", "ONT-172")
@pytest.mark.parametrize("ending", ["swallows", "returns", "raises"])
def test_a_worker_that_slept_through_its_lease_writes_nothing_after_another_has_done_it(
    path, tmp_path, ending
):
    place_orders(path, 1)

    with Child(tmp_path, hardships.outlive_the_lease, str(path), LEASE, ending, False) as sleeper:
        sleeper.hear("inside")
        let_it_sleep(sleeper, path)
        with Child(tmp_path, workers.work, str(path), LONG_LEASE, HANDLERS) as other:
            other.hear("running")
            wait_until_finished(path, other)
            done = ask(path, "SELECT * FROM event_claims")
            head = ask(path, "SELECT MAX(id) FROM commits")
            other.stop()
        sleeper.signal(signal.SIGCONT)
        sleeper.tell()
        [tried] = sleeper.hear("tried")
        sleeper.stop()

    wanted = {name: REFUSED[name] for name in tried}
    assert tried == wanted
    assert len(tried) == (7 if ending == "returns" else 9)
    assert ask(path, "SELECT * FROM event_claims") == done
    assert ask(path, "SELECT MAX(id) FROM commits") == head
    assert ask(path, "SELECT id FROM events WHERE payload LIKE '%late%'") == []
    assert ask(path, "SELECT * FROM deferred_events") == []
    assert_all_done_once(path)


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("ONT-172", "ONT-200", "ONT-139")
def test_workers_put_to_sleep_at_random_moments_for_longer_than_their_leases(path, tmp_path):
    """6 sleeps; 60 of them, the full size, with ONTOLOGIA_TEST_SAMPLES=10."""
    sleeps, chance = samples(6), random.Random(46)
    settings = LEASE | {"event_max_attempts": 1_000}
    handlers = [*HANDLERS, workers.mark]
    Session(str(path)).close()
    with ExitStack() as stack:
        producer = stack.enter_context(Child(tmp_path, workers.produce, str(path), "o", 0.05))
        crew = [
            stack.enter_context(
                Child(tmp_path, workers.work, str(path), settings, handlers, threads, 0.02)
            )
            for threads in (1, 2, 1)
        ]
        for worker in crew:
            worker.hear("running")
        for _ in range(sleeps):
            time.sleep(chance.uniform(0.01, 0.2))
            sleeper = chance.choice(crew)
            let_it_sleep(sleeper, path)
            time.sleep(0.6)  # its leases are over after 0.4 s, and others have its events
            sleeper.signal(signal.SIGCONT)
        producer.tell()
        producer.hear("ended")
        wait_until_finished(path, *crew)
        for worker in crew:
            worker.stop()

    committed = {about for what, about in noted(tmp_path) if what == "committed"}
    lost = problems_at_the_end(path, committed=committed, announced=committed)
    tally(
        FENCED,
        "SQLite: SIGSTOP until the lease is over, then SIGCONT",
        tries=sleeps,
        losses=len(lost),
    )
    assert lost == []
    assert_runs_are_accounted_for(path, tmp_path)
    expired = ask(path, "SELECT COUNT(*) FROM attempts WHERE outcome = 'lease expired'")[0][0]
    assert expired > 0  # or nobody slept through anything


@pytest.mark.req("ONT-047", "ONT-048", "ONT-049", "ONT-121", "ONT-172")
@pytest.mark.parametrize("ending", ["swallows", "returns", "raises"])
def test_a_worker_whose_clock_slept_too_cannot_touch_what_another_is_doing(path, tmp_path, ending):
    # It believes in its lease: only what is stored can tell it otherwise.
    place_orders(path, 5)
    columns = "event_id, session_id, lease_token, lease_until, ack_at, attempts, last_error"
    claim = f"SELECT {columns} FROM event_claims WHERE handler_id = 'receipt' ORDER BY event_id"

    with Child(tmp_path, hardships.outlive_the_lease, str(path), LEASE, ending, True) as sleeper:
        [asleep] = sleeper.hear("inside")
        let_it_sleep(sleeper, path)
        options = (str(path), LONG_LEASE, "x", False)
        with Child(tmp_path, hardships.outlive_the_lease, *options) as other:
            [awake] = other.hear("inside")
            before = ask(path, claim)
            sleeper.signal(signal.SIGCONT)
            sleeper.tell()
            [tried] = sleeper.hear("tried")
            sleeper.stop()
            after = ask(path, claim)
            other.kill()

    assert tried == {name: REFUSED[name] for name in tried}
    assert (before[0][1], before[0][5]) == (awake, 1)
    assert asleep != awake
    assert after == before
    assert ask(path, "SELECT id FROM events WHERE payload LIKE '%late%'") == []
    assert ask(path, "SELECT entity_key FROM entity_history WHERE entity_type = 'Receipt'") == []
    assert_sound(path)
