"""Pages with a cursor, and counts with a bound."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from ontologia import codec
from ontologia.errors import InvalidValueError, OntologiaError

T = TypeVar("T")
PAGE = 50
"""Rows of a page."""
BOUND = 10_000
"""Where a count ends."""
DEADLINE = 1.0
"""Seconds that a walk takes at most."""
_LONGEST_CURSOR = 2_000


@dataclass(frozen=True, slots=True)
class Count:
    """A number that may have a bound: `9,213`, or `10,000+`."""

    number: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.number:,}{'' if self.exact else '+'}"


def bounded(number: int, most: int) -> Count:
    """A count that was asked for `most + 1`."""
    return Count(min(number, most), number <= most)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list."""

    rows: tuple[T, ...]
    next: str | None
    """The cursor of the next page; None at the end."""
    searched_to: datetime | None = None
    """If the deadline ended the search: how far back it came. `next` goes on from there."""


def cursor(*parts: str | float) -> str:
    """A place in a list, as text that fits in a URL."""
    return urlsafe_b64encode(codec.encode(list(parts)).encode()).decode().rstrip("=")


def place(text: str, *kinds: type) -> Any:
    """The parts of a cursor, a tuple; InvalidValueError if it is none of this list."""
    try:
        if len(text) > _LONGEST_CURSOR:
            raise ValueError
        parts = codec.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
        if not isinstance(parts, list) or [type(each) for each in parts] != list(kinds):
            raise ValueError
    except (ValueError, OntologiaError) as error:
        raise InvalidValueError(
            f"{text[:100]!r} is not a cursor of this list", hint="Begin at the first page."
        ) from error
    return tuple(parts)


def page_of(rows: list[T], limit: int, at: Callable[[T], str]) -> Page[T]:
    """A page of `limit` rows, of which one more than that was read."""
    shown = tuple(rows[:limit])
    return Page(shown, at(shown[-1]) if len(rows) > limit else None)
