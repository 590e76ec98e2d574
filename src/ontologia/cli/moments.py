"""Commits as people name them: by number, or by a time.

A time without a zone is UTC, as every time that the program prints; a date is its first instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

import typer

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

METAVAR = "COMMIT|TIME"
FORMS = "A time is 2026-11-16 or 2026-11-16T18:00+01:00; UTC if it does not say."


@final  # so that it is never false: `as_of and as_of.commit(session)`
@dataclass(frozen=True)
class Moment:
    """A place in the order of commits."""

    named: int | datetime

    def commit(self, session: Session) -> int:
        """Its number; by a time, that of the last commit made by then, or 0."""
        return self.named if isinstance(self.named, int) else session.commit_at(self.named)


def moment(text: str) -> Moment:
    """What is meant: digits are a number, also 20261116; a usage error if it cannot be read."""
    text = text.strip()
    try:
        if text.isdecimal():
            return Moment(int(text))
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text[:100]!r} is neither the number of a commit, from 0 on, nor a time; "
            "write 12, 2026-11-16, 2026-11-16T18:00 (UTC) or 2026-11-16T18:00+01:00"
        ) from error
    return Moment(when if when.tzinfo else when.replace(tzinfo=UTC))
