"""A clock that stands still until it is told to move."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time for tests: `OntologiaConfig(clock=ManualClock(start))`.

    `sleep` does not wait; it moves the clock. Any thread may use it.
    """

    def __init__(self, start: datetime | None = None) -> None:
        instant = datetime(2026, 1, 1, tzinfo=UTC) if start is None else start
        if not isinstance(instant, datetime) or instant.utcoffset() is None:
            from ontologia.store.events import checks  # heavy, and pytest loads this module

            checks.instant("start of a ManualClock", instant)
        self._now = instant.astimezone(UTC)
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        with self._lock:
            return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds=seconds)

    def advance(self, *, seconds: float) -> None:
        """Let time pass; a negative number steps the wall clock back, as real ones do."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._elapsed += max(0.0, seconds)
