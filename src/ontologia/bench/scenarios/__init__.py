"""What is measured. A scenario gives one round of one contender, as a value for each figure."""

from __future__ import annotations

from ontologia.bench.scenarios import footprint, handling, shop, storing, waking
from ontologia.bench.scenarios.base import Scenario

SCENARIOS: dict[str, Scenario] = {
    each.name: each
    for each in (
        *storing.SCENARIOS,
        *handling.SCENARIOS,
        *waking.SCENARIOS,
        *shop.SCENARIOS,
        *footprint.SCENARIOS,
    )
}
"""By name, in the order of the table."""
