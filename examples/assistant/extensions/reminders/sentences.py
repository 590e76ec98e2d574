"""What is understood of what somebody says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_REMIND = re.compile(rf"remind me in (\d+) ({'|'.join(_SECONDS)})s? to (.+?)[.!]?", re.IGNORECASE)


@dataclass
class Wish:
    """To be reminded of something, so many seconds after it was said."""

    what: str
    seconds: int
    due: datetime


def understood(text: str, said_at: float) -> Wish | None:
    """What somebody wishes who said this at that time, in Unix seconds; None if nothing."""
    found = _REMIND.fullmatch(text.strip())
    if found is None:
        return None
    seconds = int(found[1]) * _SECONDS[found[2].lower()]
    due = datetime.fromtimestamp(said_at, UTC) + timedelta(seconds=seconds)
    return Wish(found[3], seconds, due)
