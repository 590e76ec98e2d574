"""Simulate sessions that run handlers, die and are born again, over a real SQLite file.

from ontologia_conformance.simulation import simulate

for seed in range(1_000):
    simulate(seed)

One seed is one run, the same each time. See docs/howto/simulate.md.
"""

from ontologia_conformance.simulation.simulation import (
    Report,
    Simulation,
    SimulationFailed,
    simulate,
)

__all__ = ["Report", "Simulation", "SimulationFailed", "simulate"]
