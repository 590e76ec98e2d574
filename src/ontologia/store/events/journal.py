"""The journal: events, and those that wait for their time, as a bus of extensions shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ontologia.store.database import Database
from ontologia.store.events.listings import readable

_ENTRY = (
    *("id", "topic", "source", "payload", "correlation_id", "status", "created_at"),
    *("processed_at", "error", "event_id"),
)
_DEFERRED = (
    *("id", "topic", "source", "payload", "correlation_id", "fire_at", "status", "created_at"),
    "fired_at",
)


class Journal:
    """Reads `event_journal` and `deferred_events`. Rows are dicts, named as their columns."""

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    def number_of(self, event_id: str) -> int:
        """The number of an event that is stored."""
        found: int = self._database.all(self._sql["event_number"], {"id": event_id})[0][0]
        return found

    def entries(
        self,
        namespace: str,
        *,
        topic: str | None = None,
        status: str | None = None,
        correlation_id: str | None = None,
        limit: int,
    ) -> list[dict[str, Any]]:
        """The last `limit` of the events that are asked for, in the order of their numbers.

        Goes back from the newest until there are enough.
        """
        asked = {"topic": topic, "status": status, "correlation_id": correlation_id}
        place = {"namespace": namespace, "limit": limit}
        rows = self._database.all(self._sql["journal"], {**place, **asked})
        return [_shown(_ENTRY, row) for row in reversed(rows)]

    def entry(self, namespace: str, number: int) -> dict[str, Any] | None:
        """One event by its number."""
        place = {"namespace": namespace, "id": number}
        rows = self._database.all(self._sql["journal_entry"], place)
        return _shown(_ENTRY, rows[0]) if rows else None

    def deferred(
        self, namespace: str, *, status: str | None, until: float | None, limit: int
    ) -> list[dict[str, Any]]:
        """Deferred events, the earliest first."""
        place = {"namespace": namespace, "limit": limit}
        asked = {"status": status, "until": until}
        rows = self._database.all(self._sql["list_deferred"], {**place, **asked})
        return [_shown(_DEFERRED, row) for row in rows]

    def deferred_number(self, namespace: str, event_id: str, topic: str) -> int | None:
        """The number of an event that waits for its time; None if there is none, or it does not."""
        place = {"namespace": namespace, "event_id": event_id, "topic": topic}
        rows = self._database.all(self._sql["deferred_number"], place)
        return rows[0][0] if rows else None


def _shown(names: tuple[str, ...], row: Any) -> dict[str, Any]:
    shown = dict(zip(names, row, strict=True))
    shown["payload"] = readable(shown["payload"])
    return shown
