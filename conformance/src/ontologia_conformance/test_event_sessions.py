"""Sessions, as the event store writes them down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ontologia.clock import to_text
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import EVERY_EVENT_STORE_AT_LENGTH, OTHER, POST

Ask = Callable[[str], list[Any]]


@pytest.mark.req("ONT-120", "SQL-135", "SQL-122")
def test_a_session_registered_again_keeps_its_start(
    event_store: EventStore, clock: ManualClock, ask: Ask
) -> None:
    event_store.register_session("s1", POST, {"hostname": "h", "pid": 1})
    started = to_text(clock.now())
    clock.advance(seconds=5)

    event_store.register_session("s1", OTHER, {"hostname": "h", "pid": 2})

    rows = ask("SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM sessions")
    now = to_text(clock.now())
    assert rows == [("s1", OTHER, started, now, '{"hostname":"h","pid":2}')]
    [listed] = event_store.list_sessions(OTHER)
    assert (listed["hostname"], listed["pid"], listed["is_dead"]) == ("h", 2, False)


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-120", "SQL-136", "SQL-137")
def test_a_session_is_dead_when_it_was_silent_for_longer_than_its_ttl(
    event_store: EventStore, clock: ManualClock
) -> None:
    event_store.register_session("s1", POST, {"a": 1})
    clock.advance(seconds=1)
    event_store.heartbeat("s1")
    event_store.heartbeat("unknown")

    clock.advance(seconds=60)
    [alive] = event_store.list_sessions(POST)
    clock.advance(seconds=0.000001)
    [dead] = event_store.list_sessions(POST)

    assert (alive["is_dead"], dead["is_dead"]) == (False, True)
    assert dead["last_heartbeat"] > dead["started_at"]
    assert dead["metadata"] == {"a": 1}


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("SQL-137")
def test_a_session_that_ended_is_not_dead(event_store: EventStore, clock: ManualClock) -> None:
    event_store.register_session("s1", POST, {"a": [1, 2.5]})
    event_store.end_session("s1")
    clock.advance(seconds=3600)

    [ended] = event_store.list_sessions(POST)

    assert ended["is_dead"] is False
    assert ended["stopped_at"] == ended["last_heartbeat"]
    assert ended["metadata"]["a"] == [1, 2.5]
