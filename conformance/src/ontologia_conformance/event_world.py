"""Events that the tests of the event store announce, and short ways to say what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ontologia.schema.event import Event
from ontologia.schema.field import Field
from ontologia.store.events.store import EventStore
from ontologia_conformance.backends import NAMES

# Not beside the marks of `backends`: that is imported before the tiers have registered theirs.
EVERY_EVENT_STORE = pytest.mark.parametrize(
    "backend", [*NAMES, "s3"], indirect=True, scope="session"
)
"""A mark for tests of what a store of events alone promises, too."""
EVERY_EVENT_STORE_AT_LENGTH = pytest.mark.parametrize(
    "backend",
    [*NAMES, pytest.param("s3", marks=pytest.mark.thorough)],
    indirect=True,
    scope="session",
)
"""The same; that store is tested in `make test-all` alone."""

POST = "post"
OTHER = "another namespace"
LEASE = 30_000


class ParcelPosted(Event):
    number: Field[int]


class ParcelLost(Event):
    number: Field[int]
    remark: Field[str | None] = Field(default=None)


POSTED = ParcelPosted.__event_type__
LOST = ParcelLost.__event_type__
DEAD = "event.dead_letter"


def post(store: EventStore, *numbers: int, namespace: str = POST, **given: Any) -> list[str]:
    """Enqueue a ParcelPosted for each number; their ids."""
    events = [ParcelPosted(number=number, **given) for number in numbers]
    for event in events:
        store.enqueue(event, namespace)
    return [str(event.id) for event in events]


def claim(
    store: EventStore,
    handler: str = "ship",
    *,
    session: str = "s1",
    types: Sequence[str] = (POSTED,),
    limit: int = 100,
    lease_ms: int = LEASE,
    namespace: str = POST,
) -> list[Any]:
    """What a session claims for a handler."""
    return store.claim(namespace, handler, session, list(types), limit, lease_ms)


def numbers(events: Sequence[Any]) -> list[int]:
    return [event.number for event in events]


def claim_of(store: EventStore, event_id: str | None, handler: str = "ship") -> dict[str, Any]:
    """The claim row of a handler; {} if there is none."""
    shown = store.inspect_event(str(event_id))
    assert shown is not None
    found = [each for each in shown["claims"] if each["handler_id"] == handler]
    return found[0] if found else {}


def bury(store: EventStore, event_id: str, clock: Any, handler: str = "ship") -> int:
    """Fail until the event is buried, and hand back what else was claimed; how often it came."""
    for delivered in range(20):
        if claim_of(store, event_id, handler).get("dead_lettered_at"):
            return delivered
        clock.advance(seconds=31)
        for event in claim(store, handler):
            if event.id == event_id:
                store.release(handler, event_id, error="OSError: no van")
            else:
                store.abandon(handler, str(event.id))
    raise AssertionError(f"{event_id} is not buried")
