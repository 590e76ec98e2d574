"""Commits, listed, and what one of them changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia.errors import NotFoundError
from ontologia.runtime.delta import Delta
from ontologia.runtime.session import core_of
from ontologia.runtime.views.paging import DEADLINE, PAGE, Page, cursor, place
from ontologia.store.database import ReadDeadline
from ontologia.store.provenance import Trail, emitted_with
from ontologia.store.rows import CommitRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_LOOK = 100  # commits between two looks at the deadline


@dataclass(frozen=True, slots=True)
class Maker:
    """A commit, and who made it."""

    commit_id: int
    created_at: datetime
    handler: str | None
    attempt: int | None
    event_id: str | None
    """The event that the handler handled."""
    operator: str | None
    command: str | None
    extension: str | None
    session_id: str | None
    reason: str | None
    emitted: tuple[str, ...]
    """Of a handler's commit: the events emitted with it."""
    metadata: dict[str, Any]
    """All that the commit says."""

    @property
    def by(self) -> str:
        """Who made it, in words: `handler pay`, `ada@host`, `session 0199…`."""
        for word, name in (
            ("handler", self.handler),
            ("", self.operator),
            ("command", self.command),
            ("extension", self.extension),
            ("session", self.session_id),
        ):
            if name is not None:
                return f"{word} {name}".strip()
        return "not known"


@dataclass(frozen=True, slots=True)
class CommitDetail:
    """One commit, and what it changed."""

    made: Maker
    delta: Delta
    before: int
    """The number of the commit before; 0 for the first."""
    after: int | None
    """That of the next; None if this is the last."""


def commits(
    session: Session,
    *,
    before: str | None = None,
    limit: int = PAGE,
    metadata: Mapping[str, str] | None = None,
    seconds: float = DEADLINE,
) -> Page[Maker]:
    """A page of commits, the newest first; with `metadata`, those that say all of this, as text.

    Costs the page. With metadata it costs the commits that are looked at until the page is full,
    for `seconds` at most; those of an event (`event_id`) are found at once.
    """
    at = None if before is None else int(place(before, int)[0])
    wanted = dict(metadata or {})
    provenance = core_of(session).store.provenance
    found: Iterable[CommitRow]
    if "event_id" in wanted:
        with provenance.read() as trail:
            rows = trail.commits_for([wanted["event_id"]])
        found = (each for each in reversed(rows) if at is None or each.id < at)
    else:
        found = provenance.commits(before=at, page=limit + 1)
    deadline, shown = ReadDeadline(seconds), list[CommitRow]()
    for number, commit in enumerate(found, start=1):
        if said(commit, wanted):
            shown.append(commit)
            if len(shown) > limit:
                break
        if wanted and number % _LOOK == 0 and deadline.passed:
            return Page(tuple(map(maker, shown)), cursor(commit.id), commit.created_at)
    page = tuple(map(maker, shown[:limit]))
    return Page(page, cursor(page[-1].commit_id) if len(shown) > limit else None)


def commit(session: Session, commit_id: int) -> CommitDetail:
    """One commit and every object that it changed; NotFoundError if there is none.

    Costs the objects that it changed.
    """
    row = session.get_commit(commit_id)
    head = session.head
    if row is None:
        raise NotFoundError(f"there is no commit {commit_id}", hint=f"The last one is {head}.")
    made = maker(CommitRow(row["id"], row["created_at"], row["metadata"]))
    after = commit_id + 1 if commit_id < head else None
    return CommitDetail(made, session.diff(commit_id - 1, commit_id), commit_id - 1, after)


def said(commit: CommitRow, wanted: Mapping[str, str]) -> bool:
    """Whether the metadata of a commit says all of this, as text."""
    return all(
        name in commit.metadata and str(commit.metadata[name]) == text
        for name, text in wanted.items()
    )


def maker(commit: CommitRow) -> Maker:
    """Who made a commit."""
    told = commit.metadata
    return Maker(
        commit.id,
        commit.created_at,
        told.get("handler_id"),
        told.get("attempt"),
        told.get("event_id"),
        told.get("operator"),
        told.get("command"),
        told.get("extension_id"),
        told.get("session_id"),
        told.get("reason"),
        emitted_with(commit),
        told,
    )


def makers(trail: Trail, numbers: Iterable[int]) -> dict[int, Maker]:
    """Who made these commits, by number. One read for each."""
    found = (trail.commit(number) for number in dict.fromkeys(numbers))
    return {each.id: maker(each) for each in found if each is not None}
