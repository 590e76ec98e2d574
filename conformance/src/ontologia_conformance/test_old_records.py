"""What a store writes for itself goes when it is old: cancelled events, unheard words, sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    DEAD,
    OTHER,
    POST,
    POSTED,
    ParcelPosted,
    bury,
    claim,
    post,
)

WEEK = 7 * 24 * 3600
Ask = Callable[[str], list[Any]]


def beat(store: EventStore, name: str, event_type: str) -> None:
    """Write down that this consumer is being run."""
    consumer = store.consumers.register(POST, name, [event_type])
    store.heartbeat("s1", [consumer.id])


@pytest.mark.req("ONT-150")
def test_a_cancelled_event_that_was_meant_for_years_from_now_leaves_no_row_either(
    event_store: EventStore, clock: ManualClock, ask: Ask
) -> None:
    number = event_store.defer(ParcelPosted(number=1), POST, delay=500 * WEEK)
    event_store.defer(ParcelPosted(number=2), POST, delay=500 * WEEK)
    assert number is not None
    event_store.cancel_deferred(POST, number)
    clock.advance(seconds=2 * WEEK)

    event_store.collect_events(POST)

    assert ask("SELECT status FROM deferred_events") == [("scheduled",)]


@pytest.mark.req("ONT-150", "ONT-145")
def test_what_tells_of_dead_letters_is_collected_though_nobody_listens(
    event_store: EventStore, clock: ManualClock, ask: Ask
) -> None:
    [event_id] = post(event_store, 1)
    bury(event_store, event_id, clock)
    claim(event_store)  # hands out what there is, to nobody
    clock.advance(seconds=WEEK - 60)
    beat(event_store, "ship", POSTED)
    event_store.collect_events(POST)
    assert ask(f"SELECT COUNT(*) FROM events WHERE type = '{DEAD}'") == [(1,)]  # not old enough

    clock.advance(seconds=120)
    beat(event_store, "ship", POSTED)
    event_store.collect_events(POST)

    assert ask("SELECT COUNT(*) FROM events") == [(0,)]
    assert len(event_store.list_dead_letters(POST)) == 1


@pytest.mark.req("ONT-150", "ONT-145")
def test_what_tells_of_dead_letters_is_kept_for_somebody_who_listens(
    event_store: EventStore, clock: ManualClock
) -> None:
    claim(event_store, "mourn", types=[DEAD])
    [event_id] = post(event_store, 1)
    bury(event_store, event_id, clock)
    clock.advance(seconds=WEEK + 60)
    beat(event_store, "mourn", DEAD)

    event_store.collect_events(POST)

    [told] = claim(event_store, "mourn", types=[DEAD])
    assert told.event_id == event_id


@pytest.mark.req("ONT-173")
def test_sessions_silent_for_longer_than_the_retention_are_removed(
    event_store: EventStore, clock: ManualClock
) -> None:
    for session_id in ("silent", "beating"):
        event_store.register_session(session_id, POST, {})
    event_store.register_session("elsewhere", OTHER, {})
    clock.advance(seconds=WEEK)
    event_store.collect_events(POST)
    assert len(event_store.list_sessions(POST)) == 2  # so long, and not longer

    clock.advance(seconds=1)
    event_store.heartbeat("beating")
    event_store.collect_events(POST)

    assert [each["session_id"] for each in event_store.list_sessions(POST)] == ["beating"]
    assert len(event_store.list_sessions(OTHER)) == 1
