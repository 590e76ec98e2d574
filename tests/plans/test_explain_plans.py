"""Asking why costs what is told: no look at all commits, all events or the whole history."""

from __future__ import annotations

import pytest

from ontologia import Session
from tests.integration.explained import Buys, Customer, fill

_LARGE = (
    *("commits", "entity_history", "relation_history", "events", "e", "event_claims", "attempts"),
    *("ready", "r"),
)


@pytest.fixture
def shop(watch, open_session, clock) -> Session:
    session = open_session()
    fill(session, clock)
    return session


@pytest.mark.req("NEW-041", "NEW-042")
def test_no_statement_of_why_and_trace_reads_a_whole_table(shop, watch):
    event = shop.why(Customer, "c1").event_id

    def explain():
        shop.why(Customer, "c1", "tier")
        shop.why(Buys, "c1:10", "pieces")
        shop.trace(event)

    plan = watch.plan(explain)

    assert any("idx_events_chain" in step for step in plan)
    assert any("idx_commits_event" in step for step in plan)
    assert any("idx_entity_history_lookup" in step for step in plan)
    assert any("idx_relation_history_lookup" in step for step in plan)
    for step in plan:
        words = step.split()
        assert words[0] != "SCAN" or words[1] not in _LARGE, step


def test_the_first_event_of_a_chain_and_other_commits_are_not_in_the_indexes(shop, sql):
    """They cost nothing there; most events and commits are of that kind."""
    assert sql("SELECT COUNT(*) FROM events") == [[3]]
    assert sql(
        "SELECT COUNT(*) FROM events INDEXED BY idx_events_chain WHERE root_event_id <> id"
    ) == [[2]]
    expression = "CASE WHEN json_valid(metadata_json) THEN metadata_json ->> 'event_id' END"
    assert sql(
        f"SELECT COUNT(*) FROM commits INDEXED BY idx_commits_event WHERE {expression} IS NOT NULL"
    ) == [[2]]
