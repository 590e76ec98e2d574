"""Writing a unit of work: changes, the events that announce them, and the fence, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia.clock import Clock
from ontologia.delivery.lineage import Lineage, check_depth
from ontologia.errors import (
    BatchSizeExceededError,
    HeadMismatchError,
    InvalidValueError,
    LeaseExpiredError,
    RecordExists,
    StateConflictError,
)
from ontologia.migration.versions import TypeVersions
from ontologia.schema.event import Event
from ontologia.store.database import Conflict, Tx
from ontologia.store.events import checks
from ontologia.store.events.log import fire_time
from ontologia.store.events.store import fill
from ontologia.store.protocol import Store
from ontologia.store.rows import Announcement, Batch, Claim, EventRow, RawChange, Stored

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig


@dataclass(slots=True)
class UnitOfWork:
    """What goes in one transaction, or not at all."""

    batch: Batch = field(default_factory=Batch)
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    announcements: Sequence[Announcement] = ()
    claim: Claim | None = None
    """The fence: nothing is written unless this claim is held."""
    expected_head: int | None = None
    seen: Batch = field(default_factory=Batch)
    """Objects as they were when they were read: nothing is written unless they still are."""
    announce: Callable[[Sequence[RawChange]], Sequence[Announcement]] | None = None
    """More events, made from what turns out to change."""
    also: Callable[[Tx], None] | None = None
    """Something else to write in the same transaction."""
    along: Callable[[Tx], None] | None = None
    """Something that waits for a transaction to be written by: only if there is one."""


class Written(NamedTuple):
    """What a unit of work came to."""

    commit_id: int | None
    stored: list[Stored]
    rode: bool = False
    """Whether what was to be written along is part of it."""


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

    def write(self, unit: UnitOfWork) -> Written:
        """Write it in one durable transaction; an empty unit writes nothing.

        A transaction that collided with another was taken back as a whole, and is done again
        after a short wait; HeadMismatchError after `commit_max_retries`.
        """
        self.check_size(unit.batch)
        state = bool(unit.batch or unit.seen) or unit.expected_head is not None
        if state:
            self._make_indexes()
        most = self._config.commit_max_retries
        retry = 0
        while True:
            try:
                return self._write(unit) if state else self._announce(unit)
            except Conflict as error:
                if retry >= most:
                    raise HeadMismatchError(max_retries=most) from error
            self._clock.sleep(retry_wait(retry, self._random))
            retry += 1

    def _write(self, unit: UnitOfWork) -> Written:
        claim, expected = unit.claim, unit.expected_head
        batch = _together(unit.seen, unit.batch)
        with self._store.write(claim=claim, batch=batch) as tx:
            if claim is not None and not tx.holds(claim):
                raise LeaseExpiredError(claim.handler_id, claim.event.id)
            check_head(expected, tx.head() if expected is not None else None)
            versions = self._versions.verify(tx, batch)
            changes = tx.delta(batch)
            check_seen(unit.seen, unit.batch, changes)
            announcements = list(unit.announcements)
            if unit.announce is not None:
                announcements += unit.announce(changes)
            commit_id: int | None = None
            if changes:
                commit_id = tx.write_commit(changes, metadata=unit.metadata, versions=versions)
                announcements = [_by_commit(each, commit_id) for each in announcements]
            stored = tx.announce(announcements) if announcements else []
            if unit.also is not None:
                unit.also(tx.tx)
            rode = unit.along is not None and bool(changes or announcements)
            if unit.along is not None and rode:
                unit.along(tx.tx)
        if commit_id is not None:
            self.last = max(self.last, commit_id)
        if announcements:
            self._store.events.wake()
        return Written(commit_id, stored, rode)

    def _announce(self, unit: UnitOfWork) -> Written:
        """Events alone: no state is touched, so no long write is in the way."""
        if not unit.announcements and unit.also is None:
            return Written(None, [])
        events = self._store.events
        with events.transaction() as tx:
            if unit.claim is not None and not events.claims.check(tx, unit.claim):
                raise LeaseExpiredError(unit.claim.handler_id, unit.claim.event.id)
            stored = events.log.announce(tx, unit.announcements)
            if unit.also is not None:
                unit.also(tx)
        if stored:
            events.wake()
        return Written(None, stored)

    def append(self, events: Sequence[Event], namespace: str) -> None:
        """Store events alone, at once, each the first of a chain of its own."""
        store = self._store.events
        rows = store.log.first_rows(events, namespace)
        store.log.append(map(_filled, events, rows))
        store.wake()

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


def _together(seen: Batch, batch: Batch) -> Batch:
    """What to compare with the store: what is wanted, and what was only read as it was read."""
    if not seen:
        return batch
    return {
        type_key: {**seen.get(type_key, {}), **batch.get(type_key, {})}
        for type_key in {**seen, **batch}
    }


def check_seen(seen: Batch, batch: Batch, changes: Sequence[RawChange]) -> None:
    """StateConflictError if an object is not any more what it was when it was read.

    RecordExists if it was to be made, and is there.

    What differs from the store shows what is there now. What does not differ is as it is wanted;
    if that is not how it was read, then somebody else has written the same meanwhile.
    """
    if not seen:
        return
    before = {((change.kind, change.type_name), change.key): change.before for change in changes}
    for type_key, objects in seen.items():
        wanted = batch.get(type_key, {})
        for key, text in objects.items():
            now = before.get((type_key, key), wanted.get(key, text))
            if now != text:
                made = text is None and wanted.get(key) is not None
                raise (RecordExists if made else StateConflictError)(type_key[1], key[0])


def events_of(event: Event | Iterable[Event] | None, dedup_key: str | None) -> list[Event]:
    """What is given as `event=`: none, one or several."""
    if event is None:
        return []
    if isinstance(event, Event) or not isinstance(event, Iterable):
        return [event]
    events = list(event)
    if dedup_key is not None and len(events) > 1:
        raise InvalidValueError(
            f"one dedup_key= cannot be that of {len(events)} events; nothing was written",
            hint="Commit them one by one, each with a key of its own.",
        )
    return events


def identify(events: Iterable[Event], stored: Iterable[Stored]) -> None:
    """Give events the ids under which they are known: with a dedup_key, that of an earlier one."""
    for event, known in zip(events, stored, strict=True):
        event.id = known.id


def check_event_options(event: object, delay: object, at: object, dedup_key: object) -> None:
    """`delay`, `at` and `dedup_key` say something about an event; without one they are a mistake."""
    if event is None and not (delay is at is dedup_key is None):
        raise InvalidValueError("delay=, at= and dedup_key= are about an event; give event= too")
