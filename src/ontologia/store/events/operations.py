"""What an operator does to events by hand: give dead letters back, and take back what is pending.

Each is done within a transaction of the caller, who records in the same one who did it and why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.errors import AlreadyStartedError
from ontologia.store.database import Database, Tx
from ontologia.store.events import checks
from ontologia.store.events.listings import readable
from ontologia.store.events.log import EventLog
from ontologia.store.events.retention import Retention

PORTION = 5_000
_LATEST = "9999"  # as text it is after every instant
_LAST_NUMBER = 2**63 - 1


class Selection(NamedTuple):
    """Which dead letters are meant: those of which all is true that is said."""

    event_id: str | None = None
    handler: str | None = None
    type: str | None = None
    error: str | None = None
    """Text that the last error has in it."""
    since: datetime | None = None
    until: datetime | None = None
    event_ids: Collection[str] | None = None
    """Those of these events alone."""


class DeadLetter(NamedTuple):
    """One dead letter on record."""

    number: int
    event_id: str
    type: str
    handler: str
    attempts: int
    last_error: str
    failed_at: str


class Operations:
    """The verbs of operators that no other part of the event store has."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        events: EventLog,
        retention: Retention,
        clock: Clock,
    ) -> None:
        self._database = database
        self._sql = sql
        self._events = events
        self._retention = retention
        self._clock = clock

    # -- dead letters -------------------------------------------------------------------------

    def dead_letters(
        self,
        namespace: str,
        which: Selection,
        portion: int = PORTION,
        *,
        before: tuple[str, int] | None = None,
    ) -> Iterator[list[DeadLetter]]:
        """The dead letters that are meant, the newest first, in portions of their own reads.

        `before` is `failed_at` and number of one: those that come after it on the way back. Costs the dead letters of the namespace from the time asked for.
        """
        until = _LATEST if which.until is None else to_text(checks.instant("until", which.until))
        place = which._asdict() | {
            "namespace": namespace,
            "since": "" if which.since is None else to_text(checks.instant("since", which.since)),
            "error": which.error or None,  # every text has an empty one in it
            "event_ids": codec.encode_checked(sorted(which.event_ids or ())),
            "any_event": int(which.event_ids is None),
            "most": portion,
        }
        del place["until"]
        before = min(before or (until, _LAST_NUMBER), (until, _LAST_NUMBER))
        while rows := self._database.all(
            self._sql["select_dead_letters"],
            {**place, "before": before[0], "before_id": before[1]},
        ):
            found = [DeadLetter(*row) for row in rows]
            yield found
            before = (found[-1].failed_at, found[-1].number)

    def retry(self, tx: Tx, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to their consumers, with a fresh set of attempts; how many were.

        The others' events are not retained any more, or nobody of that name is subscribed to
        them. The attempts so far stay on record, under numbers from 0 down.
        """
        tx.lock_dispatch(wait=True)  # no consumer is forgotten, and no event deleted, meanwhile
        found = self._retriable(tx, letters)
        again: dict[tuple[str, int], list[str]] = {}
        for letter in letters:
            if letter.number in found:
                whose = (letter.handler, found[letter.number])
                again.setdefault(whose, []).append(letter.event_id)
        for (handler, consumer_id), ids in again.items():
            self._revive(tx, handler, consumer_id, ids)
        if found:
            done = {"ids": codec.encode_checked(list(found))}
            tx.run(self._sql["delete_dead_letters"], done)
        return len(found)

    def dismiss(self, tx: Tx, letters: Sequence[DeadLetter]) -> int:
        """Take dead letters off the record; how many still were on it. Their claims stay ended."""
        tx.lock_dispatch(wait=True)  # as whoever retries them has: only one of the two does it
        numbers = {"ids": codec.encode_checked([each.number for each in letters])}
        return tx.run(self._sql["delete_dead_letters"], numbers)

    def could_retry(self, letters: Sequence[DeadLetter]) -> set[int]:
        """The numbers of those dead letters that could be given back now. Only looks."""
        with self._database.read() as tx:
            return set(self._retriable(tx, letters))

    def _retriable(self, tx: Tx, letters: Sequence[DeadLetter]) -> dict[int, int]:
        """The consumers of those dead letters that could be given back, by their numbers."""
        asked = {"ids": codec.encode_checked([each.number for each in letters])}
        return dict(tx.all(self._sql["retriable"], asked))

    def _revive(self, tx: Tx, handler: str, consumer_id: int, ids: list[str]) -> None:
        listed = {"ids": codec.encode_checked(ids)}
        of_handler = {**listed, "handler_id": handler}
        tx.run(self._sql["lift_attempts"], of_handler)
        tx.run(self._sql["set_attempts_aside"], of_handler)
        now = to_text(self._clock.now())
        consumer = {"consumer_id": consumer_id}
        tx.run(self._sql["revive_claims"], {**of_handler, **consumer, "now": now})
        tx.run(self._sql["make_ready"], {**listed, **consumer})

    # -- taking back --------------------------------------------------------------------------

    def cancel_event(self, tx: Tx, namespace: str, event_id: str) -> dict[str, Any] | None:
        """Take an event out of the log; what it was, None if unknown.

        It may have failed, and wait to be tried again: `failed` has the attempts of each consumer
        and its last error. AlreadyStartedError if a session has it at this moment, or a consumer
        has finished or buried it: what is done cannot be taken back. Its dedup_key is free again,
        as after the cancelling of a deferred one.
        """
        event = self._events.get(tx, event_id)
        if event is None or event.namespace != namespace:
            return None
        free = self._retention.is_free(tx, event_id)
        listed = {"ids": codec.encode_checked([event_id])}
        claims = [_Claim.of(row) for row in tx.all(self._sql["claims_of"], listed)]
        ended = [claim.handler for claim in claims if claim.ended]
        if ended or not free:
            now = to_text(self._clock.now())
            held = [claim.handler for claim in claims if claim.lease_until > now]
            raise AlreadyStartedError(event_id, ended=ended, held=[] if free else held)
        self._retention.delete(tx, [event_id])
        return {
            "id": event.id,
            "type": event.type,
            "payload": readable(event.payload),
            "created_at": event.created_at,
            "failed": {
                claim.handler: {"attempts": claim.attempts, "last_error": claim.last_error}
                for claim in claims
                if claim.attempts
            },
        }

    def cancel_deferred(self, tx: Tx, namespace: str, number: int) -> dict[str, Any] | None:
        """Take back a deferred event by its number; what it was, None unless it still waits."""
        found = self.deferred(tx, namespace, number)
        if found is None or not self._events.cancel(tx, namespace, number):
            return None
        return found

    def deferred(self, tx: Tx, namespace: str, number: int) -> dict[str, Any] | None:
        """A deferred event by its number, with the `status` scheduled, fired or cancelled."""
        row = tx.one(self._sql["get_deferred"], {"namespace": namespace, "id": number})
        if row is None:
            return None
        number, event_id, event_type, payload, fire_at, status = row
        return {
            "number": number,
            "id": event_id,
            "type": event_type,
            "payload": readable(payload),
            "fire_at": to_text(datetime.fromtimestamp(fire_at, UTC)),
            "status": status,
        }

    def holders_of_key(
        self, tx: Tx, namespace: str, key: str, event_type: str | None
    ) -> dict[str, str]:
        """The ids of the events that have a dedup_key, deferred or stored, by type."""
        asked = {"namespace": namespace, "key": key, "type": event_type}
        return dict(tx.all(self._sql["holders_of_key"], asked))

    def number_of(self, tx: Tx, namespace: str, event_id: str) -> int | None:
        """The number of the deferred event that will have this id; None if none waits."""
        asked = {"namespace": namespace, "event_id": event_id}
        row = tx.one(self._sql["find_deferred"], asked)
        return None if row is None else int(row[0])


class _Claim(NamedTuple):
    """What one consumer has done with an event so far."""

    handler: str
    attempts: int
    last_error: str | None
    lease_until: str
    ended: bool

    @classmethod
    def of(cls, row: Sequence[Any]) -> _Claim:
        """From a row of `claims_of`."""
        return cls(row[1], row[3], row[4], row[7], ended=bool(row[9] or row[10]))
