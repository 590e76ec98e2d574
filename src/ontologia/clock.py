"""Time, from one place.

No other module asks the system what time it is, and no SQL does. Instants are aware datetimes in
UTC; as text they have a fixed width, so that the order of the text is the order of time.
"""

from __future__ import annotations

import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

from ontologia.forking import in_forked_child


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
    """The clock of the machine. What derives from it goes by itself, and can be waited for."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def now_ms() -> int:
    """The machine's time in milliseconds since 1970, for what is made too often for datetimes."""
    return time.time_ns() // 1_000_000


def to_text(instant: datetime) -> str:
    """`2026-11-15T19:39:43.123456+00:00`: always UTC, always microseconds, always 32 characters."""
    if instant.tzinfo is not UTC:
        instant = instant.astimezone(UTC)
    return instant.isoformat(timespec="microseconds")


def from_text(text: str) -> datetime:
    """The instant written by `to_text`; a trailing `Z` is understood as well."""
    return datetime.fromisoformat(text)


class Stamps:
    """Instants that only go forward: what was written first has the smaller one.

    The clock may stand still for a microsecond, or step back for an hour; the order in which a
    process wrote things must not.
    """

    def __init__(self) -> None:
        self._last = datetime.min.replace(tzinfo=UTC)
        self.renew()

    def renew(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def next(self, now: datetime) -> str:
        """`now` as text, or a microsecond after the last stamp if that is later."""
        with self._lock:
            if now <= self._last:
                now = self._last + _TICK
            self._last = now
        return to_text(now)

    def several(self, now: datetime, count: int) -> list[str]:
        """This many, a microsecond after each other."""
        with self._lock:
            first = max(now, self._last + _TICK)
            self._last = first + (count - 1) * _TICK
        if first.microsecond + count > _SECOND:
            return [to_text(first + number * _TICK) for number in range(count)]
        text = to_text(first)
        second, zone = text[:20], text[26:]
        return [
            f"{second}{number:06d}{zone}"
            for number in range(first.microsecond, first.microsecond + count)
        ]


_TICK = timedelta(microseconds=1)
_SECOND = 1_000_000
_shared: weakref.WeakKeyDictionary[Clock, Stamps] = weakref.WeakKeyDictionary()
_shared_lock = threading.Lock()
SYSTEM_CLOCK = SystemClock()


def stamps_of(clock: Clock) -> Stamps:
    """The stamps of a clock, the same for all who share the clock in this process."""
    with _shared_lock:
        try:
            return _shared.setdefault(clock, Stamps())
        except TypeError:  # a clock of somebody's own that cannot be a key
            return Stamps()


def _renew() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for stamps in _shared.values():
        stamps.renew()


in_forked_child(_renew)
