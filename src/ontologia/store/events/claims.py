"""Claims: hand out what is new, take what is ready, and end it once.

An event is in `incoming` from the transaction that stores it. Whoever claims first hands all of
`incoming` out to a `ready` row per subscribed consumer. What waits for a time, the end of a lease
or of a backoff, is found through one partial index. So a claim costs what is new, due and taken,
whatever the number of finished events; and nothing follows a position that could be passed.

Every claim call draws a token. Whatever is written in the name of a claim checks it first, in the
same transaction: a session whose lease ran out can write nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import NamedTuple, Protocol

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.delivery.lifecycle import lease_ran_out
from ontologia.delivery.retry import LEASE_EXPIRED, RetryPolicy
from ontologia.ids import Ids
from ontologia.store.database import Database, Tx
from ontologia.store.events.burial import Attempt
from ontologia.store.events.leases import Leases
from ontologia.store.events.log import EventLog
from ontologia.store.rows import Claim, Consumer, EventRow

log = logging.getLogger(__name__)
HAND_OUT_MOST = 5_000
_DUE_MOST = 1_000
ALL_TYPES = "*"


class Dialect(Protocol):
    """The two steps of a claim that each database does in its own way."""

    starts: bool
    """Whether `take` can start first attempts by the same stroke."""

    def hand_out(self, tx: Tx, most: int) -> int:
        """Move the first `most` rows of `incoming` to `ready`; how many they were."""
        ...

    def take(
        self, tx: Tx, consumer: Consumer, types: str | None, most: int, lease: Lease
    ) -> list[tuple[EventRow, int, str | None]]:
        """Move rows from `ready` to `event_claims`; the events, their attempts and last error.

        If it `starts`, the first `lease.start` of them, up to one that was tried before, are
        started with it.
        """
        ...


class Lease(NamedTuple):
    """What a claim writes: whose it is, and until when."""

    session_id: str
    token: str
    now: str
    until: str
    start: int = 0
    head: int | None = None
    """The last commit, where anything is to be started."""


class Peek(NamedTuple):
    """What there is to do, seen without a lock."""

    claimable: set[int]
    """Consumers that have something to claim."""
    next_due: str | None
    """When the next claim comes due."""
    next_fire: float | None
    """When the next deferred event is announced."""
    gone: set[int]
    """Consumers that somebody has forgotten."""
    fresh: bool
    """Whether there is something that nobody has handed out."""


class Claims(Leases):
    """Everything that happens to claims, over one database."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        dialect: Dialect,
        events: EventLog,
        clock: Clock,
        ids: Ids,
        draw: Callable[[int, int], int],
    ) -> None:
        super().__init__(database, sql, events, clock, draw)
        self._dialect = dialect
        self._ids = ids

    @property
    def takes_along(self) -> bool:
        """Whether a claim is one transaction that can do something else, too."""
        return self._database.one_writer

    # -- is there anything? ---------------------------------------------------------------------

    def peek(self, consumers: Iterable[int]) -> Peek:
        """What there is to do for these consumers. Reads, and takes no lock; two statements."""
        instant = self._clock.now()
        now, listed = to_text(instant), codec.encode_checked(list(consumers))
        with self._database.read() as tx:
            incoming, next_fire = tx.one(self._sql["peek_common"])
            rows = tx.all(self._sql["peek"], {"consumers": listed})
        fresh = incoming or (next_fire is not None and next_fire <= instant.timestamp())
        running = [row for row in rows if not row[3]]
        claimable = {row[0] for row in running if fresh or row[1] or (row[2] and row[2] <= now)}
        waiting = [row[2] for row in running if row[2] and row[2] > now]
        gone = {row[0] for row in rows if row[3] is None}
        return Peek(claimable, min(waiting, default=None), next_fire, gone, bool(fresh))

    # -- claim ------------------------------------------------------------------------------

    def claim(
        self,
        consumer: Consumer,
        types: Sequence[str],
        *,
        session_id: str,
        limit: int,
        lease_ms: float,
        policy: RetryPolicy,
        start: int = 0,
        before: Callable[[Tx], None] | None = None,
    ) -> list[Claim]:
        """Up to `limit` events, the most urgent first, for a consumer that `peek` says has some.

        The first `start` of them may come started, if nobody tried them before. `before` is
        done in the same transaction, if `takes_along`. One soft transaction, and one more for every 5,000
        new events.
        """
        if limit <= 0 or not types:
            return []
        listed = None if ALL_TYPES in types else codec.encode_checked(list(types))
        if not self._database.one_writer:
            return self._claim_apart(consumer, listed, session_id, limit, lease_ms, policy)
        while True:
            with self._database.write(durable=False) as tx:
                if self._hand_out(tx):
                    continue  # in small steps: nobody waits for the whole of a large backlog
                if before is not None:
                    before(tx)
                self._return_due(tx, consumer, policy)
                return self._take(tx, consumer, listed, session_id, limit, lease_ms, start)

    def _claim_apart(
        self,
        consumer: Consumer,
        types: str | None,
        session_id: str,
        limit: int,
        lease_ms: float,
        policy: RetryPolicy,
    ) -> list[Claim]:
        """Where takers do not exclude each other, hand-out is a transaction of its own."""
        done = self._try_hand_out(wait=False)
        while True:
            with self._database.write(durable=False) as tx:
                self._return_due(tx, consumer, policy)
                taken = self._take(tx, consumer, types, session_id, limit, lease_ms)
            if taken or done:
                return taken
            # Refused is not empty: somebody else was handing out what may be for this consumer.
            done = self._try_hand_out(wait=True)

    def _try_hand_out(self, *, wait: bool) -> bool:
        while True:
            with self._database.write(durable=False) as tx:
                if not tx.hand_out_turn(wait=wait):
                    return False
                if not self._hand_out(tx):
                    return True

    def _hand_out(self, tx: Tx) -> bool:
        """Promote, then hand out one portion; whether there is more."""
        promoted = self._events.promote(tx)
        handed = self._dialect.hand_out(tx, HAND_OUT_MOST)
        return handed == HAND_OUT_MOST or promoted == _DUE_MOST

    def hand_out_all(self, tx: Tx) -> None:
        """Empty `incoming` within this transaction."""
        while self._hand_out(tx):
            pass

    def _return_due(self, tx: Tx, consumer: Consumer, policy: RetryPolicy) -> None:
        """Make ready what came due; what crashed too often is buried instead."""
        now = to_text(self._clock.now())
        span = {"consumer_id": consumer.id, "now": now, "most": _DUE_MOST}
        rows = tx.all(self._sql["due_claims"], span)
        again: list[str] = []
        for event_id, attempts, lease_until, available_at, read_commit, started_at in rows:
            again.append(event_id)
            if read_commit is None or not lease_ran_out(lease_until, available_at):
                continue  # was never started, or waited for its next attempt
            verdict = policy.after_crash(attempts)
            attempt = Attempt(event_id, consumer.name, verdict.attempts, started_at, read_commit)
            self._burial.note(tx, attempt, LEASE_EXPIRED, None)
            if verdict.buried:
                again.pop()
                self._burial.bury(tx, attempt, LEASE_EXPIRED)
                log.error(
                    "event %s is buried for %s: its lease ran out %d times",
                    *(event_id, consumer.name, verdict.attempts),
                )
            else:
                place = {"event_id": event_id, "handler_id": consumer.name}
                counted = {"attempts": verdict.attempts, "error": LEASE_EXPIRED}
                tx.run(self._sql["count_crash"], place | counted)
        if again:
            listed = codec.encode_checked(again)
            tx.run(self._sql["return_claims"], {"handler_id": consumer.name, "ids": listed})
            tx.run(self._sql["make_ready"], {"consumer_id": consumer.id, "ids": listed})

    def _take(
        self,
        tx: Tx,
        consumer: Consumer,
        types: str | None,
        session_id: str,
        limit: int,
        lease_ms: float,
        start: int = 0,
    ) -> list[Claim]:
        instant = self._clock.now()
        until = to_text(instant + timedelta(milliseconds=lease_ms))
        starts = bool(start) and self._dialect.starts
        head = tx.one(self._sql["last_commit"])[0] if starts else None
        lease = Lease(session_id, self._ids.new(), to_text(instant), until, start, head)
        name, number, token = consumer.name, consumer.id, lease.token
        claims = [
            Claim(event, name, number, token, attempts, until, error == LEASE_EXPIRED)
            for event, attempts, error in self._dialect.take(tx, consumer, types, limit, lease)
        ]
        if starts:
            for claim in takewhile(lambda each: not each.attempts, claims[:start]):
                claim.started, claim.read_commit = True, head
        return claims
