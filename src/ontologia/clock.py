"""Time, from one place.

No other module asks the system what time it is, and no SQL does. Instants are aware datetimes in
UTC; as text they have a fixed width, so that the order of the text is the order of time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """What the rest of the system knows of time."""

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from some point; never goes back. For durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` of this clock's time pass."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def to_text(instant: datetime) -> str:
    """`2026-11-15T19:39:43.123456+00:00`: always UTC, always microseconds, always 32 characters."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def from_text(text: str) -> datetime:
    """The instant written by `to_text`; a trailing `Z` is understood as well."""
    return datetime.fromisoformat(text)
