"""What is stored when an event is announced, and what comes back."""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ontologia.clock import from_text, to_text
from ontologia.errors import DefinitionError, IntegrityError, InvalidValueError
from ontologia.schema.event import Event
from ontologia.schema.field import Field
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    DEAD,
    EVERY_EVENT_STORE,
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    claim,
    numbers,
    post,
)

Ask = Callable[[str], list[Any]]
OPERATIONS = {
    "enqueue": ["event", "namespace"],
    "claim": ["namespace", "handler_id", "session_id", "event_types", "limit", "lease_ms"],
    "ack": ["handler_id", "event_id"],
    "release": ["handler_id", "event_id"],
    "register_session": ["session_id", "namespace", "metadata"],
    "heartbeat": ["session_id"],
}
"""Those of the document, with what must be given, in this order."""


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-114", "SQL-116")
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_store_has_the_operations_of_the_document(event_store: EventStore, name: str) -> None:
    parameters = inspect.signature(getattr(event_store, name)).parameters.values()

    given = [each for each in parameters if each.default is each.empty]

    assert [each.name for each in given] == OPERATIONS[name]
    assert {each.kind for each in given} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.req("ONT-115", "ONT-124", "ONT-125", "ONT-126", "SQL-117", "SQL-123")
def test_an_event_is_one_row_with_its_fields_apart_from_what_the_store_knows(
    event_store: EventStore, ask: Ask, clock: ManualClock
) -> None:
    event = ParcelLost(number=7, remark="wet", priority=200)

    event_store.enqueue(event, POST)

    [row] = ask(
        "SELECT id, namespace, type, payload, created_at, priority, root_event_id, chain_depth, "
        "source, tenant_id, dedup_key FROM events"
    )
    now = to_text(clock.now())
    payload = '{"number":7,"remark":"wet"}'
    assert row == (event.id, POST, LOST, payload, now, 200, event.id, 0, None, None, None)
    assert (event.created_at, event.root_event_id, event.chain_depth) == (now, event.id, 0)
    assert "available_at" not in inspected(event_store, event)


def inspected(event_store: EventStore, event: Event) -> dict[str, Any]:
    found = event_store.inspect_event(str(event.id))
    assert found is not None
    return found


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-123")
def test_ids_are_uuids_of_version_7_that_only_grow(event_store: EventStore) -> None:
    ids = post(event_store, *range(50))

    assert {uuid.UUID(each).version for each in ids} == {7}
    assert ids == sorted(set(ids))


@EVERY_EVENT_STORE
@pytest.mark.req("SQL-123", "ONT-115")
def test_what_an_event_brings_along_is_kept(event_store: EventStore) -> None:
    event = ParcelPosted(number=1)
    event.id, event.root_event_id, event.chain_depth = "my id", "the first", 3
    event.created_at = "2020-02-02T02:02:02Z"

    event_store.enqueue(event, POST)

    [claimed] = claim(event_store)
    assert (claimed.id, claimed.root_event_id, claimed.chain_depth) == ("my id", "the first", 3)
    assert claimed.created_at == "2020-02-02T02:02:02.000000+00:00"


@pytest.mark.req("ONT-127")
def test_times_are_text_of_one_width_whose_order_is_that_of_time(
    event_store: EventStore, ask: Ask, clock: ManualClock
) -> None:
    post(event_store, 1, 2)  # the clock stands still between these
    clock.advance(seconds=0.5)
    post(event_store, 3)
    clock.advance(seconds=-3600)  # and goes back here
    post(event_store, 4)

    times = [row[0] for row in ask("SELECT created_at FROM events ORDER BY seq")]
    assert times == sorted(set(times))
    assert {len(each) for each in times} == {32}
    assert {from_text(each).utcoffset() for each in times} == {clock.now().utcoffset()}


@pytest.mark.req("SQL-124", "ONT-115")
def test_an_id_that_exists_is_refused_and_nothing_changes(
    event_store: EventStore, ask: Ask
) -> None:
    [first] = post(event_store, 1)
    again = ParcelPosted(number=2)
    again.id = first

    with pytest.raises(IntegrityError):
        event_store.enqueue(again, POST)

    assert ask("SELECT payload FROM events") == [('{"number":1}',)]
    assert numbers(claim(event_store)) == [1]


@pytest.mark.req("SQL-125")
def test_equal_events_have_equal_payloads_to_the_byte(event_store: EventStore, ask: Ask) -> None:
    event_store.enqueue(ParcelLost(number=1, remark="ü"), POST)
    event_store.enqueue(ParcelLost(remark="ü", number=1), POST)

    [[first], [second]] = ask("SELECT payload FROM events ORDER BY seq")
    assert first == second == '{"number":1,"remark":"ü"}'
    assert json.loads(first) == {"number": 1, "remark": "ü"}


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-128")
def test_a_claimed_event_is_its_class_again_with_its_five_attributes(
    event_store: EventStore, clock: ManualClock
) -> None:
    sent = ParcelLost(number=1, remark=None, priority=7)
    event_store.enqueue(sent, POST)

    [event] = claim(event_store, types=[LOST])

    assert type(event) is ParcelLost
    assert event.model_dump() == {"number": 1, "remark": None}
    metadata = (event.id, event.created_at, event.priority, event.root_event_id, event.chain_depth)
    assert metadata == (sent.id, to_text(clock.now()), 7, sent.id, 0)


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-171", "ONT-116")
def test_namespaces_do_not_see_each_other(event_store: EventStore) -> None:
    post(event_store, 1)
    [theirs] = post(event_store, 2, namespace=OTHER)

    assert numbers(claim(event_store)) == [1]
    assert numbers(claim(event_store, namespace=OTHER)) == [2]
    assert [each["id"] for each in event_store.list_events(OTHER)] == [theirs]
    assert event_store.inspect_event(theirs, POST) is None
    assert event_store.replay_event(POST, theirs) is None


@pytest.mark.req("NEW-065")
def test_a_payload_that_is_too_large_is_refused_with_both_numbers(
    open_events: Callable[..., EventStore],
) -> None:
    store = open_events(max_payload_bytes=40)
    fits = ParcelLost(number=1, remark="x" * 16)
    store.enqueue(fits, POST)  # 40 bytes exactly

    with pytest.raises(InvalidValueError, match=r"41 bytes .* is 40"):
        store.enqueue(ParcelLost(number=1, remark="x" * 17), POST)
    with pytest.raises(InvalidValueError, match=r"42 bytes"):  # bytes, not characters
        store.enqueue(ParcelLost(number=1, remark="ü" * 9), POST)
    with pytest.raises(InvalidValueError, match=r"41 bytes"):
        store.defer(ParcelLost(number=1, remark="x" * 17), POST, delay=1)

    assert [each["id"] for each in store.list_events(POST)] == [fits.id]


class NestedNote(Event):
    value: Field[list[Any]]


@pytest.mark.req("NEW-065")
def test_limits_hold_for_names_and_depth(event_store: EventStore) -> None:
    deep: list[Any] = []
    for _ in range(250):
        deep = [deep]

    with pytest.raises(InvalidValueError, match="deeper"):
        event_store.enqueue(NestedNote(value=deep), POST)
    for namespace in ("", "n" * 201, "a\0b", 5):
        with pytest.raises(InvalidValueError):
            event_store.enqueue(ParcelPosted(number=1), namespace)  # type: ignore[arg-type]

    assert event_store.list_namespaces() == []


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-115")
def test_what_is_no_event_is_refused(event_store: EventStore) -> None:
    with pytest.raises(TypeError, match="takes an event"):
        event_store.enqueue({"number": 1}, POST)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"'parcel\.unheard\.of'"):
        claim(event_store, types=[POSTED, "parcel.unheard.of"])

    assert event_store.list_consumers(POST) == []


@EVERY_EVENT_STORE
@pytest.mark.req("ONT-145")
def test_dead_letters_are_claimed_as_any_other_event(event_store: EventStore) -> None:
    assert claim(event_store, types=[DEAD]) == []
