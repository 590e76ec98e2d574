"""Events that are announced later, and events that are stored only once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ontologia import Event, Field, LeaseExpiredError, Schedule, on_event
from ontologia.errors import HandlerError, InvalidValueError
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Order(Event):
    number: Field[int] = 0


class Shipped(Event):
    number: Field[int] = 0


def announce(session, *numbers: int, **options: Any) -> list[str]:
    events = [Order(number=number) for number in numbers]
    for event in events:
        session.commit(event=event, **options)
    return [event.id for event in events]


def rows(session, namespace: str | None = None) -> dict[str, dict]:
    """Everything about each event of a namespace, the last of each type."""
    listed = session.event_store.list_events(namespace or session.namespace, limit=1000)
    return {each["type"]: session.event_store.inspect_event(each["id"]) for each in listed}


@pytest.mark.req("NEW-022")
def test_a_deferred_event_is_claimable_from_its_time_on(session, clock):
    seen, began = [], clock.now()

    @on_event(Order)
    def note(ctx):
        seen.append((ctx.event.number, (clock.now() - began).total_seconds()))

    session.ensure(Customer(id="c1", name="Ada"))
    assert session.commit(event=Order(number=1), delay=3) == 1
    session.commit(event=Order(number=2), at=began + timedelta(seconds=1))
    first = session.defer(Order(number=3), delay=timedelta(seconds=2))
    second = session.defer(Order(number=4), at=datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC))
    assert session.cancel_deferred(second) is True
    assert session.cancel_deferred(second) is False

    session.run([note], max_iterations=6)

    assert seen == [(2, 1), (3, 2), (1, 3)]
    assert session.cancel_deferred(first) is False
    assert session.event_store.check() == []


@pytest.mark.req("NEW-022", "ONT-044")
def test_what_a_handler_defers_by_emit_is_stored_with_its_success_and_in_its_chain(session, clock):
    seen = []

    @on_event(Order)
    def later(ctx):
        ctx.emit(Shipped(number=ctx.attempt), delay=10)
        if ctx.attempt == 1:
            raise ValueError

    @on_event(Shipped)
    def note(ctx):
        seen.append((ctx.event.number, ctx.event.chain_depth, ctx.event.root_event_id))

    [root] = announce(session, 1)
    session.run([later, note], max_iterations=30)

    assert seen == [(2, 0, root)]


@pytest.mark.req("NEW-022")
def test_a_deferral_that_makes_no_sense_is_refused(session):
    for options in ({}, {"delay": 1, "at": datetime(2027, 1, 1, tzinfo=UTC)}, {"delay": -1},
                    {"at": datetime(2027, 1, 1)}, {"delay": "1"}):  # fmt: skip
        with pytest.raises(InvalidValueError):
            session.defer(Order(), **options)
    for options in ({"delay": 1}, {"at": datetime(2027, 1, 1, tzinfo=UTC)}, {"dedup_key": "k"}):
        with pytest.raises(InvalidValueError, match="event"):
            session.commit(**options)
    assert rows(session) == {}


@pytest.mark.req("NEW-023")
def test_a_key_stores_an_event_once_for_each_namespace_and_type(session, open_session):
    first, again, other = Order(number=1), Order(number=2), Shipped()
    session.commit(event=first, dedup_key="k")
    session.ensure(Customer(id="c1", name="Ada"))
    assert session.commit(event=again, dedup_key="k") == 1
    session.commit(event=other, dedup_key="k")
    elsewhere = Order(number=3)
    open_session(namespace="other").commit(event=elsewhere, dedup_key="k")
    deferred = Order(number=4)
    assert session.defer(deferred, delay=1, dedup_key="k") is None

    assert again.id == deferred.id == first.id
    assert len({first.id, other.id, elsewhere.id}) == 3
    assert rows(session)["order"]["payload"] == {"number": 1}
    assert len(session.event_store.list_events("default")) == 2


@pytest.mark.req("NEW-023")
def test_a_key_holds_for_what_handlers_emit(session):
    ids, seen = [], []

    @on_event(Order)
    def ship(ctx):
        event = Shipped(number=ctx.event.number)
        ctx.emit(event, dedup_key="once")
        ids.append(event.id)

    @on_event(Shipped)
    def note(ctx):
        seen.append(ctx.event.number)

    announce(session, 1)
    session.run([ship], max_iterations=1)
    announce(session, 2, 3)
    session.run([ship, note], max_iterations=1)

    assert seen == [1]
    assert len(set(ids)) == 1


@pytest.mark.req("NEW-023")
def test_a_key_holds_within_one_handler(session):
    first, second = Shipped(number=1), Shipped(number=2)

    @on_event(Order)
    def ship(ctx):
        ctx.emit(first, dedup_key="once")
        ctx.emit(second, dedup_key="once")

    announce(session, 1)
    session.run([ship], max_iterations=1)

    assert rows(session)["shipped"]["id"] == first.id
    assert second.id == first.id


# -- taken back -----------------------------------------------------------------------------------


@pytest.mark.req("NEW-022", "ONT-047")
def test_a_handler_that_lost_its_lease_takes_nothing_back(session, clock):
    refused, seen = [], []
    number = session.defer(Shipped(number=5), delay=1000)

    @on_event(Order)
    def late(ctx):
        if ctx.attempt == 1:
            clock.advance(seconds=30)
            with pytest.raises(LeaseExpiredError) as error:
                session.cancel_deferred(number)
            refused.append(error.value.event_id)

    @on_event(Shipped)
    def note(ctx):
        seen.append(ctx.event.number)

    [event_id] = announce(session, 1)
    session.run([late, note], max_iterations=1)
    assert refused == [event_id]
    clock.advance(seconds=1000)
    session.run([late, note], max_iterations=1)

    assert seen == [5]
    assert session.event_store.check() == []


@pytest.mark.req("NEW-022")
def test_a_handler_that_holds_its_lease_takes_back_what_was_deferred(session, clock):
    results, seen = [], []
    numbers = [session.defer(Shipped(number=each), delay=10) for each in (1, 2)]

    @on_event(Order)
    def cancel(ctx):
        results.extend(session.cancel_deferred(numbers[0]) for _ in range(2))

    @on_event(Shipped)
    def note(ctx):
        seen.append(ctx.event.number)

    announce(session, 1)
    session.run([cancel, note], max_iterations=1)
    clock.advance(seconds=10)
    session.run([note], max_iterations=1)

    assert results == [True, False]
    assert seen == [2]


# -- schedules that come and go -------------------------------------------------------------------


@pytest.fixture
def every_minute():
    return lambda: Schedule(Order(number=1), "* * * * *")


@pytest.mark.req("ONT-081")
def test_a_run_takes_no_schedule_with_it_that_was_added_before(session, every_minute):
    @on_event(Order)
    def ignore(ctx):
        pass

    session.add_schedule(every_minute())
    session.run([ignore], schedules=[every_minute(), every_minute()], max_iterations=1)
    assert session.remove_schedule(every_minute()) is True

    session.run([ignore], schedules=[every_minute()], max_iterations=1)
    assert session.remove_schedule(every_minute()) is False  # that one was the run's own


@pytest.mark.req("ONT-081", "ONT-070")
def test_a_run_that_is_refused_leaves_no_schedule_behind(session, every_minute):
    @on_event(Order)
    def ignore(ctx):
        pass

    for wrong, error in (
        ({"schedules": [every_minute(), "* * * * *"]}, TypeError),
        ({"workers": 0}, InvalidValueError),
        ({"handlers": [ignore, ignore]}, HandlerError),
        ({"handlers": ["ignore"]}, HandlerError),
    ):
        with pytest.raises(error):
            session.run(**({"handlers": [ignore], "schedules": [every_minute()]} | wrong))
        assert session.remove_schedule(every_minute()) is False


@pytest.mark.req("ONT-081")
def test_a_session_that_runs_already_keeps_the_schedules_of_that_run(session, clock, every_minute):
    refused, seen = [], []

    @on_event(Order)
    def run_again(ctx):
        seen.append(clock.now().minute)
        other = Schedule(Shipped(), "* * * * *")
        with pytest.raises(RuntimeError, match="running already"):
            session.run([run_again], schedules=[every_minute(), other], max_iterations=1)
        refused.append(session.remove_schedule(other))

    session.run([run_again], schedules=[every_minute()], max_iterations=125)

    assert seen == [1, 2]
    assert refused == [False, False]
    assert session.event_store.check() == []
