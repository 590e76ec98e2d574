"""Eight workers and two producers, for as long as there is time: nothing lost, nothing growing."""

from __future__ import annotations

import os

import pytest

from ontologia_conformance.tiers import QUICK, SCALE, TIER
from tests.faults.figures import STEADY, tally
from tests.faults.load import carry_load, is_flat

# A minute where nobody waits for it, and as long as is asked for: 600 is the full size.
SECONDS = 60.0 if os.environ.get("CI") and TIER != QUICK else 20.0 * SCALE


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("NEW-061", "ONT-200", "ONT-172")
def test_under_steady_load_nothing_is_lost_or_done_twice_and_memory_stays_as_it_is(
    tmp_path,
) -> None:
    """For 20 seconds, or 60 in CI; `python -m tests.faults.load` runs for ten minutes."""
    figures = carry_load(tmp_path, SECONDS)

    tally(
        STEADY,
        f"SQLite: {SECONDS:.0f} s of load from ten processes",
        tries=figures["events"],
        losses=len(figures["losses"]),
        figures=figures,
    )
    assert figures["losses"] == []
    assert figures["events"] > 0
    assert is_flat(figures), figures
