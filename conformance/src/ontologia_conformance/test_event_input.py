"""What callers may give an event store, and what is refused before it reaches a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ontologia.errors import InvalidValueError
from ontologia.store.events.store import EventStore
from ontologia_conformance.event_world import (
    EVERY_EVENT_STORE_AT_LENGTH,
    POST,
    ParcelPosted,
    claim,
    numbers,
    post,
)

BAD_TEXT = ["", "a\0b", "\ud800", 5, "x" * 1_000]


def _enqueue(store: EventStore, **metadata: Any) -> None:
    event = ParcelPosted(number=1)
    for name, value in metadata.items():
        setattr(event, name, value)
    store.enqueue(event, POST)


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-065", "ONT-115")
@pytest.mark.parametrize("name", ["id", "root_event_id"])
@pytest.mark.parametrize("value", BAD_TEXT, ids=lambda value: repr(value)[:8])
def test_an_event_that_brings_a_name_no_database_can_keep_is_refused(event_store, name, value):
    with pytest.raises(InvalidValueError, match="id"):
        _enqueue(event_store, **{name: value})

    assert event_store.list_events(POST) == []


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-065")
@pytest.mark.parametrize("name", ["priority", "chain_depth"])
@pytest.mark.parametrize("value", ["x", 2**31, -(2**31) - 1, 1.5, None, True])
def test_an_event_that_brings_a_number_that_is_none_is_refused(event_store, name, value):
    with pytest.raises(InvalidValueError, match=f"{name} is a whole number"):
        _enqueue(event_store, **{name: value})

    assert event_store.list_events(POST) == []


@pytest.mark.req("NEW-065")
@pytest.mark.parametrize("value", BAD_TEXT, ids=lambda value: repr(value)[:8])
def test_names_of_namespaces_consumers_and_sessions_are_looked_at(event_store, value):
    post(event_store, 1)
    calls = [
        lambda: event_store.enqueue(ParcelPosted(number=1), value),
        lambda: event_store.defer(ParcelPosted(number=1), value, delay=1),
        lambda: event_store.register_session(value, POST, {}),
        lambda: event_store.register_session("s", value, {}),
        lambda: claim(event_store, namespace=value),
        lambda: claim(event_store, value),
        lambda: claim(event_store, session=value),
    ]

    for call in calls:
        with pytest.raises(InvalidValueError):
            call()

    assert numbers(claim(event_store)) == [1]


@pytest.mark.req("NEW-065")
def test_numbers_that_no_call_can_mean_are_refused_or_find_nothing(event_store):
    post(event_store, 1)
    for lease_ms in (0, -1, 10**30, "5", True, float("nan")):
        with pytest.raises(InvalidValueError, match="lease_ms"):
            claim(event_store, lease_ms=lease_ms)
    for limit in (-1, 2**70, "5", True):
        with pytest.raises(InvalidValueError, match="limit"):
            event_store.list_dead_letters(POST, limit)
        with pytest.raises(InvalidValueError, match="limit"):
            event_store.list_events(POST, limit)
    with pytest.raises(InvalidValueError, match="old"):
        event_store.cleanup_events(POST, timedelta(days=10**7))

    assert event_store.cancel_deferred(POST, 2**70) is False
    assert numbers(claim(event_store, limit=2**70)) == [1]


@pytest.mark.req("NEW-030")
def test_a_consumer_of_more_types_from_now_on_keeps_what_waits_for_it(event_store):
    post(event_store, 1, 2)
    claim(event_store, "late", limit=1)

    event_store.consumers.register(POST, "late", ["*"], start="now")

    assert numbers(claim(event_store, "late")) == [2]
