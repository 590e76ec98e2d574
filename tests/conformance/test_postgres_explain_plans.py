"""On PostgreSQL, too, asking why looks at no whole table."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ontologia.store.events.store import EventStore
from tests.conformance.test_postgres_plans import parts

MANY = """
INSERT INTO commits(id, created_at, metadata_json)
SELECT n, '2026', '{"event_id":"e' || n || '","handler_id":"ship"}' FROM generate_series(1, 20000) n;
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id, chain_depth)
SELECT 'e' || n, 'post', 'posted', '{}', '2026', 'e' || n / 2, 1 FROM generate_series(1, 20000) n;
INSERT INTO attempts(event_id, handler_id, attempt, ended_at, outcome)
SELECT 'e' || n, 'ship', 1, '2026', 'failed' FROM generate_series(1, 20000) n;
INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id)
SELECT 'T', 'k' || n, '{}', n FROM generate_series(1, 20000) n"""
STATEMENTS = (
    *("entity_versions", "relation_versions", "commits_before", "commits_for", "causes_of"),
    *("chain_of", "claims_of", "attempts_at", "ready_for"),
)


@pytest.fixture(params=["analysed", "not analysed"])
def full_store(
    request: pytest.FixtureRequest, event_store: EventStore, direct: Callable[[str], object]
) -> EventStore:
    direct(MANY)
    if request.param == "analysed":
        direct("ANALYZE commits; ANALYZE events; ANALYZE attempts; ANALYZE entity_history")
    return event_store


def planned(store: EventStore, name: str) -> set[str]:
    """The tables that a statement reads as a whole, whatever it is asked."""
    names = dict.fromkeys(re.findall(r"%\((\w+)\)s", store._sql[name]))
    numbers = {name: f"${number}" for number, name in enumerate(names, start=1)}
    text = re.sub(r"%\((\w+)\)s", lambda match: numbers[match[1]], store._sql[name])
    with store.transaction() as tx:
        [[[found]]] = tx.all(f"EXPLAIN (FORMAT JSON, GENERIC_PLAN) {text}")
    return {p["Relation Name"] for p in parts(found["Plan"]) if p["Node Type"] == "Seq Scan"}


@pytest.mark.req("NEW-041", "NEW-042")
def test_the_statements_of_why_and_trace_read_no_whole_table(full_store: EventStore) -> None:
    large = {"commits", "events", "attempts", "entity_history", "event_claims"}

    read = {name: planned(full_store, name) & large for name in STATEMENTS}

    assert {name: tables for name, tables in read.items() if tables} == {}
