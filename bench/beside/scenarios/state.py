"""Versioned state: asking for it, now and then, and changing it."""

from __future__ import annotations

from collections.abc import Mapping

from bench.beside.harness import Harness
from bench.beside.scenarios.scenario import Round, Scenario

_MS = 1e3
_MOST = 10_000


def _read(*questions: str, scale: float = _MS) -> Round:
    def round(harness: Harness, key: str) -> Mapping[str, float]:
        size, where = harness.size, harness.shop(key)
        return {
            question.rpartition("as-of-")[2] if "as-of" in question else "": scale
            * harness.ask(key, "read", where, question, size.entities, size.lookups, kind="state")
            for question in questions
        }

    return round


def _commit(count: int) -> Round:
    def round(harness: Harness, key: str) -> Mapping[str, float]:
        size = harness.size
        some = min(count, size.entities)
        times = max(1, size.commits // some)
        with harness.copied_shop(key) as where:
            spent = harness.ask(key, "commit", where, size.entities, some, times, kind="state")
        return {"": spent * _MS}

    return round


def _entities(count: int) -> str:
    return "one entity" if count == 1 else f"{count:,} entities"


SCENARIOS = (
    Scenario("point-read", "one entity by its key", "µs", _read("point-read", scale=1e6), field="state"),
    Scenario("filter", "entities by an indexed field, about 100", "ms", _read("filter"), field="state"),
    Scenario("scan", "all entities", "ms", _read("scan"), field="state"),
    Scenario(
        "as-of", "the state of an earlier commit: one entity, and all", "ms",
        _read("as-of-one", "as-of-all"), lambda size: ["one", "all"], field="state",
    ),
    Scenario("group-by", "how many entities have each value of a field", "ms", _read("group-by"), field="state"),
    *(
        Scenario(f"commit-{count}", f"a change of {_entities(count)}, on the disk", "ms", _commit(count), field="state")
        for count in (1, 100, _MOST)
    ),
)  # fmt: skip
