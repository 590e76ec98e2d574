"""A value of the wrong type is a TypeError at every door, and a naive datetime is no instant."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ontologia import (
    Entity,
    Event,
    Field,
    Relation,
    Retry,
    Schedule,
    Session,
    left,
    on_event,
)
from ontologia.commands import Command, DomainModel, Env, api
from ontologia.errors import (
    ConfigError,
    InvalidTypeError,
    InvalidValueError,
    OntologiaError,
    QueryError,
)
from ontologia.extensions.bus import EventBus
from ontologia.extensions.context import ExtensionContext
from ontologia.queues import DomainEvent, RetryPolicy, StoreEventQueue, open_queue
from ontologia.runtime.session import core_of
from ontologia.testing import ManualClock

NAIVE = datetime(2026, 11, 16, 18, 0)


@pytest.fixture(scope="session")
def backend(sqlite):
    """Doors are before the database."""
    return sqlite


class BellRung(Event):
    tower: Field[str]
    at: Field[datetime | None] = Field(default=None)


class Belfry(Entity):
    id: Field[str]
    built: Field[datetime | None] = Field(default=None)
    plan: Field[dict] = Field(default_factory=dict)


class Hangs(Relation[Belfry, Belfry]):
    since: Field[int] = Field(default=0)


@api.model("bells.bell")
class Bell(DomainModel):
    weight: Field[int] = Field(default=0)


class World:
    """One of each thing that has doors."""

    def __init__(self, session):
        self.session = session
        self.queue = StoreEventQueue(session)
        self.store = session.event_store
        self.env = Env(session, queue="none")
        self.env.registry.register_model(Bell)
        core_of(session).registry.add(Bell, "entity")
        self.bells = self.env.models["bells.bell"]
        self.belfries = session.query().entities(Belfry)


@pytest.fixture
def world(session):
    return World(session)


WRONG = {
    "emit delay": lambda w: w.session.commit(event=BellRung(tower="a"), delay="soon"),
    "emit at": lambda w: w.session.commit(event=BellRung(tower="a"), at="soon"),
    "emit dedup_key": lambda w: w.session.commit(event=BellRung(tower="a"), dedup_key=5),
    "defer": lambda w: w.session.defer(BellRung(tower="a"), delay=[]),
    "cancel_deferred": lambda w: w.session.cancel_deferred("5"),
    "commit_at": lambda w: w.session.commit_at("yesterday"),
    "list_commits": lambda w: w.session.list_commits(limit="5"),
    "get_commit": lambda w: w.session.get_commit("5"),
    "trace": lambda w: w.session.trace(5),
    "why": lambda w: w.session.why(Hangs, 5),
    "namespace": lambda w: Session(":memory:", 5),
    "config": lambda w: Session(":memory:", config="fast"),
    "workers": lambda w: w.session.run([], workers="2"),
    "priority": lambda w: BellRung(tower="a", priority="high"),
    "created_at": lambda w: w.store.enqueue(_created_at(5), "default"),
    "list_events": lambda w: w.store.list_events("default", limit="5"),
    "cleanup": lambda w: w.store.cleanup_events("default", "2026"),
    "retry": lambda w: Retry(after="5"),
    "cron": lambda w: Schedule(BellRung(tower="a"), 5),
    "zone": lambda w: Schedule(BellRung(tower="a"), "0 2 * * *", tz=5),
    "event name": lambda w: DomainEvent.build(name=5, payload={}),
    "event payload": lambda w: DomainEvent.build(name="a", payload=[]),
    "tenant": lambda w: DomainEvent.build(name="a", payload={}, tenant_id=5),
    "occurred_at": lambda w: w.queue.enqueue(replace(_event(), occurred_at="now")),
    "enqueue": lambda w: w.queue.enqueue({"name": "a"}),
    "group": lambda w: open_queue("store", session=w.session, group=5),
    "dequeue": lambda w: w.queue.dequeue("10", 0),
    "dequeue timeout": lambda w: w.queue.dequeue(10, "0"),
    "nack": lambda w: w.queue.nack("x", retry_after_seconds="0"),
    "max_attempts": lambda w: RetryPolicy(max_attempts="5"),
    "base_delay": lambda w: RetryPolicy(base_delay_seconds="5"),
    "modules": lambda w: Env(w.session, modules="app", queue="none"),
    "module": lambda w: Env(w.session, modules=[5], queue="none"),
    "command payload": lambda w: Command("a", []),
    "command name": lambda w: Command(5, {}),
    "idempotency_key": lambda w: w.env.dispatch(
        Command("ede.count", {}, "bells.bell"), idempotency_key=5
    ),
    "env emit": lambda w: w.env.emit(5, {}),
    "browse": lambda w: w.bells.browse(5),
    "create": lambda w: w.bells.create("x"),
    "write": lambda w: w.bells.browse("a").write(["weight"]),
    "read": lambda w: w.bells.create({"id": "b"}).read("weight"),
    "group_by": lambda w: w.bells.read_group(group_by="weight"),
    "group_by number": lambda w: w.bells.read_group(group_by=5),
    "domain": lambda w: w.bells.search("weight"),
    "domain term": lambda w: w.bells.search([5]),
    "domain field": lambda w: w.bells.search([(5, "=", 1)]),
    "domain operator": lambda w: w.bells.search([("weight", 5, 1)]),
    "order": lambda w: w.bells.search(order=["weight"]),
    "limit": lambda w: w.bells.search(limit="5"),
    "aggregate": lambda w: w.bells.read_group(group_by=["weight"], aggregate=["sum"]),
    "aggregate text": lambda w: w.bells.read_group(group_by=["weight"], aggregate={"a": 5}),
    "aggregate alias": lambda w: w.bells.read_group(group_by=["weight"], aggregate={5: "count"}),
    "query limit": lambda w: w.belfries.limit("5"),
    "query as_of": lambda w: w.belfries.as_of("5"),
    "query where": lambda w: w.belfries.where("id = 5"),
    "query order_by": lambda w: w.belfries.order_by("id"),
    "query path": lambda w: Belfry.plan.path(5),
    "query step": lambda w: Belfry.plan[1.5],
    "query left": lambda w: left(Belfry),
    "query compare": lambda w: Belfry.id == 5,
    "bus name": lambda w: EventBus(w.session, name=5),
    "bus poll_interval": lambda w: EventBus(w.session, poll_interval="5"),
    "bus topic": lambda w: EventBus(w.session).subscribe(5, _hear),
    "bus max_attempts": lambda w: EventBus(w.session).subscribe("a", _hear, max_attempts="2"),
    "bus handler": lambda w: EventBus(w.session).subscribe("a", "hear"),
    "permissions": lambda w: ExtensionContext("x", permissions="all"),
    "permission": lambda w: ExtensionContext("x", permissions={"read": "Belfry"}),
}
"""Doors, and what comes in that is of another type than they take."""


def _event():
    return DomainEvent.build(name="bell.rung", payload={})


def _created_at(value):
    event = BellRung(tower="a")
    event.created_at = value
    return event


async def _hear(event):
    pass


@pytest.mark.parametrize("door", WRONG)
def test_a_wrong_type_is_a_type_error(world, door):
    with pytest.raises(TypeError):
        WRONG[door](world)


@pytest.mark.parametrize("door", ["emit delay", "dequeue", "browse", "command payload", "retry"])
def test_who_caught_a_value_error_still_does(world, door):
    with pytest.raises(ValueError, match="got") as caught:
        WRONG[door](world)

    assert isinstance(caught.value, InvalidTypeError)
    assert isinstance(caught.value, OntologiaError)


@pytest.mark.parametrize(
    ("error", "act"),
    [
        (InvalidValueError, lambda w: w.queue.dequeue(0, 0)),
        (InvalidValueError, lambda w: w.session.commit(event=BellRung(tower="a"), delay=-1)),
        (InvalidValueError, lambda w: DomainEvent.build(name="", payload={})),
        (InvalidValueError, lambda w: w.bells.read_group(group_by=[])),
        (QueryError, lambda w: w.bells.search([("weight", "~", 1)])),
        (ConfigError, lambda w: Schedule(BellRung(tower="a"), "daily")),
        (ConfigError, lambda w: Session(":memory:", "")),
    ],
)
def test_a_wrong_value_of_the_right_type_is_no_type_error(world, error, act):
    with pytest.raises(error) as caught:
        act(world)

    assert not isinstance(caught.value, TypeError)


@pytest.mark.req("C-004")
def test_each_on_event_names_the_other():
    with pytest.raises(TypeError, match=r"ontologia\.on_event"):
        api.on_event(BellRung)
    with pytest.raises(TypeError, match=r"ontologia\.commands\.api\.on_event"):
        on_event("bell.rung")


# -- naive datetimes ------------------------------------------------------------------------------


INSTANTS = {
    "emit": lambda w: w.session.commit(event=BellRung(tower="a"), at=NAIVE),
    "defer": lambda w: w.session.defer(BellRung(tower="a"), at=NAIVE),
    "commit_at": lambda w: w.session.commit_at(NAIVE),
    "cleanup": lambda w: w.store.cleanup_events("default", NAIVE),
    "clock": lambda w: ManualClock(NAIVE),
    "created_at": lambda w: w.store.enqueue(_created_at(NAIVE.isoformat()), "default"),
    "enqueue": lambda w: w.queue.enqueue(replace(_event(), occurred_at=NAIVE)),
    "enqueue in memory": lambda w: open_queue("inmemory").enqueue(
        replace(_event(), occurred_at=NAIVE)
    ),
}


@pytest.mark.parametrize("door", INSTANTS)
def test_where_an_instant_is_meant_a_naive_datetime_is_refused(world, door):
    with pytest.raises(InvalidValueError) as caught:
        INSTANTS[door](world)

    assert "UTC" in (caught.value.hint or "")
    assert world.store.list_events("default") == []


def test_a_field_keeps_a_datetime_as_it_is(session):
    given: list[datetime] = []

    @on_event(BellRung, name="bells.listen")
    def listen(ctx):
        given.append(ctx.event.at)

    aware = NAIVE.replace(tzinfo=UTC)
    session.ensure([Belfry(id="a", built=NAIVE), Belfry(id="b", built=aware)])
    session.commit(event=[BellRung(tower="a", at=NAIVE), BellRung(tower="b", at=aware)])
    session.run([listen], max_iterations=2)

    assert [each.built for each in session.query().entities(Belfry).collect()] == [NAIVE, aware]
    assert given == [NAIVE, aware]
    assert [each.tzinfo for each in given] == [None, UTC]
