"""Times and lengths of time, as people type them: 45s, 12h, commit 12, 2026-11-16T18:00+01:00.

A time without a zone is UTC, as every time that is shown; a date is its first instant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, final

from ontologia.errors import InvalidValueError

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WORDS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}


def span(text: str) -> timedelta:
    """The length of time that is meant; InvalidValueError if it cannot be read."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(f"{text!r} is no span of time; write 45s, 30m, 12h or 7d")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])
    except OverflowError as error:
        raise InvalidValueError(f"{text!r} is longer than any calendar") from error


def ago(now: datetime, text: str) -> datetime:
    """The instant so long before `now`; InvalidValueError if it cannot be read."""
    try:
        return now - span(text)
    except OverflowError as error:
        raise InvalidValueError("no event is that old") from error


def in_words(length: timedelta) -> str:
    """`7 days`, `12 hours`, `90 minutes`: in the largest unit that fits without a rest."""
    seconds = length.total_seconds()
    for unit in ("d", "h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            number = int(seconds // _SECONDS[unit])
            return f"{number:,} {_WORDS[unit]}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"


@final  # so that it is never false: `as_of and as_of.commit(session)`
@dataclass(frozen=True)
class CommitOrTime:
    """A place in the order of commits."""

    named: int | datetime

    def commit(self, session: Session) -> int:
        """Its number; by a time, that of the last commit made by then, or 0."""
        return self.named if isinstance(self.named, int) else session.commit_at(self.named)


def commit_or_time(text: str) -> CommitOrTime:
    """What is meant: digits are a number, also 20261116; InvalidValueError if it cannot be read.

    A time is in UTC.
    """
    text = text.strip()
    try:
        if text.isdecimal():
            return CommitOrTime(int(text))
        return CommitOrTime(in_utc(text))
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(
            f"{text[:100]!r} is neither the number of a commit, from 0 on, nor a time; "
            "write 12, 2026-11-16, 2026-11-16T18:00 (UTC) or 2026-11-16T18:00+01:00"
        ) from error


def in_utc(text: str) -> datetime:
    """The instant of an ISO 8601 time, in UTC; ValueError or OverflowError if there is none."""
    when = datetime.fromisoformat(text)
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
