"""What a scenario is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bench.beside.contenders.contender import Database, Queue
from bench.beside.harness import Harness
from bench.beside.sizes import Size

Round = Callable[[Harness, str], Mapping[str, float]]
"""One round of the contender of this key: a value for each figure's title."""


@dataclass(frozen=True)
class Scenario:
    """A question, and who can be asked it."""

    name: str
    about: str
    """One line for a list."""
    unit: str
    round: Round
    figures: Callable[[Size], dict[str, str] | list[str]] = lambda size: [""]
    """The titles of its figures, with units of their own; the only one of a scenario is empty."""
    field: Literal["queue", "state"] = "queue"
    only: frozenset[str] | None = None
    """Names of contenders, where the others cannot be asked."""
    databases: tuple[Database, ...] = ("SQLite", "PostgreSQL")
    once: bool = False
    """One round is enough: it takes long and varies little."""

    def units(self, size: Size) -> dict[str, str]:
        """The unit of each figure."""
        found = self.figures(size)
        return found if isinstance(found, dict) else dict.fromkeys(found, self.unit)


def events_of(contender: Queue, count: int) -> int:
    """How many events this contender gets."""
    return max(10, int(count * contender.share))
