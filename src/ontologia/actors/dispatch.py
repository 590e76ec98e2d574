"""Routing: takes messages in, finds who gets them, and brings outcomes back.

Nothing here waits, and nothing of an actor runs here: each message is posted and that is all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from pydantic import ValidationError

from ontologia.actors.lanes import Lane, Lanes, lane_of
from ontologia.actors.message import (
    OUTCOMES,
    REQUESTS,
    TIMEOUT_TYPE,
    Message,
    checked_error,
    encode,
    explain,
    made,
)
from ontologia.actors.observability import (
    ACTOR_FAULT,
    ADAPTER_FAULT,
    ORPHAN,
    ROUTED,
    ROUTING_ERROR,
    Signals,
)
from ontologia.actors.pending import Client, Entry, Owner, Peer, PendingTable, Program
from ontologia.actors.router import Route, Router
from ontologia.actors.schema import Decoder, decode, decode_as
from ontologia.errors import InvalidValueError


class Packet:
    """A message in a lane: its bytes, and what routing needs to know of it."""

    __slots__ = ("body", "checker", "entry", "kind", "source", "type")

    def __init__(
        self,
        message: Message,
        body: bytes,
        source: Owner,
        entry: Entry | None = None,
        checker: Decoder | None = None,
    ) -> None:
        self.kind, self.type, self.body = message.kind, message.type, body
        self.source, self.entry, self.checker = source, entry, checker


class Dispatch:
    """The part of the loop that routes."""

    def __init__(self, router: Router, lanes: Lanes[Packet]) -> None:
        self.pending = PendingTable()
        self.signals = Signals(self._signal, router.subscriptions)
        self.posts: dict[str, Callable[[Message], object]] = {}
        self._peers = {name: Peer(name) for name in router.outbound}
        self._router, self._lanes = router, lanes

    # -- in ---------------------------------------------------------------------------------------

    def accept(
        self,
        message: Message,
        source: Owner,
        lane: Lane | None = None,
        body: bytes | None = None,
        checker: Decoder | None = None,
    ) -> None:
        """Put a message into a lane; a command or query is entered as pending first."""
        body = encode(message) if body is None else body
        entry = None
        if message.kind in REQUESTS and not _is_timeout(message):
            origin = message.metadata
            entry = Entry(origin.id, message.type, source, origin.correlation)
            if not self.pending.add(entry):
                text = f"The id {origin.id} is that of another request, which has no outcome yet"
                self._deliver(entry, _failure(entry, 409, text))
                return
            if isinstance(source, Client) and source.adapter.timeout is not None:
                self._set_timeout(entry, source.adapter.timeout)
        packet = Packet(message, body, source, entry, checker)
        self._lanes.put(packet, lane or lane_of(message.type))

    def heard(self, capability_id: str, event: Any) -> None:
        """Take what an actor says."""
        try:
            message = _message_of(event)
        except InvalidValueError as error:
            self._fault(capability_id, None, str(error))
            return
        try:
            body = encode(message)
            checker = self._router.outbound[capability_id].checker(message)
            if message.kind == "event":
                self._heard_event(message, body, capability_id, checker)
                return
            if message.kind == "error":
                checked_error(message.data)
        except InvalidValueError as error:
            self._refuse(capability_id, message, str(error))
            return
        self.accept(message, self._peers[capability_id], None, body, checker)

    def _heard_event(
        self, message: Message, body: bytes, capability_id: str, checker: Decoder | None
    ) -> None:
        lane = lane_of(message.type)
        if lane == "system":
            self.signals.note(message.type, message.data)
        if message.type in self._router.subscriptions:
            self._lanes.put(Packet(message, body, self._peers[capability_id], None, checker), lane)
            return
        if checker is not None:
            decode_as(checker, body)
        self._lanes.wake()  # nobody wants it, and it may have been the last thing to be alive for

    def failed(self, capability_id: str, event: Any) -> None:
        """Take an actor's word that something went wrong in it."""
        error = str(getattr(event, "error", None) or getattr(event, "message", event))
        told = str(getattr(event, "traceback", ""))
        self._fault(capability_id, getattr(event, "cause", None), error, traceback=told)

    def disconnected(self, adapter_id: str, connection_id: str) -> None:
        """Forget what a connection asked for."""
        for entry in self.pending.disconnect(adapter_id, connection_id):
            self._cancel_timeout(entry)

    # -- the turn ---------------------------------------------------------------------------------

    def route(self, packet: Packet) -> None:
        """Post one message to whoever is to have it."""
        if packet.kind == "event":
            self._tell(packet)
        elif packet.kind in OUTCOMES:
            self._bring_back(packet)
        elif packet.kind == "command" and packet.type == TIMEOUT_TYPE:
            self._time_out(packet)
        else:
            self._ask(packet)

    def _ask(self, packet: Packet) -> None:
        entry = cast(Entry, packet.entry)
        route = self._router.handlers.get((packet.kind, packet.type))
        if route is None:
            text = f"No capability takes the {packet.kind} {packet.type}"
            self._signal_of(ROUTING_ERROR, packet, reason=text)
            self._answer(entry, 404, text)
            return
        try:
            message = self._decoded(packet, route)
        except InvalidValueError as error:
            self._answer(entry, 400, f"Not a valid {packet.type}: {error}")
            return
        if message is None:
            return
        self.pending.dispatched(entry, route.capability_id)
        if isinstance(entry.owner, Program) and entry.owner.timeout is not None:
            host = asyncio.get_running_loop()
            entry.guard = host.call_later(entry.owner.timeout, self._give_up, entry)
        if not self._post(route.capability_id, message):
            self._answer(entry, 500, f"{packet.type} could not be given to its actor")
        elif self.signals.wanted(ROUTED):
            self._routed(packet, route)

    def _tell(self, packet: Packet) -> None:
        for route in self._router.subscriptions.get(packet.type, ()):
            try:
                message = self._decoded(packet, route)
            except InvalidValueError as error:
                said = {"capability": route.capability_id, "reason": str(error)}
                self._signal_of(ROUTING_ERROR, packet, **said)
                continue
            if message is None:
                return
            if self._post(route.capability_id, message) and self.signals.wanted(ROUTED):
                self._routed(packet, route)

    def _decoded(self, packet: Packet, route: Route) -> Message | None:
        """A message that nobody else has; None if its sender was not allowed to send it.

        InvalidValueError if this receiver does not take it. Where sender and receiver have the same
        schema, it is checked once for both.
        """
        checker = packet.checker
        if checker is None:
            return decode_as(route.decoder, packet.body)
        try:
            checked = checker(packet.body)
        except ValidationError as error:
            self._refuse_packet(packet, explain(error))
            return None
        packet.checker = None
        return checked if checker is route.decoder else decode_as(route.decoder, packet.body)

    def _bring_back(self, packet: Packet) -> None:
        message = decode(packet.body)
        answered = message.metadata.causation
        by = packet.source.capability_id if isinstance(packet.source, Peer) else None
        if packet.checker is not None:
            try:
                decode_as(packet.checker, packet.body)
            except InvalidValueError as error:
                self._refuse_packet(packet, str(error))
                return
        entry = self.pending.resolve(answered, by)
        if entry is not None:
            self._finish(entry, message)
            return
        said: dict[str, Any] = {"kind": packet.kind, "answers": answered, "by": by}
        if packet.kind == "error":
            said["error"] = message.data
        self._signal_of(ORPHAN, packet, **said)

    def _time_out(self, packet: Packet) -> None:
        data = decode(packet.body).data
        request_id = data.get("requestId") if isinstance(data, dict) else None
        entry = self.pending.get(request_id) if isinstance(request_id, str) else None
        if entry is None:
            return
        if isinstance(packet.source, Client) and entry.owner != packet.source:
            return  # a client may give up on its own requests alone
        self._give_up(entry)

    # -- outcomes ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Answer everything that is still pending: nobody else will."""
        for entry in self.pending.entries():
            self.pending.abandon(entry.request_id)
            if not isinstance(entry.owner, Peer):
                self._deliver(entry, _failure(entry, 503, "The loop was stopped"))

    def _answer(self, entry: Entry, code: int, text: str) -> None:
        """Answer a request in the place of its actor, if it is still waited for."""
        if not entry.over:
            self.pending.resolve(entry.request_id)
            self._finish(entry, _failure(entry, code, text))

    def _give_up(self, entry: Entry) -> None:
        if not entry.over:
            self.pending.abandon(entry.request_id)
            context = {} if entry.capability_id is None else {"capability": entry.capability_id}
            self._finish(entry, _failure(entry, 504, "Request timed out", **context))

    def _finish(self, entry: Entry, outcome: Message) -> None:
        if entry.guard is not None:
            entry.guard.cancel()
        self._cancel_timeout(entry)
        self._deliver(entry, outcome)

    def _deliver(self, entry: Entry, outcome: Message) -> None:
        owner = entry.owner
        if isinstance(owner, Client):
            self._lanes.queue_microtask(partial(self._write_out, owner, outcome))
        elif isinstance(owner, Peer):
            self._post(owner.capability_id, outcome)
        elif owner.resolve is not None:
            owner.resolve(outcome)

    def _write_out(self, client: Client, outcome: Message) -> None:
        try:
            client.adapter.deliver(client.connection_id, outcome)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            said = {"adapter": client.adapter.id, "connection": client.connection_id}
            self.signals.emit(ADAPTER_FAULT, outcome.type, {**said, "error": repr(error)})

    def _post(self, capability_id: str, message: Message) -> bool:
        try:
            self.posts[capability_id](message)
        except Exception as error:  # noqa: BLE001 - any object may be an actor
            self._fault(capability_id, message, f"it does not take messages: {error!r}")
            return False
        return True

    def _refuse(self, capability_id: str, message: Message, reason: str) -> None:
        """Drop what an actor must not say; whoever waits for it is told."""
        self._fault(capability_id, message, reason)
        text = f"{message.type} gave a {message.kind} that is not allowed: {reason}"
        if message.kind in REQUESTS:
            self._post(capability_id, message.error(500, text))
        elif message.kind in OUTCOMES:
            entry = self.pending.resolve(message.metadata.causation, capability_id)
            if entry is not None:
                self._finish(entry, _failure(entry, 500, text))

    def _refuse_packet(self, packet: Packet, reason: str) -> None:
        by = cast(Peer, packet.source).capability_id
        message = decode(packet.body)
        if packet.entry is None:
            self._refuse(by, message, reason)
            return
        self._fault(by, message, reason)
        self._answer(packet.entry, 500, f"{message.type} is not allowed to its sender: {reason}")

    # -- timeouts of clients ----------------------------------------------------------------------

    def _set_timeout(self, entry: Entry, seconds: float) -> None:
        template = {
            "kind": "command",
            "type": TIMEOUT_TYPE,
            "data": {"requestId": entry.request_id},
        }
        data = {"delayMs": seconds * 1000, "message": template}
        self._order("Timer.Set", data, entry, partial(self._timeout_set, entry))

    def _timeout_set(self, entry: Entry, outcome: Message) -> None:
        if outcome.kind == "reply":
            entry.timeout_timer_id = outcome.data["timerId"]
            if entry.over:
                self._cancel_timeout(entry)

    def _cancel_timeout(self, entry: Entry) -> None:
        timer_id, entry.timeout_timer_id = entry.timeout_timer_id, None
        if timer_id is not None:
            self._order("Timer.Cancel", {"timerId": timer_id}, entry, None)

    def _order(
        self, type: str, data: Any, entry: Entry, then: Callable[[Message], object] | None
    ) -> None:
        command = made(
            "command", type, data, causation=entry.request_id, correlation=entry.correlation
        )
        self.accept(command, Program(then), "system")

    # -- signals ----------------------------------------------------------------------------------

    def _routed(self, packet: Packet, route: Route) -> None:
        if not packet.type.startswith("Sys."):
            self._signal_of(ROUTED, packet, kind=packet.kind, capability=route.capability_id)

    def _signal_of(self, type: str, packet: Packet, **data: Any) -> None:
        origin = decode(packet.body).metadata
        said = {"messageId": origin.id, "messageType": packet.type, **data}
        lineage = {"causation": origin.id, "correlation": origin.correlation}
        self.signals.emit(type, packet.type, said, **lineage)

    def _fault(
        self, capability_id: str, message: Message | None, error: str, *, traceback: str = ""
    ) -> None:
        said: dict[str, Any] = {"capability": capability_id, "error": error}
        if traceback:
            said["traceback"] = traceback
        if not isinstance(message, Message):
            self.signals.emit(ACTOR_FAULT, "", said)
            return
        origin = message.metadata
        said |= {"messageId": origin.id, "messageType": message.type}
        lineage = {"causation": origin.id, "correlation": origin.correlation}
        self.signals.emit(ACTOR_FAULT, message.type, said, **lineage)

    def _signal(self, message: Message) -> None:
        self.accept(message, Program(), "system")


def _message_of(event: Any) -> Message:
    found = getattr(event, "data", None)
    if isinstance(found, Message):
        return found
    if isinstance(found, Mapping):
        return Message.from_data(cast("Mapping[str, Any]", found))
    raise InvalidValueError(f"an event without a message: {event!r}")


def _is_timeout(message: Message) -> bool:
    return message.kind == "command" and message.type == TIMEOUT_TYPE


def _failure(entry: Entry, code: int, text: str, **context: Any) -> Message:
    data = {"code": code, "message": text, **context}
    lineage = {"causation": entry.request_id, "correlation": entry.correlation}
    return made("error", entry.request_type, data, **lineage)
