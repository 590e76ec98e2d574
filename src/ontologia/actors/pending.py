"""Pending requests: commands and queries that wait for an outcome, how they end, and their timeouts.

One table by request id, with an index by connection. A request belongs to a client of an adapter,
to an actor, or to the loop and the program around it.

Clients choose the ids, so a client may reuse the id of an abandoned request while an actor still
works on it. Actors handle messages in order: the first outcome that an actor sends for such an id
belongs to the abandoned request, and is dropped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ontologia.actors.lanes import Lane, Lanes
from ontologia.actors.message import TIMEOUT_TYPE, Message, message_with
from ontologia.actors.observability import ADAPTER_FAULT, Signals

if TYPE_CHECKING:
    from ontologia.actors.adapter import Adapter

TIMER_DELAY = 0.05
"""Seconds after which a pending request gets a timer; at once if its timeout is shorter."""
_MOST_ABANDONED = 10_000
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Client:
    """A connection of an adapter."""

    adapter: Adapter
    connection_id: str
    handled: Callable[[], object] | None = field(default=None, compare=False)
    """Called when the actors have handled its message."""


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
    """The capability that has to answer; None while the request waits in a lane."""
    timeout: asyncio.TimerHandle | None = None
    over: bool = False
    """Whether it has left the table."""
    abandoned: bool = False
    number: int = field(default_factory=_numbers.__next__)
    """Distinguishes it from earlier requests with the same id."""

    @property
    def adapter_id(self) -> str | None:
        """The adapter that the request came from."""
        return self.owner.adapter.id if isinstance(self.owner, Client) else None

    @property
    def connection_id(self) -> str | None:
        """The connection that the request came from."""
        return self.owner.connection_id if isinstance(self.owner, Client) else None

    def failure(self, code: int, text: str, **context: Any) -> Message:
        """The outcome that this request failed."""
        data = {"code": code, "message": text, **context}
        return message_with("error", self.request_type, data, self.request_id, self.correlation)


class PendingTable:
    """All requests without an outcome so far."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._of_connection: dict[tuple[str, str], dict[str, Entry]] = {}
        self._abandoned: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> bool:
        """Add a request; False, and nothing changed, if its id is taken."""
        if self._entries.setdefault(entry.request_id, entry) is not entry:
            return False
        if isinstance(entry.owner, Client):
            key = (entry.owner.adapter.id, entry.owner.connection_id)
            self._of_connection.setdefault(key, {})[entry.request_id] = entry
        return True

    def get(self, request_id: str | None) -> Entry | None:
        """The entry of a request; None if it is not pending."""
        return None if request_id is None else self._entries.get(request_id)

    def entries(self) -> list[Entry]:
        """All entries, the oldest first."""
        return list(self._entries.values())

    def resolve(self, request_id: str | None, by: str | None = None) -> Entry | None:
        """Remove and return the entry that this outcome answers; None if it is an orphan.

        `by` is the capability that sent the outcome.
        """
        if request_id is None:
            return None
        if by is not None and self._was_abandoned(request_id, by):
            return None
        return self._remove(request_id)

    def abandon(self, request_id: str) -> Entry | None:
        """Remove an entry before its outcome came; a late outcome is an orphan."""
        entry = self._remove(request_id)
        if entry is not None:
            entry.abandoned = True
            self._expect_late_outcome(entry)
        return entry

    def dispatched(self, entry: Entry, capability_id: str) -> None:
        """Record the capability that has to answer, also for an entry abandoned before."""
        entry.capability_id = capability_id
        if entry.abandoned:
            self._expect_late_outcome(entry)

    def disconnect(self, adapter_id: str, connection_id: str) -> list[Entry]:
        """Abandon all requests of a connection."""
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


class Outcomes:
    """Ends pending requests: brings each outcome to the owner of its request, once."""

    def __init__(
        self,
        lanes: Lanes[Any],
        post: Callable[[str, Message], object],
        signals: Signals,
        timeouts: Timeouts,
    ) -> None:
        self.pending = PendingTable()
        self._lanes, self._post, self._signals = lanes, post, signals
        self._timeouts = timeouts

    def answer(self, entry: Entry, code: int, text: str) -> None:
        """Answer with an error on behalf of the actor, if the request is still pending."""
        if not entry.over:
            self.pending.resolve(entry.request_id)
            self.finish(entry, entry.failure(code, text))

    def time_out(self, entry: Entry) -> None:
        """Answer that the request timed out, if it is still pending."""
        if not entry.over:
            self.pending.abandon(entry.request_id)
            context = {} if entry.capability_id is None else {"capability": entry.capability_id}
            self.finish(entry, entry.failure(504, "Request timed out", **context))

    def finish(self, entry: Entry, outcome: Message) -> None:
        """Deliver the outcome of an entry that has left the table."""
        if entry.timeout is not None:
            entry.timeout.cancel()
        self._timeouts.end(entry)
        self.deliver(entry, outcome)

    def deliver(self, entry: Entry, outcome: Message) -> None:
        """Give an outcome to the owner of the request."""
        owner = entry.owner
        if isinstance(owner, Client):
            self._lanes.queue_microtask(partial(self._write_out, owner, outcome))
        elif isinstance(owner, Peer):
            self._post(owner.capability_id, outcome)
        elif owner.resolve is not None:
            owner.resolve(outcome)

    def disconnected(self, adapter_id: str, connection_id: str) -> None:
        """Abandon all requests of a connection."""
        for entry in self.pending.disconnect(adapter_id, connection_id):
            self._timeouts.end(entry)

    def close(self) -> None:
        """Answer all pending requests of clients and the program with error 503."""
        for entry in self.pending.entries():
            self.pending.abandon(entry.request_id)
            if not isinstance(entry.owner, Peer):
                self.deliver(entry, entry.failure(503, "The loop was stopped"))

    def _write_out(self, client: Client, outcome: Message) -> None:
        try:
            client.adapter.deliver(client.connection_id, outcome)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            where = {"adapter": client.adapter.id, "connection": client.connection_id}
            self._signals.emit(ADAPTER_FAULT, outcome.type, {**where, "error": repr(error)})


class Timeouts:
    """Timeouts of clients' requests, as timers of the Timer capability.

    A timer costs four messages, to set and to cancel it, and most requests are answered at once. So
    a request gets its timer only when it is still pending after `TIMER_DELAY`.
    """

    def __init__(self, send: Callable[[Message, Owner, Lane], object]) -> None:
        self._send = send
        self._untimed: list[tuple[Entry, float]] = []
        """Requests without a timer, each with the time at which it is due."""

    def begin(self, entry: Entry, seconds: float) -> None:
        """Time this request out after so many seconds."""
        if seconds <= TIMER_DELAY:
            self._set_timer(entry, seconds)
            return
        host = asyncio.get_running_loop()
        self._untimed.append((entry, host.time() + seconds))
        if len(self._untimed) == 1:
            host.call_later(TIMER_DELAY, self._set_timers)

    def end(self, entry: Entry) -> None:
        """Cancel the timer of a request that has left the table. Idempotent."""
        timer_id, entry.timeout_timer_id = entry.timeout_timer_id, None
        if timer_id is not None:
            self._command("Timer.Cancel", {"timerId": timer_id}, entry, None)

    def _set_timers(self) -> None:
        untimed, self._untimed = self._untimed, []
        now = asyncio.get_running_loop().time()
        for entry, due in untimed:
            if not entry.over:
                self._set_timer(entry, max(0.0, due - now))

    def _set_timer(self, entry: Entry, seconds: float) -> None:
        # When it fires, another request may have the same id; its number is unique.
        data = {"requestId": entry.request_id, "number": entry.number}
        template = {"kind": "command", "type": TIMEOUT_TYPE, "data": data}
        timer = {"delayMs": seconds * 1000, "message": template}
        self._command("Timer.Set", timer, entry, partial(self._timer_set, entry))

    def _timer_set(self, entry: Entry, outcome: Message) -> None:
        if outcome.kind == "reply":
            entry.timeout_timer_id = outcome.data["timerId"]
            if entry.over:
                self.end(entry)

    def _command(
        self, type: str, data: Any, entry: Entry, resolve: Callable[[Message], object] | None
    ) -> None:
        command = message_with("command", type, data, entry.request_id, entry.correlation)
        self._send(command, Program(resolve), "system")
