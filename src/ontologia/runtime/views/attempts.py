"""What one attempt of a handler saw and wrote, and who wrote in between.

An attempt reads from the head as it began on. What it writes is laid over the state just before its
commit. Where the two differ, another commit came in between: a race.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.errors import NotFoundError
from ontologia.runtime.explain import Cause, cause_of
from ontologia.runtime.session import core_of
from ontologia.runtime.views.commits import Maker, maker, makers
from ontologia.runtime.views.events import Claim, EventDetail, FailedAttempt, event
from ontologia.store.provenance import StoredVersion, Trail
from ontologia.store.rows import CommitRow, ObjectKey, RawChange

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_MOST = 200
_NONE = object()


@dataclass(frozen=True, slots=True)
class Written:
    """One object that an attempt wrote, at three moments; fields as they were stored."""

    kind: str
    type_name: str
    key: ObjectKey
    commit_id: int
    """The commit of the attempt that wrote it."""
    at_begin: dict[str, Any] | None
    """As of `read_commit`; None if it did not exist."""
    before: dict[str, Any] | None
    """Just before that commit."""
    after: dict[str, Any] | None
    """What it wrote; None if it deleted it."""
    overtaken_by: Maker | None
    """The last commit in between that wrote it and was not this attempt's."""
    why: tuple[Cause, ...]
    """The event that such a commit answers, and back to the first retained one of its chain."""

    @property
    def raced(self) -> tuple[str, ...]:
        """If another commit wrote it in between: the fields in which `before` is not `at_begin`."""
        if self.overtaken_by is None:
            return ()
        begin, before = self.at_begin or {}, self.before or {}
        return tuple(
            name for name in (begin | before) if begin.get(name, _NONE) != before.get(name, _NONE)
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one handler at one event."""

    event: EventDetail
    handler: str
    number: int
    read_commit: int | None
    """The head as it began; None if that is not known."""
    claim: Claim | None
    """How the handler stands to the event now."""
    failed: FailedAttempt | None
    """How it failed; None if it succeeded, or is running."""
    commits: tuple[Maker, ...]
    """What it committed, the oldest first."""
    written: tuple[Written, ...]
    more: bool
    """Whether it wrote more objects than are shown."""

    @property
    def races(self) -> tuple[Written, ...]:
        """The objects that another commit changed after the attempt began."""
        return tuple(each for each in self.written if each.raced)


def attempt(
    session: Session, event_id: str, handler: str, number: int, *, most: int = _MOST
) -> Attempt:
    """What an attempt read from and what it wrote.

    `number` counts from 1; those from before an operator's retry have numbers from 0 down.
    NotFoundError if the event is not retained, or the handler never had it. Costs the objects that
    its commits changed, and two reads by key for each that is shown.
    """
    detail = event(session, event_id)
    if detail is None:
        raise NotFoundError(f"there is no event {event_id} in the log, in any namespace")
    claim = next((each for each in detail.claims if each.handler == handler), None)
    failed = next(
        (each for each in detail.attempts if (each.handler, each.attempt) == (handler, number)),
        None,
    )
    aside = max(
        (each.ended_at for each in detail.attempts if each.handler == handler and each.attempt < 1),
        default=None,
    )
    core = core_of(session)
    with core.store.provenance.read() as trail:
        mine = [
            commit
            for commit in trail.commits_for([event_id])
            if commit.metadata.get("handler_id") == handler and _made(commit, number, failed, aside)
        ]
    if failed is None and not mine and (claim is None or number != claim.attempts + 1):
        raise NotFoundError(f"handler {handler} made no attempt {number} at event {event_id}")
    read_commit = None if failed is None else failed.read_commit
    if failed is None and claim is not None and number == claim.attempts + 1:
        read_commit = claim.read_commit
    written, more = _written(session, mine, read_commit, most)
    return Attempt(
        detail,
        handler,
        number,
        read_commit,
        claim,
        failed,
        tuple(map(maker, mine)),
        tuple(written),
        more,
    )


def _made(
    commit: CommitRow, number: int, failed: FailedAttempt | None, aside_until: datetime | None
) -> bool:
    """Whether an attempt made a commit of its handler.

    An operator's retry begins anew with number 1, and commits keep the number they were made with.
    """
    if number < 1:
        if failed is None or failed.started_at is None:
            return False
        return failed.started_at <= commit.created_at <= failed.ended_at
    since_retry = aside_until is None or commit.created_at > aside_until
    return since_retry and commit.metadata.get("attempt") == number


def _written(
    session: Session, mine: list[CommitRow], read_commit: int | None, most: int
) -> tuple[list[Written], bool]:
    store = core_of(session).store
    changed = [
        (commit.id, change)
        for commit in mine
        for change in store.changes_between(commit.id - 1, commit.id)
    ]
    own = {commit.id for commit in mine}
    found: list[tuple[int, RawChange, StoredVersion | None, int | None]] = []
    with store.provenance.read() as trail:
        for number, change in changed[:most]:
            where = (change.kind, change.type_name, change.key)
            begin = None
            if read_commit is not None:
                begin = next(trail.versions(*where, before=read_commit + 1), None)
            by = (
                None if read_commit is None else _overtaking(trail, where, read_commit, number, own)
            )
            found.append((number, change, begin, by))
        made = makers(trail, (by for *_, by in found if by is not None))
        why = {
            each.commit_id: tuple(map(cause_of, trail.causes(each.event_id)))
            for each in made.values()
            if isinstance(each.event_id, str)
        }
    rows = [
        Written(
            change.kind,
            change.type_name,
            change.key,
            number,
            None if begin is None else _decoded(begin.fields),
            _decoded(change.before),
            _decoded(change.after),
            None if by is None else made.get(by),
            () if by is None else why.get(by, ()),
        )
        for number, change, begin, by in found
    ]
    return rows, len(changed) > most


def _overtaking(
    trail: Trail, where: tuple[str, str, ObjectKey], after: int, before: int, own: set[int]
) -> int | None:
    """The last commit in between that wrote an object and is not one of these."""
    for version in trail.versions(*where, before=before):
        if version.commit_id <= after:
            return None
        if version.commit_id not in own:
            return version.commit_id
    return None


def _decoded(text: str | None) -> dict[str, Any] | None:
    return None if text is None else codec.decode_stored(text)
