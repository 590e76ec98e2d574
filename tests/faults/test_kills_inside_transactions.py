"""kill -9 inside a write transaction, at each kind of statement that the event bus writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.errors import LockContentionError
from tests.faults import hardships, workers
from tests.faults.children import (
    Child,
    ask,
    assert_all_done_once,
    assert_runs_are_accounted_for,
    assert_sound,
    end_leases,
    noted,
    place_orders,
    wait_until_finished,
)
from tests.faults.workers import HANDLERS, Order, Placed
from tests.integration.running import until

LEASE = {"event_claim_lease_ms": 3_600_000, "event_backoff_base_ms": 5}

POINTS = {  # where to stop: a statement, a word in its values, and at which time
    "handing out": ("DELETE FROM incoming", "", 1),
    "taking": ("DELETE FROM ready\n WHERE consumer_id = :consumer_id", "", 3),
    "claiming": ("INSERT INTO event_claims(event_id", "receipt", 4),
    "starting": ("SET read_commit = (SELECT", "receipt", 2),
    "checking the lease": ("SELECT lease_until FROM event_claims", "receipt", 2),
    "committing state": ("INSERT INTO entity_latest", "", 2),
    "acknowledging": ("SET ack_at = :now", "receipt", 2),
    "emitting": ("INSERT INTO events(", "faults.shipped", 2),
    "emitting, half way": ("INSERT INTO incoming", "", 2),
    "the end of a commit": ("COMMIT", "", 9),
    "the end of a late one": ("COMMIT", "", 30),
}


@pytest.mark.thorough
@pytest.mark.req("NEW-060", "ONT-200", "ONT-172")
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_inside_a_transaction_leaves_nothing_of_it_and_nobody_waiting(path, tmp_path, point):
    place_orders(path, 10)
    # No time to wait at all: whoever had to would get LockContentionError.
    config = OntologiaConfig(lock_timeout_ms=0)

    with Session(str(path), config=config) as other:
        other.ensure(Order(id="next"))
        with Child(tmp_path, hardships.work_and_stop_at, str(path), LEASE, *POINTS[point]) as child:
            assert child.hear("inside") == (True,)
            with pytest.raises(LockContentionError):
                other.commit(event=Placed(number="next"))
            child.kill()

        other.commit(event=Placed(number="next"))
        assert_sound(path)

    end_leases(path)
    with Child(tmp_path, workers.work, str(path), LEASE, HANDLERS) as child:
        child.hear("running")
        wait_until_finished(path, child)
        child.stop()
    assert_all_done_once(path)
    assert len(ask(path, "SELECT id FROM events WHERE type = 'faults.placed'")) == 11
    assert_runs_are_accounted_for(path, tmp_path)


@pytest.mark.req("ONT-200")
def test_a_kill_between_a_handlers_commit_and_its_ack_repeats_the_run_and_not_the_state(
    path, tmp_path
):
    place_orders(path, 1)

    # Synced state, and an ack that never came: the worst moment.
    for consumer in ("receipt", "ship"):
        options = (str(path), LEASE, "SET ack_at", consumer, 1)
        with Child(tmp_path, hardships.work_and_stop_at, *options) as child:
            child.hear("inside")
            child.kill()
        end_leases(path)
    receipts = ask(path, "SELECT COUNT(*) FROM entity_history WHERE entity_type = 'Receipt'")
    with Child(tmp_path, workers.work, str(path), LEASE, HANDLERS) as child:
        child.hear("running")
        wait_until_finished(path, child)
        child.stop()

    assert receipts == [(1,)]
    assert_all_done_once(path)
    assert_runs_are_accounted_for(path, tmp_path)
    runs = {what: times for (what, _), times in noted(tmp_path).items()}
    assert runs == {"audit": 1, "receipt": 2, "ship": 2}
    outcomes = ask(path, "SELECT DISTINCT outcome, error FROM attempts")
    assert outcomes == [("lease expired", None)]


@pytest.mark.req("ONT-164", "NEW-061")
def test_a_run_outlives_a_writer_that_stands_still_for_longer_than_the_lock_timeout(path, tmp_path):
    place_orders(path, 10)
    impatient = {"lock_timeout_ms": 50}

    with Child(tmp_path, workers.work, str(path), impatient, [workers.asking_audit]) as worker:
        worker.hear("running")
        worker.hear("inside")
        with Child(tmp_path, workers.hold_the_lock, str(path)) as holder:
            holder.hear("holding")
            worker.tell()  # and now it has acks to write
            log = Path(f"{worker.notes}.log")
            until(lambda: log.read_text().count("the database is busy, and is tried again") >= 3)
            holder.tell()
            holder.hear("ended")
        wait_until_finished(path, worker)
        worker.stop()

    assert ask(path, "SELECT COUNT(*) FROM event_claims WHERE ack_at IS NOT NULL") == [(10,)]
    assert_sound(path)
    assert_runs_are_accounted_for(path, tmp_path)
