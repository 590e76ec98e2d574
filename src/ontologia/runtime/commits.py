"""The commit path: changes, the events emitted with them, and the fence, in one transaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock
from ontologia.delivery.lineage import Lineage, check_depth, deferred
from ontologia.errors import (
    BatchSizeExceededError,
    HeadMismatchError,
    LeaseExpiredError,
    StateConflictError,
)
from ontologia.migration.versions import TypeVersions
from ontologia.runtime.intents import Queue, Stale, Versions, changes, version_of
from ontologia.schema.event import Event
from ontologia.store.database import Conflict, Tx
from ontologia.store.events import checks
from ontologia.store.events.log import fire_time
from ontologia.store.events.store import fill
from ontologia.store.protocol import StateReader, Store
from ontologia.store.rows import (
    Announcement,
    Claim,
    Current,
    EventRow,
    Keys,
    ObjectKey,
    RawChange,
    State,
    Stored,
    TypeKey,
)
from ontologia.store.unique import check_unique

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig


@dataclass(slots=True)
class WriteRequest:
    """What goes in one transaction, or not at all."""

    queue: Queue = field(default_factory=Queue)
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    announcements: Sequence[Announcement] = ()
    claim: Claim | None = None
    """The fence: nothing is written unless this claim is held."""
    expected_head: int | None = None
    reads: Versions = field(default_factory=Versions)
    """Versions of objects that were read: nothing is written unless they are still current."""
    announce: Callable[[Sequence[RawChange]], Sequence[Announcement]] | None = None
    """More events, made from what turns out to change."""
    also: Callable[[Tx], None] | None = None
    """Something else to write in the same transaction."""
    along: Callable[[Tx], None] | None = None
    """Piggy-backs on the transaction, if anything is written."""


class Written(NamedTuple):
    """What came of a request."""

    commit_id: int | None
    stored: list[Stored]
    rode: bool = False
    """Whether what was to be written along is part of it."""
    unchanged: Versions = {}  # noqa: RUF012 - nobody changes it
    """The versions of queued objects that are as they should be already."""
    state: State = {}  # noqa: RUF012 - nobody changes it
    """What was current before."""


class Commits:
    """Writes the requests of one session. Thread-safe."""

    def __init__(
        self,
        store: Store,
        versions: TypeVersions,
        config: OntologiaConfig,
        clock: Clock,
        make_indexes: Callable[[], None],
    ) -> None:
        self._store = store
        self._versions = versions
        self._config = config
        self._clock = clock
        self._random = config.random or random.SystemRandom()
        self._make_indexes = make_indexes
        self.last = 0
        """The number of this session's last commit."""

    def write(self, request: WriteRequest) -> Written:
        """Write it in one durable transaction; an empty request writes nothing.

        StateConflictError if an object is no longer at the version that was read. A transaction
        that collided with another was rolled back as a whole, and is done again after a short
        wait; HeadMismatchError after `commit_max_retries`.
        """
        self.check_size(request.queue)
        state = bool(request.queue or request.reads) or request.expected_head is not None
        if state:
            self._make_indexes()
        most = self._config.commit_max_retries
        retry = 0
        while True:
            try:
                return self._write(request) if state else self._announce(request)
            except _StaleReads as error:
                raise self._conflict(error.stale) from None
            except Conflict as error:
                if retry >= most:
                    raise HeadMismatchError(max_retries=most) from error
            self._clock.sleep(retry_wait(retry, self._random))
            retry += 1

    def _write(self, request: WriteRequest) -> Written:
        claim, expected = request.claim, request.expected_head
        touched = _touched(request.queue, request.reads)
        with self._store.write(claim=claim, keys=touched) as tx:
            if claim is not None and not tx.holds(claim):
                raise LeaseExpiredError(claim.handler_id, claim.event.id)
            check_head(expected, tx.head() if expected is not None else None)
            versions = self._versions.verify(tx, touched)
            state = tx.current(touched)
            found = self._changes(request.queue, request.reads, state, versions)
            announcements = list(request.announcements)
            if request.announce is not None:
                announcements += request.announce(found)
            commit_id: int | None = None
            if found:
                commit_id = tx.write_commit(found, metadata=request.metadata, versions=versions)
                check_unique(tx, map(self._versions.shape, touched), found)
                announcements = [_by_commit(each, commit_id) for each in announcements]
            stored = tx.announce(announcements) if announcements else []
            if request.also is not None:
                request.also(tx.tx)
            rode = request.along is not None and bool(found or announcements)
            if request.along is not None and rode:
                request.along(tx.tx)
        if commit_id is not None:
            self.last = max(self.last, commit_id)
        if announcements:
            self._store.events.wake()
        return Written(commit_id, stored, rode, _unchanged(request.queue, state, found), state)

    def _changes(
        self, queue: Queue, reads: Versions, state: State, versions: Mapping[TypeKey, int]
    ) -> list[RawChange]:
        """What the queue changes in this state; an error if the state does not allow it."""
        found, stale = changes(queue, reads, state, partial(self._patched, versions))
        if stale:
            raise _StaleReads(stale)
        return found

    def preview(self, reader: StateReader, queue: Queue, reads: Versions) -> list[RawChange]:
        """What a commit of the queue would change now; raises what that would.

        But not UniqueViolationError, which is found among what was written.
        """
        try:
            return self._changes(queue, reads, reader.current(_touched(queue, reads)), {})
        except _StaleReads as error:
            raise self._conflict(error.stale) from None

    def _patched(
        self,
        versions: Mapping[TypeKey, int],
        type_key: TypeKey,
        key: ObjectKey,
        current: Current,
        patch: str,
    ) -> str:
        fields: dict[str, Any] = codec.decode(current[0])
        shape = self._versions.shape(type_key)
        if current[1] != versions.get(type_key):  # a version that fits need not be looked up
            load = self._versions.loader(shape, current[1])
            if load is not None:
                fields = shape.encode(load(key, fields))
        return shape.patched(fields, patch, key)

    def _conflict(self, stale: Sequence[Stale]) -> StateConflictError:
        """What is known of a conflict: which object, which versions, and who wrote it."""
        first = stale[0]
        with self._store.provenance.read() as trail:
            newest = next(trail.versions(*first.type_key, first.key), None)
            number = first.found or (newest.commit_id if newest is not None else 0)
            commit = trail.commit(number)
        error = StateConflictError(
            first.type_key[1],
            first.key,
            read=first.read,
            found=first.found,
            deleted_at=None if first.found else number,
            written_by=None if commit is None else _writer(commit.metadata),
            conflicts=[
                (each.type_key[1], ":".join(filter(None, each.key)), each.read, each.found)
                for each in stale
            ],
        )
        error._stale = tuple(stale)
        return error

    def _announce(self, request: WriteRequest) -> Written:
        """Events alone: no state is touched, so no long write is in the way."""
        if not request.announcements and request.also is None:
            return Written(None, [])
        events, claim = self._store.events, request.claim
        with events.transaction() as tx:
            if claim is not None and not events.claims.check(tx, claim):
                raise LeaseExpiredError(claim.handler_id, claim.event.id)
            stored = events.log.announce(tx, request.announcements)
            if request.also is not None:
                request.also(tx)
        if stored:
            events.wake()
        return Written(None, stored)

    def append(self, events: Sequence[Event], namespace: str) -> Written:
        """Store events alone, at once, each the first of a chain of its own."""
        store = self._store.events
        rows = store.log.first_rows(events, namespace)
        store.log.append(map(_filled, events, rows))
        store.wake()
        return Written(None, [Stored(str(event.id), None) for event in events])

    def announcement(
        self,
        event: Any,
        namespace: str,
        lineage: Lineage,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> Announcement:
        """The event as a copy to be stored; its new id and lineage are left on the original."""
        checks.event(event)
        now = self._clock.now()
        fire_at = fire_time(now, delay=delay, at=at)
        lineage = deferred(lineage, fire_at, now)
        check_depth(type(event).__event_type__, lineage, self._config.max_event_chain_depth)
        row = self._store.events.log.row(event, namespace, lineage, dedup_key=dedup_key)
        fill(event, row)
        return Announcement(row, fire_at)

    def check_size(self, queue: Queue) -> None:
        """BatchSizeExceededError if this is too much for one commit."""
        size = sum(map(len, queue.values()))
        if size > self._config.max_batch_size:
            raise BatchSizeExceededError(size, self._config.max_batch_size)


def _filled(event: Event, row: EventRow) -> EventRow:
    fill(event, row)
    return row


_BY_COMMIT = "commit:"


def _by_commit(announcement: Announcement, commit_id: int) -> Announcement:
    """Say which commit announces the event, unless a handler does, whose commits can be found."""
    row = announcement.row
    if row.source is not None:
        return announcement
    return announcement._replace(row=row._replace(source=f"{_BY_COMMIT}{commit_id}"))


def announcing_commit(source: str | None) -> int | None:
    """The commit in an event's `source`; None if something else announced it."""
    number = (source or "").removeprefix(_BY_COMMIT)
    return int(number) if number != source and number.isdecimal() else None


def retry_wait(retry: int, chance: random.Random) -> float:
    """Seconds before a commit that collided with another is tried again; the first retry is 0."""
    return 0.01 * 2.0**retry + chance.uniform(0, 0.01)


def check_head(expected: int | None, actual: int | None) -> None:
    """HeadMismatchError unless the store is where the caller expects it."""
    if expected is not None and (type(expected) is not int or expected != actual):
        raise HeadMismatchError(expected=expected, actual=actual)


class _StaleReads(Exception):
    """Objects are no longer at the versions that were read; the transaction is rolled back."""

    def __init__(self, stale: Sequence[Stale]) -> None:
        super().__init__(stale)
        self.stale = stale


def _touched(queue: Queue, reads: Versions) -> Keys:
    """The objects whose current versions a commit needs."""
    if not reads:
        return queue
    return {
        type_key: {**reads.get(type_key, {}), **queue.get(type_key, {})}
        for type_key in {**reads, **queue}
    }


def _unchanged(queue: Queue, state: State, found: Sequence[RawChange]) -> Versions:
    """The versions of those queued objects that a commit does not change."""
    if len(found) == sum(map(len, queue.values())):
        return {}
    changed = {(change.kind, change.type_name, change.key) for change in found}
    return {
        type_key: {
            key: version_of(state, type_key, key)
            for key in wanted
            if (*type_key, key) not in changed
        }
        for type_key, wanted in queue.items()
    }


def _writer(metadata: Mapping[str, Any]) -> str | None:
    """Who made a commit, as a message names it."""
    for name, what in (
        ("handler_id", "handler"),
        ("command", "command"),
        ("extension_id", "extension"),
        ("session_id", "session"),
    ):
        if metadata.get(name):
            return f"{what} {metadata[name]}"
    return None
