"""What operators see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ontologia.clock import to_text
from ontologia.errors import InvalidValueError
from ontologia.runtime.session import Session, core_of
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    EVERY_EVENT_STORE_AT_LENGTH,
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    bury,
    claim,
    claim_of,
    numbers,
    post,
)

Ask = Callable[[str], list[Any]]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-116")
def test_namespaces_are_counted(event_store: EventStore, clock: ManualClock) -> None:
    ids = post(event_store, 1, 2, 3, 4)
    claim(event_store, limit=3)
    event_store.ack("ship", ids[0])
    event_store.release("ship", ids[1])  # in backoff: still pending
    event_store.register_session("s1", POST, {})
    event_store.register_session("s2", OTHER, {})

    assert event_store.list_namespaces() == [
        {"namespace": OTHER, "sessions": 1, "pending": 0, "unsubscribed": 0, "dead_letters": 0},
        {"namespace": POST, "sessions": 1, "pending": 2, "unsubscribed": 0, "dead_letters": 0},
    ]

    bury(event_store, ids[1], clock)
    counts = event_store.list_namespaces()[1]
    assert counts["dead_letters"] == 1
    assert counts["unsubscribed"] == 1  # what says that there is a dead letter


@pytest.mark.req("SQL-138", "SQL-140")
def test_events_without_a_subscription_are_pending_until_the_namespace_has_a_consumer(
    event_store: EventStore, open_session: Callable[..., Session], clock: ManualClock
) -> None:
    inventory = core_of(open_session(namespace=OTHER)).store.inventory

    def counted() -> list[Any]:
        _, namespace = event_store.list_namespaces()
        listed = Counter(each["status"] for each in event_store.list_events(POST))
        now = to_text(clock.now())
        assert listed == inventory.count_events(now)[POST]
        waiting = [
            (row["type"], row["handler"], row["waiting"], row["unsubscribed"])
            for row in event_store.activity.stats(POST, timedelta(minutes=1))
        ]
        return [namespace["pending"], namespace["unsubscribed"], dict(listed), waiting]

    event_store.enqueue(ParcelLost(number=1), POST)
    assert counted() == [1, 0, {"pending": 1}, [(LOST, None, 1, 0)]]

    event_store.consumers.register(POST, "ship", [POSTED])
    post(event_store, 2)
    statuses = {"pending": 1, "unsubscribed": 1}
    assert counted() == [1, 1, statuses, [(LOST, None, 0, 1), (POSTED, "ship", 1, 0)]]

    event_store.consumers.register(POST, "bus", ["*"])
    assert counted()[:3] == [2, 0, {"pending": 2}]


@EVERY_EVENT_STORE_AT_LENGTH
def test_of_the_sessions_of_a_namespace_those_that_are_alive_are_counted(
    event_store: EventStore, clock: ManualClock
) -> None:
    for name in ("silent", "ended", "alive"):
        event_store.register_session(name, POST, {})
    event_store.register_session("gone", OTHER, {})
    event_store.end_session("ended")
    clock.advance(seconds=60)
    event_store.heartbeat("alive")

    assert [each["sessions"] for each in event_store.list_namespaces()] == [1, 2]
    clock.advance(seconds=1)
    assert [each["sessions"] for each in event_store.list_namespaces()] == [0, 1]

    listed = event_store.list_sessions(POST)
    alive = [s["session_id"] for s in listed if not (s["is_dead"] or s["stopped_at"])]
    assert alive == ["alive"]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-140", "SQL-126", "NEW-027")
def test_events_are_listed_by_urgency_with_what_became_of_them(
    event_store: EventStore, clock: ManualClock
) -> None:
    pending, held, failed, acked, dead = post(event_store, 1, 2, 3, 4, 5)
    event_store.enqueue(ParcelLost(number=6, priority=300), POST)
    [consumer] = [event_store.consumers.register(POST, "ship", [POSTED])]
    claim(event_store)
    bury(event_store, dead, clock)
    clock.advance(seconds=31)
    claim(event_store)
    event_store.abandon("ship", pending)
    event_store.release("ship", failed, error="x")
    event_store.ack("ship", acked)

    listed = event_store.list_events(POST)

    assert consumer.name == "ship"
    assert listed[0] == {
        "id": listed[0]["id"],
        "type": LOST,
        "created_at": listed[0]["created_at"],
        "priority": 300,
        "status": "unsubscribed",
        "handler": None,
    }
    status = {each["id"]: (each["status"], each["handler"]) for each in listed}
    assert status[held] == ("claimed", "ship")
    assert status[acked] == ("acked", "ship")
    assert status[dead] == ("dead_lettered", "ship")
    assert status[pending] == ("pending", None)
    assert status[failed][0] == "pending"
    assert [each["id"] for each in listed[1:6]] == [pending, held, failed, acked, dead]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-140")
def test_the_gravest_claim_gives_an_event_its_status(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)

    def status() -> tuple[str, str]:
        [listed] = [each for each in event_store.list_events(POST) if each["id"] == event_id]
        return listed["status"], listed["handler"]

    claim(event_store, "a")
    assert status() == ("claimed", "a")
    claim(event_store, "b")
    assert status() == ("claimed", "a, b")
    event_store.ack("b", event_id)
    assert status() == ("acked", "b")
    clock.advance(seconds=30)  # at the very end the lease of `a` is over
    bury(event_store, event_id, clock, "a")
    assert status() == ("dead_lettered", "a")


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-140")
def test_a_listing_has_a_limit(event_store: EventStore) -> None:
    ids = post(event_store, 1, 2, 3)

    assert [each["id"] for each in event_store.list_events(POST, 2)] == ids[:2]
    assert event_store.list_events(POST, 0) == []
    assert event_store.list_events("nowhere") == []
    for limit in (-1, True, 1.5, 2**31):
        with pytest.raises(InvalidValueError):
            event_store.list_events(POST, limit)  # type: ignore[arg-type]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-116", "SQL-121")
def test_dead_letters_are_listed_the_newest_first(
    event_store: EventStore, clock: ManualClock
) -> None:
    first, second = post(event_store, 1, 2)
    bury(event_store, first, clock)
    bury(event_store, second, clock)

    listed = event_store.list_dead_letters(POST)

    assert [each["event_id"] for each in listed] == [second, first]
    assert listed[0] == {
        "event_id": second,
        "type": POSTED,
        "handler": "ship",
        "attempts": 10,
        "last_error": "OSError: no van",
        "failed_at": to_text(clock.now()),
    }
    assert event_store.list_dead_letters(POST, limit=1) == listed[:1]
    assert event_store.list_dead_letters(OTHER) == []


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-139")
def test_inspecting_shows_an_event_with_all_its_claims(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store, "bill", session="s1")
    event_store.ack("bill", event_id)
    claim(event_store, "ship", session="s2")
    event_store.start("ship", event_id, lease_ms=1000)
    event_store.release("ship", event_id, error="OSError: no van")

    shown = event_store.inspect_event(event_id, POST)

    assert shown is not None
    assert (shown["id"], shown["payload"], shown["type"]) == (event_id, {"number": 1}, POSTED)
    billed, shipped = shown["claims"]
    now = to_text(clock.now())
    assert (billed["handler_id"], billed["session_id"], billed["ack_at"]) == ("bill", "s1", now)
    assert (shipped["handler_id"], shipped["attempts"]) == ("ship", 1)
    assert shipped["last_error"] == "OSError: no van"
    assert shipped["lease_until"] == now < shipped["available_at"]
    [attempt] = shown["attempts"]
    assert attempt == {
        "handler_id": "ship",
        "attempt": 1,
        "started_at": now,
        "ended_at": now,
        "read_commit": 0,
        "outcome": "failed",
        "error": "OSError: no van",
        "traceback": None,
    }


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-139")
def test_inspecting_what_is_not_there_shows_nothing(event_store: EventStore) -> None:
    [event_id] = post(event_store, 1)

    assert event_store.inspect_event(event_id, OTHER) is None
    assert event_store.inspect_event("nobody's id") is None


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-138")
def test_a_replayed_event_is_a_new_one_of_its_own_chain(
    event_store: EventStore, clock: ManualClock
) -> None:
    event = ParcelPosted(number=1, priority=7)
    event.root_event_id, event.chain_depth = "the first", 3
    event_store.enqueue(event, POST)
    claim(event_store)
    event_store.ack("ship", str(event.id))
    before = event_store.inspect_event(str(event.id))
    clock.advance(seconds=1)

    new_id = event_store.replay_event(POST, str(event.id))

    [again] = claim(event_store)
    assert again.id == new_id != event.id
    assert (numbers([again]), again.priority) == ([1], 7)
    assert (again.root_event_id, again.chain_depth) == (new_id, 0)
    assert again.created_at == to_text(clock.now())
    assert event_store.inspect_event(str(event.id)) == before
    assert event_store.replay_event(POST, "nobody's id") is None


@EVERY_EVENT_STORE_AT_LENGTH
def test_a_claim_nobody_made_is_no_row(event_store: EventStore) -> None:
    [event_id] = post(event_store, 1)

    event_store.ack("ship", event_id)
    event_store.release("ship", event_id)

    assert claim_of(event_store, event_id) == {}
