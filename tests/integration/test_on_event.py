"""`on_event` makes a function a handler: a name, a class of events, a priority, and nothing more."""

from __future__ import annotations

import functools
import inspect
from datetime import timedelta

import pytest

from ontologia import Event, Field, HandlerContext, on_event
from ontologia.errors import HandlerError, OntologiaError


class UserCreated(Event):
    number: Field[int] = 0


class UserGone(Event):
    number: Field[int] = 0


calls: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _fresh():
    calls.clear()


@on_event(UserCreated, priority=50)
def greet(ctx: HandlerContext[UserCreated]) -> None:
    """Says hello."""
    calls.append(("greet", ctx.event.number))


@on_event(UserCreated)
def count(ctx: HandlerContext[UserCreated]) -> None:
    calls.append(("count", ctx.event.number))


@on_event(UserCreated, name="a-b-c")
def last_by_function_first_by_name(ctx: HandlerContext[UserCreated]) -> None:
    calls.append(("a-b-c", ctx.event.number))


@on_event(UserGone, priority=70)
def grieve(ctx: HandlerContext[UserGone]) -> None:
    calls.append(("grieve", ctx.event.number))


def announce(session, *events: Event) -> None:
    for event in events:
        session.commit(event=event)


def claimed_by(session, event: Event) -> set[str]:
    return {claim["handler_id"] for claim in session.event_store.inspect_event(event.id)["claims"]}


# -- the decorator --------------------------------------------------------------------------------


@pytest.mark.req("ONT-062")
def test_priority_and_name_are_given_by_name():
    parameters = inspect.signature(on_event).parameters

    assert parameters["priority"].default == 100
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[1:])
    with pytest.raises(TypeError):
        on_event(UserCreated, 50)
    for wrong in (True, "50", 1.5):
        with pytest.raises(TypeError, match="priority"):
            on_event(UserCreated, priority=wrong)


@pytest.mark.req("ONT-063")
def test_the_function_stays_what_it_was(session):
    class Fake:
        event = UserCreated(number=3)

    assert greet(Fake()) is None
    assert calls == [("greet", 3)]
    assert (greet.__name__, greet.__module__, greet.__doc__) == ("greet", __name__, "Says hello.")


@pytest.mark.req("ONT-069")
@pytest.mark.parametrize(
    "wrong", ["commit", "user.created", None, int, Event, UserCreated(), [UserCreated]]
)
def test_a_handler_subscribes_to_a_class_of_events_and_to_nothing_else(wrong):
    with pytest.raises(TypeError, match="Event class"):
        on_event(wrong)


@pytest.mark.parametrize("wrong", ["", 7, b"x"])
def test_a_name_is_text(wrong):
    with pytest.raises(TypeError, match="name"):
        on_event(UserCreated, name=wrong)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"lease": True}, TypeError, "lease takes seconds or a timedelta, got True"),
        ({"lease": "5 min"}, TypeError, "lease takes seconds"),
        ({"lease": 0}, ValueError, "lease is at least 1 ms and at most a year, got 0"),
        ({"lease": -1}, ValueError, "lease is at least"),
        ({"lease": timedelta(seconds=-1)}, ValueError, "lease is at least"),
        ({"lease": float("nan")}, ValueError, "lease is at least"),
        ({"lease": float("inf")}, ValueError, "lease is at least"),
        ({"lease": timedelta(days=366)}, ValueError, "at most a year"),
        ({"max_attempts": True}, TypeError, "max_attempts is a whole number"),
        ({"max_attempts": 2.0}, TypeError, "max_attempts is a whole number"),
        ({"max_attempts": 0}, ValueError, "max_attempts is at least 1"),
        ({"backoff": 5}, TypeError, r"backoff is \(base, max\), got 5"),
        ({"backoff": (1, 2, 3)}, TypeError, r"backoff is \(base, max\)"),
        ({"backoff": (True, 2)}, TypeError, "backoff takes seconds"),
        ({"backoff": (-1, 2)}, ValueError, "backoff is not negative"),
        ({"backoff": (3, 2)}, ValueError, "base is the larger"),
        ({"renew": 1}, TypeError, "renew is True or False"),
        ({"timeout": "soon"}, TypeError, "timeout takes seconds"),
        ({"renew": True, "timeout": 0}, ValueError, "timeout is at least"),
        ({"renew": True, "timeout": True}, TypeError, "timeout takes seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused_where_they_are_written(options, error, says):
    with pytest.raises(error, match=says) as caught:
        on_event(UserCreated, **options)
    assert isinstance(caught.value, OntologiaError)
    assert ("renew=True" in (caught.value.hint or "")) == (options == {"timeout": 60})


@pytest.mark.req("ONT-065")
def test_decorating_subscribes_nobody(session):
    event = UserCreated(number=1)
    announce(session, event)

    session.run([count], max_iterations=1)

    assert calls == [("count", 1)]
    assert claimed_by(session, event) == {f"{__name__}:count"}
    assert [c["name"] for c in session.event_store.list_consumers("default")] == [
        f"{__name__}:count"
    ]


# -- identity -------------------------------------------------------------------------------------


@pytest.mark.req("ONT-064")
def test_a_handler_is_known_by_module_and_function_or_by_its_name(session):
    @on_event(UserCreated)
    def inner(ctx):
        pass

    event = UserCreated()
    announce(session, event)
    session.run([greet, last_by_function_first_by_name, inner], max_iterations=1)

    here = "test_a_handler_is_known_by_module_and_function_or_by_its_name.<locals>.inner"
    assert claimed_by(session, event) == {f"{__name__}:greet", "a-b-c", f"{__name__}:{here}"}


@pytest.mark.req("ONT-064")
def test_a_wrapped_function_and_a_method_have_names_of_their_own(session):
    def twice(function):
        @functools.wraps(function)
        def wrapper(ctx):
            function(ctx)
            function(ctx)

        return wrapper

    @on_event(UserCreated)
    @twice
    def wrapped(ctx):
        calls.append(("wrapped", ctx.event.number))

    class Greeter:
        def __init__(self, word: str) -> None:
            self.word = word

        @on_event(UserCreated)
        def greet(self, ctx):
            calls.append((self.word, ctx.event.number))

    event = UserCreated(number=1)
    announce(session, event)
    session.run([wrapped, Greeter("hello").greet], max_iterations=1)

    assert sorted(calls) == [("hello", 1), ("wrapped", 1), ("wrapped", 1)]
    assert {name.rpartition(".")[2] for name in claimed_by(session, event)} == {"wrapped", "greet"}


@pytest.mark.req("ONT-064", "NEW-030")
def test_a_named_handler_is_the_same_after_the_function_was_renamed(session, open_session):
    @on_event(UserCreated, name="charge")
    def before(ctx):
        calls.append(("before", ctx.event.number))

    @on_event(UserCreated, name="charge")
    def after(ctx):
        calls.append(("after", ctx.event.number))

    announce(session, UserCreated(number=1))
    session.run([before], max_iterations=1)
    announce(session, UserCreated(number=2))
    open_session().run([after], max_iterations=1)

    assert calls == [("before", 1), ("after", 2)]
    assert session.event_store.check() == []


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.req("ONT-066", "ONT-068", "ONT-153", "ONT-155")
def test_urgent_handlers_come_first_and_equals_go_by_name(session):
    announce(session, UserCreated(number=1), UserCreated(number=2))

    session.run([greet, count, last_by_function_first_by_name], max_iterations=1)

    assert calls == [
        ("a-b-c", 1), ("a-b-c", 2), ("count", 1), ("count", 2), ("greet", 1), ("greet", 2),
    ]  # fmt: skip
    assert session.event_store.check() == []


@pytest.mark.req("ONT-067", "ONT-131")
def test_the_priority_of_a_handler_does_not_mix_with_that_of_events(session):
    announce(
        session,
        UserCreated(number=1, priority=1),
        UserCreated(number=2),
        UserCreated(number=3, priority=900),
        UserCreated(number=4),
        UserGone(number=5, priority=1),
    )

    session.run([greet, grieve], max_iterations=1)

    assert calls == [("grieve", 5), ("greet", 3), ("greet", 2), ("greet", 4), ("greet", 1)]


@pytest.mark.req("ONT-131")
def test_events_of_one_priority_come_in_the_order_they_were_stored_though_time_stands_still(
    session,
):
    announce(session, *(UserCreated(number=n) for n in range(30)))

    session.run([count], max_iterations=1)

    assert [number for _, number in calls] == list(range(30))


# -- what run refuses -----------------------------------------------------------------------------


@pytest.mark.req("ONT-070")
def test_what_is_no_list_of_handlers_is_refused_before_anything_runs(session):
    announce(session, UserCreated())

    for wrong in ([lambda ctx: None], [greet, "count"], greet, None, UserCreated, [UserCreated]):
        with pytest.raises(HandlerError, match="handler"):
            session.run(wrong, max_iterations=1)
    assert calls == []
    assert session.event_store.list_consumers("default") == []


@pytest.mark.req("ONT-070")
def test_two_handlers_of_one_name_are_refused(session):
    @on_event(UserGone, name="a-b-c")
    def other(ctx):
        pass

    with pytest.raises(HandlerError, match="two handlers are called a-b-c") as caught:
        session.run([last_by_function_first_by_name, other], max_iterations=1)
    for each in (last_by_function_first_by_name, other):
        line = each.__code__.co_firstlineno
        assert f"{__name__}:{each.__qualname__} ({__file__}, line {line})" in caught.value.args[0]
    assert "name='...'" in caught.value.hint


@pytest.mark.req("ONT-070")
def test_a_handler_that_is_given_twice_is_refused(session):
    line = greet.__code__.co_firstlineno

    with pytest.raises(HandlerError) as caught:
        session.run([greet, count, greet], max_iterations=1)

    assert caught.value.args[0] == (
        f"two handlers are called {__name__}:greet, and both are {__name__}:greet "
        f"({__file__}, line {line})"
    )


def test_one_function_is_one_handler():
    with pytest.raises(TypeError, match="already"):
        on_event(UserGone)(greet)


@pytest.mark.req("ONT-092")
def test_a_run_knows_the_class_of_each_type_it_handles(session):
    session.run([greet, count, grieve], max_iterations=1)

    known = session.EVENT_REGISTRY
    assert known["user.created"] is UserCreated
    assert known == {"user.created": UserCreated, "user.gone": UserGone}


@pytest.mark.req("ONT-093")
def test_two_classes_of_one_type_cannot_run_together_unless_one_says_its_own(session):
    twin = type("UserCreated", (Event,), {})
    apart = type("UserCreated", (Event,), {"__event_type__": "crm.user.created"})

    @on_event(twin)
    def clash(ctx):
        pass

    @on_event(apart)
    def no_clash(ctx):
        calls.append(("apart", 0))

    with pytest.raises(HandlerError, match=r"both stored as 'user.created'"):
        session.run([greet, clash], max_iterations=1)
    announce(session, UserCreated(number=1), apart())
    session.run([greet, no_clash], max_iterations=1)

    assert calls == [("apart", 0), ("greet", 1)]
