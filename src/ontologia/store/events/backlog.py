"""What is in front of the consumers of a namespace: payloads that wait, and what runs now. Reads only.

Payloads come in pages, each from a snapshot of its own, with few of them in memory, so that whoever
reads all of them holds nobody up. What is claimed or finished meanwhile may be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.store.database import Database

_MOST = 500  # payloads that are in memory at a time
_MOST_BYTES = 4 * 2**20  # of them; one payload may have more
_LATEST = "9999"  # as text it is after every instant
_LAST_NUMBER = 2**63 - 1
_SCHEDULE = "schedule:"


class Payload(NamedTuple):
    """The payload of one event, as it is stored."""

    event_id: str
    text: str | bytes


class Fire(NamedTuple):
    """The last tick of a schedule, and what its event said of it while that is retained."""

    key: str
    tick: datetime
    event_type: str | None
    cron: str | None
    payload: str | None


class RunningClaim(NamedTuple):
    """A claim whose attempt has begun, and holds its lease."""

    event_id: str
    type: str
    handler: str
    session_id: str
    started_at: datetime


class Backlog:
    """Over one database. Costs what it gives, and never the events that consumers have finished."""

    def __init__(self, database: Database, sql: Mapping[str, str], clock: Clock) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock

    def waiting(self, namespace: str, names: Sequence[str], event_type: str) -> Iterator[Payload]:
        """The payloads of a type that wait for a consumer by any of its names, the next one first.

        Those that can be claimed, the most urgent first; those that are claimed or in backoff; those
        that are not dispatched yet.
        """
        for name in names:
            asked = {"namespace": namespace, "name": name}
            for number, _ in self._database.all(self._sql["get_consumer"], asked):
                place = {"consumer_id": number, "type": event_type}
                for (priority,) in self._database.all(self._sql["ready_priorities"], place):
                    yield from self._pages("ready_payloads", place | {"priority": priority})
                yield from self._pages("open_payloads", place)
        of_type = {"namespace": namespace, "type": event_type}
        yield from self._pages("arriving_payloads", of_type, (0, ""))

    def retained(self, namespace: str, names: Sequence[str], event_type: str) -> Iterator[Payload]:
        """The payloads that a consumer of these names gets if it subscribes to a type now."""
        place = {"namespace": namespace, "type": event_type}
        known = {"names": codec.encode_checked(list(names))}
        for (priority,) in self._database.all(self._sql["priorities"], place):
            yield from self._pages("retained_payloads", place | known | {"priority": priority})

    def count_retained(self, namespace: str, names: Sequence[str], event_type: str) -> int:
        """How many these are. Costs the retained events of the type."""
        known = {"names": codec.encode_checked(list(names))}
        asked = {"namespace": namespace, "type": event_type} | known
        return int(self._database.all(self._sql["count_retained"], asked)[0][0])

    def deferred(self, namespace: str, event_type: str) -> Iterator[Payload]:
        """The payloads of the deferred events of a type, the earliest first."""
        place = {"namespace": namespace, "type": event_type}
        yield from self._pages("deferred_payloads", place, (float("-inf"), 0))

    def dead(self, namespace: str, names: Sequence[str], event_type: str) -> Iterator[Payload]:
        """The payloads of a type that are dead letters of these consumers, the newest first."""
        known = {"names": codec.encode_checked(list(names))}
        place = {"namespace": namespace, "type": event_type} | known
        yield from self._pages("dead_payloads", place, (_LATEST, _LAST_NUMBER))

    def _pages(
        self, name: str, place: Mapping[str, Any], after: tuple[Any, Any] = ("", "")
    ) -> Iterator[Payload]:
        while True:
            asked = {**place, "after": after[0], "after_id": after[1], "most": _MOST}
            with self._database.read() as tx:
                rows = tx.page(self._sql[name], asked, _MOST_BYTES)
            if not rows:
                return
            for _, _, event_id, payload, left_out in rows:
                if not left_out:
                    yield Payload(event_id, payload)
            after = (rows[-1][0], rows[-1][1])

    def last_fires(self, namespace: str) -> list[Fire]:
        """Every schedule of a namespace that has fired within the retention time."""
        rows = self._database.all(self._sql["last_fires"], {"namespace": namespace})
        return [
            Fire(key, from_text(tick), event_type, _cron(source), _text(payload))
            for key, tick, event_type, source, payload in rows
        ]

    def longest_attempt(self, namespace: str) -> RunningClaim | None:
        """The attempt that runs longest at this moment. Events started together began at one time."""
        asked = {"namespace": namespace, "now": to_text(self._clock.now())}
        rows = self._database.all(self._sql["longest_attempt"], asked)
        if not rows:
            return None
        event_id, event_type, handler, session_id, started_at = rows[0]
        return RunningClaim(event_id, event_type, handler, session_id, from_text(started_at))


def _cron(source: str | None) -> str | None:
    if source is None or not source.startswith(_SCHEDULE):
        return None
    return source.removeprefix(_SCHEDULE)


def _text(payload: str | bytes | None) -> str | None:
    return payload.decode(errors="backslashreplace") if isinstance(payload, bytes) else payload
