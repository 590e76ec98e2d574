"""Rows that cannot be read: buried with the reason, while everything else goes on."""

from __future__ import annotations

import json

import pytest

from ontologia import Discard, Event, Field, on_event

BAD = {
    "no JSON": "'{\"number\": '",
    "empty": "''",
    "a list": "'[1, 2]'",
    "null": "'null'",
    "a field of the wrong type": '\'{"number": "many"}\'',
    "a field missing": "'{}'",
    "a number past 64 bits": "'{\"number\": 99999999999999999999999}'",
    "NaN": "'{\"number\": NaN}'",
    "nested too deep": f"'{{\"number\": {'[' * 3_000}{']' * 3_000}}}'",
    "bytes": "x'7b7d'",
    "bytes that are no text": "x'ff00fe'",
    "text that is no UTF-8": "CAST(x'7bff' AS TEXT)",
    "a lone surrogate": "CAST(x'7b226e756d626572223a22eda080227d' AS TEXT)",
}


class Counted(Event):
    __event_type__ = "faults.counted"
    number: Field[int]


class Picky(Event):
    __event_type__ = "faults.picky"
    number: Field[int]


def numbers_handled(session, rounds: int = 3) -> list[int]:
    """Run; which numbers a handler was given."""
    seen: list[int] = []

    @on_event(Counted, name="count")
    def count(ctx) -> None:
        seen.append(ctx.event.number)

    session.run([count], max_iterations=rounds)
    return seen


@pytest.mark.req("ONT-129", "NEW-064", "ONT-145")
@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
def test_a_payload_that_cannot_be_read_is_buried_and_the_others_are_handled(session, sql, payload):
    events = [Counted(number=number) for number in range(7)]
    for event in events:
        session.event_store.enqueue(event, "default")
    sql(f"UPDATE events SET payload = {payload} WHERE id = '{events[3].id}'")

    seen = numbers_handled(session)
    later = Counted(number=7)
    session.event_store.enqueue(later, "default")
    seen += numbers_handled(session)

    assert seen == [0, 1, 2, 4, 5, 6, 7]
    [letter] = session.event_store.list_dead_letters("default")
    assert (letter["event_id"], letter["attempts"]) == (events[3].id, 1)
    assert letter["last_error"]
    told = sql("SELECT payload FROM events WHERE type = 'event.dead_letter'")
    assert [json.loads(row[0])["event_id"] for row in told] == [events[3].id]
    left = "SELECT event_id FROM event_claims WHERE ack_at IS NULL AND dead_lettered_at IS NULL"
    assert sql(left) == []
    assert session.event_store.check() == []


@pytest.mark.req("NEW-064")
def test_a_payload_that_cannot_be_read_does_not_stop_who_claims_for_himself(session, sql):
    events = [Counted(number=number) for number in range(3)]
    for event in events:
        session.event_store.enqueue(event, "default")
    sql(f"UPDATE events SET payload = '[]' WHERE id = '{events[1].id}'")

    taken = session.event_store.claim("default", "own", "s", ["faults.counted"], 10, 1_000)

    assert [event.number for event in taken] == [0, 2]
    assert len(session.event_store.list_dead_letters("default")) == 1
    assert session.event_store.check() == []


@pytest.mark.req("NEW-064")
def test_an_event_of_a_type_that_nobody_knows_is_in_nobodys_way(session, sql):
    event, strange = Counted(number=1), Picky(number=2)
    session.event_store.enqueue(strange, "default")
    session.event_store.enqueue(event, "default")
    sql(f"UPDATE events SET type = 'of.another.program' WHERE id = '{strange.id}'")

    assert numbers_handled(session) == [1]
    listed = {row["id"]: row["status"] for row in session.event_store.list_events("default")}
    assert listed == {strange.id: "unsubscribed", event.id: "acked"}
    assert session.event_store.check() == []


@pytest.mark.req("NEW-064", "ONT-129")
def test_every_bad_row_of_a_batch_is_buried_with_its_own_reason(session, sql):
    events = [Counted(number=number) for number in range(40)]
    for event in events:
        session.event_store.enqueue(event, "default")
    for event in events[::2]:
        sql(f"UPDATE events SET payload = '{{\"number\": \"{event.id}\"}}' WHERE id = '{event.id}'")

    seen = numbers_handled(session)

    assert seen == list(range(1, 40, 2))
    letters = session.event_store.list_dead_letters("default")
    assert {letter["event_id"] for letter in letters} == {event.id for event in events[::2]}
    assert session.event_store.check() == []


@pytest.mark.req("NEW-064")
def test_a_dead_letter_whose_handler_cannot_read_it_either_ends_there(session, sql):
    from ontologia import EventDeadLetter

    session.event_store.enqueue(Counted(number=1), "default")

    @on_event(Counted, name="count")
    def refuse(ctx) -> None:
        raise Discard("never")

    session.run([refuse], max_iterations=1)
    sql("UPDATE events SET payload = '{}' WHERE type = 'event.dead_letter'")

    @on_event(EventDeadLetter, name="mourn")
    def mourn(ctx) -> None:
        raise AssertionError("it cannot be read")

    session.run([mourn], max_iterations=3)

    letters = session.event_store.list_dead_letters("default")
    assert {letter["handler"] for letter in letters} == {"count", "mourn"}
    assert sql("SELECT COUNT(*) FROM events") == [[2]]
    assert session.event_store.check() == []
