"""The log of events: what is announced, at once or later, goes through here.

Every event is written together with its row in `incoming`, in the transaction of whoever
announces it. That costs the same whether nobody listens or fifty consumers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from ontologia import codec
from ontologia.clock import Clock, from_text, stamps_of, to_text
from ontologia.delivery.lineage import Lineage
from ontologia.errors import InvalidValueError, shown
from ontologia.ids import Ids
from ontologia.schema.event import Event, former_types, payload_of
from ontologia.store.database import Tx
from ontologia.store.events import checks
from ontologia.store.rows import Announcement, EventRow, Stored

_FAR = 253_402_300_800.0  # the year 10000: no clock goes further


class Additions(Protocol):
    """How each database stores events that are to be handed out."""

    def add(self, tx: Tx, rows: Sequence[EventRow]) -> None:
        """Within a transaction; IntegrityError if it has one of the ids."""
        ...

    def append(self, rows: Iterable[Sequence[Any]]) -> None:
        """In a hard transaction that does nothing else, with ids that nobody has given before.

        Rows may be made while those before them are on their way.
        """
        ...


class EventLog:
    """Writes events, mostly within transactions of its callers."""

    def __init__(
        self,
        sql: Mapping[str, str],
        additions: Additions,
        clock: Clock,
        ids: Ids,
        max_payload_bytes: int,
    ) -> None:
        self._sql = sql
        self._additions = additions
        self._clock = clock
        self._stamps = stamps_of(clock)
        self.ids = ids
        self._max_payload_bytes = max_payload_bytes

    # -- rows -------------------------------------------------------------------------------

    def row(
        self,
        event: Event,
        namespace: str,
        lineage: Lineage,
        *,
        dedup_key: str | None = None,
        id: str | None = None,
        created_at: str | None = None,
        limited: bool = True,
    ) -> EventRow:
        """The event as it will be stored; InvalidValueError if it cannot be."""
        now = self._clock.now()
        event_type = type(event).__event_type__
        new_id = self.ids.at(now) if id is None else checks.name("an event's id", id)
        checks.whole("priority", event.priority, -(2**31), 2**31 - 1)
        return EventRow(
            new_id,
            namespace,
            event_type,
            self._payload(event) if limited else payload_of(event),
            created_at or self._stamps.next(now),
            event.priority,
            lineage.root_event_id or new_id,
            lineage.chain_depth,
            lineage.source,
            lineage.correlation_id or lineage.root_event_id or new_id,
            lineage.causation_id,
            None,
            None if dedup_key is None else checks.name("dedup_key", dedup_key, checks.LONGEST_KEY),
        )

    def first_rows(self, events: Sequence[Event], namespace: str) -> Iterator[Sequence[Any]]:
        """Rows of events that begin chains of their own; each event gets what its row says of it.

        A row is made when it is asked for, and has the columns of an `EventRow` in a plain tuple:
        there may be thousands, and each step here counts.
        """
        now, count = self._clock.now(), len(events)
        ids, stamps = self.ids.several(now, count), self._stamps.several(now, count)
        short = self._max_payload_bytes // 4  # UTF-8 has at most 4 bytes a character
        checked: object = None
        for event, new_id, created_at in zip(events, ids, stamps, strict=True):
            cls, values, priority = type(event), vars(event), event.priority
            if priority is not checked:  # most have that of their class
                checked = checks.whole("priority", priority, -(2**31), 2**31 - 1)
            payload = cls.__shape__.dump(values)
            if len(payload) > short:
                self.checked_size(cls.__event_type__, payload)
            values["id"] = values["root_event_id"] = new_id
            values["created_at"] = created_at
            values["chain_depth"] = 0
            yield (
                new_id, namespace, cls.__event_type__, payload, created_at, priority, new_id, 0,
                None, new_id, None, None, None, None,
            )  # fmt: skip

    def given_row(self, event: Event, namespace: str) -> EventRow:
        """The row of an event that may bring its own id, time and lineage."""
        created_at = None if event.created_at is None else _instant_text(event.created_at)
        if event.root_event_id is not None:
            checks.name("root_event_id", event.root_event_id)
        depth = checks.whole("chain_depth", event.chain_depth, 0, 2**31 - 1)
        lineage = Lineage(event.root_event_id, depth)
        return self.row(event, namespace, lineage, id=event.id, created_at=created_at)

    def untyped_row(
        self,
        event_type: str,
        payload: str,
        namespace: str,
        *,
        priority: int = 100,
        source: str | None = None,
        dedup_key: str | None = None,
    ) -> EventRow:
        """The row of an event whose class is not known here; `payload` is a JSON object as text."""
        checks.name("an event's type", event_type)
        if event_type == "*":
            raise InvalidValueError("* stands for all types of events, and is none itself")
        checks.whole("priority", priority, -(2**31), 2**31 - 1)
        if not isinstance(codec.decode_stored(payload), dict):
            raise InvalidValueError(f"{event_type}: the payload is no JSON object")
        new_id = self.ids.new()
        return EventRow(
            new_id,
            checks.name("namespace", namespace),
            event_type,
            self.checked_size(event_type, payload),
            self.stamp(),
            priority,
            new_id,
            0,
            source,
            new_id,
            None,
            None,
            None if dedup_key is None else checks.name("dedup_key", dedup_key, checks.LONGEST_KEY),
        )

    def replay(self, tx: Tx, namespace: str, event_id: str) -> str | None:
        """Store an event again as a new one; the new id, None if the namespace has no such event."""
        found = self.get(tx, event_id)
        if found is None or found.namespace != namespace:
            return None
        new = self.copy(found)
        self.add(tx, [new])
        return new.id

    def copy(self, row: EventRow) -> EventRow:
        """The same event again, as the first of a chain of its own."""
        new_id = self.ids.new()
        payload = row.payload
        if isinstance(payload, bytes):
            try:
                payload = payload.decode()
            except UnicodeDecodeError as error:
                raise InvalidValueError(
                    f"the payload of event {row.id} is no text; nothing was stored"
                ) from error
        return row._replace(
            id=new_id,
            payload=payload,
            created_at=self.stamp(),
            root_event_id=new_id,
            chain_depth=0,
            correlation_id=new_id,
            causation_id=row.id,
            dedup_key=None,
        )

    def stamp(self) -> str:
        """Now, later than every stamp before."""
        return self._stamps.next(self._clock.now())

    def _payload(self, event: Event) -> str:
        return self.checked_size(type(event).__event_type__, payload_of(event))

    def checked_size(self, event_type: str, payload: str) -> str:
        size = len(payload) if payload.isascii() else len(payload.encode())
        if size > self._max_payload_bytes:
            raise InvalidValueError(
                f"{event_type}: the payload has {size} bytes and max_payload_bytes "
                f"is {self._max_payload_bytes}; nothing was stored",
                hint="Store what is large as an entity or a file, and announce its key.",
            )
        return payload

    # -- within a transaction -----------------------------------------------------------------

    def announce(self, tx: Tx, announcements: Iterable[Announcement]) -> list[Stored]:
        """Store events, or find the ones that had their dedup_key before."""
        stored: list[Stored] = []
        now: list[EventRow] = []
        for row, fire_at in announcements:
            if (earlier := self._earlier(tx, row)) is not None:
                stored.append(Stored(earlier, None))
            elif fire_at is None:
                now.append(row)
                stored.append(Stored(row.id, None))
            else:
                stored.append(Stored(row.id, self._defer(tx, row, fire_at)))
        self.add(tx, now)
        return stored

    def add(self, tx: Tx, rows: list[EventRow]) -> None:
        """Store events that are to be handed out."""
        if rows:
            self._additions.add(tx, rows)

    def append(self, rows: Iterable[Sequence[Any]]) -> None:
        """Store events with new ids in a transaction of their own."""
        self._additions.append(rows)

    def _earlier(self, tx: Tx, row: EventRow) -> str | None:
        """The event that has this one's dedup_key; None if there is none, and now this one has."""
        if row.dedup_key is None:
            return None
        place = {"namespace": row.namespace, "type": row.type, "key": row.dedup_key}
        for former in former_types(row.type):
            held = tx.one(self._sql["get_dedup"], {**place, "type": former})
            if held is not None:
                return str(held[0])
        if tx.run(self._sql["insert_dedup"], {**place, "event_id": row.id}):
            return None
        found: str = tx.one(self._sql["get_dedup"], place)[0]
        return found

    def _defer(self, tx: Tx, row: EventRow, fire_at: float) -> int:
        values: dict[str, Any] = row._asdict()
        number: int = tx.one(
            self._sql["insert_deferred"],
            {
                **{name: values[name] for name in _DEFERRED},
                "event_id": row.id,
                "topic": row.type,
                "fire_at": fire_at,
                "created_at": self._clock.now().timestamp(),
            },
        )[0]
        return number

    def promote(self, tx: Tx) -> int:
        """Announce the deferred events whose time has come; how many."""
        now = self._clock.now().timestamp()
        due = tx.all(self._sql["due_deferred"], {"now": now})
        if due:
            listed = codec.encode_checked([row[0] for row in due])
            tx.run(self._sql["mark_fired"], {"ids": listed, "now": now})
            self.add(tx, self._free_ids(tx, [_promoted(row, self.stamp()) for row in due]))
        return len(due)

    def _free_ids(self, tx: Tx, rows: list[EventRow]) -> list[EventRow]:
        """An event may have been stored under the id of a deferred one: that gets another."""
        listed = codec.encode_checked([row.id for row in rows])
        taken = {row[0] for row in tx.all(self._sql["taken_ids"], {"ids": listed})}
        return [self._renamed(row) if row.id in taken else row for row in rows]

    def _renamed(self, row: EventRow) -> EventRow:
        new_id = self.ids.new()
        root = new_id if row.root_event_id == row.id else row.root_event_id
        return row._replace(id=new_id, root_event_id=root)

    def cancel(self, tx: Tx, namespace: str, number: int, source: str | None = None) -> bool:
        """Take back a deferred event; False if it fired, was cancelled or never was.

        With `source`, also if somebody else announced it.
        """
        place = {"id": number, "namespace": namespace, "source": source}
        found = tx.one(self._sql["cancel_deferred"], place)
        if found is None:
            return False
        event_id, event_type, key = found
        if key is not None:
            place = {"namespace": namespace, "type": event_type, "key": key}
            tx.run(self._sql["delete_dedup"], {**place, "event_id": event_id})
        return True

    def fire(
        self, tx: Tx, row: EventRow, schedule_key: str, tick: str, former: Sequence[str] = ()
    ) -> bool:
        """Announce the event of a tick; False if another session has done so.

        Also if it knows the schedule by a `former` key: that of a type that the event's class had.
        """
        for key in (schedule_key, *former):
            place = {"namespace": row.namespace, "schedule_key": key, "tick": tick}
            if not tx.run(self._sql["insert_fire"], {**place, "event_id": row.id}):
                return False
        self.add(tx, [row])
        return True

    def number(self, tx: Tx, event_id: str) -> int:
        """The number of an event that is stored."""
        found: int = tx.one(self._sql["event_number"], {"id": event_id})[0]
        return found

    def get(self, tx: Tx, event_id: str) -> EventRow | None:
        """One event."""
        row = tx.one(self._sql["get_event"], {"id": event_id})
        return None if row is None else EventRow(*row)


def _promoted(row: tuple[Any, ...], created_at: str) -> EventRow:
    return EventRow(*row[1:5], created_at, *row[5:])  # type: ignore[call-arg]  # pyright: ignore


_DEFERRED = (
    *("namespace", "source", "payload", "correlation_id", "priority", "root_event_id"),
    *("chain_depth", "causation_id", "tenant_id", "dedup_key", "occurred_at"),
)


def fire_time(now: datetime, *, delay: Any = None, at: datetime | None = None) -> float | None:
    """The Unix time that `delay` (seconds or a timedelta) or `at` means; None for neither."""
    if delay is None and at is None:
        return None
    if delay is not None and at is not None:
        raise InvalidValueError("an event is deferred by delay= or at=, not both")
    if at is not None:
        return checks.instant("at=", at).timestamp()
    seconds: Any = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise checks.error_for(seconds, int, float)(
            f"delay= takes seconds or a timedelta, not negative, got {shown(delay)}",
            hint="For a time that is known, use at=.",
        )
    fire_at = now.timestamp() + min(seconds, _FAR)
    if not fire_at < _FAR:
        raise InvalidValueError(f"delay={shown(delay)} is further away than any calendar goes")
    return fire_at


def _instant_text(given: str) -> str:
    """What an event says in `created_at`, in the form that is stored."""
    try:
        found = from_text(given)
    except (ValueError, TypeError) as error:
        raise checks.error_for(given, str)(
            f"created_at is an ISO 8601 instant, got {shown(given):.300}"
        ) from error
    if found.utcoffset() is None:
        raise InvalidValueError(
            f"created_at is an ISO 8601 instant with an offset, got {given!r}",
            hint="End it with Z for UTC, or with an offset like +01:00.",
        )
    return to_text(found)
