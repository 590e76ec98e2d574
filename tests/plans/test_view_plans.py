"""What operators are shown costs a page: no view reads a growing table, however large it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from ontologia import Event, Field, HandlerContext, Session, on_event
from ontologia.runtime.operator import Operator
from ontologia.runtime.views import (
    attempts,
    audit,
    commits,
    dead_letters,
    events,
    graph,
    later,
    objects,
    past,
    search,
    sessions,
    why,
)
from ontologia.runtime.views.overview import overview
from ontologia.web.console.sampler import Sampler
from tests.integration.explained import Buys, Customer, Ordered, fill

START = datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
"""When the shop was filled, and had not grown."""
_SMALL = {"c", "consumers", "s", "subscriptions", "v", "n", "m", "schema_versions"}
"""Tables of as many rows as a program has names."""
_BOUNDED = {"incoming", "ek", "counted", "i", "k", "p", "t", "json_each"}
"""Read up to a LIMIT, or made on the way: of a few names, priorities or ids."""


class Packed(Event):
    number: Field[int]


@on_event(Packed, name="pack")
def pack(ctx: HandlerContext[Packed]) -> None:
    """Is done at once."""


@pytest.fixture
def shop(watch, open_session, clock) -> Session:
    session = open_session()
    fill(session, clock)
    session.defer(Ordered(customer="c1"), delay=60)
    Operator(session, "ada").pause("pay")
    clock.advance(seconds=600)
    return session


def event_id(shop: Session) -> str:
    return events.newest_events(shop, events.EventFilter(type="ordered")).rows[-1].event_id


SHOWN: dict[str, Callable[[Session], object]] = {
    "overview": overview,
    "events": lambda s: events.newest_events(s, limit=2),
    "events of a handler": lambda s: events.newest_events(s, events.EventFilter(handler="pay")),
    "events by payload": lambda s: events.newest_events(
        s, events.EventFilter(type="ordered", payload=(("customer", "c1"),))
    ),
    "event": lambda s: events.event(s, event_id(s)),
    "dead letters": dead_letters.dead_letters,
    "groups": dead_letters.failure_groups,
    "sessions": sessions.sessions,
    "audit": audit.operators_commits,
    "deferred": later.deferred_events,
    "schedules": later.schedules,
    "types": objects.types,
    "objects": lambda s: objects.objects(s, "entity", "Customer", limit=2),
    "objects then": lambda s: objects.objects(s, "entity", "Customer", as_of=1, limit=2),
    "object": lambda s: objects.object_(s, "entity", "Customer", "c1"),
    "object then": lambda s: objects.object_(s, "entity", "Customer", "c1", as_of=1),
    "versions": lambda s: objects.versions(s, "entity", "Customer", "c1"),
    "type": lambda s: objects.type_(s, "entity", "Product"),
    "two versions": lambda s: objects.compared(s, "entity", "Customer", "c1", 1, 2),
    "relations of the right end": lambda s: objects.objects(
        s, "relation", "Buys", filters=[("right_key", "eq", "10")], limit=2
    ),
    "why": lambda s: why.why_by_name(s, "Customer", "c1", "tier", as_of=2),
    "commits": commits.commits,
    "commit": lambda s: commits.commit(s, 2),
    "commit of a session": lambda s: commits.commit(s, 1),
    "commit of a relation": lambda s: commits.commit(s, 3),
    "attempt": lambda s: attempts.attempt(s, event_id(s), "pay", 2),
    "overview then": lambda s: past.overview_at(s, s.commit_at(START)),
    "events then": lambda s: past.newest_events_at(s, as_of=START, limit=2),
    "events of a handler then": lambda s: past.newest_events_at(
        s, events.EventFilter(handler="pay", status="acked"), as_of=START
    ),
    "event then": lambda s: past.event_at(s, event_id(s), START),
    "commits around": lambda s: past.commits_around(s, 2),
    "graph": lambda s: graph.graph(s, event_id(s)),
    "search": lambda s: search.search(s, "c1"),
}


@pytest.mark.req("NEW-212")
@pytest.mark.parametrize("shown", SHOWN)
def test_no_view_reads_a_growing_table(shop: Session, watch, shown: str) -> None:
    plan = watch.plan(lambda: SHOWN[shown](shop))

    made = {step.split()[1] for step in plan if step.startswith(("CO-ROUTINE", "MATERIALIZE"))}
    scanned = {step for step in plan if step.startswith("SCAN ") and "CONSTANT" not in step}
    known = _SMALL | _BOUNDED | made
    found = {step for step in scanned if step.split()[1] not in known}
    # The first of these; what is staged is read in the commit of a migration that settles alone.
    # f: the priorities that a recursive statement finds.
    assert found <= {"SCAN deferred_events USING INDEX idx_deferred_due", "SCAN st", "SCAN f"}


GROWING = {"object then", "objects then", "audit", "types"}
"""Keys that were created later are passed over. Versions of relations of a type, and all commits, are looked at up to a deadline; objects of a type
are counted up to 1,000."""


@pytest.mark.req("NEW-212")
@pytest.mark.parametrize("shown", sorted(SHOWN.keys() - GROWING))
def test_a_view_costs_the_same_in_a_larger_store(shop: Session, watch, shown: str) -> None:
    grow(shop, 60)  # more than a page
    few = watch.work(lambda: SHOWN[shown](shop))

    grow(shop, 300)

    assert watch.work(lambda: SHOWN[shown](shop)) <= 1.3 * few


@pytest.mark.req("NEW-241")
def test_an_idle_sampler_costs_the_same_in_a_larger_store(shop: Session, watch) -> None:
    sampler = Sampler(shop)
    grow(shop, 600)  # more than it looks at again
    sampler.sample()
    few = watch.work(sampler.sample)

    grow(shop, 300)
    sampler.sample()

    assert watch.work(sampler.sample) <= 1.1 * few
    plan = watch.plan(sampler.sample)
    assert not [step for step in plan if step.startswith("SCAN events")]


def grow(shop: Session, number: int) -> None:
    """So many more commits, events that are finished, and versions of other objects."""
    first = shop.head
    for each in range(first, first + number):
        shop.ensure(Customer(id=f"x{each}", name="Eve"))
        shop.ensure(Buys(left_key=f"x{each}", right_key="9", pieces=1))
        shop.commit(event=Packed(number=each))
    shop.run([pack], max_iterations=number)
