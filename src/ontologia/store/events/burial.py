"""The record of what did not succeed: attempts, and dead letters in the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from ontologia.clock import Clock, to_text
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.delivery.lineage import Lineage
from ontologia.store.database import Tx
from ontologia.store.events.log import EventLog
from ontologia.store.rows import EventRow

log = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """One attempt of one consumer at one event, as its claim knows it."""

    event_id: str
    handler_id: str
    number: int
    started_at: str | None
    read_commit: int | None


class Burial:
    """Writes attempts and dead letters, within transactions of its callers."""

    def __init__(self, sql: Mapping[str, str], events: EventLog, clock: Clock) -> None:
        self._sql = sql
        self._events = events
        self._clock = clock

    def note(
        self,
        tx: Tx,
        attempt: Attempt,
        outcome: str,
        error: str | None,
        traceback: str | None = None,
    ) -> None:
        """Remember an attempt that did not succeed."""
        tx.run(
            self._sql["insert_attempt"],
            {
                "event_id": attempt.event_id,
                "handler_id": attempt.handler_id,
                "attempt": attempt.number,
                "started_at": attempt.started_at,
                "read_commit": attempt.read_commit,
                "now": to_text(self._clock.now()),
                "outcome": outcome,
                "error": error,
                "traceback": traceback,
            },
        )

    def bury(self, tx: Tx, attempt: Attempt, error: str) -> None:
        """The end of a claim: a dead letter, and an event that says so."""
        place = {"event_id": attempt.event_id, "handler_id": attempt.handler_id}
        now = to_text(self._clock.now())
        ended = {"now": now, "attempts": attempt.number, "error": error}
        tx.run(self._sql["bury"], {**place, **ended})
        event = self._events.get(tx, attempt.event_id)
        if event is None:
            log.warning("event %(event_id)s of %(handler_id)s is gone; no dead letter", place)
            return
        tx.run(self._sql["insert_dead_letter"], {**place, **ended})
        if event.type != EventDeadLetter.__event_type__:  # or a failing handler would never end
            self._announce(tx, event, attempt, error)

    def _announce(self, tx: Tx, event: EventRow, attempt: Attempt, error: str) -> None:
        told = EventDeadLetter(
            event_id=event.id,
            handler_id=attempt.handler_id,
            attempts=attempt.number,
            last_error=error,
        )
        lineage = Lineage(
            event.root_event_id,
            event.chain_depth + 1,
            event.correlation_id,
            event.id,
            attempt.handler_id,
        )
        # What the store itself has to say is not measured by the limit for what comes in.
        row = self._events.row(told, event.namespace, lineage, limited=False)
        self._events.add(tx, [row])
