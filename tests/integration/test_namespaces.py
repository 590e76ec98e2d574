"""Namespaces keep events apart, and chains within them."""

from __future__ import annotations

from typing import Any

import pytest

from ontologia import Event, Field, LeaseExpiredError, OntologiaConfig, Session, on_event
from ontologia.errors import ConfigError
from tests.shop import Customer


class Order(Event):
    number: Field[int] = 0


class Shipped(Event):
    number: Field[int] = 0


class Billed(Event):
    number: Field[int] = 0


def announce(session, *numbers: int, **options: Any) -> list[str]:
    events = [Order(number=number) for number in numbers]
    for event in events:
        session.commit(event=event, **options)
    return [event.id for event in events]


def collector(seen: list, name: str = "collector"):
    @on_event(Order, name=name)
    def collect(ctx):
        seen.append(ctx.event.number)

    return collect


def rows(session, namespace: str | None = None) -> dict[str, dict]:
    """Everything about each event of a namespace, the last of each type."""
    listed = session.event_store.list_events(namespace or session.namespace, limit=1000)
    return {each["type"]: session.event_store.inspect_event(each["id"]) for each in listed}


@pytest.mark.req("ONT-010", "ONT-011")
def test_a_session_has_the_namespace_it_names_or_the_configured_one(uri):
    def namespace(*args: Any, **settings: Any) -> str:
        with Session(uri, *args, config=OntologiaConfig(**settings)) as session:
            announce(session, 1)
            assert rows(session)["order"]["namespace"] == session.namespace
            [listed, *_] = session.event_store.list_sessions(session.namespace)
            assert listed["session_id"] == session.session_id
            return session.namespace

    assert namespace() == "default"
    assert namespace(default_namespace="tenant-a") == "tenant-a"
    assert namespace("orders", default_namespace="tenant-a") == "orders"
    with pytest.raises(ConfigError, match="namespace"):
        Session(uri, namespace="")


@pytest.mark.req("ONT-085", "ONT-086", "ONT-179", "ONT-202")
def test_an_imperative_commit_announces_the_first_event_of_a_chain_in_its_namespace(open_session):
    session, event = open_session(namespace="orders"), Order(number=7)
    event.root_event_id, event.chain_depth = "mine", 5
    session.ensure(Customer(id="c1", name="Ada"))

    assert session.commit(event=event) == 1
    assert session.commit(event=Shipped()) is None

    row = rows(session)["order"]
    assert (row["id"], row["namespace"], row["payload"]) == (event.id, "orders", {"number": 7})
    assert (row["root_event_id"], row["chain_depth"]) == (event.id, 0)
    assert (row["source"], row["correlation_id"], row["causation_id"]) == (
        "commit:1",
        event.id,
        None,
    )
    assert rows(session)["shipped"]["source"] is None
    assert (event.root_event_id, event.chain_depth) == (event.id, 0)


@pytest.mark.req("ONT-085", "ONT-087")
def test_an_imperative_commit_names_its_namespace_and_an_event_that_fails_takes_it_along(
    open_session, refuse
):
    session = open_session(namespace="orders")
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
    allow = refuse("events", "type = 'order'")

    session.ensure(Customer(id="c2", name="Bob"))
    with pytest.raises(Exception, match="refused"):
        session.commit(event=Order())

    assert session.get_commit(1)["metadata"]["namespace"] == "orders"
    assert (session.head, rows(session)) == (1, {})
    allow()
    assert session.commit(event=Order()) == 2


@pytest.mark.req("ONT-094", "ONT-171")
def test_nothing_crosses_from_one_namespace_to_another(open_session):
    orders, payments = open_session(namespace="orders"), open_session(namespace="payments")
    seen: dict[str, list[int]] = {"orders": [], "payments": []}
    [first], [second] = announce(orders, 1), announce(payments, 2)

    payments.run([collector(seen["payments"])], max_iterations=2)
    assert seen == {"orders": [], "payments": [2]}
    payments.event_store.ack("collector", first)
    orders.run([collector(seen["orders"])], max_iterations=2)

    assert seen == {"orders": [1], "payments": [2]}
    assert [e["id"] for e in orders.event_store.list_events("orders")] == [first]
    assert orders.event_store.inspect_event(second, "orders") is None
    assert orders.event_store.replay_event("orders", second) is None
    assert orders.event_store.check() == []


@pytest.mark.req("ONT-156", "ONT-202")
def test_a_chain_stays_in_its_namespace_with_one_root_and_says_what_caused_what(open_session):
    session = open_session(namespace="orders")

    @on_event(Order, name="ship")
    def ship(ctx):
        ctx.emit(Shipped())

    @on_event(Shipped, name="bill")
    def bill(ctx):
        ctx.commit(event=Billed())

    [root] = announce(session, 1)
    session.run([ship, bill], max_iterations=1)

    chain = rows(session)
    lineage = {
        name: (row["chain_depth"], row["source"], row["causation_id"])
        for name, row in chain.items()
    }
    assert lineage == {
        "order": (0, None, None),
        "shipped": (1, "ship", root),
        "billed": (2, "bill", chain["shipped"]["id"]),
    }
    for row in chain.values():
        assert (row["root_event_id"], row["correlation_id"]) == (root, root)
        assert row["namespace"] == "orders"


@pytest.mark.req("ONT-088")
def test_the_sessions_own_commit_in_a_handler_is_the_handlers(session, clock):
    results = []

    @on_event(Order, name="ship")
    def ship(ctx):
        if ctx.attempt > 1:
            return
        ctx.ensure(Customer(id="c1", name="Ada"))
        results.append(ctx.session.commit(event=Shipped()))
        clock.advance(seconds=30)
        ctx.session.ensure(Customer(id="c2", name="Bob"))
        with pytest.raises(LeaseExpiredError):
            ctx.session.commit(event=Billed())
        results.append("too late")

    [root] = announce(session, 1)
    session.run([ship], max_iterations=1)

    assert results == [1, "too late"]
    assert session.get_commit(1)["metadata"]["handler_id"] == "ship"
    row = rows(session)["shipped"]
    assert (row["root_event_id"], row["chain_depth"], row["causation_id"]) == (root, 1, root)
    assert (session.head, "billed" in rows(session)) == (1, False)
