"""What operators ask of an event store. Reads only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.lifecycle import ClaimTimes, event_status, state_of
from ontologia.errors import InvalidValueError
from ontologia.store.database import Database
from ontologia.store.events.claims import ALL_TYPES

Ask: TypeAlias = Callable[[str, dict[str, Any]], list[Any]]
_PORTION = 500
_MOST_WAITING = 10_000
_SESSIONS = 1_000
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


class ListedClaim(NamedTuple):
    """How one consumer stands to an event that is listed."""

    handler: str
    state: str
    """`acked`, `dead_lettered`, `claimed`, `backoff` or `reclaimable`."""
    attempts: int
    """How many have failed."""
    last_error: str | None


class LoggedEvent(NamedTuple):
    """An event of the log, without its payload."""

    id: str
    type: str
    created_at: str
    priority: int


class ListedEvent(NamedTuple):
    """An event of a list, and what became of it."""

    id: str
    type: str
    created_at: str
    priority: int
    status: str
    claims: tuple[ListedClaim, ...]

    @property
    def deciding(self) -> list[str]:
        """The consumers that decided its status."""
        return [claim.handler for claim in self.claims if claim.state == self.status]


class DeferredEvent(NamedTuple):
    """An event that waits for its time."""

    number: int
    id: str
    type: str
    fire_at: float
    due_at: datetime
    dedup_key: str | None
    payload: Any
    source: str | None
    deferred_at: datetime


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

    def named_namespaces(self, most: int) -> list[str]:
        """The first namespaces by name; costs a seek for each."""
        rows = self._database.all(self._sql["named_namespaces"], {"most": most})
        return [row[0] for row in rows]

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

    def sessions_heard(
        self,
        namespace: str,
        most: int,
        *,
        since: datetime | None = None,
        before: tuple[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """The next sessions on the way back from the one that was heard of last.

        `before` is `last_heartbeat` and id of the last one of the page before. Costs the sessions
        of all namespaces that were heard of in between.
        """
        heard, session_id = before or (_LATEST, "")
        place = {"namespace": namespace, "before": heard, "before_id": session_id, "most": most}
        oldest = "" if since is None else to_text(since)
        rows = self._database.all(self._sql["sessions_heard"], {**place, "since": oldest})
        now = self._clock.now()
        return [self._session(row, now) for row in rows]

    def schedules(self, namespace: str) -> list[dict[str, Any]]:
        """The schedules that the 1,000 sessions heard of last run or ran, each with those alive.

        `key type payload priority cron tz sessions`, as the session that was heard of last says.
        """
        found: dict[str, dict[str, Any]] = {}
        for row in self.sessions_heard(namespace, _SESSIONS):
            alive = row["stopped_at"] is None and not row["is_dead"]
            for schedule in row["metadata"].get("schedules", ()):
                known = found.setdefault(schedule["key"], {**schedule, "sessions": []})
                if alive:
                    known["sessions"].append(row["session_id"])
        return sorted(found.values(), key=lambda each: (each["type"], each["cron"], each["key"]))

    def held_claims(self, namespace: str, most: int) -> dict[str, int]:
        """How many claims each session holds now, of `most` that wait for a time at most."""
        asked = {"namespace": namespace, "most": most, "now": to_text(self._clock.now())}
        return dict(self._database.all(self._sql["held_claims"], asked))

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

    def walk_back(
        self,
        namespace: str,
        *,
        types: list[str] | None = None,
        before: tuple[str, str] | None = None,
        portion: int = _PORTION,
    ) -> Iterator[list[ListedEvent]]:
        """Events and what became of them, the newest first, in portions.

        `before` is `created_at` and id of an event: those that come after it on the way back.
        Reads a portion of each type and priority first, then as the walk goes on.
        """
        yield from self._portions(
            self._database.all, namespace, None, types, newest=True, before=before, portion=portion
        )

    def log_back(
        self,
        namespace: str,
        *,
        types: list[str] | None = None,
        before: tuple[str, str] | None = None,
        portion: int = _PORTION,
    ) -> Iterator[list[LoggedEvent]]:
        """The same without what became of them."""
        rows = self._merged(
            self._database.all, namespace, types, newest=True, before=before, portion=portion
        )
        while page := [LoggedEvent(*row) for row in islice(rows, portion)]:
            yield page

    def payloads(self, ids: Iterable[str]) -> dict[str, Any]:
        """The payloads of these events, by id."""
        asked = {"ids": codec.encode_checked(list(ids))}
        return {
            row[0]: readable(row[1]) for row in self._database.all(self._sql["payloads_of"], asked)
        }

    def _each(
        self,
        ask: Ask,
        namespace: str,
        limit: int | None,
        types: list[str] | None = None,
        *,
        newest: bool = False,
    ) -> Iterator[dict[str, Any]]:
        for portion in self._portions(ask, namespace, limit, types, newest=newest):
            for event in portion:
                yield {
                    "id": event.id,
                    "type": event.type,
                    "created_at": event.created_at,
                    "priority": event.priority,
                    "status": event.status,
                    "handler": ", ".join(event.deciding) or None,
                }

    def _portions(
        self,
        ask: Ask,
        namespace: str,
        limit: int | None,
        types: list[str] | None = None,
        *,
        newest: bool = False,
        before: tuple[str, str] | None = None,
        portion: int = _PORTION,
    ) -> Iterator[list[ListedEvent]]:
        if limit is not None:
            portion = min(limit, portion)
        merged = self._merged(ask, namespace, types, newest=newest, before=before, portion=portion)
        subscribed = {row[0] for row in ask(self._sql["pairs"], {"namespace": namespace})}
        rows = islice(merged, limit)
        while page := list(islice(rows, portion)):
            now = to_text(self._clock.now())
            claims: dict[str, list[Any]] = {row[0]: [] for row in page}
            ids = codec.encode_checked(list(claims))
            for claim in ask(self._sql["claims_of"], {"ids": ids}):
                claims[claim[0]].append(claim)
            yield [
                _listed(
                    row,
                    claims[row[0]],
                    now,
                    subscribed=not subscribed or row[1] in subscribed or ALL_TYPES in subscribed,
                )
                for row in page
            ]

    def _merged(
        self,
        ask: Ask,
        namespace: str,
        types: list[str] | None,
        *,
        newest: bool,
        before: tuple[str, str] | None,
        portion: int,
    ) -> Iterator[Any]:
        """One read per type, priority and portion; nothing is sorted, but what is shown merged."""
        if types is None:
            types = [row[0] for row in ask(self._sql["event_types"], {"namespace": namespace})]
        after = before or ((_LATEST, "") if newest else ("", ""))
        statement = self._sql["list_events_back" if newest else "list_events"]
        streams = [
            _stream(
                ask,
                statement,
                {"namespace": namespace, "type": each, "priority": priority, "limit": portion},
                after,
            )
            for each in types
            for (priority,) in ask(self._sql["priorities"], {"namespace": namespace, "type": each})
        ]
        order = _by_age if newest else _by_urgency
        return heapq.merge(*streams, key=order, reverse=newest)

    def deferred(
        self, namespace: str, limit: int, *, event_type: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The deferred events that wait, or those of one type, the earliest first.

        `number id type due_at dedup_key payload source deferred_at`. Read on the way.
        """
        for row in self.waiting_deferred(namespace, limit, event_type=event_type):
            yield {
                "number": row.number,
                "id": row.id,
                "type": row.type,
                "due_at": to_text(row.due_at),
                "dedup_key": row.dedup_key,
                "payload": row.payload,
                "source": row.source,
                "deferred_at": to_text(row.deferred_at),
            }

    def waiting_deferred(
        self,
        namespace: str,
        limit: int,
        *,
        event_type: str | None = None,
        after: tuple[float, int] | None = None,
    ) -> Iterator[DeferredEvent]:
        """The same; `after` is `fire_at` and number of one, and those behind it come.

        With a type it costs the deferred events of other types in between.
        """
        place = {"namespace": namespace, "type": event_type}
        since, left = after or (float("-inf"), 0), limit
        while left and (
            rows := self._database.all(
                self._sql["scheduled_events"],
                {**place, "after": since[0], "after_id": since[1], "limit": min(left, _PORTION)},
            )
        ):
            for number, event_id, topic, payload, fire_at, key, source, created_at in rows:
                yield DeferredEvent(
                    number,
                    event_id,
                    topic,
                    fire_at,
                    datetime.fromtimestamp(fire_at, UTC),
                    key,
                    readable(payload),
                    source,
                    datetime.fromtimestamp(created_at, UTC),
                )
            since, left = (rows[-1][4], rows[-1][0]), left - len(rows)

    def find_deferred(
        self, namespace: str, event_id: str, number: int | None
    ) -> tuple[int, str] | None:
        """Number and type of the deferred event that waits under an id, or has this number.

        By its id it is found among the 10,000 that are due first.
        """
        place: dict[str, Any] = {"namespace": namespace}
        rows = self._database.all(
            self._sql["waiting_id"], {**place, "event_id": event_id, "most": _MOST_WAITING}
        )
        if not rows and number is not None:
            rows = self._database.all(self._sql["waiting_number"], {**place, "number": number})
        return (rows[0][0], rows[0][1]) if rows else None

    def due_of(self, namespace: str, number: int) -> float | None:
        """When the deferred event of this number is due; None if none such waits."""
        rows = self._database.all(
            self._sql["waiting_number"], {"namespace": namespace, "number": number}
        )
        return rows[0][2] if rows else None

    def has_session(self, session_id: str) -> bool:
        """Whether a session of this id is on record, in any namespace."""
        return bool(self._database.all(self._sql["has_session"], {"session_id": session_id}))

    def last_ticks(self, namespace: str, key: str, most: int) -> list[tuple[str, str]]:
        """The last ticks of a schedule with the events that they emitted, the newest first."""
        asked = {"namespace": namespace, "key": key, "most": most}
        return self._database.all(self._sql["last_ticks"], asked)

    def dead_letters(self, namespace: str, limit: int) -> list[dict[str, Any]]:
        """The dead letters of a namespace, the newest first."""
        rows = self._database.all(
            self._sql["list_dead_letters"], {"namespace": namespace, "limit": limit}
        )
        names = ("event_id", "type", "handler", "attempts", "last_error", "failed_at")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def count_dead_letters(self, namespace: str, most: int) -> int:
        """How many dead letters a namespace has, `most` at most."""
        asked = {"namespace": namespace, "most": most}
        count: int = self._database.all(self._sql["count_dead_letters"], asked)[0][0]
        return count

    def tracebacks(self, numbers: Iterable[int]) -> dict[int, str]:
        """The tracebacks of the last attempts of dead letters, by number; not all have one."""
        asked = {"ids": codec.encode_checked(list(numbers))}
        return dict(self._database.all(self._sql["letters_tracebacks"], asked))

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


def _stream(
    ask: Ask, statement: str, place: dict[str, Any], after: tuple[str, str]
) -> Iterator[Any]:
    while rows := ask(statement, {**place, "after": after[0], "after_id": after[1]}):
        yield from rows
        after = (rows[-1][2], rows[-1][0])


def _listed(row: Any, claims: list[Any], now: str, *, subscribed: bool) -> ListedEvent:
    times = [ClaimTimes(c[7], c[8], c[9], c[10]) for c in claims]
    found = [
        ListedClaim(claim[1], state_of(each, now).value, claim[3], claim[4])
        for claim, each in zip(claims, times, strict=True)
    ]
    status = event_status(times, now, subscribed=subscribed)
    return ListedEvent(row[0], row[1], row[2], row[3], status, tuple(found))


def described(
    row: Sequence[Any], claims: Iterable[Sequence[Any]], attempts: Iterable[Sequence[Any]]
) -> dict[str, Any]:
    """Everything about one event; claims and attempts without its id."""
    shown = dict(zip(_EVENT, row, strict=True))
    shown["payload"] = readable(row[3])
    shown["claims"] = [dict(zip(_CLAIM[1:], claim, strict=True)) for claim in claims]
    shown["attempts"] = [dict(zip(_ATTEMPT, attempt, strict=True)) for attempt in attempts]
    return shown


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
