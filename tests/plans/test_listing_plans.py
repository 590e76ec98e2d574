"""What operators ask costs what they are told: other events add nothing. No clock is involved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from ontologia import Event, OntologiaConfig
from ontologia.store.events.store import EventStore
from ontologia.store.open import open_event_store
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    LOST,
    POST,
    ParcelLost,
    ParcelPosted,
    claim,
    post,
)
from tests.plans.test_query_plans import Watch


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
}


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
