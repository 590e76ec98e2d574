"""From the return of the call that stored an event to its handler, in another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.beside.harness import Harness
from bench.beside.scenarios.scenario import Scenario
from bench.measure import BenchError, quantile

_IDLE = (0.02, 0.05)
"""Seconds between two events: the worker has gone to sleep."""
_LOAD = (0.002, 0.002)


def _latency(
    harness: Harness, key: str, count: int, pause: tuple[float, float]
) -> Mapping[str, float]:
    returned: dict[str, int] = {}

    def store() -> None:
        returned.update(harness.ask(key, "pace", where, count, *pause))

    with harness.filled(key) as where:
        drained = harness.drained(key, where, "listen", count, meanwhile=store)
    started: list[Any] = drained.reports[0]["started"]
    waits = [max(0.0, (when - returned[number]) / 1e6) for number, when in started]
    if not waits:
        raise BenchError(f"{key} handled none of {count} events in time")
    return {"median": quantile(waits, 0.5), "p99": quantile(waits, 0.99)}


def _idle(harness: Harness, key: str) -> Mapping[str, float]:
    return _latency(harness, key, harness.size.samples, _IDLE)


def _loaded(harness: Harness, key: str) -> Mapping[str, float]:
    return _latency(harness, key, harness.size.loaded, _LOAD)


def _both(_: object) -> list[str]:
    return ["median", "p99"]


SCENARIOS = (
    Scenario("latency", "from stored to handled, another process, idle", "ms", _idle, _both),
    Scenario("latency-loaded", "the same, an event every 2 ms", "ms", _loaded, _both),
)
