"""What comes in from callers, looked at before it reaches a database."""

from __future__ import annotations

from typing import Any

from ontologia import codec
from ontologia.errors import InvalidValueError, shown
from ontologia.schema.event import Event

LONGEST_NAME = 200
LONGEST_KEY = 500
_MOST_ROWS = 1_000_000
_LONGEST_LEASE_MS = 365 * 24 * 3600 * 1000


def name(what: str, value: Any, longest: int = LONGEST_NAME) -> str:
    """Text that is not empty, not long, and that every database can keep."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise InvalidValueError(
            f"{what} is text of 1 to {longest} characters, got {shown(value):.300}"
        )
    codec.check(value, what)
    return value


def whole(what: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidValueError(
            f"{what} is a whole number from {least} to {most}, got {shown(value):.300}"
        )
    return value


def event(value: Any) -> Event:
    """An event."""
    if not isinstance(value, Event):
        raise TypeError(f"expected an event, an instance of an Event class, got {value!r}")
    return value


def limit(value: Any) -> int:
    """How many rows to give at most."""
    return whole("limit", value, 0, _MOST_ROWS)


def lease_ms(value: Any) -> float:
    """The length of a lease."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(f"lease_ms is a number, got {shown(value):.300}")
    if not 0 < value <= _LONGEST_LEASE_MS:
        raise InvalidValueError(
            f"lease_ms is more than 0 and at most a year, got {shown(value):.300}"
        )
    return value
