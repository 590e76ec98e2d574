"""Events whose class has changed since they were stored: versions, upgraders and former types."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ontologia import Event, Field, upgrader
from ontologia.errors import DefinitionError
from ontologia.runtime.operator import ANY, Operator
from ontologia.schema import upgraders as registry
from ontologia.store.events.store import EventStore
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import EVERY_EVENT_STORE, POST, claim

FARE = "fare.agreed"


@pytest.fixture(autouse=True)
def no_upgraders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test registers its own."""
    monkeypatch.setattr(registry, "_registered", {})


class Fare(Event, name=FARE):
    cents: Field[int]


class Fare2(Event, name=FARE, version=2):
    amount: Field[float]


class Fare3(Event, name=FARE, version=3):
    amount: Field[float]
    currency: Field[str]


class Ticket(Event, name="ticket.sold", version=2, formerly=["ticket.made", "ticket.printed"]):
    seat: Field[str]


class TicketMade(Event, name="ticket.made.before"):
    """Is stored under its type by `made`: that type must be of no class of this process."""

    row: Field[int]


def current(cls: type[Event]) -> type[Event]:
    """Take this class for the one that was defined last."""
    cls._defined()
    return cls


def in_euros(fields: dict[str, Any]) -> dict[str, Any]:
    return {"amount": fields.pop("cents") / 100, **fields}


def with_currency(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"currency": "EUR"}


def as_seat(fields: dict[str, Any]) -> dict[str, Any]:
    return {"seat": f"row {fields['row']}"}


def put(store: EventStore, event: Event) -> str:
    store.enqueue(event, POST)
    return str(event.id)


def made(store: EventStore, row: int, event_type: str = "ticket.made") -> str:
    """Store an event under a type that its class does not have any more."""
    event = TicketMade(row=row)
    TicketMade.__event_type__, own = event_type, TicketMade.__event_type__
    try:
        return put(store, event)
    finally:
        TicketMade.__event_type__ = own


def payload(store: EventStore, event_id: str) -> Any:
    shown = store.inspect_event(event_id)
    assert shown is not None
    return shown["payload"]


def last_error(store: EventStore) -> str:
    [letter] = store.list_dead_letters(POST)
    return str(letter["last_error"])


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-150")
def test_a_payload_carries_the_version_of_its_class_unless_that_is_1(
    event_store: EventStore,
) -> None:
    assert payload(event_store, put(event_store, Fare(cents=250))) == {"cents": 250}
    assert payload(event_store, put(event_store, Fare2(amount=2.5))) == {
        "$version": 2,
        "amount": 2.5,
    }


@pytest.mark.req("NEW-150")
def test_a_payload_of_version_1_is_stored_as_it_always_was(
    event_store: EventStore, ask: Callable[[str], list[Any]]
) -> None:
    put(event_store, Fare(cents=250))

    [(text,)] = ask("SELECT payload FROM events")

    assert text in ('{"cents":250}', b'{"cents":250}')


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-151")
def test_events_of_every_version_are_claimed_as_instances_of_the_class(
    event_store: EventStore,
) -> None:
    for event in (Fare(cents=250), Fare2(amount=3.0), Fare3(amount=4.0, currency="DKK")):
        put(event_store, event)
    upgrader(FARE, from_version=1)(in_euros)
    upgrader(current(Fare3), from_version=2)(with_currency)

    events = claim(event_store, types=[FARE])

    assert [type(each) for each in events] == [Fare3] * 3
    assert [(each.amount, each.currency) for each in events] == [
        (2.5, "EUR"),
        (3.0, "EUR"),
        (4.0, "DKK"),
    ]
    assert all(each.id and each.created_at and each.root_event_id for each in events)


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-152")
@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({}, "MissingUpgraderError: no upgrader for fare.agreed from version 1, 2"),
        ({1: in_euros}, "MissingUpgraderError: no upgrader for fare.agreed from version 2"),
        ({1: lambda fields: fields["amount"], 2: with_currency}, "raised KeyError('amount')"),
        ({1: in_euros, 2: str}, "not a dict"),
        ({1: in_euros, 2: dict}, "InvalidValueError: Fare3: currency is missing"),
    ],
)
def test_what_cannot_be_upgraded_is_dead_lettered_with_the_reason(
    event_store: EventStore, steps: dict[int, Any], reason: str
) -> None:
    put(event_store, Fare(cents=250))
    put(event_store, Fare3(amount=4.0, currency="DKK"))
    for version, step in steps.items():
        upgrader(current(Fare3), from_version=version)(step)

    [event] = claim(event_store, types=[current(Fare3).__event_type__])

    assert event.currency == "DKK"
    assert reason in last_error(event_store)


@pytest.mark.req("NEW-152")
@pytest.mark.parametrize("version", ["0", "-1", "1.5", '"2"', "null", "[]", "true"])
def test_a_version_that_is_none_is_dead_lettered_with_the_reason(
    event_store: EventStore, change: Callable[[str], int], version: str
) -> None:
    event_id = put(event_store, Fare2(amount=2.5))
    wrong = f'{{"$version":{version},"amount":2.5}}'
    assert change(f"UPDATE events SET payload = '{wrong}' WHERE id = '{event_id}'") == 1

    assert claim(event_store, types=[current(Fare2).__event_type__]) == []

    assert "$version is a whole number from 1 on, got" in last_error(event_store)


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-153")
def test_an_event_of_a_newer_version_waits_for_a_newer_program(
    event_store: EventStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    event_id = put(event_store, Fare3(amount=4.0, currency="DKK"))

    assert claim(event_store, types=[current(Fare2).__event_type__]) == []

    assert event_store.list_dead_letters(POST) == []
    assert f"event {event_id} has version 3 of {FARE}, and this program's class" in caplog.text
    clock.advance(seconds=60)
    assert [each.id for each in claim(event_store, types=[current(Fare3).__event_type__])] == [
        event_id
    ]


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-153")
def test_an_event_of_a_newer_version_that_no_program_reads_is_a_dead_letter_in_the_end(
    event_store: EventStore, clock: ManualClock
) -> None:
    put(event_store, Fare3(amount=4.0, currency="DKK"))
    current(Fare)

    for _ in range(10):
        assert event_store.list_dead_letters(POST) == []
        assert claim(event_store, types=[FARE]) == []
        clock.advance(seconds=3600)

    assert last_error(event_store).startswith("NewerEventError: ")


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-155")
def test_events_of_a_former_type_are_claimed_as_instances_of_the_class(
    event_store: EventStore,
) -> None:
    old = made(event_store, 7)
    new = put(event_store, Ticket(seat="aisle"))
    upgrader(Ticket, from_version=1)(as_seat)

    events = claim(event_store, types=[Ticket.__event_type__])

    assert [(type(each), each.id, each.seat) for each in events] == [
        (Ticket, old, "row 7"),
        (Ticket, new, "aisle"),
    ]
    [consumer] = event_store.list_consumers(POST)
    assert sorted(consumer["types"]) == ["ticket.made", "ticket.printed", "ticket.sold"]


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-155")
def test_what_was_finished_under_the_former_type_is_not_claimed_again(
    event_store: EventStore,
) -> None:
    done, left = made(event_store, 1), made(event_store, 2)
    upgrader(Ticket, from_version=1)(as_seat)
    first = claim(event_store, types=["ticket.made"], limit=1)
    event_store.ack("ship", str(first[0].id))

    events = claim(event_store, types=[Ticket.__event_type__])

    assert ([each.id for each in first], [each.id for each in events]) == ([done], [left])


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-155")
def test_an_upgrader_of_a_former_type_is_for_payloads_of_that_type(
    event_store: EventStore,
) -> None:
    for event_type in "ticket.made", "ticket.printed":
        made(event_store, 7, event_type)
    upgrader("ticket.printed", from_version=1)(lambda fields: {"seat": f"printed {fields['row']}"})
    upgrader(Ticket, from_version=1)(as_seat)

    events = claim(event_store, types=[Ticket.__event_type__])

    assert [each.seat for each in events] == ["row 7", "printed 7"]


@pytest.mark.req("NEW-151")
def test_upgraders_of_the_store_win_over_registered_ones(event_store: EventStore) -> None:
    put(event_store, Fare(cents=250))
    upgrader(current(Fare2), from_version=1)(in_euros)
    event_store.upgraders = {("event", FARE, 1): lambda fields: {"amount": fields["cents"]}}

    [event] = claim(event_store, types=[FARE])

    assert event.amount == 250


@pytest.mark.req("NEW-157")
def test_the_version_survives_deferral_and_replay(
    event_store: EventStore, clock: ManualClock
) -> None:
    event_store.defer(Fare2(amount=2.5), POST, delay=timedelta(minutes=1))
    current(Fare2)
    assert claim(event_store, types=[FARE]) == []
    clock.advance(seconds=61)
    [event] = claim(event_store, types=[FARE])
    event_store.ack("ship", event.id)

    assert event_store.replay_event(POST, event.id) is not None

    [again] = claim(event_store, types=[FARE])
    assert (again.amount, again.id != event.id) == (2.5, True)


@pytest.mark.req("NEW-156")
def test_a_dedup_key_of_a_former_type_is_taken(
    open_session: Callable[..., Any], session: Any
) -> None:
    log, store = session.event_store.log, session.event_store
    row = log.untyped_row("ticket.printed", "{}", session.namespace, dedup_key="t-1")
    first = store.announce(row)
    again, other = Ticket(seat="aisle"), Ticket(seat="aisle")

    session.commit(event=again, dedup_key="t-1")
    session.commit(event=other, dedup_key="t-2")

    assert again.id == first.id
    assert other.id != first.id
    assert len(store.list_events(session.namespace)) == 2


@pytest.mark.req("NEW-152", "NEW-155")
def test_a_dead_letter_of_a_former_type_runs_when_it_is_retried_after_a_fix(
    session: Any, clock: ManualClock
) -> None:
    store, namespace = session.event_store, session.namespace
    store.announce(store.log.untyped_row("ticket.made", '{"row":7}', namespace))
    assert claim(store, types=[Ticket.__event_type__], namespace=namespace) == []
    [letter] = store.list_dead_letters(namespace)
    assert "no upgrader for ticket.sold from version 1; " in letter["last_error"]
    assert '@upgrader("ticket.sold", from_version=1)' in letter["last_error"]

    upgrader(Ticket, from_version=1)(as_seat)
    Operator(session, "ada").retry(ANY)

    [event] = claim(store, types=[Ticket.__event_type__], namespace=namespace)
    assert event.seat == "row 7"


@EVERY_EVENT_STORE
@pytest.mark.req("NEW-158")
def test_compatible_changes_of_a_class_need_nothing(event_store: EventStore) -> None:
    class Before(Event, name="tram.late"):
        line: Field[int]
        driver: Field[str]
        minutes: Field[int]

    class After(Event, name="tram.late"):
        line: Field[int | None]
        minutes: Field[float]
        cause: Field[str] = Field(default="unknown")

    put(event_store, Before(line=7, driver="Bo", minutes=4))

    [event] = claim(event_store, types=[After.__event_type__])

    assert event == After(line=7, minutes=4.0, cause="unknown")


@pytest.mark.req("NEW-155")
def test_a_type_that_no_class_has_or_had_is_not_claimed(event_store: EventStore) -> None:
    with pytest.raises(DefinitionError, match=r"'ticket\.lost'; nothing was claimed"):
        claim(event_store, types=["ticket.lost"])


@pytest.mark.req("NEW-150")
def test_versions_of_several_events_are_in_one_row_each(
    session: Any, ask: Callable[[str], list[Any]]
) -> None:
    session.commit(event=[Fare2(amount=1.0), Fare(cents=1), Fare3(amount=3.0, currency="DKK")])

    found = [json.loads(row[0]) for row in ask("SELECT payload FROM events ORDER BY seq")]

    assert [each.get("$version") for each in found] == [2, None, 3]
