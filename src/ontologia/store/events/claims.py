"""Claims: dispatch what is new, take what is ready, and end it once.

An event is in `incoming` from the transaction that stores it. The first claim dispatches all of
`incoming` to a `ready` row per subscribed consumer. What waits for a time, the end of a lease
or of a backoff, is found through one partial index. So a claim costs what is new, due and taken,
whatever the number of finished events; and nothing follows a position that could be passed.

Every claim call draws a token. Whatever is written in the name of a claim checks it first, in the
same transaction: a session whose lease ran out can write nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.lifecycle import lease_ran_out
from ontologia.delivery.retry import LEASE_EXPIRED, RetryPolicy
from ontologia.ids import Ids
from ontologia.store.database import Database, Tx
from ontologia.store.events.burial import Attempt
from ontologia.store.events.leases import Leases
from ontologia.store.events.log import Additions, EventLog
from ontologia.store.rows import Claim, ConsumerRow, EventRow
from ontologia.store.writer import Request

if TYPE_CHECKING:
    from ontologia.store.protocol import Transaction

log = logging.getLogger(__name__)
DISPATCH_MOST = 5_000
DUE_MOST = 1_000
ALL_TYPES = "*"
HIGHEST_PRIORITY = 2**31 - 1
_OWN = len(EventRow._fields)  # a row that is taken has the claim's columns behind the event's own


class Dialect(Additions, Protocol):
    """The steps of delivery that each database does in its own way."""

    def dispatch(self, tx: Tx, most: int) -> int:
        """Move the first `most` rows of `incoming` to `ready`; how many they were."""
        ...

    def try_dispatch(self, tx: Tx, most: int) -> Sequence[Any]:
        """Dispatch all of `incoming`, unless it is more or another session is dispatching.

        Returns a row if it was done, and none if not.
        """
        ...

    def take(
        self,
        tx: Tx,
        consumer: ConsumerRow,
        types: str | None,
        most: int,
        lease: Lease,
        *,
        guess: bool,
        highest: int = HIGHEST_PRIORITY,
    ) -> Sequence[Any]:
        """Move rows from `ready` to `event_claims`: those up to the `highest` priority.

        Returns for each the columns of its EventRow, then attempts, last error, and the last commit
        if it was started with the claim. The first `lease.start` of them, up to one that was tried
        before, are. On a guess none is moved unless all that was new was dispatched just before.
        """
        ...

    def lock_consumer(self, tx: Tx, consumer: ConsumerRow) -> bool:
        """Keep others from claiming for a consumer within this transaction; False if one does."""
        ...


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
    """Whether there is something that is not dispatched."""
    little: bool = False
    """Whether that is no more than one batch, and all of it is there already."""
    guessed: bool = False
    """Whether there was no look: nothing is claimed unless all that is new is dispatched first."""

    @staticmethod
    def guess(consumer: int) -> Peek:
        """Without a look: a little that is new, for this consumer."""
        return Peek({consumer}, set(), None, None, set(), fresh=True, little=True, guessed=True)

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
        submit: Callable[[Request], None],
    ) -> None:
        super().__init__(database, sql, events, clock, draw, submit)
        self.dialect = dialect
        self._ids = ids

    # -- is there anything? ---------------------------------------------------------------------

    def peek(self, consumers: Iterable[int]) -> Peek:
        """What there is to do for these consumers. One statement, which takes no lock."""
        return self._seen(self.database.all(self._sql["peek"], _looking(consumers)))

    def dispatch(self, consumers: Iterable[int]) -> Peek:
        """Dispatch what is new, unless another session is doing so, and look then.

        One soft transaction; on PostgreSQL one message.
        """
        dispatching = _Dispatching(self.dialect, self._sql["peek"], _looking(consumers))
        self._submit(dispatching)
        return self._seen(dispatching.found)

    def _seen(self, found: Sequence[Any]) -> Peek:
        instant = self.clock.now()
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
        consumer: ConsumerRow,
        types: Sequence[str],
        *,
        session_id: str,
        limit: int,
        lease_ms: float,
        policy: RetryPolicy,
        peek: Peek | None = None,
        start: int = 0,
        in_order: bool = False,
    ) -> list[Claim]:
        """Up to `limit` events, the most urgent first, for a consumer that `peek` says has some.

        What it saw is to be done first; without it everything is looked for. The first `start`
        events may come started, if they were not tried before. With `in_order` they are the oldest,
        whatever their priority, and none while another session has claims of the consumer that have
        not ended. One soft transaction, and one more for
        every 5,000 new events; on PostgreSQL it is one message if `peek` saw that there is little to
        dispatch, or nothing.
        """
        if limit <= 0 or not types:
            return []
        listed = None if ALL_TYPES in types else codec.encode_checked(list(types))
        claiming = _Claiming(
            self, consumer, listed, session_id, limit, lease_ms, policy, peek, start, in_order
        )
        if not (claiming.done or claiming.along or self.database.one_writer):
            claiming.done = self._try_dispatch(wait=False)
        while True:
            self._submit(claiming)
            if claiming.more:
                continue  # in small steps, so that no other write waits for a large backlog
            claiming.done = claiming.done or self.database.one_writer
            claims = claiming.claimed()
            if claims or claiming.done or (peek is not None and peek.guessed):
                return claims
            # Refused is not empty: another session was dispatching what may be for this consumer.
            claiming.done = self._try_dispatch(wait=True)

    def _try_dispatch(self, *, wait: bool) -> bool:
        """Dispatch in transactions of its own, where claims do not exclude each other."""
        while True:
            with self.database.write(durable=False) as tx:
                if not tx.lock_dispatch(wait=wait):
                    return False
                if not self.dispatch_batch(tx):
                    return True

    def dispatch_batch(self, tx: Tx) -> bool:
        """Promote, then dispatch one batch; whether there is more."""
        promoted = self.events.promote(tx)
        dispatched = self.dialect.dispatch(tx, DISPATCH_MOST)
        return dispatched == DISPATCH_MOST or promoted == DUE_MOST

    def dispatch_all(self, tx: Tx) -> None:
        """Empty `incoming` within this transaction."""
        while self.dispatch_batch(tx):
            pass

    def return_due(self, tx: Tx, consumer: ConsumerRow, policy: RetryPolicy) -> None:
        """Make ready what came due; what crashed too often is buried instead."""
        now = to_text(self.clock.now())
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

    def oldest(
        self, tx: Tx, consumer: ConsumerRow, types: str | None, limit: int, session_id: str
    ) -> dict[int, int]:
        """How many events to take of which priority, so that they are the oldest; {} for none.

        None while another session has claims that have not ended: what it has comes first.
        """
        whose = {"consumer_id": consumer.id, "session_id": session_id}
        if not self.dialect.lock_consumer(tx, consumer) or tx.one(self._sql["others_claim"], whose):
            return {}
        found = [row[0] for row in tx.all(self._sql["ready_priorities"], whose)]
        if len(found) < 2:
            return dict.fromkeys(found, limit)
        place = {"consumer_id": consumer.id, "types": types, "most": limit}
        heads = [
            (created_at, event_id, priority)
            for priority in found
            for created_at, event_id in tx.all(
                self._sql["oldest_ready"], place | {"priority": priority}
            )
        ]
        return Counter(priority for *_, priority in sorted(heads)[:limit])

    def lease(self, session_id: str, lease_ms: float, start: int) -> Lease:
        """What a claim call writes from now on; its token is drawn here."""
        instant = self.clock.now()
        until = to_text(instant + timedelta(milliseconds=lease_ms))
        return Lease(session_id, self._ids.new(), to_text(instant), until, start)


class _Dispatching(Request):
    """A dispatch that is being made, and a look after it."""

    durable = False

    def __init__(self, dialect: Dialect, sql: str, looking: dict[str, Any]) -> None:
        self.dialect = dialect
        self._sql = sql
        self._looking = looking
        self.found: Sequence[Any] = ()
        """What the look returned."""

    def write(self, tx: Transaction) -> None:
        self.dialect.try_dispatch(tx.tx, DISPATCH_MOST)
        self.found = tx.tx.ask(self._sql, self._looking)


class _Claiming(Request):
    """A claim that is being made."""

    durable = False

    def __init__(
        self,
        claims: Claims,
        consumer: ConsumerRow,
        types: str | None,
        session_id: str,
        limit: int,
        lease_ms: float,
        policy: RetryPolicy,
        peek: Peek | None,
        start: int,
        in_order: bool,
    ) -> None:
        self._claims = claims
        self._in_order = in_order
        self._consumer = consumer
        self._peek = peek
        self._policy = policy
        self._types = types
        self._session_id = session_id
        self._lease_ms = lease_ms
        self._start = start
        self.weight = limit
        self.done = peek is not None and not peek.fresh
        """Whether all that is new is dispatched."""
        one_writer = claims.database.one_writer
        self.along = peek is not None and peek.little and not one_writer
        """Whether it is dispatched by the message that takes."""
        self.more = False
        """Whether only a part of what is new was dispatched, and nothing is taken yet."""
        self._dispatched: Sequence[Any] = ()
        self._taken: Sequence[Sequence[Any]] = ()

    def write(self, tx: Transaction) -> None:
        claims, peek, consumer = self._claims, self._peek, self._consumer
        self.more = False
        if claims.database.one_writer and not self.done:
            self.more = claims.dispatch_batch(tx.tx)
            if self.more:
                return
        if peek is None or consumer.id in peek.due:
            claims.return_due(tx.tx, consumer, self._policy)
        if self.along:  # last, since others wait for the lock: by the message that also takes
            self._dispatched = claims.dialect.try_dispatch(tx.tx, DISPATCH_MOST)
        guess = peek is not None and peek.guessed
        self._lease = claims.lease(self._session_id, self._lease_ms, self._start)
        parts = {HIGHEST_PRIORITY: self.weight}
        if self._in_order:
            parts = claims.oldest(tx.tx, consumer, self._types, self.weight, self._session_id)
        self._taken = [
            claims.dialect.take(
                tx.tx, consumer, self._types, most, self._lease, guess=guess, highest=highest
            )
            for highest, most in parts.items()
        ]

    def claimed(self) -> list[Claim]:
        """What came of it; known when the transaction has ended."""
        if self.along:
            self.done, self.along = bool(self._dispatched), False
        name, number = self._consumer.name, self._consumer.id
        token, until = self._lease.token, self._lease.until
        made: list[Claim] = []
        rows = chain.from_iterable(self._taken)
        for row in sorted(rows, key=_by_age) if self._in_order else rows:
            attempts, error, read_commit = row[_OWN:]
            event = EventRow(*row[:_OWN])
            claim = Claim(event, name, number, token, attempts, until, error == LEASE_EXPIRED)
            claim.lease_ms = self._lease_ms
            if read_commit is not None:
                claim.started, claim.read_commit = True, read_commit
            made.append(claim)
        return made


def _by_age(row: Any) -> tuple[str, str]:
    return row[4], row[0]


def _looking(consumers: Iterable[int]) -> dict[str, Any]:
    return {"consumers": codec.encode_checked(list(consumers)), "most": DISPATCH_MOST}
