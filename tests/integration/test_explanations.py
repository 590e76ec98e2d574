"""`session.why` and `session.trace`: from a value to what began it, and from there on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ontologia import on_event
from ontologia.errors import NotFoundError, QueryError
from ontologia.runtime.operator import Operator
from ontologia.store.events.operations import Selection
from tests.integration.explained import (
    HANDLERS,
    Buys,
    Customer,
    Note,
    Ordered,
    Paid,
    Product,
    fill,
    open_shop,
    pay,
)


@pytest.fixture
def shop(session, clock):
    fill(session, clock)
    return session


# -- why ------------------------------------------------------------------------------------------


@pytest.mark.req("NEW-041")
def test_a_value_leads_to_its_commit_handler_event_and_the_first_commit(shop):
    found = shop.why(Buys, ("c1", "10"), "pieces")

    assert (found.value, found.commit_id) == (7, 3)
    assert found.created_at == shop.get_commit(3)["created_at"]
    assert (found.handler_id, found.attempt) == ("ship", 1)
    assert [(each.type, each.source, each.commit_id) for each in found.causes] == [
        ("paid", "pay", None),
        ("ordered", "commit:1", 1),
    ]
    assert found.causes[0].event_id == found.event_id
    assert found.causes[0].causation_id == found.causes[1].event_id
    assert found.causes[1].payload == {"customer": "c1"}
    assert found.complete


@pytest.mark.req("NEW-041")
def test_each_field_has_the_commit_that_set_it(shop):
    assert shop.why(Customer, "c1").commit_id == 2
    assert shop.why(Customer, "c1", "tier").commit_id == 2
    assert shop.why(Customer, "c1", "tier").attempt == 2
    assert shop.why(Customer, "c1", "name").commit_id == 1
    assert shop.why(Customer, "c1", "name").causes == ()


def test_a_value_that_came_back_was_set_when_it_came_back(session):
    for tier in ("a", "b", "a", "a"):
        session.ensure(Customer(id="c", name=tier, tier=tier, profile={"n": session.head}))
        session.commit()

    assert session.head == 4
    assert session.why(Customer, "c", "tier").commit_id == 3
    assert session.why(Customer, "c", "profile").commit_id == 4


def test_a_field_that_was_the_same_for_long_is_followed_to_its_beginning(session):
    for number in range(600):
        session.ensure(Customer(id="c", name="Ada", profile={"n": number}))
        session.commit()

    assert session.why(Customer, "c", "name").commit_id == 1


def test_an_object_that_came_back_was_set_after_its_deletion(session):
    ada = Customer(id="c", name="Ada")
    for change in (session.ensure, session.delete, session.ensure):
        change(ada)
        session.commit()

    assert session.why(Customer, "c", "name").commit_id == 3


def test_true_is_not_one(session):
    for value in (1, True):
        session.ensure(Customer(id="c", name="Ada", profile={"is": value}))
        session.commit()

    assert session.why(Customer, "c", "profile").commit_id == 2


def test_a_deleted_object_leads_to_the_commit_that_deleted_it(shop):
    shop.delete(Customer(id="c2", name=""))
    shop.commit()

    for field in (None, "name"):
        found = shop.why(Customer, "c2", field)
        assert (found.deleted, found.value, found.commit_id) == (True, None, 4)


def test_values_have_the_types_of_the_class(shop):
    found = shop.why(Product, 10)

    assert found.key == ("10",)
    assert found.value == {"number": 10, "price": 1, "since": None}
    assert shop.why(Note, "c1:c:2:friend").value == {"role": "friend", "text": "met in Bern"}
    assert shop.why(Note, ("c1", "c:2", "friend"), "role").value == "friend"


def test_what_never_was_is_not_found(shop):
    with pytest.raises(NotFoundError, match="there is no Customer c9, and there never was"):
        shop.why(Customer, "c9")
    with pytest.raises(NotFoundError, match="there is no Buys c1:9"):
        shop.why(Buys, "c1:9")


def test_what_is_no_key_or_no_field_is_refused(shop):
    with pytest.raises(QueryError, match="Customer has no field 'age'"):
        shop.why(Customer, "c1", "age")
    with pytest.raises(QueryError, match="'c1' is no key of Buys") as caught:
        shop.why(Buys, "c1")
    assert "left:right" in str(caught.value)
    with pytest.raises(QueryError, match="is no key of Note"):
        shop.why(Note, ("c1", "c2"))


def test_an_event_that_is_retained_no_more_ends_the_chain(shop, clock, sql):
    found = shop.why(Buys, "c1:10")
    first = found.causes[-1].event_id
    sql(f"DELETE FROM events WHERE id = '{first}'")

    shorter = shop.why(Buys, "c1:10")
    none = shop.why(Customer, "c1")

    assert [each.type for each in shorter.causes] == ["paid"]
    assert (shorter.complete, shorter.causes[-1].causation_id) == (False, first)
    assert (none.complete, none.causes, none.event_id) == (False, (), first)


# -- trace ----------------------------------------------------------------------------------------


@pytest.mark.req("NEW-042")
def test_a_trace_is_the_tree_of_what_followed_and_what_came_of_it(shop):
    paid = shop.why(Buys, "c1:10").event_id

    trace = shop.trace(paid)

    [ordered] = trace.events
    assert (ordered.type, ordered.commit_id, ordered.event_id) == (
        "ordered",
        1,
        trace.root_event_id,
    )
    [payment] = ordered.outcomes
    assert (payment.handler_id, payment.state, payment.attempts) == ("pay", "acked", 2)
    assert (payment.commits, payment.error) == ((2,), None)
    [failure] = payment.failures
    assert (failure.attempt, failure.outcome, failure.commits) == (1, "failed", ())
    assert "declined" in failure.error
    [follower] = ordered.followers
    assert (follower.event_id, follower.source) == (paid, "pay")
    assert {each.handler_id: (each.state, each.commits) for each in follower.outcomes} == {
        "ship": ("acked", (3,)),
        "write": ("dead_lettered", ()),
    }
    assert [each.type for each in trace] == ["ordered", "paid", "event.dead_letter"]
    assert shop.trace(trace.root_event_id) == trace


@pytest.mark.req("NEW-042")
def test_a_trace_tells_how_long_each_attempt_took(session, clock):
    @on_event(Ordered, name="slow")
    def slow(ctx):
        clock.advance(seconds=2 * ctx.attempt)
        if ctx.attempt == 1:
            ctx.ensure(Customer(id="half", name=""))
            ctx.commit()
            raise RuntimeError("too slow")

    event = Ordered(customer="c1")
    session.commit(event=event)
    session.run([slow], max_iterations=1)
    [waiting] = session.trace(event.id).events[0].outcomes
    clock.advance(seconds=60)
    session.run([slow], max_iterations=1)
    [done] = session.trace(event.id).events[0].outcomes

    assert (waiting.state, waiting.attempts, waiting.seconds) == ("backoff", 1, 2.0)
    assert waiting.ended_at - waiting.started_at == timedelta(seconds=2)
    assert "too slow" in waiting.error
    assert waiting.failures[0].commits == (1,)
    assert (done.state, done.attempts, done.seconds) == ("acked", 2, 4.0)
    assert done.commits == (1,)


def test_what_nobody_has_begun_waits(session, clock):
    open_shop(session)
    session.run(HANDLERS, max_iterations=1)
    clock.advance(seconds=60)
    session.run([pay], max_iterations=1)
    session.event_store.claim("default", "ship", "me", ["paid"], 1, 60_000)
    [ordered] = session.trace(session.why(Customer, "c1").event_id).events

    assert {
        each.handler_id: (each.state, each.attempts) for each in ordered.followers[0].outcomes
    } == {
        "ship": ("claimed", 0),
        "write": ("unclaimed", 0),
    }


def test_a_replayed_event_is_a_chain_of_its_own(shop):
    first = shop.why(Customer, "c1").event_id
    again = shop.event_store.replay_event("default", first)

    trace = shop.trace(again)

    assert trace.root_event_id == again
    assert [each.event_id for each in trace] == [again]
    assert again not in [each.event_id for each in shop.trace(first)]


def test_without_the_first_event_the_rest_is_shown(shop, sql):
    trace = shop.trace(shop.why(Buys, "c1:10").event_id)
    sql(f"DELETE FROM events WHERE id = '{trace.root_event_id}'")

    rest = shop.trace(trace.events[0].followers[0].event_id)

    assert [each.type for each in rest.events] == ["paid"]
    assert [each.type for each in rest] == ["paid", "event.dead_letter"]


def test_an_event_that_is_not_there_is_not_found(shop):
    with pytest.raises(NotFoundError, match="there is no event nobody"):
        shop.trace("nobody")


def test_an_odd_id_finds_its_commits(session):
    """The index on PostgreSQL holds what stands between quotes; the rest is looked at."""

    @on_event(Paid, name="keep")
    def keep(ctx):
        ctx.ensure(Customer(id=ctx.event.customer, name=""))
        ctx.commit()

    odd = ['a"b', 'a"c', "a\\", "é\n", "plain"]
    for number, name in enumerate(odd):
        event = Paid(customer=str(number))
        event.id = name
        session.event_store.enqueue(event, "default")
    session.run([keep], max_iterations=1)

    made = {name: session.trace(name).events[0].outcomes[0].commits for name in odd}
    assert sorted(made.values()) == [(1,), (2,), (3,), (4,), (5,)]
    for number, name in enumerate(odd):
        assert session.why(Customer, str(number)).event_id == name


def test_a_long_chain_is_traced_without_an_end_of_the_stack(open_session):
    session = open_session(settings={"max_event_chain_depth": 5000, "event_poll_interval_ms": 0})

    @on_event(Paid, name="next")
    def follow(ctx):
        if ctx.event.chain_depth < 1500:
            ctx.emit(Paid(customer="c1"))

    event = Paid(customer="c1")
    session.commit(event=event)
    session.run([follow], max_iterations=2)

    trace = session.trace(event.id)
    assert sum(1 for _ in trace) == 1501
    assert event.id in repr(trace)


def test_attempts_from_before_a_retry_keep_their_commits(open_session):
    session = open_session(settings={"event_max_attempts": 1})
    broken = [True]

    @on_event(Paid, name="keep")
    def keep(ctx):
        ctx.ensure(Customer(id="c", name="tried" if broken else "kept"))
        ctx.commit()
        session.config.clock.advance(seconds=1)
        if broken:
            raise RuntimeError("broken")

    event = Paid(customer="c")
    session.commit(event=event)
    session.run([keep], max_iterations=1)
    broken.clear()
    session.config.clock.advance(seconds=1)
    Operator(session, "ada@host", reason="mended").retry(Selection(event_id=event.id))
    session.run([keep], max_iterations=1)

    [outcome] = session.trace(event.id).events[0].outcomes
    assert (outcome.state, outcome.commits) == ("acked", (1, 3))
    assert [(each.attempt, each.commits) for each in outcome.failures] == [(0, (1,))]
