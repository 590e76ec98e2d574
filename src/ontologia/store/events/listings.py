"""What operators ask of an event store. Reads only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeAlias

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.lifecycle import ClaimTimes, event_status, state_of
from ontologia.errors import InvalidValueError
from ontologia.store.database import Database
from ontologia.store.events.claims import ALL_TYPES

Ask: TypeAlias = Callable[[str, dict[str, Any]], list[Any]]
_PORTION = 500
_LATEST = "9999"  # as text it is after every instant
_CLAIM = (
    *("event_id", "handler_id", "session_id", "attempts", "last_error", "claimed_at"),
    *("started_at", "lease_until", "available_at", "ack_at", "dead_lettered_at"),
    *("read_commit", "lease_token", "conflicts"),
)
_EVENT = (
    *("id", "namespace", "type", "payload", "created_at", "priority", "root_event_id"),
    *("chain_depth", "source", "correlation_id", "causation_id", "tenant_id", "dedup_key"),
    "occurred_at",
)
_ATTEMPT = (
    *("handler_id", "attempt", "started_at", "ended_at", "read_commit"),
    *("outcome", "error", "traceback"),
)


class Listings:
    """Answers as dicts, named as the columns of the command line."""

    def __init__(
        self, database: Database, sql: Mapping[str, str], clock: Clock, session_ttl_ms: int
    ) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock
        self._ttl = timedelta(milliseconds=session_ttl_ms)

    def namespaces(self) -> list[dict[str, Any]]:
        """Each namespace that has events, sessions or dead letters; counts sessions that are alive."""
        now = self._clock.now()
        times = {"now": to_text(now), "since": to_text(now - self._ttl)}
        rows = self._database.all(self._sql["namespaces"], times)
        names = ("namespace", "sessions", "pending", "unsubscribed", "dead_letters")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def elsewhere(self, namespace: str, most: int) -> list[str]:
        """Namespaces with events, by name, if this one has nothing: it may not be the one meant.

        Costs a seek for each.
        """
        with self._database.read() as tx:
            if tx.all(self._sql["has_anything"], {"namespace": namespace}):
                return []
            return [row[0] for row in tx.all(self._sql["busy_namespaces"], {"most": most})]

    def sessions(self, namespace: str) -> list[dict[str, Any]]:
        """The sessions of a namespace, the newest first."""
        now = self._clock.now()
        rows = self._database.all(self._sql["list_sessions"], {"namespace": namespace})
        return [self._session(row, now) for row in rows]

    def live_sessions(self) -> list[dict[str, Any]]:
        """The sessions of all namespaces that are alive, the newest first, each with its `namespace`.

        One that runs no handlers says nothing after its start, and is not in it for long.
        """
        now = self._clock.now()
        since = {"since": to_text(now - self._ttl)}
        rows = self._database.all(self._sql["live_sessions"], since)
        return [{"namespace": row[1]} | self._session(row, now) for row in rows]

    def _session(self, row: Any, now: datetime) -> dict[str, Any]:
        session_id, _, started_at, last_heartbeat, text = row
        metadata: dict[str, Any] = codec.decode_stored(text) if text else {}
        silent = now - from_text(last_heartbeat)
        return {
            "session_id": session_id,
            "hostname": metadata.get("hostname"),
            "pid": metadata.get("pid"),
            "started_at": started_at,
            "last_heartbeat": last_heartbeat,
            "stopped_at": metadata.get("stopped_at"),
            "is_dead": silent > self._ttl and "stopped_at" not in metadata,
            "metadata": metadata,
        }

    def events(self, namespace: str, limit: int) -> list[dict[str, Any]]:
        """The first `limit` events by priority and age, with what became of them: one snapshot."""
        with self._database.read() as tx:
            return list(self._each(tx.all, namespace, limit))

    def newest(
        self,
        namespace: str,
        limit: int,
        *,
        event_type: str | None = None,
        status: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The newest `limit` events, or of those of one type or status, the newest first.

        Read on the way, with few of them in memory. With a status it costs the events until the
        last one shown.
        """
        types = None if event_type is None else [event_type]
        most = limit if status is None else None
        found = self._each(self._database.all, namespace, most, types, newest=True)
        return islice((row for row in found if status in (None, row["status"])), limit)

    def _each(
        self,
        ask: Ask,
        namespace: str,
        limit: int | None,
        types: list[str] | None = None,
        *,
        newest: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """One read per type, priority and portion; nothing is sorted, but what is shown merged."""
        portion = _PORTION if limit is None else min(limit, _PORTION)
        if types is None:
            types = [row[0] for row in ask(self._sql["event_types"], {"namespace": namespace})]
        streams = [
            self._stream(ask, {"namespace": namespace, "type": each}, priority, portion, newest)
            for each in types
            for (priority,) in ask(self._sql["priorities"], {"namespace": namespace, "type": each})
        ]
        subscribed = {row[0] for row in ask(self._sql["pairs"], {"namespace": namespace})}
        order = _by_age if newest else _by_urgency
        rows = islice(heapq.merge(*streams, key=order, reverse=newest), limit)
        while page := list(islice(rows, _PORTION)):
            now = to_text(self._clock.now())
            claims: dict[str, list[Any]] = {row[0]: [] for row in page}
            ids = codec.encode_checked(list(claims))
            for claim in ask(self._sql["claims_of"], {"ids": ids}):
                claims[claim[0]].append(claim)
            for row in page:
                has_one = not subscribed or row[1] in subscribed or ALL_TYPES in subscribed
                yield self._listed(row, claims[row[0]], now, subscribed=has_one)

    def _stream(
        self, ask: Ask, place: dict[str, Any], priority: int, portion: int, newest: bool
    ) -> Iterator[Any]:
        after = (_LATEST, "") if newest else ("", "")
        statement = self._sql["list_events_back" if newest else "list_events"]
        span = {**place, "priority": priority, "limit": portion}
        while rows := ask(statement, {**span, "after": after[0], "after_id": after[1]}):
            yield from rows
            after = (rows[-1][2], rows[-1][0])

    def _listed(self, row: Any, claims: list[Any], now: str, *, subscribed: bool) -> dict[str, Any]:
        times = [ClaimTimes(c[7], c[8], c[9], c[10]) for c in claims]
        status = event_status(times, now, subscribed=subscribed)
        deciding = [
            claim[1]
            for claim, each in zip(claims, times, strict=True)
            if state_of(each, now).value == status
        ]
        return {
            "id": row[0],
            "type": row[1],
            "created_at": row[2],
            "priority": row[3],
            "status": status,
            "handler": ", ".join(deciding) or None,
        }

    def deferred(
        self, namespace: str, limit: int, *, event_type: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The deferred events that wait, or those of one type, the earliest first.

        `number id type due_at dedup_key payload source deferred_at`. Read on the way.
        """
        after, left = (float("-inf"), 0), limit
        place = {"namespace": namespace, "type": event_type}
        while left and (
            rows := self._database.all(
                self._sql["scheduled_events"],
                {**place, "after": after[0], "after_id": after[1], "limit": min(left, _PORTION)},
            )
        ):
            for number, event_id, topic, payload, fire_at, key, source, created_at in rows:
                yield {
                    "number": number,
                    "id": event_id,
                    "type": topic,
                    "due_at": _unix_text(fire_at),
                    "dedup_key": key,
                    "payload": readable(payload),
                    "source": source,
                    "deferred_at": _unix_text(created_at),
                }
            after, left = (rows[-1][4], rows[-1][0]), left - len(rows)

    def dead_letters(self, namespace: str, limit: int) -> list[dict[str, Any]]:
        """The dead letters of a namespace, the newest first."""
        rows = self._database.all(
            self._sql["list_dead_letters"], {"namespace": namespace, "limit": limit}
        )
        names = ("event_id", "type", "handler", "attempts", "last_error", "failed_at")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def inspect(self, event_id: str, namespace: str | None) -> dict[str, Any] | None:
        """Everything about one event: its columns, its claims, its failed attempts."""
        with self._database.read() as tx:
            row = tx.one(self._sql["get_event"], {"id": event_id})
            if row is None or namespace not in (None, row[1]):
                return None
            ids = codec.encode_checked([event_id])
            claims = tx.all(self._sql["claims_of"], {"ids": ids})
            attempts = tx.all(self._sql["attempts_of"], {"id": event_id})
        return described(row, [claim[1:] for claim in claims], attempts)


def described(
    row: Sequence[Any], claims: Iterable[Sequence[Any]], attempts: Iterable[Sequence[Any]]
) -> dict[str, Any]:
    """Everything about one event; claims and attempts without its id."""
    shown = dict(zip(_EVENT, row, strict=True))
    shown["payload"] = readable(row[3])
    shown["claims"] = [dict(zip(_CLAIM[1:], claim, strict=True)) for claim in claims]
    shown["attempts"] = [dict(zip(_ATTEMPT, attempt, strict=True)) for attempt in attempts]
    return shown


def _unix_text(seconds: float) -> str:
    return to_text(datetime.fromtimestamp(seconds, UTC))


def _by_urgency(row: Any) -> tuple[int, str, str]:
    return -row[3], row[2], row[0]


def _by_age(row: Any) -> tuple[str, str]:
    return row[2], row[0]


def readable(payload: str | bytes) -> Any:
    """A stored payload, also one that cannot be decoded."""
    try:
        return codec.decode_stored(payload)
    except InvalidValueError:  # an operator wants to see what is broken
        return payload if isinstance(payload, str) else payload.decode(errors="backslashreplace")
