"""Commits, listed, and what one of them changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.errors import NotFoundError
from ontologia.runtime.delta import ChangeKind, change_type
from ontologia.runtime.session import core_of
from ontologia.runtime.views.paging import DEADLINE, PAGE, Page, cursor, place
from ontologia.store.database import ReadDeadline
from ontologia.store.provenance import Trail, emitted_with
from ontologia.store.rows import CommitRow, ObjectKey, RawChange

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_LOOK = 100  # commits between two looks at the deadline
_EVENTS = 50  # that were emitted with one commit


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
class ObjectChange:
    """What a commit made of one object, as it is stored."""

    change: ChangeKind
    kind: str
    type_name: str
    key: ObjectKey
    """(key,) of an entity; (left, right, instance) of a relation."""
    fields: dict[str, tuple[Any, Any]]
    """Before and after of each field that differs; None where it was missing."""
    schema_version: int

    @property
    def label(self) -> str:
        """The key as one text: `o-7`, `c1:10`."""
        return ":".join(part for part in self.key if part)


@dataclass(frozen=True, slots=True)
class CommitDetail:
    """One commit, and what it changed."""

    made: Maker
    changes: Page[ObjectChange]
    emitted: tuple[tuple[str, str], ...]
    """The first events that were emitted with it, as id and type; those that are retained, and not
    those that were deferred. The type is empty where an event is not retained."""
    before: int
    """The number of the commit before; 0 for the first."""
    after: int | None
    """That of the next; None if this is the last."""


def commits(
    session: Session,
    *,
    as_of: int | None = None,
    before: str | None = None,
    limit: int = PAGE,
    metadata: Mapping[str, str] | None = None,
    seconds: float = DEADLINE,
) -> Page[Maker]:
    """A page of commits, the newest first; with `metadata`, those that say all of this, as text.

    With `as_of`, that commit and those before it. Costs the page. With metadata it costs the commits that are looked at until the page is full,
    for `seconds` at most; those of an event (`event_id`) are found at once.
    """
    at = None if as_of is None else as_of + 1
    if before is not None:
        at = int(place(before, int)[0])
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


def commit(
    session: Session, commit_id: int, *, after: str | None = None, limit: int = PAGE
) -> CommitDetail:
    """One commit, and a page of the objects that it changed; NotFoundError if there is none.

    Costs the page, and the events of the seconds around it. `after` is a cursor of its changes.
    """
    head = session.head
    with core_of(session).store.provenance.read() as trail:
        row = trail.commit(commit_id) if 0 < commit_id <= head else None
        if row is None:
            raise NotFoundError(f"there is no commit {commit_id}", hint=f"The last one is {head}.")
        changes = _changes(trail, commit_id, after, limit)
        made = maker(row)
        emitted: list[tuple[str, str]] = []
        for event_id in made.emitted[:_EVENTS]:
            event = trail.event(event_id)
            emitted.append((event_id, "" if event is None else event.type))
        emitted += trail.emitted_by(row, _EVENTS)
    following = commit_id + 1 if commit_id < head else None
    return CommitDetail(made, changes, tuple(emitted), commit_id - 1, following)


def _changes(trail: Trail, commit_id: int, after: str | None, limit: int) -> Page[ObjectChange]:
    """Entities first, in the order in which they were written."""
    kind, done = ("entity", 0) if after is None else place(after, str, int)
    found: list[tuple[str, int, RawChange]] = []
    for each in ("entity", "relation")[kind == "relation" :]:
        wanted = limit + 1 - len(found)
        some = trail.changes(commit_id, each, done if each == kind else 0, wanted)
        found += ((each, at, raw) for at, raw in some)
    rows = tuple(object_change(raw) for _, _, raw in found[:limit])
    return Page(rows, cursor(*found[limit - 1][:2]) if len(found) > limit else None)


def object_change(raw: RawChange) -> ObjectChange:
    """A change as it is stored."""
    before: dict[str, Any] = {} if raw.before is None else codec.decode_stored(raw.before)
    after: dict[str, Any] = {} if raw.after is None else codec.decode_stored(raw.after)
    return ObjectChange(
        change_type(raw),
        raw.kind,
        raw.type_name,
        raw.key,
        differing(before, after),
        raw.after_version or 1,
    )


def differing(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Before and after of each stored field that differs; None where it is missing."""
    # As text, since to Python True is 1.
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if (name in before) != (name in after)
        or codec.encode(before[name]) != codec.encode(after[name])
    }


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
