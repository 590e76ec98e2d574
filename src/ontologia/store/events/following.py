"""What happens to the events of a namespace, as it happens: for those who watch.

Nothing in the store says "this is new", and nobody is asked to write it down for a watcher. So each
look compares what is there with the last look: events with later numbers are new, and claims that
changed have news. Claims are looked up for the events that can have any: new ones, those that
consumers have, and those they get next. Whoever finishes more than some thousand events between
two looks is not told about each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.store.database import Database, Tx

_MOST = 5_000  # events whose claims are looked up in one look
_NEXT = 500  # of what waits for each consumer
_BEFORE = 100  # numbers before the last one that may still be given to a transaction in the making
_PATIENCE = 60.0  # seconds until a number is taken for lost


class News(NamedTuple):
    """Something that happened: announced, claimed, done, failed, dead_letter or retried."""

    at: str
    what: str
    event_id: str
    type: str
    handler: str | None = None
    attempt: int | None = None
    error: str | None = None


class _Seen(NamedTuple):
    """A claim as it was when it was last looked at."""

    attempts: int
    claimed_at: str
    ack_at: str | None
    dead_lettered_at: str | None


class Follower:
    """One watcher of one namespace; every look says what happened since the last. Reads only."""

    def __init__(
        self, database: Database, sql: Mapping[str, str], clock: Clock, namespace: str
    ) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock
        self._namespace = namespace
        self._last = 0
        self._missing: dict[int, float] = {}
        """Numbers that no event has yet, and until when to look for them."""
        self._followed: dict[str, tuple[str, dict[str, _Seen]]] = {}
        """The type of each event, and its claims by consumer; the least recent first."""
        with database.read() as tx:
            self._last = max(0, tx.one(sql["last_number"])[0] - _BEFORE)
            self._new_events(tx)
            self._follow_at_hand(tx)
            self._compare(tx)

    def look(self) -> list[News]:
        """What happened since the last look, in order; [] if nothing did."""
        with self._database.read() as tx:
            news = [
                News(created_at, "announced", event_id, event_type)
                for event_id, event_type, created_at in self._new_events(tx)
            ]
            self._follow_at_hand(tx)
            news += self._compare(tx)
        return sorted(news, key=lambda each: each.at)

    # -- new events ---------------------------------------------------------------------------

    def _new_events(self, tx: Tx) -> list[tuple[str, str, str]]:
        """Events with numbers not seen so far.

        On a server numbers are given before they are committed: a number that is left out may
        come later, and is looked for until it is clear that it was taken back.
        """
        instant = self._clock.monotonic()
        self._missing = {n: end for n, end in self._missing.items() if end > instant}
        rows: list[Any] = []
        if self._missing:
            listed = codec.encode_checked(list(self._missing))
            rows += tx.all(self._sql["events_numbered"], {"numbers": listed})
        rows += tx.all(self._sql["events_after"], {"after": self._last, "most": _MOST})
        for row in rows:
            number = row[0]
            for skipped in range(max(self._last + 1, number - _MOST), number):
                self._missing[skipped] = instant + _PATIENCE
            self._missing.pop(number, None)
            self._last = max(self._last, number)
        mine = [row[2:] for row in rows if row[1] == self._namespace]
        for event_id, event_type, _ in mine:
            self._followed[event_id] = (event_type, {})
        return mine

    # -- what became of them --------------------------------------------------------------------

    def _follow_at_hand(self, tx: Tx) -> None:
        """Follow what consumers have, and what they get next, from what is true of it now."""
        place = {"namespace": self._namespace}
        rows = tx.all(self._sql["next_arriving"], {**place, "most": _NEXT})
        for (consumer_id,) in tx.all(self._sql["consumers_in"], place):
            rows += tx.all(self._sql["at_hand"], {"consumer_id": consumer_id, "most": _NEXT})
        fresh: dict[str, str] = {}
        for event_id, event_type in rows:
            if event_id in self._followed:
                self._followed[event_id] = self._followed.pop(event_id)
            else:
                fresh[event_id] = event_type
        for event_id, claims in self._claims(tx, fresh).items():
            self._followed[event_id] = (fresh[event_id], claims)
        for event_id in list(self._followed)[:-_MOST]:
            del self._followed[event_id]

    def _compare(self, tx: Tx) -> list[News]:
        news: list[News] = []
        now = to_text(self._clock.now())
        errors: dict[tuple[str, str], str | None] = {}
        for event_id, claims in self._claims(tx, self._followed, errors).items():
            event_type, before = self._followed[event_id]
            for handler, claim in claims.items():
                found = _what_happened(before.get(handler), claim, now)
                if found is not None:
                    at, what, attempt = found
                    error = errors[event_id, handler] if what in _FAILED else None
                    news.append(News(at, what, event_id, event_type, handler, attempt, error))
            self._followed[event_id] = (event_type, claims)
        return news

    def _claims(
        self,
        tx: Tx,
        ids: Mapping[str, Any],
        errors: dict[tuple[str, str], str | None] | None = None,
    ) -> dict[str, dict[str, _Seen]]:
        found: dict[str, dict[str, _Seen]] = {event_id: {} for event_id in ids}
        listed = {"ids": codec.encode_checked(list(ids))}
        for row in tx.all(self._sql["claims_of"], listed) if ids else ():
            found[row[0]][row[1]] = _seen(row)
            if errors is not None:
                errors[row[0], row[1]] = row[4]
        return found


_FAILED = ("failed", "dead_letter")


def _seen(row: Sequence[Any]) -> _Seen:
    return _Seen(row[3], row[5], row[9], row[10])


def _what_happened(before: _Seen | None, now: _Seen, at: str) -> tuple[str, str, int] | None:
    """The last thing that happened to a claim, with its time and the attempt's number."""
    if now == before:
        return None
    if now.dead_lettered_at is not None:
        return now.dead_lettered_at, "dead_letter", now.attempts
    if now.ack_at is not None:
        return now.ack_at, "done", now.attempts + 1
    if before is not None and (before.dead_lettered_at or now.attempts < before.attempts):
        return at, "retried", now.attempts
    if now.attempts > (before.attempts if before is not None else 0):
        return at, "failed", now.attempts
    return now.claimed_at, "claimed", now.attempts + 1
