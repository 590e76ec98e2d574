"""Consumers: they appear, are paused, and are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ontologia import codec
from ontologia.clock import to_text
from ontologia.errors import ConsumerBusyError, HandlerError, InvalidValueError
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    DEAD,
    EVERY_EVENT_STORE_AT_LENGTH,
    LEASE,
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    claim,
    claim_of,
    numbers,
    post,
)

Open = Callable[..., EventStore]


def consumer(store: EventStore, name: str = "ship", namespace: str = POST) -> dict[str, Any]:
    found = [each for each in store.list_consumers(namespace) if each["name"] == name]
    return found[0] if found else {}


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-140", "NEW-030")
def test_a_consumer_that_comes_later_gets_what_is_retained_once(
    open_events: Open, clock: ManualClock
) -> None:
    store = open_events()
    post(store, 1, 2, 3)
    assert len(claim(store)) == 3  # handed out
    clock.advance(seconds=1)
    assert store.cleanup_events(POST, clock.now()) == 0  # leased
    post(store, 4)  # still incoming

    assert numbers(claim(store, "bill")) == [1, 2, 3, 4]
    assert claim(open_events(), "bill") == []


@pytest.mark.req("ONT-140")
@pytest.mark.parametrize("types", [[POSTED], ["*"]])
def test_what_is_not_handed_out_yet_waits_in_one_place_only(
    event_store: EventStore, types: list[str]
) -> None:
    post(event_store, 1)

    event_store.consumers.register(POST, "ship", types)

    assert event_store.check() == []
    assert consumer(event_store)["ready"] == 0
    assert numbers(claim(event_store)) == [1]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("ONT-140")
def test_a_type_added_later_brings_its_retained_events(event_store: EventStore) -> None:
    event_store.enqueue(ParcelLost(number=1), POST)
    post(event_store, 2)
    assert numbers(claim(event_store)) == [2]

    assert numbers(claim(event_store, types=[POSTED, LOST])) == [1]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_consumer_that_starts_now_skips_what_is_retained(event_store: EventStore) -> None:
    post(event_store, 1)
    claim(event_store, "bill")  # handed out
    post(event_store, 2)  # incoming
    event_store.consumers.register(POST, "ship", [POSTED], session_id="s1", start="now")
    post(event_store, 3)

    assert numbers(claim(event_store)) == [3]
    assert numbers(claim(event_store, "bill")) == [2, 3]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_consumer_of_everything_gets_every_type_once(event_store: EventStore) -> None:
    post(event_store, 1)
    bus = event_store.consumers.register(POST, "bus", ["*", POSTED])
    event_store.enqueue(ParcelLost(number=2), POST)
    post(event_store, 3)
    post(event_store, 4, namespace=OTHER)

    got = event_store.claims.claim(
        bus, ["*"], session_id="s1", limit=9, lease_ms=9, policy=event_store.policy
    )

    assert [codec.decode(each.event.payload)["number"] for each in got] == [1, 2, 3]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_consumers_are_listed_with_what_waits_for_each(
    event_store: EventStore, clock: ManualClock
) -> None:
    ids = post(event_store, 1, 2, 3, 4)
    claim(event_store, limit=3)
    event_store.release("ship", ids[0])
    event_store.ack("ship", ids[1])
    claim(event_store, "bill", types=[POSTED, LOST], limit=1)

    assert consumer(event_store) == {
        "name": "ship",
        "last_seen_at": to_text(clock.now()),
        "paused_at": None,
        "ready": 1,
        "claimed": 1,
        "backoff": 1,
        "types": [POSTED],
    }
    assert [each["name"] for each in event_store.list_consumers(POST)] == ["bill", "ship"]
    assert consumer(event_store, "bill")["types"] == [LOST, POSTED]
    assert event_store.list_consumers(OTHER) == []


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-027")
def test_a_paused_consumer_gets_nothing_until_it_is_resumed(
    open_events: Open, clock: ManualClock
) -> None:
    store = open_events()
    claim(store)
    post(store, 1)

    assert store.pause(POST, "ship") is True

    assert consumer(store)["paused_at"] == to_text(clock.now())
    assert claim(store) == []
    assert claim(open_events()) == []  # a pause is stored
    assert numbers(claim(store, "bill")) == [1]
    assert store.resume(POST, "ship") is True
    assert consumer(store)["paused_at"] is None
    assert numbers(claim(store)) == [1]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-027")
def test_only_a_consumer_that_is_there_can_be_paused(event_store: EventStore) -> None:
    claim(event_store, namespace=OTHER)

    assert event_store.pause(POST, "ship") is False
    assert event_store.resume(POST, "ship") is False
    assert event_store.pause(OTHER, "ship") is True


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-027")
def test_what_a_paused_consumer_holds_it_may_still_end(
    event_store: EventStore, clock: ManualClock
) -> None:
    first, second = post(event_store, 1, 2)
    claim(event_store)
    event_store.pause(POST, "ship")

    event_store.ack("ship", first)
    event_store.release("ship", second)

    clock.advance(seconds=60)
    assert claim(event_store) == []
    event_store.resume(POST, "ship")
    assert numbers(claim(event_store)) == [2]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_forgotten_consumer_is_gone_with_what_waits_for_it(
    open_events: Open, clock: ManualClock
) -> None:
    store = open_events(event_max_attempts=1)
    ids = post(store, 1, 2, 3, 4)
    claim(store, limit=3)
    store.ack("ship", ids[0])
    store.release("ship", ids[1])  # buried at once
    with pytest.raises(ConsumerBusyError):  # the third is being worked on
        store.forget(POST, "ship")
    clock.advance(seconds=LEASE / 1000)

    assert store.forget(POST, "ship") is True

    assert store.list_consumers(POST) == []
    assert store.forget(POST, "ship") is False
    shown = [store.inspect_event(each) for each in ids]
    assert [len(each["claims"]) for each in shown if each] == [
        1,
        1,
        0,
        0,
    ]  # what ended is on record
    assert claim(store, "tell", types=[DEAD]) != []
    # Under the same name it begins again with what it has not finished.
    assert numbers(claim(store)) == [3, 4]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_consumer_forgotten_elsewhere_registers_again(open_events: Open) -> None:
    store, another = open_events(), open_events()
    claim(store)
    another.forget(POST, "ship")
    post(store, 1)

    assert numbers(claim(store)) == [1]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_consumer_that_a_live_session_runs_is_not_forgotten(
    event_store: EventStore, clock: ManualClock
) -> None:
    claim(event_store)
    event_store.register_session("s1", POST, {"consumers": ["bill", "ship"]})
    event_store.register_session("s2", POST, {"consumers": ["bill"]})
    event_store.register_session("s3", OTHER, {"consumers": ["ship"]})

    with pytest.raises(ConsumerBusyError) as busy:
        event_store.forget(POST, "ship")

    assert busy.value.sessions == ["s1"]
    clock.advance(seconds=60)
    with pytest.raises(ConsumerBusyError):  # silent, but not for longer than session_ttl_ms
        event_store.forget(POST, "ship")
    clock.advance(seconds=0.001)
    assert event_store.forget(POST, "ship") is True


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_session_that_ended_holds_no_consumer(event_store: EventStore) -> None:
    claim(event_store)
    event_store.register_session("s1", POST, {"consumers": ["ship"]})

    event_store.end_session("s1")

    assert event_store.forget(POST, "ship") is True


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-065")
@pytest.mark.parametrize("name", ["", "n" * 501, "a\0b"])
def test_a_consumer_needs_a_name(event_store: EventStore, name: str) -> None:
    with pytest.raises((HandlerError, InvalidValueError)):
        claim(event_store, name)

    assert event_store.list_consumers(POST) == []


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_forgotten_consumer_that_comes_back_has_no_attempts_on_record(
    event_store: EventStore, clock: ManualClock
) -> None:
    [event_id] = post(event_store, 1)
    claim(event_store)
    event_store.release("ship", event_id, error="OSError: no van")
    clock.advance(seconds=120)
    assert event_store.forget(POST, "ship") is True

    assert numbers(claim(event_store)) == [1]

    assert claim_of(event_store, event_id)["attempts"] == 0
    assert event_store.check() == []


# -- renamed --------------------------------------------------------------------------------------

FINISHED = ("acked", "buried")
CLAIMED = ("released", "failed", "leased", *FINISHED)


def bring(store: EventStore, name: str, namespace: str, state: str, event_id: str) -> None:
    """Let a consumer bring its one event into a state, by a session that ends then."""
    session = f"{namespace}: {name}"
    store.register_session(session, namespace, {"consumers": [name]})
    if state != "untouched":
        assert len(claim(store, name, session=session, namespace=namespace)) == 1
        assert store.start(name, event_id, lease_ms=LEASE)
    if state == "released":
        store.abandon(name, event_id)
    elif state == "failed":
        store.release(name, event_id, error="OSError: no van")
    elif state == "acked":
        store.ack(name, event_id)
    elif state == "buried":
        policy = store.policy
        store.claims.release(name, event_id, error="no such street", policy=policy, final=True)
    store.end_session(session)


def state_of(store: EventStore, name: str, namespace: str, event_id: str) -> str:
    """What `bring` may have done."""
    found, listed = claim_of(store, event_id, name), consumer(store, name, namespace)
    if listed["ready"]:
        return "released" if found else "untouched"
    if found["dead_lettered_at"] or found["ack_at"]:
        return "buried" if found["dead_lettered_at"] else "acked"
    return "leased" if found["lease_token"] else "failed"


@pytest.mark.req("NEW-030")
def test_of_an_event_that_was_claimed_under_both_names_the_finished_claim_stays_else_the_new_one(
    event_store: EventStore, ask: Callable[..., list[Any]]
) -> None:
    """Every state under the old name with every state under the new one."""
    got, wanted = {}, {}
    for old in ("untouched", *CLAIMED):
        for new in ("untouched", *CLAIMED):
            place = f"{old}, {new}"
            for name in ("ship", "send"):
                event_store.consumers.register(place, name, [POSTED])
            [event_id] = post(event_store, 1, namespace=place)
            claim(event_store, "bill", namespace=place)  # handed out
            bring(event_store, "ship", place, old, event_id)
            bring(event_store, "send", place, new, event_id)

            event_store.consumers.register(
                place, "send", [POSTED], afresh=True, formerly=["before", "ship"]
            )

            of_new = new in FINISHED or (old not in FINISHED and new in CLAIMED)
            state, name = (new, "send") if of_new else (old, "ship")
            shown = event_store.inspect_event(event_id)
            assert shown is not None
            got[place] = (
                state_of(event_store, "send", place, event_id),
                [each["session_id"] for each in shown["claims"] if each["handler_id"] != "bill"],
                {each["handler_id"] for each in [*shown["claims"], *shown["attempts"]]},
                len(shown["attempts"]),
                len(event_store.list_dead_letters(place)),
                [each["name"] for each in event_store.list_consumers(place)],
            )
            wanted[place] = (
                state,
                [] if state == "untouched" else [f"{place}: {name}"],
                {"bill"} if state == "untouched" else {"bill", "send"},
                int(state in ("failed", "buried")),
                int(state == "buried"),
                ["bill", "send"],
            )
    assert got == wanted
    assert {each[0] for each in ask("SELECT handler_id FROM dead_letters")} == {"send"}
    assert event_store.check() == []


@pytest.mark.req("NEW-030", "NEW-031")
def test_a_renamed_consumer_goes_on_where_it_was_under_its_old_name(
    open_events: Open, clock: ManualClock, direct: Callable[..., list[Any]]
) -> None:
    store = open_events(event_max_attempts=3)
    store.register_session("s1", POST, {"consumers": ["ship"]})
    acked, failed, began, waits = post(store, 1, 2, 3, 4)
    [elsewhere] = post(store, 5, namespace=OTHER)
    assert numbers(claim(store, limit=3)) == [1, 2, 3]
    assert numbers(claim(store, namespace=OTHER)) == [5]
    store.claims.release("ship", elsewhere, error="no van", policy=store.policy, final=True)
    store.ack("ship", acked)
    store.release("ship", failed, error="OSError: no van")
    store.start("ship", began, lease_ms=LEASE)
    store.pause(POST, "ship")
    store.end_session("s1")
    post(store, 6)  # incoming

    store.consumers.register(POST, "send", [POSTED], formerly=["ship"])
    store.consumers.register(POST, "send", [POSTED], formerly=["ship"], afresh=True)
    open_events().consumers.register(POST, "send", [POSTED], formerly=["ship"])

    assert [each["name"] for each in store.list_consumers(POST)] == ["send"]
    assert consumer(store, "send")["paused_at"] is not None
    assert claim(store, "send") == []
    store.resume(POST, "send")
    assert numbers(claim(store, "send")) == [4, 6]
    clock.advance(seconds=LEASE / 1000)
    assert numbers(claim(store, "send")) == [2, 3, 4, 6]
    # A lease that ran out counts for the consumer, by whichever name it was given.
    attempts = [claim_of(store, each, "send")["attempts"] for each in (failed, began, waits)]
    assert attempts == [1, 1, 0]
    assert consumer(store, "ship", OTHER)["types"] == [POSTED]
    assert [each[0] for each in direct("SELECT handler_id FROM dead_letters")] == ["ship"]


@pytest.mark.req("NEW-030")
def test_a_name_that_a_live_session_runs_is_not_adopted(
    event_store: EventStore, clock: ManualClock
) -> None:
    event_store.register_session("s1", POST, {"consumers": ["ship"]})
    [event_id] = post(event_store, 1)
    claim(event_store, session="s2")
    event_store.ack("ship", event_id)

    with pytest.raises(ConsumerBusyError, match="not adopted") as busy:
        event_store.consumers.register(POST, "send", [POSTED], formerly=["ship"])

    assert busy.value.sessions == ["s1"]
    assert [each["name"] for each in event_store.list_consumers(POST)] == ["ship"]
    clock.advance(seconds=60.001)
    event_store.consumers.register(POST, "send", [POSTED], formerly=["ship"])
    assert claim(event_store, "send") == []
    assert claim_of(event_store, event_id, "send")["ack_at"] is not None


@pytest.mark.req("NEW-030")
def test_what_a_forgotten_consumer_had_finished_is_adopted_too(event_store: EventStore) -> None:
    [acked, _] = post(event_store, 1, 2)
    claim(event_store, limit=1)
    event_store.ack("ship", acked)
    event_store.forget(POST, "ship")

    event_store.consumers.register(POST, "send", [POSTED], formerly=["ship"])

    assert numbers(claim(event_store, "send")) == [2]


@pytest.mark.req("NEW-030")
def test_a_renamed_consumer_keeps_its_old_subscriptions(event_store: EventStore) -> None:
    event_store.enqueue(ParcelLost(number=1), POST)
    event_store.consumers.register(POST, "ship", [LOST])

    event_store.consumers.register(POST, "send", [POSTED], formerly=["ship"], start="now")

    post(event_store, 2)
    assert consumer(event_store, "send")["types"] == [LOST, POSTED]
    assert numbers(claim(event_store, "send", types=[LOST, POSTED])) == [1, 2]


@EVERY_EVENT_STORE_AT_LENGTH
@pytest.mark.req("NEW-030")
def test_a_lease_of_a_dead_session_keeps_nobody_from_forgetting_its_consumer(
    event_store: EventStore,
) -> None:
    post(event_store, 1)
    event_store.register_session("s1", POST, {"consumers": ["ship"]})
    claim(event_store)
    event_store.end_session("s1")

    assert event_store.forget(POST, "ship") is True
