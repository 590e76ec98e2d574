"""The requests that wait for an outcome, and whose they are.

One table by the id of the request, with an index by connection. A request belongs to a client of an
adapter, to an actor, or to the loop and the program around it.

Ids are the clients' own, so one that is free again may come again while the outcome of the first
request is still under way. Actors handle messages in order: the first outcome that an actor gives
for such an id is that of the first request, and reaches nobody.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ontologia.actors.adapter import Adapter
    from ontologia.actors.message import Message

_MOST_ABANDONED = 10_000
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Client:
    """A connection of an adapter."""

    adapter: Adapter
    connection_id: str
    handled: Callable[[], object] | None = field(default=None, compare=False)
    """Called when the actors are done with what it sent."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An actor."""

    capability_id: str


@dataclass(frozen=True, slots=True)
class Program:
    """The loop itself, or the program around it."""

    resolve: Callable[[Message], object] | None = None
    timeout: float | None = None


Owner = Client | Peer | Program


@dataclass(slots=True)
class Entry:
    """One request without an outcome so far."""

    request_id: str
    request_type: str
    owner: Owner
    correlation: str | None = None
    timeout_timer_id: str | None = None
    capability_id: str | None = None
    """Who is to answer; None while it waits in a lane."""
    guard: asyncio.TimerHandle | None = None
    over: bool = False
    """Whether it has left the table."""
    abandoned: bool = False
    number: int = field(default_factory=_numbers.__next__)
    """Tells it from others that had the same id before."""

    @property
    def adapter_id(self) -> str | None:
        """The adapter that the request came from."""
        return self.owner.adapter.id if isinstance(self.owner, Client) else None

    @property
    def connection_id(self) -> str | None:
        """The connection that the request came from."""
        return self.owner.connection_id if isinstance(self.owner, Client) else None


class PendingTable:
    """All requests without an outcome so far."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._of_connection: dict[tuple[str, str], dict[str, Entry]] = {}
        self._abandoned: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> bool:
        """Enter a request; False, and nothing changed, if its id is taken."""
        if self._entries.setdefault(entry.request_id, entry) is not entry:
            return False
        if isinstance(entry.owner, Client):
            key = (entry.owner.adapter.id, entry.owner.connection_id)
            self._of_connection.setdefault(key, {})[entry.request_id] = entry
        return True

    def get(self, request_id: str | None) -> Entry | None:
        """The entry of a request, if it still waits."""
        return None if request_id is None else self._entries.get(request_id)

    def entries(self) -> list[Entry]:
        """All of them, the oldest first."""
        return list(self._entries.values())

    def resolve(self, request_id: str | None, by: str | None = None) -> Entry | None:
        """Take out the entry that this outcome answers; None if it is an orphan.

        `by` is the capability that gave the outcome.
        """
        if request_id is None:
            return None
        if by is not None and self._was_abandoned(request_id, by):
            return None
        return self._remove(request_id)

    def abandon(self, request_id: str) -> Entry | None:
        """Take out an entry whose outcome is waited for no longer; a late one is an orphan."""
        entry = self._remove(request_id)
        if entry is not None:
            entry.abandoned = True
            self._expect_late_outcome(entry)
        return entry

    def dispatched(self, entry: Entry, capability_id: str) -> None:
        """Note who is to answer a request, also one that was abandoned before."""
        entry.capability_id = capability_id
        if entry.abandoned:
            self._expect_late_outcome(entry)

    def disconnect(self, adapter_id: str, connection_id: str) -> list[Entry]:
        """Abandon everything that a connection asked for."""
        found = list(self._of_connection.get((adapter_id, connection_id), ()))
        return [entry for each in found if (entry := self.abandon(each)) is not None]

    def _expect_late_outcome(self, entry: Entry) -> None:
        if entry.capability_id is None:
            return
        key = (entry.request_id, entry.capability_id)
        self._abandoned[key] = self._abandoned.get(key, 0) + 1
        if len(self._abandoned) > _MOST_ABANDONED:
            self._abandoned.popitem(last=False)

    def _was_abandoned(self, request_id: str, by: str) -> bool:
        if not self._abandoned:
            return False
        left = self._abandoned.pop((request_id, by), 0) - 1
        if left > 0:
            self._abandoned[request_id, by] = left
        return left >= 0

    def _remove(self, request_id: str) -> Entry | None:
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return None
        entry.over = True
        if isinstance(entry.owner, Client):
            key = (entry.owner.adapter.id, entry.owner.connection_id)
            mine = self._of_connection[key]
            del mine[request_id]
            if not mine:
                del self._of_connection[key]
        return entry
