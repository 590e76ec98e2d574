"""Where a value, a commit or an event comes from, and what followed from it. Reads only.

Nothing here looks through the history or the log: versions are found by their key, commits by
their number or by the event they answer, events by their id or by the first of their chain.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.store.database import Database, Tx
from ontologia.store.rows import TOMBSTONE, CommitRow, EventRow, ObjectKey, RawChange, TypeKey
from ontologia.store.staging import settling_types

_PAGE = 500
_END = 2**63 - 1
_STRIDE = 10_000  # commits that are looked at in one read
_WRITTEN_WITHIN = timedelta(seconds=10), timedelta(seconds=1)
"""How long before and after its commit an event may be stamped: a commit may wait for others."""
BY_COMMIT = "commit:"
"""What an event's `source` begins with, if it was emitted with a commit that no handler made."""
EMITTED = "emitted"
"""What the metadata of a handler's commit calls the ids of the events emitted with it."""
_KEY = {"entity": ("key",), "relation": ("left", "right", "instance")}
"""What the statements call the parts of a key."""


class StoredVersion(NamedTuple):
    """One version of an object; without fields it says that the object was deleted."""

    commit_id: int
    fields: str | None
    schema_version: int


class ClaimRow(NamedTuple):
    """How one consumer stands to one event, in the order of the columns."""

    event_id: str
    handler_id: str
    session_id: str
    attempts: int
    last_error: str | None
    claimed_at: str
    started_at: str | None
    lease_until: str
    available_at: str
    ack_at: str | None
    dead_lettered_at: str | None
    read_commit: int | None
    lease_token: str | None
    conflicts: int


class AttemptRow(NamedTuple):
    """One attempt that did not succeed."""

    event_id: str
    handler_id: str
    attempt: int
    started_at: str | None
    ended_at: str
    read_commit: int | None
    outcome: str
    error: str | None


class Chain(NamedTuple):
    """An event that began, all that followed from it, and what was done about each."""

    events: list[EventRow]
    claims: list[ClaimRow]
    attempts: list[AttemptRow]
    commits: list[CommitRow]
    ready: list[tuple[str, str]]
    """Event and consumer, where it was handed out and nobody has claimed it."""


class Trail:
    """The answers of one snapshot."""

    def __init__(self, tx: Tx, sql: Mapping[str, str]) -> None:
        self._tx = tx
        self._sql = sql
        self._settling: frozenset[TypeKey] | None = None

    def _settles(self, type_key: TypeKey) -> bool:
        """Whether a migration's versions of a type may not be in the history yet."""
        if self._settling is None:
            row = self._tx.one(self._sql["settling_now"])
            self._settling = settling_types(row and row[0])
        return type_key in self._settling

    def versions(
        self, kind: str, type_name: str, key: ObjectKey, *, before: int = _END
    ) -> Iterator[StoredVersion]:
        """What was said of one object before a commit, the newest first, read as it is wanted."""
        sql = self._sql[f"{kind}_versions"]
        asked = {"type": type_name, **dict(zip(_KEY[kind], key, strict=True))}
        if self._settles((kind, type_name)):
            settling = self._sql[f"settling_version_of_{kind}"]
            for row in self._tx.all(settling, {**asked, "before": before}):
                yield StoredVersion(*row)  # newer than all that the history has of the object
        most = 2  # two are enough to see that the last version changed it
        while rows := self._tx.all(sql, {**asked, "before": before, "most": most}):
            for commit_id, fields, version in rows:
                # Old files may have two versions of a key in one commit: the last one counts.
                if commit_id < before:
                    yield StoredVersion(
                        commit_id, None if fields == TOMBSTONE else fields, version or 1
                    )
                before = commit_id
            most = _PAGE

    def commit(self, commit_id: int) -> CommitRow | None:
        """One commit."""
        span = {"before": commit_id + 1, "since": commit_id - 1, "most": 1}
        rows = self._tx.all(self._sql["commits_before"], span)
        return commit_of(rows[0]) if rows else None

    def changes(
        self, commit_id: int, kind: str, after: int, most: int
    ) -> list[tuple[int, RawChange]]:
        """The next objects of a kind that a commit wrote, in that order, each with its place in it.

        They come behind the place `after`; 0 is before the first. Costs what it returns.
        """
        span = {"commit_id": commit_id, "after": after, "most": most}
        found: list[tuple[int, RawChange]] = []
        for place, name, *row in self._tx.all(self._sql[f"{kind}_changes_of"], span):
            *key, before, now, version, version_now = row
            was, is_ = (None if text == TOMBSTONE else text for text in (before, now))
            change = RawChange(kind, name, tuple(key), was, is_, version or 1, version_now or 1)
            found.append((place, change))
        return found

    def emitted_by(self, commit: CommitRow, most: int) -> list[tuple[str, str]]:
        """The first events whose source is this commit, as id and type, in the order of emission.

        Not those that were deferred. Costs a seek for each type and priority, and the events of the
        seconds around the commit.
        """
        namespace, found = commit.metadata.get("namespace"), list[tuple[str, str, str]]()
        if not isinstance(namespace, str):
            return []
        earlier, later = _WRITTEN_WITHIN
        span = {
            "namespace": namespace,
            "first": to_text(commit.created_at - earlier),
            "last": to_text(commit.created_at + later),
            "source": f"{BY_COMMIT}{commit.id}",
            "most": most,
        }
        for (name,) in self._tx.all(self._sql["event_types"], {"namespace": namespace}):
            of_type = {"namespace": namespace, "type": name}
            for (priority,) in self._tx.all(self._sql["priorities"], of_type):
                asked = {**span, "type": name, "priority": priority}
                found += self._tx.all(self._sql["events_of_source"], asked)
        return [(event_id, name) for _, event_id, name in sorted(found)[:most]]

    def commits_for(self, event_ids: Iterable[str]) -> list[CommitRow]:
        """The commits that handlers of these events made, oldest first."""
        wanted = set(event_ids)
        ids = codec.encode_checked(sorted(wanted))
        found = map(commit_of, self._tx.all(self._sql["commits_for"], {"ids": ids}))
        return [each for each in found if each.metadata.get("event_id") in wanted]

    def causes(self, event_id: str) -> list[EventRow]:
        """The event, the one whose handler announced it, and so on; [] if it is not retained."""
        rows = [EventRow(*row) for row in self._tx.all(self._sql["causes_of"], {"id": event_id})]
        known, chain = {row.id: row for row in rows}, list[EventRow]()
        here = known.pop(event_id, None)
        while here is not None:
            chain.append(here)
            here = known.pop(here.causation_id or "", None)
        return chain

    def chain(self, root_event_id: str) -> Chain:
        """What began with this event. Costs the number of its events."""
        rows = self._tx.all(self._sql["chain_of"], {"root": root_event_id})
        events = [EventRow(*row[:-1]) for row in rows]
        event_ids = [event.id for event in events]
        ids = {"ids": codec.encode_checked(event_ids)}
        return Chain(
            events,
            self.claims(event_ids),
            self.attempts(event_ids),
            self.commits_for(event_ids),
            self._tx.all(self._sql["ready_for"], ids),
        )

    def ready_for(self, event_id: str) -> list[str]:
        """The consumers that could claim an event and have not yet."""
        ids = {"ids": codec.encode_checked([event_id])}
        return [row[1] for row in self._tx.all(self._sql["ready_for"], ids)]

    def emitting_commit(
        self, event_id: str, source: str | None, causation_id: str | None
    ) -> int | None:
        """The commit that an event was emitted with; None if it was emitted alone.

        One that a handler made names the events it emitted, and the event that was handled.
        """
        number = emitting_commit(source)
        if number is not None or causation_id is None:
            return number
        for commit in self.commits_for([causation_id]):
            if event_id in emitted_with(commit):
                return commit.id
        return None

    def event(self, event_id: str) -> EventRow | None:
        """One event; None if it is not retained."""
        row = self._tx.one(self._sql["get_event"], {"id": event_id})
        return None if row is None else EventRow(*row)

    def claims(self, event_ids: list[str]) -> list[ClaimRow]:
        """How every consumer stands to these events."""
        ids = codec.encode_checked(event_ids)
        return [ClaimRow(*row) for row in self._tx.all(self._sql["claims_of"], {"ids": ids})]

    def attempts(self, event_ids: list[str]) -> list[AttemptRow]:
        """The attempts at these events that did not succeed."""
        ids = {"ids": codec.encode_checked(event_ids)}
        return [AttemptRow(*row) for row in self._tx.all(self._sql["attempts_at"], ids)]

    def commits_near(self, commit_id: int) -> list[CommitRow]:
        """A commit with the one before and the one after it, as far as they exist; newest first."""
        span = {"before": commit_id + 2, "since": commit_id - 2, "most": 3}
        return [commit_of(row) for row in self._tx.all(self._sql["commits_before"], span)]


class Provenance:
    """Opens snapshots; and lists commits, however many there are."""

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    @contextmanager
    def read(self) -> Generator[Trail]:
        """One snapshot for several questions."""
        with self._database.read() as tx:
            yield Trail(tx, self._sql)

    def commits(
        self, *, since: int = 0, before: int | None = None, page: int = _PAGE
    ) -> Iterator[CommitRow]:
        """Commits after `since` and before `before`, the newest first; few of them are in memory."""
        before = _END if before is None else before
        span = {"since": since, "most": min(page, _PAGE)}
        while rows := self._database.all(self._sql["commits_before"], {**span, "before": before}):
            yield from map(commit_of, rows)
            before = rows[-1][0]

    def operators_commits(
        self, before: int | None = None, most: int = _PAGE
    ) -> Iterator[tuple[list[CommitRow], int]]:
        """Commits that operators made, the newest first, and the number that was looked back to.

        Goes back 10,000 commits at a time, up to the first; those in between cost a look each.
        `before` is the number of a commit; None begins at the head.
        """
        end = before
        if end is None:
            newest = self._database.all(
                self._sql["commits_before"], {"since": 0, "most": 1, "before": _END}
            )
            end = int(newest[0][0]) + 1 if newest else 1
        while end > 1:
            first = max(1, end - _STRIDE)
            asked = {"before": end, "first": first, "mark": '"operator":', "most": most}
            rows = self._database.all(self._sql["operators_commits"], asked)
            found = [each for each in map(commit_of, rows) if "operator" in each.metadata]
            end = int(rows[-1][0]) if len(rows) == most else first
            yield found, end


def emitting_commit(source: str | None) -> int | None:
    """The commit in an event's `source`; None if something else emitted it."""
    number = (source or "").removeprefix(BY_COMMIT)
    return int(number) if number != source and number.isdecimal() else None


def emitted_with(commit: CommitRow) -> tuple[str, ...]:
    """The events that a handler's commit says were emitted with it."""
    said: object = commit.metadata.get(EMITTED)  # a handler may have written something else there
    return tuple(map(str, said)) if isinstance(said, list) else ()


def commit_of(row: tuple[int, str, str | None]) -> CommitRow:
    """A commit from its columns."""
    number, created_at, metadata = row
    return CommitRow(
        number, from_text(created_at), codec.decode_stored(metadata) if metadata else {}
    )
