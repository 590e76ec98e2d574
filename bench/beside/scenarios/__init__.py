"""What is measured. A scenario gives one round of one contender, as a value for each figure."""

from __future__ import annotations

from bench.beside.scenarios import drain, enqueue, footprint, latency, state
from bench.beside.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    each.name: each
    for each in (
        *enqueue.SCENARIOS,
        *drain.SCENARIOS,
        *latency.SCENARIOS,
        *state.SCENARIOS,
        *footprint.SCENARIOS,
    )
}
"""By name, in the order of the table."""
