"""An event that comes due between a look at the store and the reckoning of the wait."""

from __future__ import annotations

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.queues import StoreEventQueue
from ontologia.queues.claiming import Claiming
from ontologia.runtime.acks import Acks
from ontologia.runtime.loop import EventLoop
from ontologia.runtime.outage import Outage
from ontologia.store.events.claims import Peek
from ontologia.testing import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def session(tmp_path, clock):
    config = OntologiaConfig(clock=clock, event_poll_interval_ms=60_000)
    with Session(str(tmp_path / "due.db"), config=config) as session:
        yield session


def look(clock, *, fresh):
    """What was seen a moment before the clock reached the time of a deferred event."""
    return Peek(set(), set(), None, clock.now().timestamp() - 0.001, set(), fresh)


def test_a_run_looks_again_at_once(session, clock):
    loop = EventLoop(session, [], workers=1, start="retained")
    try:
        assert loop._pause(look(clock, fresh=False)) == 0
        assert loop._pause(look(clock, fresh=True)) == 60  # nobody can claim it: no use to spin
    finally:
        loop._watch.close()


def test_a_queue_looks_again_at_once(session, clock):
    events = session._store.events
    acks = Acks(events.claims, 100, events.wake)
    claiming = Claiming(session, "worker:default", acks, Outage(), poll=60)
    try:
        assert claiming._next_due(look(clock, fresh=False)) == clock.monotonic()
        assert claiming._next_due(look(clock, fresh=True)) == clock.monotonic() + 60
    finally:
        claiming.close()
    assert StoreEventQueue(session).dequeue(1, 0) == []
