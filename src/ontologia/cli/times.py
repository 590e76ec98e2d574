"""Times as options take them: one that cannot be read is a usage error."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

import typer

from ontologia.errors import InvalidValueError
from ontologia.runtime.views import times
from ontologia.runtime.views.times import CommitOrTime

METAVAR = "COMMIT|TIME"
FORMS = "A time is 2026-11-16 or 2026-11-16T18:00+01:00; UTC if it does not say."


@contextmanager
def _usage() -> Generator[None]:
    try:
        yield
    except InvalidValueError as error:
        raise typer.BadParameter(str(error.args[0])) from error


def span(text: str) -> timedelta:
    """A length of time: 45s, 30m, 12h, 7d."""
    with _usage():
        return times.span(text)


def ago(now: datetime, text: str | None) -> datetime | None:
    """The instant so long before `now`; None for None."""
    with _usage():
        return None if text is None else times.ago(now, text)


def commit_or_time(text: str) -> CommitOrTime:
    """A commit, by its number or a time."""
    with _usage():
        return times.commit_or_time(text)
