"""What goes wrong in a simulation, and how often: drawn from the seed, some of it in each run.

A run in which everything goes wrong at once gets nowhere, and finds little. So each run leaves
most of its troubles out, and has the others often.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

AT_STATEMENTS = {
    "death": 0.006,
    "leap to the end of a lease": 0.012,
    "leap": 0.005,
    "clock stepped": 0.003,
    "statement failed": 0.002,
}
"""By how much of all statements, where the run has this trouble."""
AT_BEGIN = {"database busy": 0.15}
AT_COMMIT = {"commit failed": 0.02, "death after commit": 0.02}
IN_HANDLERS = {
    "failed at its begin": 0.15,
    "failed at its end": 0.15,
    "asked for a retry": 0.1,
    "discarded": 0.1,
    "slow": 0.15,
    "slower than its lease": 0.12,
    "renewed": 0.12,
}
OF_PROCESSES = {"deaf": 0.3, "stopped": 0.1}
"""Deaf: not told what other processes write, so that it finds it by looking."""
_ALL = AT_STATEMENTS | AT_BEGIN | AT_COMMIT | IN_HANDLERS | OF_PROCESSES
_SHARE = 0.5


class Troubles:
    """The troubles of one run. `count` says how often each of them, and whatever else, happened."""

    def __init__(self, random: Random) -> None:
        self._random = random
        chosen = [name for name in _ALL if random.random() < _SHARE]
        scale = random.choice([0.5, 1.0, 2.0])
        self._chances = {name: _ALL[name] * scale for name in chosen}
        self.over = False
        """Once set nothing goes wrong any more."""
        self.count: Counter[str] = Counter()

    def any_of(self, names: dict[str, float]) -> str | None:
        """Which of these troubles comes now, if any."""
        if self.over:
            return None
        drawn = self._random.random()
        for name in names:
            drawn -= self._chances.get(name, 0.0)
            if drawn < 0:
                self.count[name] += 1
                return name
        return None

    def comes(self, name: str) -> bool:
        """Whether this one comes now."""
        return self.any_of({name: 0.0}) is not None

    def pick(self, *choices: Any) -> Any:
        """One of these."""
        return self._random.choice(choices)

    def between(self, low: float, high: float) -> float:
        """A number between these."""
        return self._random.uniform(low, high)
