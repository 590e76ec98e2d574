"""What a claim does in the database does not grow with what is finished. No clock is involved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ontologia import OntologiaConfig
from ontologia.store.events.store import EventStore
from ontologia.store.open import open_event_store
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import POST, ParcelPosted, claim, post
from tests.plans.test_query_plans import Watch

_LARGE = ("events", "e", "event_claims", "k", "ready", "r", "deferred_events", "dead_letters")


@pytest.fixture
def store(watch: Watch, clock: ManualClock, tmp_path: Path) -> Iterator[EventStore]:
    config = OntologiaConfig(clock=clock)
    opened = open_event_store(str(tmp_path / "claims.db"), config, clock, Random(1))
    yield opened.events
    assert opened.events.check() == []
    opened.close()


def finish(store: EventStore, many: int) -> None:
    """So many events that the handler has acknowledged, and as many that wait for their backoff."""
    rows = [store.log.given_row(ParcelPosted(number=each), POST) for each in range(2 * many)]
    with store.transaction() as tx:
        store.log.add(tx, rows)
    for number, event in enumerate(claim(store, limit=2 * many)):
        (store.release if number % 2 else store.ack)("ship", str(event.id))


def steps_of_a_claim(store: EventStore, watch: Watch) -> int:
    """How much SQLite's machine does to claim twenty events."""
    post(store, *range(20))
    with watch.at():
        assert len(claim(store)) == 20
    for each in store.list_events(POST, 10_000):
        if each["status"] == "claimed":
            store.ack("ship", each["id"])
    return int(watch.steps)


@pytest.mark.req("NEW-001")
def test_a_claim_costs_the_same_however_many_events_are_finished_or_waiting(
    store: EventStore, watch: Watch
) -> None:
    claim(store)
    empty = steps_of_a_claim(store, watch)

    finish(store, 300)

    assert steps_of_a_claim(store, watch) <= 1.2 * empty


@pytest.mark.req("NEW-001", "SQL-120")
def test_no_statement_of_a_claim_reads_a_whole_table_or_sorts(
    store: EventStore, watch: Watch
) -> None:
    post(store, 1)
    with watch.at():
        [event] = claim(store)
        store.start("ship", event.id, lease_ms=1000)
        store.renew("ship", event.id, lease_ms=1000)
        store.ack("ship", event.id)

    plan = [
        row[3]
        for cursor, sql, bindings in watch.seen
        if sql.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"))
        for row in cursor.connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)
    ]
    assert any("idx_claims_due" in step for step in plan)
    for step in plan:
        words = step.split()
        assert words[0] != "SCAN" or words[1] not in _LARGE, step
        assert "TEMP B-TREE" not in step, step
