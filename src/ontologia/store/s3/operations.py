"""What operators do with the events in a bucket: list, replay, delete, check. Costs many requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.lifecycle import event_status, lease_is_valid, state_of
from ontologia.delivery.lifetimes import instant_before
from ontologia.errors import ConsumerBusyError, InvalidValueError
from ontologia.store.events import checks
from ontologia.store.events.listings import readable
from ontologia.store.events.log import EventLog
from ontologia.store.rows import EventRow
from ontologia.store.s3.bucket import decoded
from ontologia.store.s3.claims import Claims
from ontologia.store.s3.consumers import Consumers, Snapshot
from ontologia.store.s3.layout import (
    ClaimDoc,
    Keys,
    Marker,
    id_time,
    listed_marker,
    marker_of,
    name_of,
)
from ontologia.store.s3.objects import UNREADABLE, Objects
from ontologia.store.s3.sessions import Sessions, alive_among

log = logging.getLogger(__name__)
MOST_READ = 1_000
"""Finished events that a listing of events reads at most: the newest, by their ids."""
_SLACK = timedelta(seconds=1)  # of an id's time, which is that of its event but for the stamp
_NEVER = datetime(1, 1, 1, tzinfo=UTC)
_PORTION = 200


class Operations:
    """Over one bucket, beside what runs. Thread-safe."""

    def __init__(
        self,
        objects: Objects,
        consumers: Consumers,
        claims: Claims,
        sessions: Sessions,
        events: EventLog,
        *,
        retention: timedelta,
        ttl_ms: int,
    ) -> None:
        self._objects = objects
        self._consumers = consumers
        self._claims = claims
        self._sessions = sessions
        self._events = events
        self._retention = retention
        self._ttl = timedelta(milliseconds=ttl_ms)
        self._clock: Clock = objects.clock

    # -- listings ---------------------------------------------------------------------------------

    def namespaces(self) -> list[str]:
        """All namespaces, by name. One request."""
        return sorted(decoded(each) for each in self._objects.bucket.folders())

    def counts(self) -> list[dict[str, Any]]:
        """`namespace sessions pending unsubscribed dead_letters` of each."""
        shown: list[dict[str, Any]] = []
        for namespace in self.namespaces():
            keys = Keys(namespace)
            sessions = self._sessions.list(namespace)
            letters = sum(1 for _ in self._objects.bucket.listing(keys.dead_letters))
            markers = self._unfinished(keys)
            statuses = [each["status"] for each in self._with_status(keys, markers)]
            if sessions or letters or markers or self._has_events(keys):
                shown.append(
                    {
                        "namespace": namespace,
                        "sessions": len(alive_among(sessions)),
                        "pending": statuses.count("pending"),
                        "unsubscribed": statuses.count("unsubscribed"),
                        "dead_letters": letters,
                    }
                )
        return shown

    def _has_events(self, keys: Keys) -> bool:
        return next(self._objects.bucket.listing(keys.events, limit=1), None) is not None

    def events(self, namespace: str, limit: int) -> list[dict[str, Any]]:
        """The first `limit` events by priority and age, with what became of them.

        Reads the events that are unfinished, and of the finished ones the newest 1,000.
        """
        if limit <= 0:
            return []
        keys = Keys(namespace)
        listed = [name_of(each) for each in self._objects.bucket.listing(keys.events)]
        unfinished = {each.id: each for each in self._unfinished(keys)}
        finished = sorted(each for each in listed if each not in unfinished)[-MOST_READ:]
        rows = self._objects.each(lambda each: self._objects.get_event(keys, each), finished)
        there = set(listed)
        markers = [each for each in unfinished.values() if each.id in there]
        markers += [marker_of(row) for row in rows if row is not None]
        return self._with_status(keys, sorted(markers)[:limit])

    def _unfinished(self, keys: Keys) -> list[Marker]:
        """What some consumer has not finished, the most urgent first. Two listings or more."""
        found = {each.id: each for each in self._backlog(keys)}
        found.update((each.id, each) for each in self._objects.markers(keys.unfinished))
        return sorted(found.values())

    def _backlog(self, keys: Keys) -> Iterator[Marker]:
        for listed in self._objects.bucket.listing(keys.backlogs):
            marker = listed_marker(listed)
            if marker is not None:
                yield marker

    def _with_status(self, keys: Keys, markers: Sequence[Marker]) -> list[dict[str, Any]]:
        if not markers:
            return []
        now = to_text(self._clock.now())
        consumers = self._consumers.read(keys.namespace).consumers
        claimed = self._objects.each(lambda each: self._objects.claims_of(keys, each.id), markers)
        return [
            _shown(marker, claims, now, _subscribed(consumers, marker.type))
            for marker, claims in zip(markers, claimed, strict=True)
        ]

    def dead_letters(self, namespace: str, limit: int) -> list[dict[str, Any]]:
        """The dead letters of a namespace, the newest first. A listing, and one request for each."""
        bucket = self._objects.bucket
        listed = [each.key for each in bucket.listing(Keys(namespace).dead_letters, limit=limit)]
        names = ("event_id", "type", "handler", "attempts", "last_error", "failed_at")
        return [
            {name: shown[name] for name in names}
            for stored in self._objects.each(bucket.get, listed)
            if stored is not None
            for shown in [codec.decode(stored.body)]
        ]

    def consumers(self, namespace: str) -> list[dict[str, Any]]:
        """`name last_seen_at paused_at ready claimed backoff types`, by name."""
        keys, now = Keys(namespace), to_text(self._clock.now())
        snapshot = self._consumers.read(namespace)
        if not snapshot.consumers:
            return []
        shared = self._objects.markers(keys.unfinished)
        shown: list[dict[str, Any]] = []
        for name in sorted(snapshot.consumers):
            doc = snapshot.consumers[name]
            own = self._objects.markers(keys.backlog(name))
            markers = {each.id for each in [*own, *shared] if doc.takes(each.type)}
            get = partial(self._objects.get_claim, keys, handler_id=name)
            found = self._objects.each(get, sorted(markers))
            states = ["ready" if each is None else _waits(each.doc, now) for each in found]
            shown.append(
                {
                    "name": name,
                    "last_seen_at": doc.last_seen_at,
                    "paused_at": doc.paused_at,
                    **{state: states.count(state) for state in ("ready", "claimed", "backoff")},
                    "types": sorted(doc.types),
                }
            )
        return shown

    def inspect(self, event_id: str, namespace: str | None) -> dict[str, Any] | None:
        """Everything about one event: its fields, its claims, its failed attempts."""
        row = self.find(event_id, namespace)
        if row is None:
            return None
        claims = self._objects.claims_of(Keys(row.namespace), event_id)
        return {
            **row._asdict(),
            "payload": readable(row.payload),
            "claims": [_claim_shown(each) for each in claims],
            "attempts": [
                {"handler_id": each.handler_id, **failure}
                for each in claims
                for failure in each.failures
            ],
        }

    def find(self, event_id: str, namespace: str | None = None) -> EventRow | None:
        """An event by its id. Without a namespace, one request for each that there is."""
        return next(self.find_all(event_id, namespace), None)

    def find_all(self, event_id: str, namespace: str | None = None) -> Iterator[EventRow]:
        """The events of this id, which several namespaces may have. One request for each of them."""
        for each in self.namespaces() if namespace is None else [namespace]:
            row = self._objects.get_event(Keys(each), event_id)
            if row is not None:
                yield row

    def replay(self, namespace: str, event_id: str) -> str | None:
        """Store an event again as a new one; its id, or None if there is no such event."""
        found = self._objects.get_event(Keys(namespace), event_id)
        if found is None:
            return None
        new = self._events.copy(found)
        self._objects.put_event(new)
        return new.id

    # -- deleting ---------------------------------------------------------------------------------

    def cleanup(self, namespace: str, before: datetime | timedelta) -> int:
        """Delete events from before a time, finished or not; how many.

        Not those that are leased, nor those of an archive.
        """
        if isinstance(before, timedelta):
            try:
                before = self._clock.now() - before
            except OverflowError as error:
                raise InvalidValueError(f"no event is {before} old") from error
        limit = to_text(checks.instant("before", before))
        keys = Keys(namespace)
        return sum(
            self._delete(keys, rows, lambda row, claims: not self._is_leased(claims))
            for rows in self._old(keys, limit)
        )

    def collect(self, namespace: str, stop: Callable[[], bool]) -> int:
        """Delete what is past its retention and all consumers have finished, or none has; how many.

        Not those of an archive under the same prefix. A consumer not seen for that long is not
        waited for, and a warning names it. Costs listings of all that is retained and, if some are
        old, of the archive; and some requests for each event that is old.
        """
        keys = Keys(namespace)
        limit = to_text(self._clock.now() - self._retention)
        snapshot: Snapshot | None = None
        seen_since, deleted = "", 0
        for rows in self._old(keys, limit):
            if stop():
                break
            if snapshot is None:
                snapshot = self._consumers.read(namespace)
                seen_since = self._seen_since(namespace)
                self._warn_of_unseen(snapshot, {row.type for row in rows}, seen_since)
            consumers = [
                each for each in snapshot.consumers.values() if each.last_seen_at >= seen_since
            ]

            def is_done(row: EventRow, claims: Sequence[ClaimDoc]) -> bool:
                ended = {each.handler_id for each in claims if each.ended}
                wait = any(
                    each.takes(row.type) and each.name not in ended
                    for each in consumers  # noqa: B023 - called before the next round
                )
                return not wait and not self._is_leased(claims)

            deleted += self._delete(keys, rows, is_done)
        self._sweep(keys, stop)
        return deleted

    def _sweep(self, keys: Keys, stop: Callable[[], bool]) -> None:
        """Delete the markers of events that no consumer subscribes to, and of ended sessions.

        A consumer that comes later gets the events through its backlog.
        """
        markers = self._objects.markers(keys.unfinished)
        if not markers or stop():
            return
        # Read after the listing: who comes later reads all events.
        there = {name_of(each) for each in self._objects.bucket.listing(keys.events)}
        consumers = self._consumers.read(keys.namespace).consumers
        if not consumers:
            return
        doomed = [
            keys.marker(each)
            for each in markers
            if each.id in there and not any(c.takes(each.type) for c in consumers.values())
        ]
        if doomed:
            self._objects.bucket.delete(*doomed)

    def _seen_since(self, namespace: str) -> str:
        spans = [
            (from_text(each["started_at"]), from_text(each["last_heartbeat"]))
            for each in self._sessions.list(namespace)
        ]
        return to_text(instant_before(spans, max(self._retention, self._ttl)) or _NEVER)

    def _warn_of_unseen(self, snapshot: Snapshot, types: set[str], seen_since: str) -> None:
        for each in snapshot.consumers.values():
            for event_type in sorted(types):
                if each.last_seen_at < seen_since and each.takes(event_type):
                    log.warning(
                        "consumer %s of %s was last seen at %s: events it has not finished are "
                        "collected",
                        *(each.name, event_type, each.last_seen_at),
                    )

    def _old(self, keys: Keys, limit: str) -> Iterator[list[EventRow]]:
        """The events from before an instant, in portions, but for those of an archive.

        An id that tells its time is enough.
        """
        latest = to_text(from_text(limit) + _SLACK)
        names = [name_of(each) for each in self._objects.bucket.listing(keys.events)]
        names = [each for each in names if (id_time(each) or "") <= latest]
        if names:  # an archive under the same prefix has no other copy of its events
            archived = {name_of(each) for each in self._objects.bucket.listing(keys.records)}
            names = [each for each in names if each not in archived]
        for first in range(0, len(names), _PORTION):
            some = names[first : first + _PORTION]
            rows = self._objects.each(lambda each: self._objects.get_event(keys, each), some)
            old = [row for row in rows if row is not None and row.created_at < limit]
            if old:
                yield old

    def _delete(
        self,
        keys: Keys,
        rows: Sequence[EventRow],
        chosen: Callable[[EventRow, Sequence[ClaimDoc]], bool],
    ) -> int:
        """Delete events with all that is kept about them, but their dead letters."""
        claimed = self._objects.each(lambda row: self._objects.claims_of(keys, row.id), rows)
        backlog = {each.id: each for each in self._backlog(keys)}
        handlers = list(self._consumers.read(keys.namespace).consumers) if backlog else []
        doomed: list[str] = []
        count = 0
        for row, claims in zip(rows, claimed, strict=True):
            if not chosen(row, claims):
                continue
            count += 1
            marker = marker_of(row)
            doomed.append(keys.marker(marker))
            doomed += [f"{keys.backlog(each)}/{marker.name}" for each in handlers]
            doomed += [keys.claim(row.id, each.handler_id) for each in claims]
            doomed += [keys.event(row.id), keys.lineage(row.id)]
        if doomed:
            self._objects.bucket.delete(*doomed)
        return count

    def _is_leased(self, claims: Iterable[ClaimDoc]) -> bool:
        now = to_text(self._clock.now())
        return any(
            not each.ended and each.token is not None and lease_is_valid(each.lease_until, now)
            for each in claims
        )

    # -- consumers --------------------------------------------------------------------------------

    def forget(self, namespace: str, handler_id: str) -> bool:
        """Remove a consumer and what waits for it; False if there is none of that name.

        ConsumerBusyError while a live session runs it, or works on one of its events.
        """
        keys = Keys(namespace)
        if handler_id not in self._consumers.read(namespace).consumers:
            return False
        own = self._objects.markers(keys.backlog(handler_id))
        markers = {each.id: each for each in [*own, *self._objects.markers(keys.unfinished)]}
        found = self._objects.each(
            lambda each: self._objects.get_claim(keys, each, handler_id), markers
        )
        claims = [each.doc for each in found if each is not None and not each.doc.ended]
        sessions = self._sessions.list(namespace)
        alive = alive_among(sessions)
        ended = {each["session_id"] for each in sessions} - alive.keys()
        busy = [name for name, each in alive.items() if handler_id in each.get("consumers", ())]
        busy += [each.session_id for each in claims if self._is_leased([each])]
        busy = sorted({each for each in busy if each not in ended})
        if busy:
            raise ConsumerBusyError(handler_id, namespace, busy)

        def remove(snapshot: Snapshot) -> bool:
            return snapshot.consumers.pop(handler_id, None) is not None

        self._consumers.change(namespace, remove)
        self._consumers.forget_known(namespace, handler_id)
        doomed = [keys.claim(each.event_id, handler_id) for each in claims]
        doomed += [f"{keys.backlog(handler_id)}/{each.name}" for each in own]
        if doomed:
            self._objects.bucket.delete(*doomed)
        self._claims.forget(namespace, handler_id)
        return True

    # -- check ------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """What breaks the rules of the layout, one line each. Reads every object."""
        return [line for each in self.namespaces() for line in self._broken(Keys(each))]

    def _broken(self, keys: Keys) -> Iterator[str]:
        names = [name_of(each) for each in self._objects.bucket.listing(keys.events)]
        rows = self._objects.each(lambda each: self._objects.get_event(keys, each), names)
        events = {row.id: row for row in rows if row is not None}
        shared = {each.id: each for each in self._objects.markers(keys.unfinished)}
        backlog = {each.id for each in self._backlog(keys)}
        consumers = self._consumers.read(keys.namespace).consumers
        for marker in shared.values():
            if marker.id not in events:
                yield f"marker without event: {keys.namespace}: {marker.name}"
        claimed = self._objects.each(lambda each: self._objects.claims_of(keys, each), list(events))
        for event_id, claims in zip(events, claimed, strict=True):
            row = events[event_id]
            ended = {each.handler_id for each in claims if each.ended}
            if not row.type:
                continue
            for doc in consumers.values():
                listed = event_id in shared or event_id in backlog
                if doc.takes(row.type) and doc.name not in ended and not listed:
                    yield f"unfinished event without marker: {event_id} of {doc.name}"
            for each in claims:
                if each.token == UNREADABLE:
                    yield f"claim that cannot be read: {event_id} of {each.handler_id}"
                if each.ack_at is not None and each.dead_lettered_at is not None:
                    yield f"claim that ended twice: {event_id} of {each.handler_id}"


def _subscribed(consumers: dict[str, Any], event_type: str) -> bool:
    return not consumers or any(each.takes(event_type) for each in consumers.values())


def _shown(
    marker: Marker, claims: Sequence[ClaimDoc], now: str, subscribed: bool
) -> dict[str, Any]:
    status = event_status([each.times for each in claims], now, subscribed=subscribed)
    deciding = [each.handler_id for each in claims if state_of(each.times, now).value == status]
    return {
        "id": marker.id,
        "type": marker.type,
        "created_at": marker.created_at,
        "priority": marker.priority,
        "status": status,
        "handler": ", ".join(deciding) or None,
    }


def _waits(doc: ClaimDoc, now: str) -> str:
    """How an event waits for a consumer; "ended" if it does not."""
    if doc.ended:
        return "ended"
    if doc.token is not None and lease_is_valid(doc.lease_until, now):
        return "claimed"
    return "ready" if doc.attempts == 0 and doc.available_at <= now else "backoff"


def _claim_shown(doc: ClaimDoc) -> dict[str, Any]:
    return {
        "handler_id": doc.handler_id,
        "session_id": doc.session_id,
        "attempts": doc.attempts,
        "last_error": doc.last_error,
        "claimed_at": doc.claimed_at,
        "started_at": doc.started_at,
        "lease_until": doc.lease_until,
        "available_at": doc.available_at,
        "ack_at": doc.ack_at,
        "dead_lettered_at": doc.dead_lettered_at,
        "read_commit": doc.read_commit,
        "lease_token": doc.token,
        "conflicts": doc.conflicts,
    }
