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
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.lifecycle import lease_ran_out
from ontologia.delivery.retry import LEASE_EXPIRED, RetryPolicy
from ontologia.ids import Ids
from ontologia.store.database import Database, Tx
from ontologia.store.events.burial import Attempt
from ontologia.store.events.leases import Leases
from ontologia.store.events.log import Additions, EventLog
from ontologia.store.rows import Claim, Consumer, EventRow

log = logging.getLogger(__name__)
HAND_OUT_MOST = 5_000
DUE_MOST = 1_000
ALL_TYPES = "*"


class Dialect(Additions, Protocol):
    """The steps of delivery that each database does in its own way."""

    def hand_out(self, tx: Tx, most: int) -> Callable[[], int]:
        """Move the first `most` rows of `incoming` to `ready`; how many they were."""
        ...

    def try_hand_out(self, tx: Tx, most: int) -> Callable[[], bool]:
        """The same for all rows, unless they are more or somebody else is at it; whether it was done.

        Does not wait for an answer.
        """
        ...

    def take(
        self,
        tx: Tx,
        consumer: Consumer,
        types: str | None,
        most: int,
        lease: Lease,
        behind: Sequence[int] | None,
    ) -> Callable[[], list[Taken]]:
        """Move rows from `ready` to `event_claims`.

        The first `lease.start` of them, up to one that was tried before, are started with it. On a
        guess, with `behind`: none unless all that was new was handed out just before, and there is
        nothing for the consumers behind which this one comes.
        """
        ...


class Taken(NamedTuple):
    """An event that was claimed."""

    event: EventRow
    attempts: int
    last_error: str | None
    read_commit: int | None
    """The last commit, if it was started with the claim."""


class Lease(NamedTuple):
    """What a claim writes: whose it is, and until when."""

    session_id: str
    token: str
    now: str
    until: str
    start: int


class Peek(NamedTuple):
    """What there is to do, seen without a lock."""

    claimable: set[int]
    """Consumers that have something to claim."""
    due: set[int]
    """Those of them for whom a lease ran out or a backoff ended."""
    next_due: str | None
    """When the next claim comes due."""
    next_fire: float | None
    """When the next deferred event is announced."""
    gone: set[int]
    """Consumers that somebody has forgotten."""
    fresh: bool
    """Whether there is something that nobody has handed out."""
    little: bool = False
    """Whether that is no more than one portion, and all of it is there already."""
    behind: tuple[int, ...] | None = None
    """Those that come first, if nobody has looked: while there is something for them, wait."""

    @staticmethod
    def guess(consumer: int, behind: Iterable[int] = ()) -> Peek:
        """Nobody has looked: a little that is new, for this one, and nothing for those before it."""
        first = tuple(behind)
        return Peek({consumer}, set(), None, None, set(), fresh=True, little=True, behind=first)

    def wait(self, now: datetime, longest: float) -> float:
        """Seconds until something comes due, at most `longest`."""
        waits = [longest]
        if self.next_due is not None:
            waits.append((from_text(self.next_due) - now).total_seconds())
        if self.next_fire is not None:
            left = self.next_fire - now.timestamp()
            # What was due at the look waits for somebody who can claim, and not for a time; what
            # came due since then is looked for at once.
            if left > 0 or not self.fresh:
                waits.append(left)
        return max(0.0, min(waits))


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

    # -- is there anything? ---------------------------------------------------------------------

    def peek(self, consumers: Iterable[int]) -> Peek:
        """What there is to do for these consumers. One statement, which takes no lock."""
        return self._seen(self._database.all(self._sql["peek"], _looking(consumers)))

    def look(self, tx: Tx, consumers: Iterable[int]) -> Callable[[], Peek]:
        """The same as it is at this point of a transaction; known when that has ended."""
        asked = tx.ask(self._sql["peek"], _looking(consumers))
        return lambda: self._seen(asked())

    def _seen(self, found: list[Any]) -> Peek:
        instant = self._clock.now()
        now = to_text(instant)
        incoming, next_fire, much = found[0][:3]
        rows = [row[3:] for row in found if row[3] is not None]
        promoting = next_fire is not None and next_fire <= instant.timestamp()
        fresh = bool(incoming or promoting)
        running = [row for row in rows if not row[3]]
        due = {row[0] for row in running if row[2] and row[2] <= now}
        claimable = due | {row[0] for row in running if fresh or row[1]}
        waiting = [row[2] for row in running if row[2] and row[2] > now]
        gone = {row[0] for row in rows if row[3] is None}
        little = fresh and not promoting and not much
        return Peek(claimable, due, min(waiting, default=None), next_fire, gone, fresh, little)

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
        peek: Peek | None = None,
        start: int = 0,
        before: Callable[[Tx], None] | None = None,
        after: Callable[[Tx], None] | None = None,
    ) -> list[Claim]:
        """Up to `limit` events, the most urgent first, for a consumer that `peek` says has some.

        What it saw is to be done first; without it everything is looked for. On a guess nothing is
        taken while there is something for those that come first, and nobody is waited for who is
        just handing out: whoever guesses looks then. The first `start`
        events may come started, if nobody tried them before. `before` and `after` are done in the
        same transaction. One soft transaction, and one more for every 5,000 new events; on PostgreSQL
        it is one message if `peek` saw that there is little to hand out, or nothing.
        """
        if limit <= 0 or not types:
            return []
        listed = None if ALL_TYPES in types else codec.encode_checked(list(types))
        done = peek is not None and not peek.fresh
        along = peek is not None and peek.little and not self._database.one_writer
        if not (done or along or self._database.one_writer):
            done = self._try_hand_out(wait=False)
        while True:
            with self._database.write(durable=False) as tx:
                if self._database.one_writer and not done:
                    if self._hand_out(tx):
                        continue  # in small steps: nobody waits for the whole of a large backlog
                    done = True
                if before is not None:
                    before(tx)
                    before = None
                if peek is None or consumer.id in peek.due:
                    self._return_due(tx, consumer, policy)
                # Last, since others wait for whoever hands out: by the message that also takes.
                handing = self._dialect.try_hand_out(tx, HAND_OUT_MOST) if along else None
                behind = None if peek is None else peek.behind
                taking = self._take(
                    tx, consumer, listed, session_id, limit, lease_ms, start, behind
                )
                if after is not None:
                    after(tx)
            taken = taking()
            if handing is not None:
                done, along = handing(), False
            if taken or done or (peek is not None and peek.behind is not None):
                return taken
            # Refused is not empty: somebody else was handing out what may be for this consumer.
            done = self._try_hand_out(wait=True)

    def _try_hand_out(self, *, wait: bool) -> bool:
        """Hand out in transactions of its own, where takers do not exclude each other."""
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
        return handed() == HAND_OUT_MOST or promoted == DUE_MOST

    def hand_out_all(self, tx: Tx) -> None:
        """Empty `incoming` within this transaction."""
        while self._hand_out(tx):
            pass

    def _return_due(self, tx: Tx, consumer: Consumer, policy: RetryPolicy) -> None:
        """Make ready what came due; what crashed too often is buried instead."""
        now = to_text(self._clock.now())
        span = {"consumer_id": consumer.id, "now": now, "most": DUE_MOST}
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
        start: int,
        behind: Sequence[int] | None = None,
    ) -> Callable[[], list[Claim]]:
        instant = self._clock.now()
        until = to_text(instant + timedelta(milliseconds=lease_ms))
        lease = Lease(session_id, self._ids.new(), to_text(instant), until, start)
        taking = self._dialect.take(tx, consumer, types, limit, lease, behind)
        name, number, token = consumer.name, consumer.id, lease.token

        def claims() -> list[Claim]:
            made: list[Claim] = []
            for event, attempts, error, read_commit in taking():
                claim = Claim(event, name, number, token, attempts, until, error == LEASE_EXPIRED)
                claim.lease_ms = lease_ms
                if read_commit is not None:
                    claim.started, claim.read_commit = True, read_commit
                made.append(claim)
            return made

        return claims


def _looking(consumers: Iterable[int]) -> dict[str, Any]:
    return {"consumers": codec.encode_checked(list(consumers)), "most": HAND_OUT_MOST}
