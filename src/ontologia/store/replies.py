"""Replies to requests that came with a key of their own, so that the same request again is answered
and not carried out a second time.

A reply is stored in the transaction that carries the request out: it is there exactly when what
was done is. It goes when events of its age go; the same key after that is a new request.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.errors import InvalidValueError
from ontologia.store.database import Database, Tx
from ontologia.store.events import checks

_MOST_BYTES = 1_850  # of a key: with a namespace an entry of PostgreSQL's index has at most 2,704
MOST_PRUNED = 1_000
"""Replies that one call of `prune` deletes at most."""


class Reply(NamedTuple):
    """What was answered."""

    request_hash: str
    """Of the request that had the key first; another request with that key is a mistake."""
    reply: str
    created_at: datetime


class Replies:
    """The replies of one store, by namespace and key."""

    def __init__(self, database: Database, sql: Mapping[str, str], clock: Clock) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock

    def find(self, namespace: str, key: str) -> Reply | None:
        """The reply to the request with this key; None if there is none, or no more."""
        place = _place(namespace, key)
        rows = self._database.all(self._sql["get_reply"], place)
        if not rows:
            return None
        request_hash, reply, created_at = rows[0]
        return Reply(request_hash, reply, from_text(created_at))

    def add(self, tx: Tx, namespace: str, key: str, request_hash: str, reply: str) -> bool:
        """Keep a reply within the transaction of what it tells of.

        False if the key was taken meanwhile: then what was done here was done before, and the
        transaction is to be taken back. Waits for another transaction that has just taken it.
        """
        codec.check(reply, "reply")
        stored = {
            "request_hash": checks.name("request_hash", request_hash),
            "reply": reply,
            "created_at": to_text(self._clock.now()),
        }
        return tx.run(self._sql["insert_reply"], _place(namespace, key) | stored) == 1

    def prune(self, tx: Tx, namespace: str, before: datetime) -> int:
        """Delete replies from before a time, the oldest first, at most MOST_PRUNED; how many."""
        span = {"namespace": namespace, "before": to_text(before), "most": MOST_PRUNED}
        return tx.run(self._sql["delete_replies"], span)


def fits(key: str) -> bool:
    """Whether there can be a reply under this key, as far as its length goes."""
    return len(key) <= checks.LONGEST_KEY and len(key.encode()) <= _MOST_BYTES


def _place(namespace: str, key: str) -> dict[str, str]:
    checks.name("namespace", namespace)
    checks.name("key", key, checks.LONGEST_KEY)
    if not fits(key):
        raise InvalidValueError(f"key has at most {_MOST_BYTES:,} bytes, got {key!r:.300}")
    return {"namespace": namespace, "key": key}
