"""Retention: finished events are collected, unfinished ones never silently."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.lifetimes import instant_before
from ontologia.errors import InvalidValueError
from ontologia.store.database import Database, Tx
from ontologia.store.events import checks
from ontologia.store.replies import MOST_PRUNED, Replies

log = logging.getLogger(__name__)
_PORTION = 1_000
_DAY = timedelta(days=1)
_NEVER = datetime(1, 1, 1, tzinfo=UTC)
_DELETED = (
    *("ready_of", "incoming_of", "claims_of", "attempts_of", "dedup_of", "restored_of"),
    "events",
)


class Portion(NamedTuple):
    """Old events of one type, and what decides which of them are finished."""

    namespace: str
    event_type: str
    ids: list[str]
    times: dict[str, str]

    @property
    def facts(self) -> dict[str, str]:
        """What the statement `finished` asks for, without the ids."""
        return {"namespace": self.namespace, "type": self.event_type, **self.times}


class Retention:
    """Deletes old events, in portions, so that nobody waits for all of them."""

    def __init__(
        self, database: Database, sql: Mapping[str, str], clock: Clock, session_ttl_ms: int
    ) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock
        self._ttl = timedelta(milliseconds=session_ttl_ms)
        self._replies = Replies(database, sql, clock)

    def collect(
        self, namespace: str, retention: timedelta, stop: Callable[[], bool] = lambda: False
    ) -> int:
        """Delete events older than this that all their consumers have finished; how many.

        A consumer not seen for that long is not waited for, and a warning names it. Events that
        no consumer subscribes to wait for nobody. Replies of that age go with them.
        """
        now = self._clock.now()
        deleted = 0
        for portion in self.portions(namespace, to_text(now - retention), retention):
            if stop():
                return deleted
            deleted += self._delete(portion.ids, "finished", portion.facts)
        records_before, replies_before = now - max(retention, _DAY), now - retention
        if self._has_old_records(namespace, records_before, replies_before):
            self._delete_records(namespace, records_before)
            self._delete_replies(namespace, replies_before, stop)
        return deleted

    def portions(
        self,
        namespace: str,
        before: str,
        retention: timedelta,
        *,
        types: list[str] | None = None,
        size: int = _PORTION,
    ) -> Iterator[Portion]:
        """Events from before a time, finished or not, of some types or all. Costs what is old."""
        now = self._clock.now()
        unseen = max(retention, now - from_text(before))
        seen_since = self._seen_since(namespace, unseen)
        times = {"seen_since": seen_since, "restored_since": to_text(now - retention)}
        for event_type in self._types(namespace) if types is None else types:
            self._warn_of_unseen(namespace, event_type, seen_since)
            for ids in self._old(namespace, event_type, before, size):
                yield Portion(namespace, event_type, ids, times)

    def finished(
        self, ask: Callable[[str, dict[str, Any]], list[Any]], portion: Portion, ids: list[str]
    ) -> list[str]:
        """Which of these events of a portion can be collected now."""
        asked = {**portion.facts, "ids": codec.encode_checked(ids), **self._now()}
        return [row[0] for row in ask(self._sql["finished"], asked)]

    def _seen_since(self, namespace: str, retention: timedelta) -> str:
        """From when on a consumer must have been seen, to be waited for.

        Only time in which somebody of the namespace was alive counts against it: when everything
        was off for a week, nobody is gone just because another started first. And a session that
        runs is seen with its heartbeats, however short the retention.
        """
        rows = self._database.all(self._sql["lifetimes"], {"namespace": namespace})
        spans = [(from_text(start), from_text(end)) for start, end in rows]
        return to_text(instant_before(spans, max(retention, self._ttl)) or _NEVER)

    def _has_old_records(self, namespace: str, before: datetime, replies_before: datetime) -> bool:
        """As a rule there are none, and every session that starts looks: that needs no lock."""
        asked = {
            "namespace": namespace,
            "before": to_text(before),
            "before_time": before.timestamp(),
            "replies_before": to_text(replies_before),
        }
        return bool(self._database.all(self._sql["old_records"], asked))

    def _delete_records(self, namespace: str, before: datetime) -> None:
        """Ticks, deferred events and sessions that ended long ago."""
        span = {"namespace": namespace, "before": to_text(before)}
        with self._database.write(durable=False) as tx:
            tx.run(self._sql["delete_fires"], span)
            tx.run(self._sql["delete_sessions"], span)
            deferred = {"namespace": namespace, "before": before.timestamp()}
            tx.run(self._sql["delete_deferred"], deferred)

    def _delete_replies(self, namespace: str, before: datetime, stop: Callable[[], bool]) -> None:
        """Replies to requests, in portions."""
        portion = MOST_PRUNED
        while portion == MOST_PRUNED and not stop():
            with self._database.write(durable=False) as tx:
                portion = self._replies.prune(tx, namespace, before)

    def cleanup(
        self,
        namespace: str,
        before: datetime | timedelta,
        progress: Callable[[int], None] = lambda _: None,
        *,
        event_type: str | None = None,
    ) -> int:
        """Delete events from before a time, finished or not, except those being worked on.

        Of one type, if one is given. `progress` is told how many each portion was.
        """
        limit = self.limit(before)
        deleted = 0
        for each in self._types(namespace) if event_type is None else [event_type]:
            for ids in self._old(namespace, each, limit):
                portion = self._delete(ids, "unleased", {})
                progress(portion)
                deleted += portion
        return deleted

    def count_old(
        self,
        namespace: str,
        before: datetime | timedelta,
        *,
        event_type: str | None = None,
        most: int | None = None,
    ) -> dict[str, int]:
        """How many events of each type, or of one, are from before a time. Reads only.

        It ends soon after `most` in all.
        """
        limit = self.limit(before)
        counts: Counter[str] = Counter()
        for each in self._types(namespace) if event_type is None else [event_type]:
            for ids in self._old(namespace, each, limit):
                counts[each] += len(ids)
                if most is not None and counts.total() >= most:
                    return dict(counts)
        return dict(counts)

    def limit(self, before: datetime | timedelta) -> str:
        """A time, or an age, as text; InvalidValueError if no event can be that old."""
        if isinstance(before, timedelta):
            try:
                before = self._clock.now() - before
            except OverflowError as error:
                raise InvalidValueError(f"no event is {before} old") from error
        return to_text(checks.instant("before", before))

    def _types(self, namespace: str) -> list[str]:
        rows = self._database.all(self._sql["event_types"], {"namespace": namespace})
        return [row[0] for row in rows]

    def _warn_of_unseen(self, namespace: str, event_type: str, before: str) -> None:
        place = {"namespace": namespace, "type": event_type}
        for name, last_seen_at in self._database.all(self._sql["consumers_of"], place):
            if last_seen_at < before:
                log.warning(
                    "consumer %s of %s was last seen at %s: events it has not finished are collected",
                    *(name, event_type, last_seen_at),
                )

    def _old(
        self, namespace: str, event_type: str, before: str, size: int = _PORTION
    ) -> Iterator[list[str]]:
        """The ids of old events of a type, in portions; costs only what is old."""
        place = {"namespace": namespace, "type": event_type}
        for (priority,) in self._database.all(self._sql["priorities"], place):
            after = ("", "")
            span = {**place, "priority": priority, "before": before, "most": size}
            while rows := self._database.all(
                self._sql["old_events"], {**span, "after": after[0], "after_id": after[1]}
            ):
                after = (rows[-1][1], rows[-1][0])
                yield [row[0] for row in rows]

    def _delete(self, ids: list[str], which: str, place: dict[str, str]) -> int:
        """Delete those of these events that the statement `which` names. One soft transaction."""
        asked = {**place, "ids": codec.encode_checked(ids)}
        if not self._database.all(self._sql[which], asked | self._now()):
            return 0  # nothing to delete needs no lock
        with self._database.write(durable=False) as tx:
            tx.lock_dispatch(wait=True)  # nobody registers, or dispatches, what is about to go
            # By the clock as it is now: set back meanwhile, it may have made leases valid again.
            chosen = [row[0] for row in tx.all(self._sql[which], asked | self._now())]
            self.delete(tx, chosen)
        return len(chosen)

    def _now(self) -> dict[str, str]:
        return {"now": to_text(self._clock.now())}

    def is_free(self, tx: Tx, event_id: str) -> bool:
        """Whether no session has an event, or is just claiming it; none can before `tx` ends."""
        tx.lock_dispatch(wait=True)
        asked = {"ids": codec.encode_checked([event_id]), "now": to_text(self._clock.now())}
        return bool(tx.all(self._sql["unleased"], asked))

    def delete(self, tx: Tx, ids: list[str]) -> None:
        """Delete these events with everything that is kept about them, but their dead letters."""
        listed = {"ids": codec.encode_checked(ids)}
        for what in _DELETED:
            tx.run(self._sql[f"delete_{what}"], listed)
