"""How requests end: with an outcome that is brought to whoever asked, once."""

from __future__ import annotations

from functools import partial
from typing import Any

from ontologia.actors.lanes import Lanes
from ontologia.actors.message import Message, made
from ontologia.actors.observability import ADAPTER_FAULT, Signals
from ontologia.actors.pending import Client, Entry, Peer, PendingTable
from ontologia.actors.posts import Posts
from ontologia.actors.timeouts import Timeouts


class Outcomes:
    """Ends requests."""

    def __init__(
        self, lanes: Lanes[Any], posts: Posts, signals: Signals, timeouts: Timeouts
    ) -> None:
        self.pending = PendingTable()
        self._lanes, self._posts, self._signals = lanes, posts, signals
        self._timeouts = timeouts

    def answer(self, entry: Entry, code: int, text: str) -> None:
        """Answer a request in the place of its actor, if it is still waited for."""
        if not entry.over:
            self.pending.resolve(entry.request_id)
            self.finish(entry, failure(entry, code, text))

    def give_up(self, entry: Entry) -> None:
        """Answer that the time is up, if it is still waited for."""
        if not entry.over:
            self.pending.abandon(entry.request_id)
            context = {} if entry.capability_id is None else {"capability": entry.capability_id}
            self.finish(entry, failure(entry, 504, "Request timed out", **context))

    def finish(self, entry: Entry, outcome: Message) -> None:
        """Bring its outcome to whoever asked; the entry has left the table."""
        if entry.guard is not None:
            entry.guard.cancel()
        self._timeouts.end(entry)
        self.deliver(entry, outcome)

    def deliver(self, entry: Entry, outcome: Message) -> None:
        """Hand an outcome over."""
        owner = entry.owner
        if isinstance(owner, Client):
            self._lanes.queue_microtask(partial(self._write_out, owner, outcome))
        elif isinstance(owner, Peer):
            self._posts.post(owner.capability_id, outcome)
        elif owner.resolve is not None:
            owner.resolve(outcome)

    def disconnected(self, adapter_id: str, connection_id: str) -> None:
        """Forget what a connection asked for."""
        for entry in self.pending.disconnect(adapter_id, connection_id):
            self._timeouts.end(entry)

    def close(self) -> None:
        """Answer everything that is still pending: nobody else will."""
        for entry in self.pending.entries():
            self.pending.abandon(entry.request_id)
            if not isinstance(entry.owner, Peer):
                self.deliver(entry, failure(entry, 503, "The loop was stopped"))

    def _write_out(self, client: Client, outcome: Message) -> None:
        try:
            client.adapter.deliver(client.connection_id, outcome)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            said = {"adapter": client.adapter.id, "connection": client.connection_id}
            self._signals.emit(ADAPTER_FAULT, outcome.type, {**said, "error": repr(error)})


def failure(entry: Entry, code: int, text: str, **context: Any) -> Message:
    """The outcome that a request failed."""
    data = {"code": code, "message": text, **context}
    lineage = {"causation": entry.request_id, "correlation": entry.correlation}
    return made("error", entry.request_type, data, **lineage)
