"""Taking over from the dead, without waiting for their leases to run out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.delivery.retry import RetryPolicy
from ontologia.store.database import Database
from ontologia.store.events.claims import DUE_MOST, Claims
from ontologia.store.events.log import EventLog
from ontologia.store.rows import ConsumerRow


class Holder(NamedTuple):
    """A session that holds claims, and what is known of it."""

    session_id: str
    last_heartbeat: str | None
    """None if nothing is: it is not on record any more."""
    metadata: dict[str, Any]


class Recovery:
    """What somebody who starts does first, over one database."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        claims: Claims,
        events: EventLog,
        clock: Clock,
    ) -> None:
        self._database = database
        self._sql = sql
        self._claims = claims
        self._events = events
        self._clock = clock

    def holders(self, consumer: ConsumerRow) -> list[Holder]:
        """The sessions that hold claims of a consumer."""
        rows = self._database.all(self._sql["lease_holders"], {"consumer_id": consumer.id})
        return [
            Holder(row[0], row[1], codec.decode_stored(row[2]) if row[2] else {}) for row in rows
        ]

    def give_back(self, consumer: ConsumerRow, dead: Sequence[str], policy: RetryPolicy) -> int:
        """End the leases of sessions that are known to be dead; how many events they had begun.

        It is as if the leases had run out: an attempt that had begun counts.
        """
        if not dead:
            return 0
        begun = 0
        with self._database.write(durable=False) as tx:
            place = {
                "consumer_id": consumer.id,
                "sessions": codec.encode_checked(list(dead)),
                "now": to_text(self._clock.now()),
            }
            ended = tx.all(self._sql["end_leases"], place)
            begun = sum(bool(started) for (started,) in ended)
            for _ in range(0, len(ended), DUE_MOST):
                self._claims.return_due(tx, consumer, policy)
        return begun

    def promote(self) -> int:
        """Announce the deferred events whose time has come; how many."""
        promoted = 0
        while True:
            with self._database.write(durable=False) as tx:
                tx.lock_dispatch(wait=True)
                portion = self._events.promote(tx)
            promoted += portion
            if portion < DUE_MOST:
                return promoted
