"""On PostgreSQL, too, a claim looks at what is new, due and taken, and at nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ontologia.store.events.store import EventStore
from ontologia.store.postgres.notation import statements
from ontologia.store.postgres.place import qualified
from ontologia_conformance.event_world import POST, POSTED, claim, post

FINISHED = 20_000
FINISHED_EVENTS = f"""
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id)
SELECT 'old ' || n, '{POST}', '{POSTED}', '{{}}', '2025', 'old ' || n
  FROM generate_series(1, {FINISHED}) n;
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at,
                         available_at, consumer_id)
SELECT id, 'ship', 's1', '2025', '2025', '2025', '2025', 1 FROM events;
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id)
SELECT 'new ' || n, '{POST}', '{POSTED}', '{{}}', '2026', 'new ' || n
  FROM generate_series(1, {FINISHED}) n;
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT 1, 100, created_at, id, type FROM events WHERE created_at = '2026'"""


@pytest.fixture(params=["analysed", "not analysed"])
def full_store(
    request: pytest.FixtureRequest, event_store: EventStore, direct: Callable[[str], object]
) -> EventStore:
    """A store with many events; the planner knows so, or still takes the tables for empty."""
    claim(event_store)
    direct(FINISHED_EVENTS)
    if request.param == "analysed":
        direct("ANALYZE events; ANALYZE event_claims; ANALYZE ready")
    post(event_store, *range(300))
    return event_store


def parts(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from parts(part)


def planned(store: EventStore, name: str) -> Iterator[dict[str, Any]]:
    """The parts of the plan that a prepared statement is kept with."""
    with store.transaction() as tx:
        text = store._sql[name].plan.text.decode()  # type: ignore[attr-defined]
        [[[found]]] = tx.all(f"EXPLAIN (FORMAT JSON, GENERIC_PLAN) {text}")
    return parts(found["Plan"])


DEAD_LETTERS = """
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id)
SELECT 'lost ' || n, 'default', 'lost', '{}', '2026', '' FROM generate_series(1, 300) n;
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at,
                         dead_lettered_at, available_at, consumer_id)
SELECT id, 'ship', 's1', '2026', '2026', '2026', '2026', '2026', 1 FROM events;
INSERT INTO dead_letters(event_id, handler_id, namespace, failed_at, attempts, last_error,
                         event_type, event_payload, root_event_id, chain_depth)
SELECT id, 'ship', 'default', '2026', 1, 'x', 'lost', '{}', '', 0
  FROM events CROSS JOIN generate_series(1, 2)"""


@pytest.mark.parametrize("name", ["dead_letters_are_claims", "mend_letters", "mend_endings"])
def test_doctor_reads_dead_letters_once_and_not_for_each_claim(
    event_store: EventStore, direct: Callable[[str], object], name: str
) -> None:
    direct(DEAD_LETTERS)
    doctor = qualified(statements("doctor.sql"), event_store._database.schema)  # type: ignore[attr-defined]
    asked = {**event_store._sql, **doctor}[name].rstrip().rstrip(";")
    with event_store.transaction() as tx:
        tx.all("SELECT set_config('enable_seqscan', 'on', true)")
        [[[found]]] = tx.all(f"EXPLAIN (ANALYZE, FORMAT JSON) {asked}")
    direct("DELETE FROM dead_letters; DELETE FROM event_claims; DELETE FROM events")

    read = [
        part["Actual Loops"] * (part["Actual Rows"] + part.get("Rows Removed by Filter", 0))
        for part in parts(found["Plan"])
        if part.get("Relation Name") == "dead_letters" and "Scan" in part["Node Type"]
    ]
    assert 600 <= sum(read) <= 1_500  # two for each of 300 claims, at most twice, and what goes


STATEMENTS = (
    *("peek", "due_deferred", "dispatch", "due_claims", "return_claims"),
    *(
        "make_ready",
        "take",
        "fence",
        "start",
        "start_within_lease",
        "renew",
        "ack",
        "ack_moved",
        "abandon",
    ),
    *("get_claim", "lock_claim", "get_event", "insert_attempt", "insert_dead_letter", "bury"),
)


@pytest.mark.thorough
@pytest.mark.req("NEW-001")
def test_the_statements_of_a_claim_read_no_whole_table(full_store: EventStore) -> None:
    read: set[tuple[str, str]] = set()
    for name in STATEMENTS:
        read |= {
            (name, part["Relation Name"])
            for part in planned(full_store, name)
            if part["Node Type"] == "Seq Scan"
        }

    assert not {each for each in read if each[1] in ("events", "event_claims", "ready")}


@pytest.mark.thorough
@pytest.mark.req("NEW-001")
def test_what_is_taken_is_not_sorted_out_of_all_that_is_ready(full_store: EventStore) -> None:
    [locking] = [part for part in planned(full_store, "take") if part["Node Type"] == "LockRows"]

    [conditions] = locking["Plans"]
    assert conditions["Node Type"] == "Result"  # once: is it paused, and is there more urgent work?
    [scan] = [part for part in conditions["Plans"] if part["Parent Relationship"] == "Outer"]
    assert scan["Index Name"] == "idx_ready"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["finished", "unleased"])
def test_collection_reads_what_it_locked_once_and_not_for_every_event(
    full_store: EventStore, name: str
) -> None:
    portion = 1_000
    ids = json.dumps([f"old {number}" for number in range(1, portion + 1)])
    place = {"namespace": POST, "type": POSTED, "seen_since": "2025", "now": "2026", "ids": ids}
    place["restored_since"] = "2025"
    with full_store.transaction() as tx:
        asked = f"EXPLAIN (ANALYZE, FORMAT JSON) {full_store._sql[name]}"
        [[[found]]] = tx.all(asked, place)

    for part in parts(found["Plan"]):
        if part["Node Type"] == "CTE Scan":
            rows = part["Actual Rows"] + part.get("Rows Removed by Filter", 0)
            assert rows * part["Actual Loops"] <= portion
