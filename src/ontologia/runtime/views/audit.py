"""What operators did: the commits that record it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia.runtime.session import core_of
from ontologia.runtime.views.paging import DEADLINE, PAGE, Page, cursor, place
from ontologia.store.database import ReadDeadline
from ontologia.store.rows import CommitRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What one operator did in one transaction."""

    commit_id: int
    created_at: datetime
    operator: str
    action: str
    """As the command line calls it: `events retry`."""
    namespace: str | None
    reason: str | None
    via: str | None
    """`console` if it was done there."""
    arguments: dict[str, Any]
    counts: dict[str, int]
    metadata: dict[str, Any]
    """All that the commit says."""

    @classmethod
    def of(cls, commit_id: int, created_at: datetime, said: dict[str, Any]) -> AuditRow:
        """What the metadata of an operator's commit says; what is text instead of an object, `{}`."""
        arguments, counts = said.get("arguments"), said.get("counts")
        return cls(
            commit_id,
            created_at,
            str(said["operator"]),
            str(said.get("action", "")),
            said.get("namespace"),
            said.get("reason"),
            said.get("via"),
            arguments if isinstance(arguments, dict) else {},
            counts if isinstance(counts, dict) else {},
            said,
        )


def operators_commits(
    session: Session,
    *,
    before: str | None = None,
    limit: int = PAGE,
    operator: str | None = None,
    seconds: float = DEADLINE,
) -> Page[AuditRow]:
    """A page of what operators did, in all namespaces, the newest first.

    Looks back through all commits, whoever made them, for `seconds` at most: there is no index of
    those that operators made.
    """
    number = None if before is None else place(before, int)[0]
    found: list[CommitRow] = []
    deadline = ReadDeadline(seconds)
    walk = core_of(session).store.provenance.operators_commits(number)
    for commits, looked_back_to in walk:
        found += (
            each for each in commits if operator is None or each.metadata["operator"] == operator
        )
        if len(found) > limit:
            break
        if deadline.passed and looked_back_to > 1:
            oldest = session.get_commit(looked_back_to)
            return Page(
                tuple(map(_row, found)),
                cursor(looked_back_to),
                None if oldest is None else oldest["created_at"],
            )
    rows = tuple(map(_row, found[:limit]))
    return Page(rows, cursor(rows[-1].commit_id) if len(found) > limit else None)


def _row(commit: CommitRow) -> AuditRow:
    return AuditRow.of(commit.id, commit.created_at, commit.metadata)
