"""What is wrong with an extension, a line each: which file, which key, what, and what helps."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LONGEST = 80
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 2 * _LONGEST


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that keeps an extension from being loaded."""

    file: Path
    key: str
    """Where in the file: `events.subscribes[0].topic`, `line 3`; may be empty."""
    what: str
    remedy: str

    def __str__(self) -> str:
        said = [str(self.file), self.key, f"{self.what}; {self.remedy}"]
        return one_line(": ".join(filter(None, said)))


def one_line(text: str) -> str:
    """The same text without line breaks."""
    return " ".join(text.split())


def of_error(error: BaseException) -> str:
    """`ValueError: bad number`, on one line."""
    said = one_line(str(error.args[0] if error.args and hasattr(error, "hint") else error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def got(value: Any) -> str:
    """A value as a message shows it."""
    if value is None:
        return "nothing"
    try:
        shown = _SHORT.repr(value)  # never all of it: aliases make a few lines of YAML endless
    except ValueError:  # Python writes no integer of 5,000 digits
        shown = f"<{type(value).__name__} that cannot be shown>"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return close[0] if close else None
