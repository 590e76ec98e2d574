"""On PostgreSQL, too, what operators are shown reads no growing table as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ontologia.store.events.store import EventStore
from tests.conformance.test_postgres_explain_plans import planned

MANY = """
INSERT INTO commits(id, created_at, metadata_json)
SELECT n, '2026', '{"session_id":"s"}' FROM generate_series(1, 20000) n;
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id, chain_depth)
SELECT 'e' || n, 'post', 'posted', '{}', '2026', 'e' || n, 0 FROM generate_series(1, 20000) n;
INSERT INTO consumers(namespace, name, last_seen_at)
SELECT 'post', 'c' || n, '2026' FROM generate_series(1, 20) n;
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT 1 + n % 20, 100, '2026', 'e' || n, 'posted' FROM generate_series(1, 20000) n;
INSERT INTO incoming(event_id)
SELECT 'e' || n FROM generate_series(1, 20000) n;
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, available_at,
                         consumer_id, due_at)
SELECT 'e' || n, 'c1', 's', '2026', '2027', '2027', 1, '2027' FROM generate_series(1, 20000) n;
INSERT INTO attempts(event_id, handler_id, attempt, ended_at, outcome)
SELECT 'e' || n, 'c1', 1, '2026', 'failed' FROM generate_series(1, 20000) n;
INSERT INTO dead_letters(event_id, handler_id, namespace, failed_at, attempts, last_error, event_type,
                         event_payload, root_event_id, chain_depth)
SELECT 'e' || n, 'c1', 'post', '2026', 1, '', 'posted', '{}', 'e' || n, 0
  FROM generate_series(1, 20000) n;
INSERT INTO sessions(session_id, namespace, started_at, last_heartbeat, metadata)
SELECT 's' || n, 'post', '2026', '2026', '{}' FROM generate_series(1, 20000) n;
INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id, schema_version_id)
SELECT 'T', 'k' || n / 3, '{}', n, 1 FROM generate_series(1, 20000) n;
INSERT INTO relation_history(relation_type, left_key, right_key, fields_json, commit_id,
                             schema_version_id)
SELECT 'R', 'k' || n / 3, 'k1', '{}', n, 1 FROM generate_series(1, 20000) n;
INSERT INTO deferred_events(event_id, namespace, topic, payload, fire_at, created_at, priority,
                            root_event_id, chain_depth)
SELECT 'd' || n, 'post', 'posted', '{}', n, 0, 100, 'd' || n, 0 FROM generate_series(1, 20000) n"""
LARGE = {
    *("commits", "events", "ready", "event_claims", "attempts", "dead_letters", "sessions"),
    *("deferred_events", "entity_latest", "relation_latest", "incoming"),
    *("entity_history", "relation_history"),
}
STATEMENTS = (
    *("sessions_heard", "held_claims", "payloads_of", "letters_tracebacks", "count_dead_letters"),
    *("load_ready", "load_claims", "load_arriving", "count_arriving", "operators_commits"),
    *("waiting_id", "waiting_number", "last_ticks", "named_namespaces", "scheduled_events"),
    *("count_some_entities", "count_some_relations", "select_dead_letters", "list_events_back"),
    *("ready_then", "unfinished_claims", "undispatched", "dead_until", "commits_before"),
    *("last_number", "events_after"),
    *("entity_changes_of", "relation_changes_of", "events_of_source"),
)
COUNTED = {"count_arriving": {"incoming"}}
"""Read in any order, up to a LIMIT."""


@pytest.fixture(params=["analysed", "not analysed"])
def full_store(
    request: pytest.FixtureRequest, event_store: EventStore, direct: Callable[[str], object]
) -> Iterator[EventStore]:
    direct(MANY)
    if request.param == "analysed":
        direct("; ".join(f"ANALYZE {table}" for table in sorted(LARGE)))
    yield event_store
    direct(f"TRUNCATE {', '.join(sorted(LARGE))} CASCADE")  # no rule of delivery holds for them


@pytest.mark.req("NEW-212")
def test_the_statements_of_views_read_no_whole_table(full_store: EventStore) -> None:
    read = {
        name: (planned(full_store, name) & LARGE) - COUNTED.get(name, set()) for name in STATEMENTS
    }

    assert {name: tables for name, tables in read.items() if tables} == {}
