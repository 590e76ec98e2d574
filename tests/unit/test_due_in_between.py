"""An event that comes due between a look at the store and the reckoning of the wait."""

from __future__ import annotations

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.engine.claimer import Claimer
from ontologia.engine.outage import Outage
from ontologia.runtime.session import core_of
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


def test_a_claimer_looks_again_at_once(session, clock):
    claimer = Claimer(core_of(session), Outage(), lambda: None)
    try:
        claimer._peek = look(clock, fresh=False)
        assert claimer.due_in(60) == 0
        claimer._peek = look(clock, fresh=True)
        assert claimer.due_in(60) == 60  # no consumer here can claim it: no use to spin
    finally:
        claimer.close()
