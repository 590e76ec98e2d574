"""What a handler has in its hands: state written by commit alone, events stored on success alone."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

from ontologia import Event, Field, HandlerContext, on_event
from ontologia.errors import InvalidValueError, SessionClosedError
from tests.shop import Customer, Product, Subscription


class Signup(Event):
    user_id: Field[str] = "u1"


class Welcomed(Event):
    number: Field[int] = 0


def ada(name: str = "Ada") -> Customer:
    return Customer(id="c1", name=name)


def deliver(session, function, event=None):
    """Announce an event, and let this function handle it; the store is sound afterwards."""
    event = event or Signup()
    session.commit(event=event)
    session.run([on_event(Signup)(function)], max_iterations=1)
    assert session.event_store.check() == []
    return session.event_store.inspect_event(event.id)


def waiting(session) -> list[dict[str, Any]]:
    """What is stored of Welcomed, in the order in which it would be claimed."""
    listed = session.event_store.list_events(session.namespace)
    found = [session.event_store.inspect_event(each["id"]) for each in listed]
    return [each for each in found if each["type"] == "welcomed"]


def names(session):
    return {c.id: c.name for c in session.query().entities(Customer).collect()}


# -- the event ------------------------------------------------------------------------------------


@pytest.mark.req("ONT-034", "ONT-105")
def test_the_event_has_its_fields_and_what_the_store_knows_of_it(session, clock):
    seen = []

    def handler(ctx: HandlerContext[Signup]) -> None:
        seen.append(ctx.event)
        seen.append((ctx.session, ctx.attempt, ctx.lease_until, ctx.commit_id))

    sent = Signup(user_id="u7", priority=5)
    deliver(session, handler, sent)

    got, facts = seen
    assert type(got) is Signup
    assert (got.user_id, got.id, got.created_at) == ("u7", sent.id, sent.created_at)
    assert (got.priority, got.root_event_id, got.chain_depth) == (5, sent.id, 0)
    assert facts == (session, 1, clock.now() + timedelta(seconds=30), None)
    assert HandlerContext[Signup].__origin__ is HandlerContext


# -- ensure and commit ----------------------------------------------------------------------------


@pytest.mark.req("ONT-035", "ONT-037", "ONT-201")
def test_a_handler_that_never_commits_writes_nothing_and_fails(session):
    told = deliver(session, lambda ctx: ctx.ensure([ada()]))

    assert told["claims"][0]["ack_at"] is None
    assert "UncommittedChangesError" in told["claims"][0]["last_error"]
    assert (session.head, names(session), session.list_commits()) == (0, {}, [])


@pytest.mark.req("ONT-037", "NEW-028")
def test_what_one_handler_left_uncommitted_is_in_no_others_commit(session):
    commits = []

    @on_event(Signup, priority=200)
    def forgetful(ctx):
        ctx.ensure(ada())
        ctx.session.ensure(Customer(id="c9", name="through the session"))

    @on_event(Signup)
    def careful(ctx):
        ctx.ensure(Customer(id="c2", name="Bob"))
        commits.append(ctx.commit())

    session.commit(event=Signup())
    session.run([forgetful, careful], max_iterations=1)

    assert commits == [1]
    assert names(session) == {"c2": "Bob"}
    assert session.commit() is None


@pytest.mark.req("ONT-035", "ONT-036")
def test_ensure_takes_one_object_or_any_iterable_of_them(session):
    results, before = [], []

    def handler(ctx):
        results.append(ctx.ensure(ada()))
        results.append(ctx.ensure(Customer(id=f"g{n}", name="x") for n in range(10)))
        ctx.ensure(
            [Product(sku="p1", price=1), Subscription(left_key="c1", right_key="p1", seats=2)]
        )
        before.append(session.head)
        results.append(ctx.commit())
        ctx.ensure([Customer(id=f"n{n}", name="x") for n in range(1000)])
        results.append(ctx.commit())

    deliver(session, handler)

    assert results == [None, None, 1, 2]
    assert before == [0]
    assert session.query().relations(Subscription).count() == 1
    assert len(session.list_commit_changes(1)) == 13
    assert len(session.list_commit_changes(2)) == 1000


@pytest.mark.req("ONT-038", "ONT-039", "ONT-040")
def test_each_commit_is_a_commit_of_its_own_and_empties_the_queue(session, open_session):
    results, other = [], open_session()

    def handler(ctx):
        for n in range(3):
            ctx.ensure(ada(f"Ada {n}"))
            results.extend([ctx.commit(), ctx.commit()])
        other.ensure(ada("Eve"))
        results.extend([other.commit(), ctx.commit()])

    deliver(session, handler)

    assert results == [1, None, 2, None, 3, None, 4, None]
    assert [each["id"] for each in session.list_commits()] == [4, 3, 2, 1]
    assert names(session) == {"c1": "Eve"}
    parameters = inspect.signature(HandlerContext.commit).parameters
    assert parameters["event"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_handler_can_delete_and_change_its_mind(session):
    session.ensure([ada(), Customer(id="c2", name="Bob")])
    session.commit()
    dropped = []

    def handler(ctx):
        ctx.ensure(ada("Eve"))
        dropped.append(ctx.discard())
        ctx.delete(Customer(id="c2", name="Bob"))
        ctx.commit()

    deliver(session, handler)

    assert dropped == [1]
    assert names(session) == {"c1": "Ada"}


@pytest.mark.req("ONT-061", "ONT-090")
def test_a_handler_sees_its_last_commit_and_what_it_changed(session):
    session.ensure(ada("old"))
    session.commit()
    seen = []

    def handler(ctx):
        seen.append(ctx.commit_id)
        ctx.ensure(ada("new"))
        ctx.commit()
        ctx.commit()
        seen.append(ctx.commit_id)
        seen.append(ctx.session.list_commit_changes(ctx.commit_id))
        seen.append(ctx.query().entities(Customer).as_of(1).first().name)

    deliver(session, handler)

    change = {"entity_id": "Customer:c1", "relation_id": None, "change_type": "updated"}
    assert seen == [None, 2, [change], "old"]


# -- metadata -------------------------------------------------------------------------------------


@pytest.mark.req("ONT-050", "ONT-051", "ONT-052", "ONT-087", "NEW-040")
def test_words_go_with_the_next_commit_that_changes_something(session):
    def handler(ctx):
        ctx.add_commit_meta("reason", "first thought")
        ctx.add_commit_meta("reason", "import")
        ctx.add_commit_meta("by", "ada")
        ctx.commit()
        ctx.ensure(ada())
        ctx.commit()
        ctx.ensure(ada("Eve"))
        ctx.commit()

    told = deliver(session, handler)

    own = {
        "namespace": "default", "session_id": session.session_id, "event_id": told["id"],
        "handler_id": told["claims"][0]["handler_id"], "attempt": 1,
    }  # fmt: skip
    assert session.get_commit(1)["metadata"] == {"reason": "import", "by": "ada", **own}
    assert session.get_commit(2)["metadata"] == own


@pytest.mark.req("ONT-050")
@pytest.mark.parametrize(
    ("key", "value"), [("n", 1), (1, "n"), ("event_id", "x"), ("attempt", "1")]
)
def test_words_that_are_no_text_or_the_sessions_own_are_refused(session, key, value):
    caught = []

    def handler(ctx):
        try:
            ctx.add_commit_meta(key, value)
        except InvalidValueError as error:
            caught.append(str(error))

    deliver(session, handler)

    assert "metadata" in caught[0]


# -- the end --------------------------------------------------------------------------------------


def test_a_context_ends_with_its_handler(session):
    kept = []
    deliver(session, lambda ctx: kept.append(ctx))

    [ctx] = kept
    for use in (
        lambda: ctx.emit(Welcomed()),
        lambda: ctx.ensure(ada()),
        lambda: ctx.delete(ada()),
        lambda: ctx.add_commit_meta("a", "b"),
        ctx.commit,
        ctx.renew,
    ):
        with pytest.raises(SessionClosedError, match="returned"):
            use()
    assert (session.head, waiting(session)) == (0, [])
