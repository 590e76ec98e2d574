"""What a session does with the claims it holds: start, renew, ack, hand back, release.

Each checks the claim's token first, in the transaction that writes: the fence. A session whose
lease ran out, or whose claim another one has, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.delivery.retry import RetryPolicy, Verdict
from ontologia.store.database import Database, Tx
from ontologia.store.events.burial import Attempt, Burial
from ontologia.store.events.log import EventLog
from ontologia.store.rows import Announcement, Claim

_AS_GOOD_AS_NEW = 0.98


class Done(NamedTuple):
    """A claim whose handler succeeded, with what it announced."""

    claim: Claim
    announcements: Sequence[Announcement] = ()


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
    ) -> None:
        self._database = database
        self._sql = sql
        self._events = events
        self._burial = Burial(sql, events, clock)
        self._clock = clock
        self._draw = draw

    def start(self, tx: Tx, claims: Sequence[Claim], lease_ms: float) -> Callable[[], None]:
        """Mark claims of one call as started, with a lease from now.

        `started` says which were, after what this returns was called. A lease that was given a
        moment ago is left as it is: that saves half of the writing.
        """
        instant = self._clock.now()
        nearly = to_text(instant + timedelta(milliseconds=lease_ms * _AS_GOOD_AS_NEW))
        if claims[0].lease_until >= nearly:
            asked = self._fenced(tx, "start_within_lease", claims, to_text(instant))
        else:
            asked = self._extend(tx, "start", claims, lease_ms)

        def note() -> None:
            kept = asked()
            for claim in claims:
                claim.started = claim.event.id in kept
                claim.read_commit = kept.get(claim.event.id)

        return note

    def run_again(self, claim: Claim) -> bool:
        """Count a conflict and start the same claim anew, with its whole lease; False if it was lost.

        The attempt is not counted. One soft transaction.
        """
        with self._database.write(durable=False) as tx:
            asked = self._extend(tx, "run_again", [claim], claim.lease_ms)
        kept = asked()
        if claim.event.id not in kept:
            return False
        claim.read_commit, claim.moved = kept[claim.event.id], False
        return True

    def renew(self, claims: Iterable[Claim], lease_ms: float | None = None) -> list[Claim]:
        """Extend leases, by their own length unless another is given; those that were lost.

        One soft transaction.
        """
        with self._database.write(durable=False) as tx:
            asked = [
                (group, self._extend(tx, "renew", group, lease_ms or group[0].lease_ms))
                for group in _by_token(claims)
            ]
        lost: list[Claim] = []
        for group, kept in asked:
            still = kept()
            lost += [claim for claim in group if claim.event.id not in still]
        return lost

    def _extend(
        self, tx: Tx, name: str, claims: Sequence[Claim], lease_ms: float
    ) -> Callable[[], dict[str, int | None]]:
        instant = self._clock.now()
        until = to_text(instant + timedelta(milliseconds=lease_ms))
        asked = self._fenced(tx, name, claims, to_text(instant), lease_until=until)

        def extended() -> dict[str, int | None]:
            kept = asked()
            for claim in claims:
                if claim.event.id in kept:
                    claim.lease_until = until
            return kept

        return extended

    def settle(
        self, done: Sequence[Done], starting: Sequence[Claim] = (), lease_ms: float = 0
    ) -> Settled:
        """Ack what succeeded, with what it announced, and start what is next: one transaction."""
        with self._database.write(durable=False) as tx:
            acked = self.ack(tx, done)
            started = self.start(tx, starting, lease_ms) if starting else None
        if started is not None:
            started()
        return acked()

    def ack(self, tx: Tx, done: Sequence[Done]) -> Callable[[], Settled]:
        """Ack what succeeded, and store what it announced; nothing of claims that were lost.

        What came of it is known when the transaction has ended.
        """
        if not done:
            return lambda: NOTHING
        now = to_text(self._clock.now())
        asked = [
            (group[0].token, self._fenced(tx, statement, group, now))
            for statement, moved in (("ack", False), ("ack_moved", True))
            for group in _by_token(claim for claim, _ in done if claim.moved is moved)
        ]

        def settled() -> Settled:
            acked = {(token, event_id) for token, kept in asked for event_id in kept()}
            lost = [c for c, _ in done if (c.token, c.event.id) not in acked]
            announced = any(
                each.announcements
                for each in done
                if (each.claim.token, each.claim.event.id) in acked
            )
            return Settled(lost, announced)

        if any(item.announcements for item in done):
            lost = {id(claim) for claim in settled().lost}
            kept = [item for item in done if id(item.claim) not in lost]
            self._events.announce(tx, [each for item in kept for each in item.announcements])
        return settled

    def abandon(self, claims: Iterable[Claim]) -> int:
        """Hand claims back, without a mark against them; how many were still held."""
        handed = 0
        with self._database.write(durable=False) as tx:
            now = to_text(self._clock.now())
            for group in _by_token(claims):
                kept = self._fenced(tx, "abandon", group, now)()
                if kept:
                    listed = codec.encode_checked(sorted(kept))
                    place = {"consumer_id": group[0].consumer_id, "ids": listed}
                    tx.run(self._sql["make_ready"], place)
                handed += len(kept)
        return handed

    def check(self, tx: Tx, claim: Claim, now: str | None = None) -> bool:
        """The fence: whether the claim is held at this moment of this transaction."""
        return bool(self.ask(tx, claim, now)())

    def ask(self, tx: Tx, claim: Claim, now: str | None = None) -> Callable[[], list[Any]]:
        """The same, asked on the way: a row if it is held, with the end of its lease."""
        fence = {
            "event_id": claim.event.id,
            "handler_id": claim.handler_id,
            "token": claim.token,
            "now": now or to_text(self._clock.now()),
        }
        return tx.ask(self._sql["fence"], fence)

    def _fenced(
        self, tx: Tx, name: str, claims: Sequence[Claim], now: str, **values: str
    ) -> Callable[[], dict[str, int | None]]:
        """Ask a fenced statement for claims of one token; the events it changed.

        With each goes what the statement returns beside it: of a start, the commit it saw. One of
        a group, all started at once, tells itself what was there when its turn came.
        """
        ids: Any = [claim.event.id for claim in claims]
        if name == "ack_moved":
            ids = {claim.event.id: claim.read_commit for claim in claims}
        asked = tx.ask(
            self._sql[name],
            {
                "handler_id": claims[0].handler_id,
                "token": claims[0].token,
                "ids": codec.encode_checked(ids),
                "now": now,
                **values,
            },
        )
        return lambda: {row[0]: row[1] if len(row) > 1 else None for row in asked()}

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
        claim: Claim | None = None,
        traceback: str | None = None,
    ) -> Verdict | None:
        """End an attempt that did not succeed; None if the claim is not held (any more).

        With `final` the event is dead-lettered. Unless it was `tried`, no attempt is counted.
        """
        place = {"event_id": event_id, "handler_id": handler_id}
        with self._database.write(durable=False) as tx:
            instant = self._clock.now()
            if claim is not None and claim.moved:
                tx.later(
                    self._sql["began_at"],
                    (claim.read_commit, claim.event.id, claim.handler_id, claim.token),
                )
            whose = {"session_id": session_id, "token": token, "now": to_text(instant)}
            held = tx.one(self._sql["lock_claim"], place | whose)
            if held is None:
                return None
            attempts, read_commit, started_at = held[:3]
            verdict = policy.after_failure(attempts, self._draw, after_ms=after_ms)
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


def _by_token(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims of one call together: they have one handler and one token."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.token, []).append(claim)
    return list(groups.values())
