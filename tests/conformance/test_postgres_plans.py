"""On PostgreSQL, too, a claim looks at what is new, due and taken, and at nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ontologia.store.events.store import SqlEventStore
from tests.conformance.event_world import POST, POSTED, claim, post

FINISHED = 20_000
FINISHED_EVENTS = f"""
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id)
SELECT 'old ' || n, '{POST}', '{POSTED}', '{{}}', '2025', 'old ' || n
  FROM generate_series(1, {FINISHED}) n;
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at,
                         available_at, consumer_id)
SELECT id, 'ship', 's1', '2025', '2025', '2025', '2025', 1 FROM events;
ANALYZE events; ANALYZE event_claims"""
IDS = json.dumps([f"old {n}" for n in range(1, 101)])
VALUES: dict[str, Any] = {
    "consumer_id": 1,
    "handler_id": "ship",
    "types": json.dumps([POSTED]),
    "consumers": "[1]",
    "session_id": "s1",
    "token": "t",
    "now": "2026",
    "lease_until": "2027",
    "most": 100,
    "ids": IDS,
    "event_id": "old 1",
    "id": "old 1",
}


@pytest.fixture
def events_uri(postgres_events_uri: str) -> str:
    return postgres_events_uri


@pytest.fixture
def full_store(event_store: SqlEventStore, change: Callable[[str], int]) -> SqlEventStore:
    """A store with many finished events, a few ready ones, and up-to-date statistics."""
    claim(event_store)
    change(FINISHED_EVENTS)
    post(event_store, *range(300))
    claim(event_store, limit=1)
    return event_store


def parts(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from parts(part)


STATEMENTS = (
    *("peek", "peek_common", "due_deferred", "hand_out", "due_claims", "return_claims"),
    *("make_ready", "take", "fence", "start", "start_within_lease", "renew", "ack", "abandon"),
    *("get_claim", "lock_claim", "get_event", "claims_of", "delete_claims_of", "delete_events"),
)


@pytest.mark.req("NEW-001")
def test_the_statements_of_a_claim_read_no_whole_table(full_store: SqlEventStore) -> None:
    read: set[tuple[str, str]] = set()
    for name in STATEMENTS:
        values = VALUES | ({"most": 5_000} if name == "hand_out" else {})
        values |= {"now": 1.0} if name == "due_deferred" else {}
        with full_store.transaction() as tx:
            [[[found]]] = tx.all(f"EXPLAIN (FORMAT JSON) {full_store._sql[name]}", values)
        read |= {
            (name, part["Relation Name"])
            for part in parts(found["Plan"])
            if part["Node Type"] == "Seq Scan"
        }

    assert not {each for each in read if each[1] in ("events", "event_claims")}
