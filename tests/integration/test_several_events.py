"""Several events announced by one commit."""

from __future__ import annotations

import pytest

from ontologia import Event, Field, HandlerContext, on_event
from ontologia.errors import InvalidValueError
from tests.shop import Customer


class ParcelPacked(Event):
    number: Field[int] = 0


class ParcelLabelled(Event):
    number: Field[int] = 0


def stored(session) -> list[tuple[str, str]]:
    """Types and ids of the events, oldest first."""
    listed = session.event_store.list_events(session.namespace, limit=1000)
    return sorted((each["id"], each["type"]) for each in listed)


@pytest.mark.parametrize("count", [1, 16, 17, 500, 1_200])
def test_one_commit_stores_them_all_in_order_and_gives_each_its_id(session, count):
    events = [ParcelPacked(number=number) for number in range(count)]
    seen: list[int] = []

    @on_event(ParcelPacked, name="parcels.seen")
    def see(ctx: HandlerContext[ParcelPacked]) -> None:
        seen.append(ctx.event.number)

    assert session.commit(event=iter(events)) is None
    session.run([see], max_iterations=1)
    while len(seen) < count:
        session.run([see], max_iterations=1)

    assert seen == list(range(count))
    assert len({event.id for event in events}) == count
    assert sorted(event.id for event in events) == [event.id for event in events]


def test_events_that_follow_others_are_delivered_once_each_in_order(session):
    seen: list[int] = []

    @on_event(ParcelPacked, name="parcels.seen")
    def see(ctx: HandlerContext[ParcelPacked]) -> None:
        seen.append(ctx.event.number)

    session.run([see], max_iterations=1)
    session.commit(event=[ParcelPacked(number=number) for number in range(3)])
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit(event=[ParcelPacked(number=number) for number in range(3, 23)])
    assert session.event_store.check() == []
    session.run([see], max_iterations=1)

    assert seen == list(range(23))


def test_they_are_stored_with_the_change_or_not_at_all(session):
    session.ensure(Customer(id="c1", name="Ada"))
    events = [ParcelPacked(number=1), ParcelLabelled(number=2)]
    assert session.commit(event=events) == 1
    assert [name for _, name in stored(session)] == ["parcel.packed", "parcel.labelled"]

    session.ensure(Customer(id="c2", name="Grace"))
    with pytest.raises(TypeError, match="event= takes events"):
        session.commit(event=[ParcelPacked(number=3), "no event"])

    assert len(stored(session)) == 2
    assert session.head == 1
    assert session.commit() == 2  # what was queued still is


@pytest.mark.parametrize("before", [1, 2_500])
def test_one_that_is_no_event_takes_those_before_it_back(session, before):
    with pytest.raises(TypeError, match="event= takes events"):
        session.commit(event=[*(ParcelPacked() for _ in range(before)), "no event"])

    assert stored(session) == []
    session.commit(event=ParcelPacked())
    assert len(stored(session)) == 1


def test_no_event_at_all_is_a_plain_commit(session):
    assert session.commit(event=[]) is None
    assert stored(session) == []


def test_all_of_them_can_be_deferred(session, clock):
    session.commit(event=[ParcelPacked(number=n) for n in range(3)], delay=60)
    seen: list[int] = []

    @on_event(ParcelPacked, name="parcels.later")
    def see(ctx: HandlerContext[ParcelPacked]) -> None:
        seen.append(ctx.event.number)

    session.run([see], max_iterations=1)
    assert seen == []
    clock.advance(seconds=61)
    session.run([see], max_iterations=1)
    assert seen == [0, 1, 2]


def test_one_dedup_key_is_not_that_of_several(session):
    with pytest.raises(InvalidValueError, match="one dedup_key= cannot be that of 2 events"):
        session.commit(event=[ParcelPacked(), ParcelPacked()], dedup_key="k")
    assert stored(session) == []

    first, again = ParcelPacked(), ParcelPacked()
    session.commit(event=[first], dedup_key="k")
    session.commit(event=[again], dedup_key="k")
    assert [first.id] == [again.id] == [each[0] for each in stored(session)]


def test_a_handler_announces_several_with_its_commit(session):
    @on_event(ParcelPacked, name="parcels.label")
    def label(ctx: HandlerContext[ParcelPacked]) -> None:
        ctx.commit(event=[ParcelLabelled(number=n) for n in range(3)])

    parcel = ParcelPacked()
    session.commit(event=parcel)
    session.run([label], max_iterations=1)

    found = [session.event_store.inspect_event(each) for each, _ in stored(session)[1:]]
    assert [each["root_event_id"] for each in found] == [parcel.id] * 3
    assert [each["chain_depth"] for each in found] == [1] * 3
