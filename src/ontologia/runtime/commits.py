"""Writing a unit of work: changes, the events that announce them, and the fence, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia.clock import Clock
from ontologia.delivery.lineage import Lineage, check_depth
from ontologia.errors import (
    BatchSizeExceededError,
    HeadMismatchError,
    InvalidValueError,
    LeaseExpiredError,
)
from ontologia.migration.versions import TypeVersions
from ontologia.schema.event import Event
from ontologia.store.database import Conflict
from ontologia.store.events.log import fire_time
from ontologia.store.events.store import fill
from ontologia.store.protocol import Store
from ontologia.store.rows import Announcement, Batch, Claim, Stored

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig


class Written(NamedTuple):
    """What a unit of work came to."""

    commit_id: int | None
    stored: list[Stored]


class Commits:
    """Carries out the units of work of one session."""

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

    def write(
        self,
        batch: Batch,
        metadata: dict[str, Any],
        *,
        announcements: Sequence[Announcement] = (),
        claim: Claim | None = None,
        expected_head: int | None = None,
    ) -> Written:
        """Write it in one durable transaction; an empty unit writes nothing.

        A transaction that collided with another was taken back as a whole, and is done again
        after a short wait; HeadMismatchError after `commit_max_retries`.
        """
        self.check_size(batch)
        state = bool(batch) or expected_head is not None
        if state:
            self._make_indexes()
        most = self._config.commit_max_retries
        retry = 0
        while True:
            try:
                if not state:
                    return self._announce(announcements, claim)
                return self._write(batch, metadata, announcements, claim, expected_head)
            except Conflict as error:
                if retry >= most:
                    raise HeadMismatchError(max_retries=most) from error
            self._clock.sleep(retry_wait(retry, self._random))
            retry += 1

    def _write(
        self,
        batch: Batch,
        metadata: dict[str, Any],
        announcements: Sequence[Announcement],
        claim: Claim | None,
        expected_head: int | None,
    ) -> Written:
        with self._store.write(claim=claim, batch=batch) as tx:
            if claim is not None and not tx.holds(claim):
                raise LeaseExpiredError(claim.handler_id, claim.event.id)
            check_head(expected_head, tx.head() if expected_head is not None else None)
            versions = self._versions.verify(tx, batch)
            changes = tx.delta(batch)
            commit_id: int | None = None
            if changes:
                commit_id = tx.write_commit(changes, metadata=metadata, versions=versions)
                announcements = [_by_commit(each, commit_id) for each in announcements]
            stored = tx.announce(announcements) if announcements else []
        if commit_id is not None:
            self.last = max(self.last, commit_id)
        if announcements:
            self._store.events.wake()
        return Written(commit_id, stored)

    def _announce(self, announcements: Sequence[Announcement], claim: Claim | None) -> Written:
        """Events alone: no state is touched, so no long write is in the way."""
        if not announcements:
            return Written(None, [])
        events = self._store.events
        with events.transaction() as tx:
            if claim is not None and not events.claims.check(tx, claim):
                raise LeaseExpiredError(claim.handler_id, claim.event.id)
            stored = events.log.announce(tx, announcements)
        events.wake()
        return Written(None, stored)

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
        if not isinstance(event, Event):
            raise TypeError(f"expected an event, an instance of an Event class, got {event!r}")
        check_depth(type(event).__event_type__, lineage, self._config.max_event_chain_depth)
        fire_at = fire_time(self._clock.now, delay=delay, at=at)
        row = self._store.events.log.row(event, namespace, lineage, dedup_key=dedup_key)
        fill(event, row)
        return Announcement(row, fire_at)

    def check_size(self, batch: Batch) -> None:
        """BatchSizeExceededError if this is too much for one commit."""
        size = sum(map(len, batch.values()))
        if size > self._config.max_batch_size:
            raise BatchSizeExceededError(size, self._config.max_batch_size)


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


def check_event_options(event: object, delay: object, at: object, dedup_key: object) -> None:
    """`delay`, `at` and `dedup_key` say something about an event; without one they are a mistake."""
    if event is None and not (delay is at is dedup_key is None):
        raise InvalidValueError("delay=, at= and dedup_key= are about an event; give event= too")
