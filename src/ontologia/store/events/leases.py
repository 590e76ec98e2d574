"""What a session does with the claims it holds: start, renew, ack, hand back, release.

Each checks the claim's token first, in the transaction that writes: the fence. A session whose
lease ran out, or whose claim another one has, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

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

    def start(self, tx: Tx, claims: Sequence[Claim], lease_ms: float) -> None:
        """Mark claims of one call as started, with a lease from now; `started` says which were.

        A lease that was given a moment ago is left as it is: that saves half of the writing.
        """
        instant = self._clock.now()
        nearly = to_text(instant + timedelta(milliseconds=lease_ms * _AS_GOOD_AS_NEW))
        if claims[0].lease_until >= nearly:
            kept = self._fenced(tx, "start_within_lease", claims, to_text(instant))
        else:
            kept = self._extend(tx, "start", claims, lease_ms)
        for claim in claims:
            claim.started = claim.event.id in kept
            claim.read_commit = kept.get(claim.event.id)

    def renew(self, claims: Iterable[Claim], lease_ms: float) -> list[Claim]:
        """Extend leases; those that were lost. One soft transaction."""
        lost: list[Claim] = []
        with self._database.write(durable=False) as tx:
            for group in _by_token(claims):
                kept = self._extend(tx, "renew", group, lease_ms)
                lost += [claim for claim in group if claim.event.id not in kept]
        return lost

    def _extend(
        self, tx: Tx, name: str, claims: Sequence[Claim], lease_ms: float
    ) -> dict[str, int | None]:
        instant = self._clock.now()
        until = to_text(instant + timedelta(milliseconds=lease_ms))
        kept = self._fenced(tx, name, claims, to_text(instant), lease_until=until)
        for claim in claims:
            if claim.event.id in kept:
                claim.lease_until = until
        return kept

    def settle(
        self, done: Sequence[Done], starting: Sequence[Claim] = (), lease_ms: float = 0
    ) -> Settled:
        """Ack what succeeded, with what it announced, and start what is next: one transaction."""
        with self._database.write(durable=False) as tx:
            settled = self.ack(tx, done)
            if starting:
                self.start(tx, starting, lease_ms)
        return settled

    def ack(self, tx: Tx, done: Sequence[Done]) -> Settled:
        """Ack what succeeded, and store what it announced; nothing of claims that were lost."""
        if not done:
            return NOTHING
        now = to_text(self._clock.now())
        self._note_beginnings(tx, [item.claim for item in done])
        acked: set[tuple[str, str]] = set()
        for group in _by_token(item.claim for item in done):
            kept = self._fenced(tx, "ack", group, now)
            acked |= {(group[0].token, event_id) for event_id in kept}
        lost: list[Claim] = []
        announced: list[Announcement] = []
        for claim, announcements in done:
            if (claim.token, claim.event.id) in acked:
                announced += announcements
            else:
                lost.append(claim)
        if announced:
            self._events.announce(tx, announced)
        return Settled(lost, bool(announced))

    def _note_beginnings(self, tx: Tx, claims: Iterable[Claim]) -> None:
        """A group is started at once, but what an attempt saw is what was there when it began."""
        moved = [(c.read_commit, c.event.id, c.handler_id, c.token) for c in claims if c.moved]
        if moved:
            tx.many(self._sql["began_at"], moved)

    def abandon(self, claims: Iterable[Claim]) -> int:
        """Hand claims back, without a mark against them; how many were still held."""
        handed = 0
        with self._database.write(durable=False) as tx:
            now = to_text(self._clock.now())
            for group in _by_token(claims):
                kept = self._fenced(tx, "abandon", group, now)
                if kept:
                    listed = codec.encode_checked(sorted(kept))
                    place = {"consumer_id": group[0].consumer_id, "ids": listed}
                    tx.run(self._sql["make_ready"], place)
                handed += len(kept)
        return handed

    def check(self, tx: Tx, claim: Claim, now: str | None = None) -> bool:
        """The fence: whether the claim is held at this moment of this transaction."""
        fence = {
            "event_id": claim.event.id,
            "handler_id": claim.handler_id,
            "token": claim.token,
            "now": now or to_text(self._clock.now()),
        }
        return tx.one(self._sql["fence"], fence) is not None

    def _fenced(
        self, tx: Tx, name: str, claims: Sequence[Claim], now: str, **values: str
    ) -> dict[str, int | None]:
        """Run a fenced statement for claims of one token; the events it changed.

        With each goes what the statement returns beside it: of a start, the commit it saw.
        """
        rows = tx.all(
            self._sql[name],
            {
                "handler_id": claims[0].handler_id,
                "token": claims[0].token,
                "ids": codec.encode_checked([claim.event.id for claim in claims]),
                "now": now,
                **values,
            },
        )
        return {row[0]: row[1] if len(row) > 1 else None for row in rows}

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
        claim: Claim | None = None,
    ) -> Verdict | None:
        """End an attempt that did not succeed; None if the claim is not held (any more)."""
        place = {"event_id": event_id, "handler_id": handler_id}
        with self._database.write(durable=False) as tx:
            instant = self._clock.now()
            if claim is not None:
                self._note_beginnings(tx, [claim])
            whose = {"session_id": session_id, "token": token, "now": to_text(instant)}
            held = tx.one(self._sql["lock_claim"], place | whose)
            if held is None:
                return None
            attempts, read_commit, started_at = held[:3]
            verdict = policy.after_failure(attempts, self._draw, after_ms=after_ms)
            if final:
                verdict = Verdict(verdict.attempts, buried=True)
            attempt = Attempt(event_id, handler_id, verdict.attempts, started_at, read_commit)
            self._burial.note(tx, attempt, outcome, error)
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
