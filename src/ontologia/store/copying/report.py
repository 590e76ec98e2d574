"""What a copy says of itself, on the way and at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Step: TypeAlias = Literal["copying", "comparing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy has come; given to the caller after every portion."""

    step: Step
    table: str
    """The table that is being worked on."""
    done: int
    """Rows of all tables so far, in this step."""
    total: int
    """Rows of all tables."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table, equal on both sides."""

    name: str
    rows: int
    hash: str
    """blake2b over the canonical JSON of its rows, in the order of their keys."""


@dataclass(frozen=True, slots=True)
class Report:
    """A copy that was finished and compared."""

    source: str
    target: str
    tables: tuple[CopiedTable, ...]
    resumed: bool
    """Whether it went on with one that was broken off."""
    moved_on: tuple[str, ...]
    """Tables of the source that were written to after they were read; the copy lacks that."""

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables)
