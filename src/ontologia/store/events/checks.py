"""What comes in from callers, looked at before it reaches a database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ontologia import codec
from ontologia.errors import InvalidTypeError, InvalidValueError, shown
from ontologia.schema.event import Event

LONGEST_NAME = 200
LONGEST_KEY = 500
_MOST_ROWS = 1_000_000
_LONGEST_LEASE_MS = 365 * 24 * 3600 * 1000


def name(what: str, value: Any, longest: int = LONGEST_NAME) -> str:
    """Text that is not empty, not long, and that every database can keep."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise error_for(value, str)(
            f"{what} is text of 1 to {longest} characters, got {shown(value):.300}"
        )
    codec.check(value, what)
    return value


def whole(what: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise error_for(value, int)(
            f"{what} is a whole number from {least} to {most}, got {shown(value):.300}"
        )
    return value


def instant(what: str, value: Any) -> datetime:
    """A datetime that says where it is that time. In fields a naive one is kept as it is."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise error_for(value, datetime)(
            f"{what} takes an aware datetime, got {shown(value):.300}",
            hint="Say where it is that time: datetime(2026, 11, 16, tzinfo=UTC), or "
            "datetime(2026, 11, 16).astimezone() for the zone of this machine.",
        )
    return value


def error_for(value: Any, *types: type) -> type[InvalidValueError]:
    """What to raise for a value that does not fit: InvalidTypeError unless it is of these types.

    True and False are no numbers here.
    """
    fits = isinstance(value, types) and not isinstance(value, bool)
    return InvalidValueError if fits else InvalidTypeError


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
        raise InvalidTypeError(f"lease_ms is a number, got {shown(value):.300}")
    if not 0 < value <= _LONGEST_LEASE_MS:
        raise InvalidValueError(
            f"lease_ms is more than 0 and at most a year, got {shown(value):.300}"
        )
    return value
