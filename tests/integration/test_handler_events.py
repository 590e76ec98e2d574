"""What a handler announces: stored when it has succeeded, or with a commit, and in its chain."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from ontologia import Event, Field, on_event
from ontologia.errors import IntegrityError, OntologiaError
from tests.shop import Customer


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


# -- emit -----------------------------------------------------------------------------------------


@pytest.mark.req("ONT-041", "ONT-042", "ONT-043", "ONT-156", "SQL-144")
def test_what_is_emitted_is_stored_when_the_handler_has_returned_and_in_that_order(
    session, open_session
):
    other, during = open_session(), []

    def look(ctx):
        claimed = other.event_store.claim("default", "o", other.session_id, ["welcomed"], 9, 1000)
        during.append((waiting(other), claimed))

    def handler(ctx):
        ctx.emit(Welcomed(number=1))
        look(ctx)
        ctx.ensure(ada())
        ctx.commit()
        ctx.emit(Welcomed(number=2))
        ctx.ensure(ada("Eve"))
        ctx.commit()
        ctx.emit(Welcomed(number=3))
        look(ctx)

    deliver(session, handler)

    assert during == [([], []), ([], [])]
    claimed = other.event_store.claim("default", "o", other.session_id, ["welcomed"], 9, 1000)
    assert [event.number for event in claimed] == [1, 2, 3]


@pytest.mark.req("ONT-044", "ONT-157", "SQL-143")
def test_what_a_failing_handler_emitted_never_was(session):
    attempts = []

    @on_event(Signup)
    def handler(ctx):
        attempts.append((ctx.attempt, waiting(session)))
        ctx.emit(Welcomed(number=ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("not today")

    session.commit(event=Signup())
    session.run([handler], max_iterations=2)

    assert attempts == [(1, []), (2, [])]
    assert [each["payload"] for each in waiting(session)] == [{"number": 2}]
    assert session.event_store.check() == []


@pytest.mark.req("ONT-058")
def test_an_announced_event_belongs_to_the_chain_whatever_it_carried(session):
    sent = Signup()
    given = [Welcomed(number=1), Welcomed(number=2)]

    def handler(ctx):
        for event in given:
            event.root_event_id, event.chain_depth, event.id = "mine", 7, "my-own"
        ctx.emit(given[0])
        ctx.commit(event=given[1])

    told = deliver(session, handler, sent)

    stored = {each["payload"]["number"]: each for each in waiting(session)}
    for number, event in enumerate(given, 1):
        row = stored[number]
        assert (row["root_event_id"], row["chain_depth"]) == (sent.id, 1)
        assert (row["causation_id"], row["correlation_id"]) == (sent.id, sent.id)
        assert row["source"] == told["claims"][0]["handler_id"]
        assert event.id == row["id"] != "my-own"


def test_an_instance_that_is_emitted_twice_is_two_events(session):
    """C-071."""
    event = Welcomed(number=5)

    def handler(ctx):
        ctx.emit(event)
        event.number = 6
        ctx.emit(event)

    deliver(session, handler)

    assert [each["payload"]["number"] for each in waiting(session)] == [5, 6]


@pytest.mark.req("ONT-060")
@pytest.mark.parametrize("wrong", ["welcomed", {"number": 1}, Welcomed, 7])
def test_only_an_event_can_be_announced(session, wrong):
    caught = []

    def handler(ctx):
        for call in (ctx.emit, lambda x: ctx.commit(event=x), lambda x: session.commit(event=x)):
            with pytest.raises(TypeError, match="event"):
                call(wrong)
            caught.append(call)

    deliver(session, handler)

    assert len(caught) == 3
    assert waiting(session) == []


# -- commit with an event -------------------------------------------------------------------------


@pytest.mark.req("ONT-053", "ONT-055")
def test_an_event_of_a_commit_is_there_with_it_and_stays_if_the_handler_fails(
    session, open_session
):
    other, during = open_session(), []

    def handler(ctx):
        ctx.ensure(ada())
        ctx.commit(event=Welcomed(number=4))
        during.append((names(other), [each["payload"] for each in waiting(other)]))
        raise ValueError("later")

    told = deliver(session, handler)

    assert during == [({"c1": "Ada"}, [{"number": 4}])]
    assert told["claims"][0]["last_error"] == "ValueError: later"
    assert len(waiting(session)) == 1


@pytest.mark.req("ONT-053", "ONT-054")
def test_an_event_that_cannot_be_stored_takes_its_commit_with_it(session, refuse):
    refuse("events", "type = 'welcomed'")
    caught = []

    def handler(ctx):
        ctx.ensure(ada())
        try:
            ctx.commit(event=Welcomed())
        except IntegrityError as error:
            caught.append(str(error))
            raise

    told = deliver(session, handler)

    assert "refused" in caught[0]
    assert (session.head, names(session), waiting(session)) == (0, {}, [])
    assert told["claims"][0]["ack_at"] is None


@pytest.mark.req("ONT-053", "ONT-054")
@pytest.mark.parametrize(
    "commit",
    [
        lambda ctx: ctx.commit(event="no event"),
        lambda ctx: ctx.commit(event=[Welcomed(), Welcomed()], dedup_key="one for two"),
    ],
    ids=["no event", "one key for two"],
)
def test_an_attempt_whose_commit_could_not_even_begin_has_failed_whatever_it_made_of_it(
    session, commit
):
    def handler(ctx):
        ctx.ensure(ada())
        with contextlib.suppress(OntologiaError, TypeError):
            commit(ctx)

    told = deliver(session, handler)

    assert (session.head, waiting(session)) == (0, [])
    assert told["claims"][0]["ack_at"] is None
    assert told["claims"][0]["attempts"] == 1


@pytest.mark.req("ONT-056", "ONT-057", "ONT-201")
def test_an_event_needs_no_change_and_a_change_no_event(session):
    results = []

    def handler(ctx):
        results.append(ctx.commit(event=Welcomed(number=1)))
        ctx.ensure(ada())
        results.append(ctx.commit())

    deliver(session, handler)

    assert results == [None, 1]
    assert [each["payload"] for each in waiting(session)] == [{"number": 1}]
