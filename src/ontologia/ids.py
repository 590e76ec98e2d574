"""Identifiers: UUID version 7, in ascending order within a process.

Version 7 starts with the time, so that rows made together lie together in an index: version 4
scatters them, and with many rows retained each write then touches a page of its own.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from random import Random, SystemRandom
from uuid import UUID

from ontologia.clock import Clock

_RANDOM_BITS = 74  # a version 7 id has 48 bits of time, 6 of version and variant, and these


_LOW = 0xFFFFFFFFFFFF
_LAST = 24  # where the digits of the lowest 48 bits begin


class Ids:
    """Makes ids from a clock and a source of randomness, both injected."""

    def __init__(self, clock: Clock, random: Random | None = None) -> None:
        self._clock = clock
        self._random = random or SystemRandom()
        self._lock = threading.Lock()
        self._last = 0

    def new(self) -> str:
        """A new id, greater as text than every one made here before, also when the clock stands."""
        return self.at(self._clock.now())

    def at(self, now: datetime) -> str:
        """The same, for one who has just looked at the clock."""
        return _format(self._take(now, 1))

    def several(self, now: datetime, count: int) -> list[str]:
        """This many, one after the other: they differ in their last digits."""
        first = self._take(now, count)
        prefix, low = _format(first)[:_LAST], first & _LOW
        if low + count > _LOW:
            return [_format(first + number) for number in range(count)]
        return [f"{prefix}{number:012x}" for number in range(low, low + count)]

    def _take(self, now: datetime, count: int) -> int:
        millis = int(now.timestamp() * 1000)
        fresh = (millis << _RANDOM_BITS) | self._random.getrandbits(_RANDOM_BITS - 1)
        with self._lock:
            first = max(fresh, self._last + 1)
            self._last = first + count - 1
        return first


def made_at(text: str) -> datetime | None:
    """When an id of version 7 was made; None for another id."""
    try:
        found = UUID(text)
        if found.version != 7:
            return None
        return datetime.fromtimestamp((found.int >> 80) / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def _format(value: int) -> str:
    """48 bits of time; 7, the version, and 12 bits; 10, the variant, and 62 bits."""
    last, fourth, third = value & _LOW, value >> 48 & 0x3FFF | 0x8000, value >> 62 & 0xFFF
    return f"{value >> 90:08x}-{value >> 74 & 0xFFFF:04x}-7{third:03x}-{fourth:04x}-{last:012x}"
