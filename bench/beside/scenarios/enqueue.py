"""Storing events: one after the other, and many at once."""

from __future__ import annotations

from collections.abc import Mapping

from bench.beside.contenders import queue
from bench.beside.harness import Harness
from bench.beside.scenarios.scenario import Round, Scenario, events_of


def _stored(*, together: bool) -> Round:
    def round(harness: Harness, key: str) -> Mapping[str, float]:
        contender = queue(key)
        count = events_of(contender, harness.size.bulk if together else harness.size.singles)
        with harness.filled(key) as where:
            return {"": 1 / harness.ask(key, "store", where, count, together)}

    return round


SCENARIOS = (
    Scenario(
        "enqueue-one", "events stored one by one, each on the disk", "/s", _stored(together=False)
    ),
    Scenario("enqueue-many", "events stored at once", "/s", _stored(together=True)),
)
