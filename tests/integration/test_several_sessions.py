"""Several sessions share the events of a namespace; each event goes to one of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ontologia import Event, Field, on_event
from ontologia.clock import SYSTEM_CLOCK
from tests.integration.processes import Process
from tests.integration.processes import run as run_process
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Order(Event):
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


@pytest.mark.req("ONT-013", "ONT-014", "ONT-168", "ONT-171")
def test_sessions_of_two_namespaces_run_side_by_side_in_one_program(open_session):
    """Two sessions of each namespace; each event goes to one of the two."""
    numbers, lock = range(40), threading.Lock()
    seen: dict[str, list[int]] = {"orders": [], "payments": []}

    @on_event(Order)
    def handle(ctx):
        with lock:
            seen[ctx.session.namespace].append(ctx.event.number)
        ctx.ensure(Customer(id=f"{ctx.session.namespace}-{ctx.event.number}", name="x"))
        ctx.commit()

    sessions = [
        open_session(namespace=name, settings={"event_claim_limit": 3})
        for name in ("orders", "payments") * 2
    ]
    for session in sessions[:2]:
        announce(session, *numbers)

    async def main() -> None:
        runs = (asyncio.to_thread(s.run, handlers=[handle], max_iterations=2) for s in sessions)
        await asyncio.gather(*runs)

    asyncio.run(main())

    assert {name: sorted(each) for name, each in seen.items()} == {
        "orders": [*numbers], "payments": [*numbers],
    }  # fmt: skip
    assert sessions[0].query().entities(Customer).count() == 80
    assert sessions[0].event_store.check() == []


@pytest.mark.req("ONT-168", "ONT-169")
def test_a_second_session_takes_the_next_events_and_none_twice(open_session):
    first, second = (open_session(settings={"event_claim_limit": 2}) for _ in range(2))
    log = []

    @on_event(Order)
    def handle(ctx):
        log.append((ctx.session is second, ctx.event.number))
        if ctx.event.number == 1:
            second.run([handle], max_iterations=1)

    announce(first, 1, 2, 3, 4, 5)
    first.run([handle], max_iterations=1)

    assert log == [(False, 1), (True, 3), (True, 4), (True, 5), (False, 2)]
    assert first.event_store.check() == []


SHARE = """
from ontologia import Event, Field, on_event

class Order(Event):
    number: Field[int] = 0

seen = []

@on_event(Order, name="collector")
def collect(ctx):
    seen.append(ctx.event.number)
    if ctx.event.number == 0:
        say("holding")
        listen()

config = OntologiaConfig(event_claim_limit=5)
Session(sys.argv[1], config=config).run([collect], max_iterations=1)
report(seen)
"""


@pytest.mark.thorough
@pytest.mark.req("ONT-168", "ONT-169", "ONT-172")
def test_two_processes_share_the_events_of_a_namespace(uri, open_session):
    session = open_session(settings={"clock": SYSTEM_CLOCK})
    announce(session, *range(40))

    with Process(SHARE, uri) as first:
        first.hear("holding")
        others = run_process(SHARE, uri)
        first.tell()
        held = first.report()

    assert held == [0, 1, 2, 3, 4]
    assert others == list(range(5, 40))
    assert session.event_store.check() == []


@pytest.mark.req("ONT-108", "ONT-170", "ONT-173")
def test_what_a_session_that_died_had_claimed_is_another_s_when_the_lease_is_over(
    open_session, clock
):
    dead, alive, seen = open_session(), open_session(), []
    announce(dead, 1, 2)
    store = dead.event_store
    taken = store.claim("default", "collector", dead.session_id, ["order"], 10, 30_000)
    assert len(taken) == 2

    clock.advance(seconds=29.999999)
    alive.run([collector(seen)], max_iterations=1)
    assert seen == []
    clock.advance(seconds=0.000001)
    alive.run([collector(seen)], max_iterations=1)
    assert seen == [1, 2]

    clock.advance(seconds=60)
    alive.event_store.heartbeat(alive.session_id)
    listed = {each["session_id"]: each for each in store.list_sessions("default")}
    assert listed[dead.session_id]["is_dead"]
    assert not listed[alive.session_id]["is_dead"]
    assert listed[dead.session_id]["metadata"].keys() >= {"hostname", "pid"}
