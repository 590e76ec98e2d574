"""Dead letters, listed, and grouped by what failed and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ontologia.clock import from_text
from ontologia.runtime.views.paging import BOUND, DEADLINE, PAGE, Page, cursor, place
from ontologia.store.database import ReadDeadline
from ontologia.store.events import checks
from ontologia.store.events.operations import DeadLetter, Selection

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

ANY = Selection()
_PORTION = 500
_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE
)
_NOT_THE_USERS = re.compile(
    r"(^<frozen |[/\\](site|dist)-packages[/\\]|[/\\][Pp]ython3?[.\d]*[/\\][Ll]ib[/\\]"
    r"|[/\\]lib[/\\]python3\.|[/\\]ontologia[/\\](engine|runtime|commands|extensions|queues)[/\\])"
)
_CLASS = re.compile(r"[A-Za-z_][\w.]*")
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in a program, as a traceback names it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One dead letter on record."""

    number: int
    event_id: str
    type: str
    handler: str
    attempts: int
    last_error: str
    failed_at: datetime
    retriable: bool
    """Whether its event is retained and somebody of that name subscribes to it."""


@dataclass(slots=True)
class FailureGroup:
    """Dead letters of one handler that failed with one exception in one place."""

    handler: str
    exception: str
    """The class of the last error, or all of a short text that names none."""
    frame: Frame | None
    """The frame of the user's code that is nearest to the error; None without a traceback."""
    last_error: str
    """Of the newest."""
    oldest_at: datetime
    newest_at: datetime
    types: set[str] = field(default_factory=set[str])
    event_ids: list[str] = field(default_factory=list[str])
    """Its events, the newest first; `Selection(handler=..., event_ids=...)` means exactly these."""
    retriable: int = 0

    @property
    def count(self) -> int:
        """How many dead letters it has, of those that were looked at."""
        return len(self.event_ids)


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Dead letters, grouped; the largest group first."""

    groups: tuple[FailureGroup, ...]
    looked_at: int
    searched_to: datetime | None
    """Where the bound or the deadline ended it; None if all dead letters are in."""


def selection(
    event_id: str | None = None,
    handler: str | None = None,
    type: str | None = None,
    error: str | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Selection:
    """The dead letters of which all this is true; InvalidValueError for text that nothing has."""
    for text in filter(None, (event_id, handler, type, error)):
        checks.name("what a dead letter is chosen by", text, checks.LONGEST_KEY)
    return Selection(event_id, handler, type, error, since, until)


def dead_letters(
    session: Session,
    which: Selection = ANY,
    *,
    before: str | None = None,
    limit: int = PAGE,
    seconds: float = DEADLINE,
) -> Page[DeadLetterRow]:
    """A page of dead letters, the newest first, and whether each could be retried.

    Costs the page; with conditions besides a time, the dead letters that are looked at until it is
    full, for `seconds` at most.
    """
    at: tuple[str, int] | None = None if before is None else place(before, str, int)
    found: list[DeadLetter] = []
    searched_to: DeadLetter | None = None
    deadline = ReadDeadline(seconds)
    portion = limit + 1 if which == ANY else _PORTION
    for letters in _walk(session, which, at, portion):
        found += (each for each in letters if _is_meant(which, each))
        if len(found) > limit:
            break
        if deadline.passed and len(letters) == portion:
            searched_to = letters[-1]
            break
    shown, more = found[:limit], len(found) > limit
    retriable = session.event_store.operations.could_retry(shown) if shown else set[int]()
    rows = tuple(
        DeadLetterRow(*each[:-1], from_text(each.failed_at), each.number in retriable)
        for each in shown
    )
    if more:
        return Page(rows, _at(shown[-1]))
    if searched_to is not None:
        return Page(rows, _at(searched_to), from_text(searched_to.failed_at))
    return Page(rows, None)


def failure_groups(
    session: Session,
    which: Selection = ANY,
    *,
    most: int = BOUND,
    seconds: float = DEADLINE,
) -> FailureGroups:
    """The newest dead letters by handler, exception and the place in the user's code that raised it.

    Looks at `most` dead letters and the traceback of the last attempt of each, for `seconds` at
    most.
    """
    listings, operations = session.event_store.listings, session.event_store.operations
    groups: dict[tuple[str, str, Frame | None], FailureGroup] = {}
    looked_at = 0
    deadline = ReadDeadline(seconds)
    for letters in _walk(session, which, None, _PORTION):
        meant = [each for each in letters if _is_meant(which, each)]
        tracebacks = listings.tracebacks(each.number for each in meant)
        retriable = operations.could_retry(meant) if meant else set[int]()
        for letter in meant:
            _add(groups, letter, tracebacks.get(letter.number), letter.number in retriable)
        looked_at += len(letters)
        if len(letters) == _PORTION and (deadline.passed or looked_at >= most):
            return _grouped(groups, looked_at, from_text(letters[-1].failed_at))
    return _grouped(groups, looked_at, None)


def raised_in(traceback: str | None) -> Frame | None:
    """The frame of the user's code that is nearest to the error; None if there is none.

    Frames of Python, of installed packages and of Ontologia are not the user's. Of an error with
    causes the last traceback that has one counts.
    """
    if traceback is None:
        return None
    found: Frame | None = None
    for match in _FRAME.finditer(traceback):
        if _NOT_THE_USERS.search(match["file"]) is None:
            found = Frame(match["file"], int(match["line"]), match["function"])
    return found


def exception_of(error: str) -> str:
    """The class that a stored error begins with; of a text that names none its first line."""
    name, colon, _ = error.partition(":")
    if _CLASS.fullmatch(name) and (colon or name == error):
        return name
    return error.split("\n", 1)[0][:_LONGEST_NAME]


def _walk(
    session: Session, which: Selection, before: tuple[str, int] | None, portion: int
) -> Iterator[list[DeadLetter]]:
    """Dead letters of the time that is meant. Other conditions are looked at by `_is_meant`.

    So each read has an end, also where few of them fit.
    """
    time = Selection(since=which.since, until=which.until)
    operations = session.event_store.operations
    return operations.dead_letters(session.namespace, time, portion, before=before)


def _is_meant(which: Selection, letter: DeadLetter) -> bool:
    return (
        which.event_id in (None, letter.event_id)
        and which.handler in (None, letter.handler)
        and which.type in (None, letter.type)
        and (not which.error or which.error in letter.last_error)
        and (which.event_ids is None or letter.event_id in which.event_ids)
    )


def _add(
    groups: dict[tuple[str, str, Frame | None], FailureGroup],
    letter: DeadLetter,
    traceback: str | None,
    retriable: bool,
) -> None:
    failed_at = from_text(letter.failed_at)
    key = (letter.handler, exception_of(letter.last_error), raised_in(traceback))
    group = groups.get(key)
    if group is None:
        group = groups[key] = FailureGroup(*key, letter.last_error, failed_at, failed_at)
    group.oldest_at = failed_at
    group.types.add(letter.type)
    group.event_ids.append(letter.event_id)
    group.retriable += retriable


def _grouped(
    groups: dict[tuple[str, str, Frame | None], FailureGroup],
    looked_at: int,
    searched_to: datetime | None,
) -> FailureGroups:
    largest = sorted(groups.values(), key=lambda each: -each.count)
    return FailureGroups(tuple(largest), looked_at, searched_to)


def _at(letter: DeadLetter) -> str:
    return cursor(letter.failed_at, letter.number)
