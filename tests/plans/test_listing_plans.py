"""What operators ask costs what they are told: other events add nothing. No clock is involved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from ontologia import Event, OntologiaConfig
from ontologia.clock import to_text
from ontologia.store.events.store import EventStore
from ontologia.store.open import open_event_store
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    LOST,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    claim,
    post,
)
from tests.plans.test_query_plans import Watch

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(watch: Watch, clock: ManualClock, tmp_path: Path) -> Iterator[EventStore]:
    config = OntologiaConfig(clock=clock)
    opened = open_event_store(str(tmp_path / "listings.db"), config, clock, Random(1))
    yield opened.events
    opened.close()


def add(store: EventStore, *events: Event) -> None:
    with store.transaction() as tx:
        store.log.add(tx, [store.log.given_row(each, POST) for each in events])


def finish(store: EventStore, many: int) -> None:
    """So many more events that their only consumer has finished."""
    add(store, *(ParcelPosted(number=each) for each in range(many)))
    for event in claim(store, limit=many):
        store.ack("ship", str(event.id))


ASKED: dict[str, Callable[[EventStore], object]] = {
    "namespaces": lambda s: s.listings.elsewhere("typo", 6),
    "one type": lambda s: list(s.listings.newest(POST, 5, event_type=LOST)),
    "old of one type": lambda s: s.retention.count_old(POST, timedelta(0), event_type=LOST),
    "figures": lambda s: s.activity.stats(POST, timedelta(minutes=1)),
    "what a deployment meets": lambda s: (
        *s.backlog.retained(POST, ["new"], LOST),
        *s.backlog.waiting(POST, ["ship", "lose"], POSTED),
        *s.backlog.dead(POST, ["ship"], POSTED),
        *s.backlog.deferred(POST, POSTED),
        s.backlog.count_retained(POST, ["new"], LOST),
        s.backlog.longest_attempt(POST),
        s.backlog.last_fires(POST),
        s.listings.live_sessions(),
    ),
}


@pytest.mark.req("NEW-167")
@pytest.mark.parametrize("asked", ASKED)
def test_what_operators_ask_costs_nothing_for_events_that_others_have_finished(
    store: EventStore, watch: Watch, clock: ManualClock, asked: str
) -> None:
    def steps() -> int:
        clock.advance(seconds=3_600)  # all of it is before the window of the figures
        with watch.at():
            assert ASKED[asked](store)
        return int(watch.steps)

    post(store, 1, namespace="other")
    add(store, *(ParcelLost(number=each) for each in range(10)))
    finish(store, 1)
    few = steps()

    finish(store, 300)

    assert steps() <= 1.2 * few


@pytest.mark.req("NEW-167")
def test_the_last_tick_of_a_schedule_costs_nothing_for_those_before(
    store: EventStore, watch: Watch
) -> None:
    def fire(schedule: str, *ticks: int) -> None:
        with store.transaction() as tx:
            for tick in ticks:
                row = store.log.given_row(ParcelLost(number=tick), POST)
                store.log.fire(tx, row, schedule, to_text(START + timedelta(hours=tick)))

    def steps() -> int:
        with watch.at():
            found = store.backlog.last_fires(POST)
        assert [(each.key, each.tick) for each in found] == [
            ("a", START + timedelta(hours=400)),
            ("b", START + timedelta(hours=2)),
        ]
        return int(watch.steps)

    fire("a", 400)
    fire("b", 1, 2)
    few = steps()

    fire("a", *range(300))

    assert steps() <= 1.2 * few
