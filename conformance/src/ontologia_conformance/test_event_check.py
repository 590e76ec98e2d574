"""`check()` finds what breaks a rule of delivery, names that rule, and finds nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ontologia.store.events.check import RULES
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import claim, post

TABLES = ("incoming", "ready", "event_claims", "attempts", "dead_letters", "dedup", "events")
Change = Callable[[str], int]

LONG_AGO = "'2020-01-01T00:00:00.000000+00:00'"
LETTER = (
    "event_id, handler_id, namespace, failed_at, attempts, last_error, event_type, event_payload, "
    "root_event_id, chain_depth"
)
AN_EVENT = "WHERE event_id = '{id}'"
CLAIMED = AN_EVENT + " AND handler_id = 'ship'"

# Of each rule the ways to break it: which event, and what becomes of it.
BROKEN = [
    ("one_place", "ready", f"DELETE FROM ready {AN_EVENT}"),
    ("one_place", "incoming", f"DELETE FROM incoming {AN_EVENT}"),
    ("one_place", "acked", f"DELETE FROM event_claims {AN_EVENT}"),
    ("one_place", "leased", f"UPDATE event_claims SET due_at = NULL {CLAIMED}"),
    ("one_place", "ready", "INSERT INTO incoming(event_id) VALUES ('{id}')"),
    ("one_place", "started", "INSERT INTO incoming(event_id) VALUES ('{id}')"),
    ("one_place", "buried", "INSERT INTO incoming(event_id) VALUES ('{id}')"),
    ("due_while_leased", "leased", f"UPDATE event_claims SET due_at = {LONG_AGO} {CLAIMED}"),
    ("due_while_leased", "waiting", f"UPDATE event_claims SET due_at = lease_until {CLAIMED}"),
    ("nothing_due_when_finished", "acked", f"UPDATE event_claims SET due_at = lease_until {CLAIMED}"),
    ("nothing_due_when_finished", "buried", f"UPDATE event_claims SET due_at = lease_until {CLAIMED}"),
    ("one_ending", "buried", f"UPDATE event_claims SET ack_at = dead_lettered_at {CLAIMED}"),
    ("one_ending", "acked", f"UPDATE event_claims SET dead_lettered_at = ack_at {CLAIMED}"),
    ("claims_have_events", "acked", "DELETE FROM events WHERE id = '{id}'"),
    ("claims_have_events", "ready", "DELETE FROM events WHERE id = '{id}'"),
    ("claims_have_events", "incoming", "DELETE FROM events WHERE id = '{id}'"),
    ("dead_letters_are_claims", "buried",
     f"INSERT INTO dead_letters({LETTER}) SELECT {LETTER} FROM dead_letters {CLAIMED}"),
    ("attempts_are_counted", "waiting", f"UPDATE event_claims SET attempts = 0 {CLAIMED}"),
    ("attempts_are_counted", "buried", f"UPDATE event_claims SET attempts = 0 {CLAIMED}"),
    ("started_claims", "started", f"UPDATE event_claims SET started_at = NULL {CLAIMED}"),
    ("started_claims", "started", f"UPDATE event_claims SET read_commit = NULL {CLAIMED}"),
    ("started_claims", "leased", f"UPDATE event_claims SET read_commit = 0 {CLAIMED}"),
]  # fmt: skip


@pytest.fixture
def world(event_store: EventStore, clock: ManualClock, change: Change) -> Iterator[dict[str, str]]:
    """An event in each state there is; what the test did to them is wiped at the end."""
    states = ("acked", "buried", "waiting", "started", "leased", "ready")
    ids = dict(zip(states, post(event_store, *range(6)), strict=True))
    claim(event_store, limit=5)
    event_store.ack("ship", ids["acked"])
    event_store.start("ship", ids["buried"], lease_ms=1_000)
    event_store.claims.release(
        "ship", ids["buried"], error="no van", policy=event_store.policy, final=True
    )
    event_store.release("ship", ids["waiting"], error="no van yet")
    event_store.start("ship", ids["started"], lease_ms=60_000)
    claim(event_store, "bill", types=["parcel.lost"])  # a consumer that has nothing to do with it
    clock.advance(seconds=0.1)
    [ids["incoming"]] = post(event_store, 6)
    yield ids
    for table in TABLES:
        change(f"DELETE FROM {table}")


@pytest.mark.req("ONT-134")
def test_a_store_with_an_event_in_every_state_is_sound(
    event_store: EventStore, world: dict[str, str]
) -> None:
    assert len(world) == 7
    assert event_store.check() == []


@pytest.mark.req("ONT-134")
@pytest.mark.parametrize(
    ("rule", "which", "statement"),
    BROKEN,
    ids=[f"{rule}: {which}, {statement.split(' ')[0]}" for rule, which, statement in BROKEN],
)
def test_what_breaks_a_rule_is_reported_under_that_rule_alone(
    event_store: EventStore,
    world: dict[str, str],
    change: Change,
    rule: str,
    which: str,
    statement: str,
) -> None:
    assert change(statement.format(id=world[which])) == 1

    [found] = event_store.check()

    assert found.startswith(f"{RULES[rule]}: ")
    assert world[which] in found


def test_every_rule_is_seen_to_be_broken() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


@pytest.mark.req("ONT-144")
def test_an_operator_may_delete_dead_letters(
    event_store: EventStore, world: dict[str, str], change: Change
) -> None:
    assert change(f"DELETE FROM dead_letters WHERE event_id = '{world['buried']}'") == 1

    assert event_store.check() == []


@pytest.mark.req("ONT-134")
def test_each_row_that_breaks_a_rule_is_named(
    event_store: EventStore, world: dict[str, str], change: Change
) -> None:
    assert change("UPDATE event_claims SET ack_at = claimed_at, due_at = NULL") == 5

    found = event_store.check()

    assert len(found) == 1  # the other four are only acked
    assert world["buried"] in found[0]
    assert change("DELETE FROM events") == 8  # seven, and the one that told of the dead letter
    names = [each for each in event_store.check() if each.startswith(RULES["claims_have_events"])]
    assert len(names) == 5 + 1 + 1  # claims, ready, incoming
