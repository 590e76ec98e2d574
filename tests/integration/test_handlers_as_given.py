"""Handlers as programs give them: decorated, methods, with work left undone."""

from __future__ import annotations

import functools
import gc
import logging

import pytest

from ontologia import Event, Field, on_event
from tests.shop import Customer


class Job(Event):
    number: Field[int] = 0


def announce(session, *numbers: int) -> list[str]:
    events = [Job(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def shown(session, event_id: str) -> dict:
    return session.event_store.inspect_event(event_id)


@pytest.fixture
def session(open_session):
    session = open_session()
    yield session
    assert session.event_store.check() == []


# -- what is around a function --------------------------------------------------------------------


def traced(calls):
    """A decorator as many programs have one."""

    def decorate(function):
        @functools.wraps(function)
        def around(ctx):
            calls.append("before")
            try:
                return function(ctx)
            finally:
                calls.append("after")

        return around

    return decorate


@pytest.mark.req("ONT-063", "ONT-065")
def test_what_is_around_a_handler_is_called(session):
    calls = []

    @traced(calls)
    @on_event(Job, name="above")
    def above(ctx):
        calls.append("above")

    @on_event(Job, name="below", priority=50)
    @traced(calls)
    def below(ctx):
        calls.append("below")

    @traced(calls)
    @on_event(Job, name="async", priority=10)
    async def coroutine(ctx):
        calls.append("async")

    [event_id] = announce(session, 1)
    session.run([above, below, coroutine], max_iterations=1)

    assert calls == [
        *("before", "above", "after"),
        *("before", "below", "after"),
        *("before", "after", "async"),  # the decorator is for functions: it has the coroutine
    ]
    claims = shown(session, event_id)["claims"]
    assert sorted(each["handler_id"] for each in claims) == ["above", "async", "below"]
    assert all(each["ack_at"] for each in claims)


@pytest.mark.req("ONT-064")
def test_a_method_is_called_with_its_object(session):
    class Desk:
        def __init__(self) -> None:
            self.seen = []

        @on_event(Job, name="desk")
        def take(self, ctx):
            self.seen.append(ctx.event.number)

    desk = Desk()
    announce(session, 7)
    session.run([desk.take], max_iterations=1)

    assert desk.seen == [7]


def test_what_cannot_be_called_with_a_context_is_refused_when_it_is_decorated():
    """And not at each of ten attempts."""

    def nothing(): ...
    def two(ctx, event): ...
    def named(*, ctx): ...
    def more(ctx, log=None): ...
    def anything(*args, **options): ...

    for function in (nothing, two, named):
        with pytest.raises(TypeError, match=r"called with one argument, ctx: HandlerContext\["):
            on_event(Job)(function)
    for function in (more, anything, functools.partial(two, event=1)):
        on_event(Job, name="x")(function)


def test_who_forgets_the_parentheses_is_told_what_to_write():
    with pytest.raises(TypeError, match=r"write @on_event\(SomeEvent\) above <function"):

        @on_event
        def plain(ctx): ...


def test_what_yields_is_refused_since_nobody_would_run_it():
    def generator(ctx):
        yield ctx

    async def async_generator(ctx):
        yield ctx

    for function in (generator, async_generator, functools.partial(generator)):
        with pytest.raises(TypeError, match="yield"):
            on_event(Job)(function)


# -- what is left undone --------------------------------------------------------------------------


@pytest.mark.req("ONT-037", "NEW-028")
@pytest.mark.parametrize("count", [1, 3])
def test_objects_that_were_queued_and_not_committed_are_named(session, caplog, count):
    @on_event(Job, name="forgetful")
    def forgetful(ctx):
        ctx.ensure(Customer(id="c0", name="Ada"))
        ctx.commit()
        ctx.ensure([Customer(id=f"c{n}", name="Bob") for n in range(1, count + 1)])

    @on_event(Job, name="tidy")
    def tidy(ctx):
        ctx.ensure(Customer(id="c9", name="Eve"))
        ctx.discard()

    [event_id] = announce(session, 1)
    with caplog.at_level(logging.WARNING):
        session.run([forgetful, tidy], max_iterations=1)

    [warning] = [each.getMessage() for each in caplog.records if "queued" in each.getMessage()]
    assert all(f"Customer 'c{n}'" in warning for n in range(1, count + 1))
    assert "forgetful" in warning
    assert event_id in warning
    assert [each.id for each in session.query().entities(Customer).collect()] == ["c0"]
    claims = {each["handler_id"]: each for each in shown(session, event_id)["claims"]}
    assert claims["tidy"]["ack_at"]
    assert claims["forgetful"]["ack_at"] is None
    assert claims["forgetful"]["attempts"] == 1


# -- which class an event is ----------------------------------------------------------------------


class HandedIn(Event):
    """No other class of these tests has its type."""

    number: Field[int]


def claimed(session) -> type[Event]:
    [event] = session.event_store.claim("default", "h", "s", ["handed.in"], 1, 1_000)
    return type(event)


@pytest.mark.req("ONT-092", "ONT-034")
def test_a_class_of_the_same_type_that_was_freed_again_does_not_hide_the_living_one(session):
    session.commit(event=HandedIn(number=3))

    def helper() -> None:
        type("HandedIn", (Event,), {})

    helper()
    gc.collect()

    assert claimed(session) is HandedIn


@pytest.mark.req("ONT-092")
def test_of_two_living_classes_the_last_one_is_claimed_as_long_as_it_lives(session):
    newer = type("HandedIn", (Event,), {})
    for number in range(2):
        session.commit(event=HandedIn(number=number))

    assert claimed(session) is newer
    del newer
    gc.collect()
    assert claimed(session) is HandedIn
