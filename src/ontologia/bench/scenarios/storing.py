"""Storing events: one after the other, and many at once."""

from __future__ import annotations

from collections.abc import Mapping

from ontologia.bench.arena import Arena
from ontologia.bench.contenders import queue
from ontologia.bench.scenarios.base import Round, Scenario, events_of


def _stored(*, together: bool) -> Round:
    def round(arena: Arena, key: str) -> Mapping[str, float]:
        contender = queue(key)
        count = events_of(contender, arena.size.bulk if together else arena.size.singles)
        with arena.filled(key) as where:
            return {"": 1 / arena.ask(key, "store", where, count, together)}

    return round


SCENARIOS = (
    Scenario(
        "enqueue-one", "events stored one by one, each on the disk", "/s", _stored(together=False)
    ),
    Scenario("enqueue-many", "events stored at once", "/s", _stored(together=True)),
)
