"""Time in which anybody was alive."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta


def instant_before(
    lifetimes: Iterable[tuple[datetime, datetime]], alive: timedelta
) -> datetime | None:
    """The instant since which somebody was alive for this long in all; None if nobody was.

    `lifetimes` are the beginnings and ends of sessions, in any order; they may overlap.
    """
    left = alive
    reached: datetime | None = None  # everything after this instant is counted
    for start, end in sorted(lifetimes, key=lambda each: each[1], reverse=True):
        if reached is not None:
            end = min(end, reached)
        if start >= end:
            continue
        if end - start >= left:
            return end - left
        left -= end - start
        reached = start
    return None
