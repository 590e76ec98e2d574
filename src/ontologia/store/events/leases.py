"""What a session does with the claims it holds: start, renew, ack, hand back, release.

Each checks the claim's token first, in the transaction that writes: the fence. A session whose
lease ran out, or whose claim another one has, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.delivery.retry import RetryPolicy, Verdict
from ontologia.store.database import AnswerLost, Database, Tx
from ontologia.store.events.burial import Attempt, Burial
from ontologia.store.events.log import EventLog
from ontologia.store.rows import Announcement, Claim
from ontologia.store.writer import Request

if TYPE_CHECKING:
    from ontologia.store.protocol import Transaction

_AS_GOOD_AS_NEW = 0.98

R = TypeVar("R")


class Done(NamedTuple):
    """A claim whose handler succeeded, with what it announced."""

    claim: Claim
    announcements: Sequence[Announcement] = ()
    durable: bool = False
    """Whether the ack makes durable what the handler has committed."""


class Settled(NamedTuple):
    """What came of writing ends down."""

    lost: list[Claim]
    """Claims that were lost meanwhile, of which nothing was written."""
    announced: bool
    """Whether any of the others announced something."""


NOTHING = Settled([], False)


class Leases:
    """Claims that are held, over one database."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        events: EventLog,
        clock: Clock,
        draw: Callable[[int, int], int],
        submit: Callable[[Request], None],
    ) -> None:
        self.database = database
        self._sql = sql
        self.events = events
        self._burial = Burial(sql, events, clock)
        self.clock = clock
        self._draw = draw
        self._submit = submit

    def start(self, tx: Tx, claims: Sequence[Claim], lease_ms: float) -> Sequence[Any]:
        """Mark claims of one call as started, with a lease from now.

        Returns event, end of the lease and last commit of each that was held. A lease that was given
        a moment ago is left as it is: that saves half of the writing.
        """
        instant = self.clock.now()
        nearly = to_text(instant + timedelta(milliseconds=lease_ms * _AS_GOOD_AS_NEW))
        if claims[0].lease_until >= nearly:
            return self.fenced(tx, "start_within_lease", claims, to_text(instant))
        return self._extend(tx, "start", claims, lease_ms)

    def run_again(self, claim: Claim) -> bool:
        """Count a conflict and start the same claim anew, with its whole lease; False if it was lost.

        The attempt is not counted. One soft transaction.
        """
        rows = self._write(lambda tx: self._extend(tx, "run_again", [claim], claim.lease_ms))
        if not rows:
            return False
        [(_, claim.lease_until, claim.read_commit)] = rows
        claim.moved = False
        return True

    def renew(self, claims: Iterable[Claim], lease_ms: float | None = None) -> list[Claim]:
        """Extend leases, by their own length unless another is given; those that were lost.

        One soft transaction of its own: a handler may be committing under such a claim, and two
        shared transactions that lock several claims could wait for each other.
        """
        with self.database.write(durable=False) as tx:
            extended = [
                (group, self._extend(tx, "renew", group, lease_ms or group[0].lease_ms))
                for group in _by_token(claims)
            ]
        lost: list[Claim] = []
        for group, rows in extended:
            until = dict(rows)
            for claim in group:
                if claim.event.id in until:
                    claim.lease_until = until[claim.event.id]
                else:
                    lost.append(claim)
        return lost

    def _extend(self, tx: Tx, name: str, claims: Sequence[Claim], lease_ms: float) -> Sequence[Any]:
        instant = self.clock.now()
        until = to_text(instant + timedelta(milliseconds=lease_ms))
        return self.fenced(tx, name, claims, to_text(instant), lease_until=until)

    def acking(self, done: Sequence[Done]) -> Acking:
        """Ends to be written together, in a transaction that writes something else, too."""
        return Acking(self, done)

    def settle(
        self, done: Acking | Sequence[Done], starting: Sequence[Claim] = (), lease_ms: float = 0
    ) -> Settled:
        """Ack what succeeded, with what it announced, and start what is next: one transaction."""
        acking = done if isinstance(done, Acking) else Acking(self, done)
        settling = _Settling(self, acking, starting, lease_ms)
        self._submit(settling)
        settling.note_started()
        return acking.settled()

    def abandon(self, claims: Iterable[Claim]) -> int:
        """Hand claims back, without a mark against them; how many were still held."""
        groups = _by_token(claims)

        def write(tx: Tx) -> int:
            handed = 0
            now = to_text(self.clock.now())
            for group in groups:
                kept = sorted(row[0] for row in self.fenced(tx, "abandon", group, now))
                if kept:
                    listed = codec.encode_checked(kept)
                    place = {"consumer_id": group[0].consumer_id, "ids": listed}
                    tx.run(self._sql["make_ready"], place)
                handed += len(kept)
            return handed

        return self._write(write, weight=sum(map(len, groups)))

    def check(self, tx: Tx, claim: Claim, now: str | None = None) -> bool:
        """The fence: whether the claim is held at this moment of this transaction."""
        return bool(self.fence(tx, claim, now))

    def fence(self, tx: Tx, claim: Claim, now: str | None = None) -> Sequence[Any]:
        """The same as rows, to be read later: the end of the lease if the claim is held."""
        if claim.outside:
            # No other process takes it before the lease ends, and nothing is written after that.
            valid = lease_is_valid(claim.lease_until, now or to_text(self.clock.now()))
            return [(claim.lease_until,)] if valid else []
        fence = {
            "event_id": claim.event.id,
            "handler_id": claim.handler_id,
            "token": claim.token,
            "now": now or to_text(self.clock.now()),
        }
        return tx.ask(self._sql["fence"], fence)

    def fenced(
        self, tx: Tx, name: str, claims: Sequence[Claim], now: str, **values: str
    ) -> Sequence[Any]:
        """Run a fenced statement for claims of one token; a row for each that was held.

        Its first column is the event. One of a group, all started at once, tells itself what was
        there when its turn came.
        """
        ids: Any = [claim.event.id for claim in claims]
        if name == "ack_moved":
            ids = {claim.event.id: claim.read_commit for claim in claims}
        return tx.ask(
            self._sql[name],
            {
                "handler_id": claims[0].handler_id,
                "token": claims[0].token,
                "ids": codec.encode_checked(ids),
                "now": now,
                **values,
            },
        )

    # -- when it went wrong -----------------------------------------------------------------------

    def release(
        self,
        handler_id: str,
        event_id: str,
        *,
        error: str,
        policy: RetryPolicy,
        session_id: str | None = None,
        token: str | None = None,
        after_ms: float | None = None,
        outcome: str = "failed",
        final: bool = False,
        tried: bool = True,
        lapsed: bool = False,
        claim: Claim | None = None,
        traceback: str | None = None,
    ) -> Verdict | None:
        """End an attempt that did not succeed; None if the claim is not held (any more).

        With `final` the event is dead-lettered. Unless it was `tried`, no attempt is counted, and the
        wait is that after a first failure. With `lapsed` the lease may have ended, as long as no
        other session has claimed the event.
        """
        place = {"event_id": event_id, "handler_id": handler_id}

        def write(tx: Tx) -> Verdict | None:
            instant = self.clock.now()
            if claim is not None and claim.moved:
                tx.later(
                    self._sql["began_at"],
                    (claim.read_commit, claim.event.id, claim.handler_id, claim.token),
                )
            lease_after = "" if lapsed else to_text(instant)
            whose = {"session_id": session_id, "token": token, "now": lease_after}
            held = tx.one(self._sql["lock_claim"], place | whose)
            if held is None:
                return None
            attempts, read_commit, started_at = held[:3]
            verdict = policy.after_failure(attempts, self._draw, after_ms=after_ms)
            if not tried:
                verdict = Verdict(attempts, False, policy.backoff.delay_ms(1, self._draw))
            if final:
                verdict = Verdict(verdict.attempts if tried else attempts, buried=True)
            attempt = Attempt(event_id, handler_id, verdict.attempts, started_at, read_commit)
            if tried:
                self._burial.note(tx, attempt, outcome, error, traceback)
            if verdict.buried:
                self._burial.bury(tx, attempt, error)
            else:
                wait = timedelta(milliseconds=verdict.delay_ms)
                times = {"now": to_text(instant), "available_at": to_text(instant + wait)}
                counted = {"attempts": verdict.attempts, "error": error}
                tx.run(self._sql["release"], place | times | counted)
            return verdict

        return self._write(write)

    def _write(self, write: Callable[[Tx], R], weight: int = 1) -> R:
        """Have the writer write it, with what waits at the same time; what it returned."""
        request = _Writing(write, weight)
        self._submit(request)
        return request.result


class _Writing(Request, Generic[R]):
    """A soft request that one function writes."""

    durable = False
    result: R

    def __init__(self, write: Callable[[Tx], R], weight: int) -> None:
        self._function = write
        self.weight = weight

    def write(self, tx: Transaction) -> None:
        self.result = self._function(tx.tx)


class Acking:
    """Ends that are written together: acks, with what the handlers announced.

    Nothing is written of claims that were lost.
    """

    def __init__(self, leases: Leases, done: Sequence[Done]) -> None:
        self._leases = leases
        self.done = done
        self.durable = any(each.durable for each in done)
        self._rows: list[tuple[str, Sequence[Any]]] = []
        """What the acks returned, with the token of their claims."""
        self._announced = False

    def write(self, tx: Tx) -> None:
        """Ack all of them, and store what those that are held announced."""
        now = to_text(self._leases.clock.now())
        self._rows = [
            (group[0].token, self._leases.fenced(tx, statement, group, now))
            for statement, moved in (("ack", False), ("ack_moved", True))
            for group in _by_token(claim for claim, *_ in self.done if claim.moved is moved)
        ]
        self._announced = False
        if any(each.announcements for each in self.done):
            acked = self._acked()
            announced = [
                announcement
                for claim, announcements, _ in self.done
                if (claim.token, claim.event.id) in acked
                for announcement in announcements
            ]
            self._announced = bool(announced)
            if announced:
                self._leases.events.announce(tx, announced)

    def settled(self) -> Settled:
        """What came of it; known when the transaction has ended.

        If the connection was lost before the answer came, no claim counts as lost: an event that is
        not acked is delivered again in any case.
        """
        try:
            acked = self._acked()
        except AnswerLost:
            return Settled([], self._announced)
        lost = [claim for claim, *_ in self.done if (claim.token, claim.event.id) not in acked]
        return Settled(lost, self._announced)

    def _acked(self) -> set[tuple[str, str]]:
        return {(token, row[0]) for token, rows in self._rows for row in rows}


class _Settling(Request):
    """Acks and starts that are written together."""

    def __init__(
        self, leases: Leases, acking: Acking, starting: Sequence[Claim], lease_ms: float
    ) -> None:
        self._leases = leases
        self._acking = acking
        self._starting = starting
        self._lease_ms = lease_ms
        self.durable = acking.durable
        self.weight = len(acking.done) + len(starting)
        self._rows: Sequence[Any] = ()

    def write(self, tx: Transaction) -> None:
        self._acking.write(tx.tx)
        if self._starting:
            self._rows = self._leases.start(tx.tx, self._starting, self._lease_ms)

    def note_started(self) -> None:
        """Tell the claims which of them are started; known when the transaction has ended."""
        started = {event_id: (until, commit) for event_id, until, commit in self._rows}
        for claim in self._starting:
            claim.started = claim.event.id in started
            claim.lease_until, claim.read_commit = started.get(
                claim.event.id, (claim.lease_until, None)
            )


def _by_token(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims of one call together: they have one handler and one token."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.token, []).append(claim)
    return list(groups.values())
