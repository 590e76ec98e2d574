"""What `store.doctor` asks and what it finds, in words that both backends share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """How bad it is: an error breaks a promise of the store."""

    error = "error"
    warning = "warning"
    info = "info"


class Check(NamedTuple):
    """A question of `doctor.sql` and what its answers mean."""

    name: str
    severity: Severity
    what: str
    remedy: str
    """With `{}` for each name that the answer has after where and how many."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    severity: Severity
    check: str
    """The name of the question that found it."""
    what: str
    where: str
    count: int
    remedy: str
