"""Finished events that are moved to an archive outside the database, looked up there, and restored.

An event is deleted here only after the archive has read back what it wrote, and if it still is what
was written then. So moving that was broken off anywhere goes on the next time, and nothing is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple, Protocol

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.errors import ConfigError, InvalidValueError, NotFoundError
from ontologia.ids import made_at
from ontologia.store.database import Database, Tx
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.retention import Portion, Retention
from ontologia.store.provenance import ClaimRow
from ontologia.store.rows import EventRow

log = logging.getLogger(__name__)
_PORTION = 100  # events whose payloads are in memory at once


class ArchivedAttempt(NamedTuple):
    """One attempt that did not succeed, in the order of the columns."""

    event_id: str
    handler_id: str
    attempt: int
    started_at: str | None
    ended_at: str
    read_commit: int | None
    outcome: str
    error: str | None
    traceback: str | None


class ArchivedLetter(NamedTuple):
    """One dead letter, without what its event says."""

    event_id: str
    handler_id: str
    failed_at: str
    attempts: int
    last_error: str


class ArchivedEvent(NamedTuple):
    """All that is kept of one event."""

    row: EventRow
    claims: tuple[ClaimRow, ...] = ()
    attempts: tuple[ArchivedAttempt, ...] = ()
    dead_letters: tuple[ArchivedLetter, ...] = ()


class Archive(Protocol):
    """Where archived events are."""

    @property
    def uri(self) -> str:
        """Its URI, without secrets."""
        ...

    def check(self, namespace: str) -> None:
        """ConfigError if an event store has events of this namespace there."""
        ...

    def keep(self, events: Sequence[ArchivedEvent]) -> list[ArchivedEvent]:
        """Write events and read them back; returns those that are there as they were given.

        A warning says why another is not. Idempotent. What is on record of an event that is there
        is written anew; an event of another store that has the id is left as it is.
        """
        ...

    def find(self, namespace: str, event_ids: Iterable[str]) -> list[ArchivedEvent]:
        """Those of these events that are there, in this order.

        InvalidValueError if one cannot be read.
        """
        ...

    def chain(self, namespace: str, root_event_id: str) -> list[str]:
        """The ids of the events that followed from this one, in no order."""
        ...

    def ids(self, namespace: str) -> Iterator[str]:
        """The ids of all events of a namespace, and of some that were not written completely."""
        ...

    def namespaces(self) -> list[str]:
        """The namespaces that have events there."""
        ...


def in_event_store(uri: str) -> ConfigError:
    """The error for an archive that would be in an event store."""
    return ConfigError(
        f"{uri} is an event store, whose collection deletes what is finished; nothing was archived",
        hint="Give the archive a prefix of its own.",
    )


class Moved(NamedTuple):
    """What came of moving a batch of events."""

    moved: int
    left: int
    """Events that stay: they cannot be kept there, another store has them there, or they were not
    read back as written."""


class Restored(NamedTuple):
    """What came of restoring a batch of events."""

    restored: int
    known: int
    """Events that were in the store already."""
    left: int
    """Events that cannot be read; a warning says why."""


class Archives:
    """The archives of one store, by namespace."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        retention: Retention,
        clock: Clock,
        *,
        event_retention: timedelta,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._sql = sql
        self._retention = retention
        self._clock = clock
        self._event_retention = event_retention
        self._wake = wake
        self.open: Callable[[], Archive] | None = None
        """Opens the archive that the setting `archive_uri` names; None without the setting."""
        self._opened: Archive | None = None

    # -- moving -----------------------------------------------------------------------------------

    def move(
        self,
        namespace: str,
        before: datetime | timedelta,
        archive: Archive,
        *,
        event_type: str | None = None,
    ) -> Iterator[Moved]:
        """Move finished events from before a time to an archive, in batches; yields what came of each.

        A consumer not seen for the retention time is not waited for, nor one not seen for the age
        of these events, if that is more; a warning names it. One soft transaction a batch, which
        begins when the archive has the events. ConfigError if an event store is there.
        """
        limit = self._retention.limit(before)
        archive.check(namespace)
        for portion, ids in self._finished(namespace, limit, event_type):
            with self._database.read() as tx:
                events = self._read(tx, namespace, ids)
            kept = archive.keep(events)
            moved = self._delete(portion, kept, {"uri": archive.uri, "before": limit})
            yield Moved(moved, len(events) - len(kept))

    def count(
        self, namespace: str, before: datetime | timedelta, *, event_type: str | None = None
    ) -> dict[str, int]:
        """How many events of each type `move` would move. Reads only."""
        counts: dict[str, int] = {}
        found = self._finished(namespace, self._retention.limit(before), event_type)
        for portion, ids in found:
            counts[portion.event_type] = counts.get(portion.event_type, 0) + len(ids)
        return counts

    def _finished(
        self, namespace: str, limit: str, event_type: str | None
    ) -> Iterator[tuple[Portion, list[str]]]:
        portions = self._retention.portions(
            namespace,
            limit,
            self._event_retention,
            types=None if event_type is None else [event_type],
            size=_PORTION,
        )
        for portion in portions:
            if ids := self._retention.finished(self._database.all, portion, portion.ids):
                yield portion, ids

    def _read(self, tx: Tx, namespace: str, ids: Sequence[str]) -> list[ArchivedEvent]:
        """All that is kept of these events: a statement for each table."""
        listed = {"ids": codec.encode_checked(list(ids))}
        claims: dict[str, list[ClaimRow]] = {}
        for claim in (ClaimRow(*row) for row in tx.all(self._sql["claims_of"], listed)):
            claims.setdefault(claim.event_id, []).append(claim)
        attempts: dict[str, list[ArchivedAttempt]] = {}
        for row in tx.all(self._sql["attempts_to_archive"], listed):
            attempts.setdefault(row[0], []).append(ArchivedAttempt(*row))
        letters: dict[str, list[ArchivedLetter]] = {}
        of_all = [each for found in claims.values() for each in found]
        for letter in self._letters(tx, namespace, of_all):
            letters.setdefault(letter.event_id, []).append(letter)
        return [
            ArchivedEvent(
                _with_text(EventRow(*row)),
                tuple(claims.get(row[0], ())),
                tuple(attempts.get(row[0], ())),
                tuple(letters.get(row[0], ())),
            )
            for row in tx.all(self._sql["events_to_archive"], listed)
        ]

    def _letters(
        self, tx: Tx, namespace: str, claims: Iterable[ClaimRow]
    ) -> Iterator[ArchivedLetter]:
        """The dead letters that these claims ended as, if they are on the list still."""
        dead = [each for each in claims if each.dead_lettered_at is not None]
        if dead:
            asked = {
                "namespace": namespace,
                "times": codec.encode_checked(
                    sorted({str(each.dead_lettered_at) for each in dead})
                ),
                "ids": codec.encode_checked(sorted({each.event_id for each in dead})),
            }
            yield from (ArchivedLetter(*row) for row in tx.all(self._sql["letters_of"], asked))

    def _delete(self, portion: Portion, kept: Sequence[ArchivedEvent], to: dict[str, str]) -> int:
        """Delete those that are finished still and as they were when they were read; how many."""
        if not kept:
            return 0
        namespace = portion.namespace
        with self._database.write(durable=False) as tx:
            tx.lock_dispatch(wait=True)  # none registers, dispatches, retries or dismisses
            ids = self._retention.finished(tx.all, portion, [each.row.id for each in kept])
            now = {each.row.id: each for each in self._read(tx, namespace, ids)}
            same = [each.row.id for each in kept if now.get(each.row.id) == each]
            if same:
                tx.run(self._sql["note_archive"], {"namespace": namespace, **to})
                self._retention.delete(tx, same)
        return len(same)

    # -- looking ----------------------------------------------------------------------------------

    @property
    def configured(self) -> Archive | None:
        """The archive that the setting `archive_uri` names; None without the setting."""
        if self._opened is None and self.open is not None:
            self._opened = self.open()
        return self._opened

    @property
    def uri(self) -> str | None:
        """The URI of the configured archive."""
        return None if self.configured is None else self.configured.uri

    def find(self, event_id: str, namespace: str | None = None) -> ArchivedEvent | None:
        """An event of the configured archive, of this namespace or any; None if it is not there.

        Costs two requests; without a namespace, and where the event is not, one for each.
        """
        archive = self.configured
        if archive is None:
            return None
        namespaces = archive.namespaces() if namespace is None else [namespace]
        found = (archive.find(each, [event_id]) for each in namespaces)
        return next((events[0] for events in found if events), None)

    def chain(self, namespace: str, root_event_id: str) -> list[ArchivedEvent]:
        """The events of the configured archive that began with this one, it among them.

        Costs one listing, and two requests an event.
        """
        archive = self.configured
        if archive is None:
            return []
        ids = [root_event_id, *archive.chain(namespace, root_event_id)]
        return archive.find(namespace, dict.fromkeys(ids))

    def places_of(self, event_id: str, namespace: str) -> list[str]:
        """The archives that an event may have been moved to, if it is older than what they have.

        Its id says how old it is; one that is of no version 7 may have been moved to any.
        """
        return self.places(namespace, made_at(event_id))

    def places(self, namespace: str, when: datetime | None = None) -> list[str]:
        """The archives that an event of this time may have been moved to; of any time if None."""
        asked = {"namespace": namespace, "time": None if when is None else to_text(when)}
        return [row[0] for row in self._database.all(self._sql["archives_after"], asked)]

    def missing(self, what: str, event_id: str, namespace: str, hint: str) -> NotFoundError:
        """The error for an event that is neither here nor in the configured archive.

        It says where the event may have been archived to. `what` begins the message, `hint` is for
        the case that it was not.
        """
        others = [each for each in self.places_of(event_id, namespace) if each != self.uri]
        if others:
            return NotFoundError(
                f"{what}; finished events of its time were archived to {', '.join(others)}",
                hint=f"ONTOLOGIA_ARCHIVE_URI={others[0]} looks there, "
                f"ontologia events restore --from {others[0]} brings it back.",
            )
        searched = "" if self.uri is None else f", nor in the archive {self.uri}"
        return NotFoundError(f"{what}{searched}", hint=hint)

    # -- restoring --------------------------------------------------------------------------------

    def restore(
        self, namespace: str, archive: Archive, event_id: str | None = None
    ) -> Iterator[Restored]:
        """Bring events of an archive back, all of a namespace or one; yields what came of each batch.

        Events that are in the store are left alone, so broken off it can be done again. A consumer
        that subscribes to an event's type and has not finished it gets it. One hard transaction a
        batch. Of one event it raises what is wrong with it: NotFoundError, InvalidValueError.
        """
        ids = archive.ids(namespace) if event_id is None else iter([event_id])
        while batch := list(islice(ids, _PORTION)):
            listed = {"ids": codec.encode_checked(batch)}
            known = {row[0] for row in self._database.all(self._sql["taken_ids"], listed)}
            wanted = [each for each in batch if each not in known]
            events, left = _readable(archive, namespace, wanted, alone=event_id is not None)
            if wanted and event_id is not None and not events:
                raise NotFoundError(
                    f"the archive {archive.uri} has no event {event_id} of namespace "
                    f"{namespace!r}; nothing was changed",
                    hint="Look for it with --namespace: an archive keeps namespaces apart.",
                )
            restored = self._restore(namespace, events) if events else 0
            if restored:
                self._wake()
            yield Restored(restored, len(known) + len(events) - restored, left)

    def _restore(self, namespace: str, events: Sequence[ArchivedEvent]) -> int:
        listed = {"ids": codec.encode_checked([each.row.id for each in events])}
        with self._database.write() as tx:
            tx.lock_dispatch(wait=True)  # no consumer registers meanwhile, none restores
            taken = {row[0] for row in tx.all(self._sql["taken_ids"], listed)}
            new = [each for each in events if each.row.id not in taken]
            tx.many(self._sql["restore_event"], [each.row for each in new])
            keys = [
                (namespace, each.row.type, each.row.dedup_key, each.row.id)
                for each in new
                if each.row.dedup_key is not None
            ]
            tx.many(self._sql["restore_dedup"], keys)
            self._restore_claims(tx, namespace, new)
            now = to_text(self._clock.now())
            tx.many(self._sql["note_restored"], [(each.row.id, now) for each in new])
            ids = codec.encode_checked([each.row.id for each in new])
            tx.run(self._sql["ready_restored"], {"ids": ids})
        return len(new)

    def _restore_claims(self, tx: Tx, namespace: str, events: Sequence[ArchivedEvent]) -> None:
        """Claims with what is on record of them. Of a claim that is open, its consumer must be there."""
        names = sorted({claim.handler_id for each in events for claim in each.claims})
        types = sorted({each.row.type for each in events})
        place = {"namespace": namespace}
        asked = place | {"names": codec.encode_checked(names)}
        numbers = dict(tx.all(self._sql["numbers_of_consumers"], asked))
        asked = place | {"types": codec.encode_checked(types)}
        subscribed = {(name, of) for name, of in tx.all(self._sql["subscribers_of"], asked)}
        claims: list[ClaimRow] = []
        for each in events:
            for claim in each.claims:
                if claim.ack_at is not None or claim.dead_lettered_at is not None:
                    claims.append(claim)
                elif {
                    (claim.handler_id, each.row.type),
                    (claim.handler_id, ALL_TYPES),
                } & subscribed:
                    claims.append(
                        claim._replace(lease_token=None, started_at=None, read_commit=None)
                    )
        # A consumer that was forgotten has no number any more; none is 0.
        rows = [(*claim, numbers.get(claim.handler_id, 0)) for claim in claims]
        tx.many(self._sql["restore_claim"], rows)
        held = {(claim.event_id, claim.handler_id) for claim in claims}
        attempts = [
            attempt
            for each in events
            for attempt in each.attempts
            if (attempt.event_id, attempt.handler_id) in held
        ]
        tx.many(self._sql["restore_attempt"], attempts)
        listed = {
            (letter.event_id, letter.handler_id) for letter in self._letters(tx, namespace, claims)
        }
        letters = [
            letter
            for each in events
            for letter in each.dead_letters
            if (letter.event_id, letter.handler_id) in held - listed
        ]
        tx.many(self._sql["insert_dead_letter"], letters)


def _readable(
    archive: Archive, namespace: str, ids: Sequence[str], *, alone: bool
) -> tuple[list[ArchivedEvent], int]:
    """Those of these events that are there and can be read, and how many cannot."""
    try:
        return archive.find(namespace, ids), 0
    except InvalidValueError:
        if alone:
            raise
    events: list[ArchivedEvent] = []
    left = 0
    for event_id in ids:
        try:
            events += archive.find(namespace, [event_id])
        except InvalidValueError as error:
            log.warning("not restored: %s", error.args[0])
            left += 1
    return events, left


def _with_text(row: EventRow) -> EventRow:
    """The payload as text, if it is text."""
    if isinstance(row.payload, str):
        return row
    try:
        return row._replace(payload=row.payload.decode())
    except UnicodeDecodeError:
        return row
