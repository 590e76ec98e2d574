"""Routing: takes messages in, finds who gets them, and brings outcomes back.

Nothing here waits, and nothing of an actor runs here: each message is posted and that is all.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
from pydantic import ValidationError

from ontologia.actors.lanes import Lane, Lanes, lane_of
from ontologia.actors.message import (
    OUTCOMES,
    REQUESTS,
    TIMEOUT_TYPE,
    Message,
    Sealed,
    encode,
    is_answered,
    opened,
)
from ontologia.actors.observability import ORPHAN, ROUTED, ROUTING_ERROR, Signals
from ontologia.actors.outcomes import Outcomes, failure
from ontologia.actors.packet import Packet
from ontologia.actors.parts import explain
from ontologia.actors.pending import Client, Entry, Owner, Peer, PendingTable, Program
from ontologia.actors.permission import check_client_may_say
from ontologia.actors.posts import Posts, Receipt
from ontologia.actors.router import Route, Router
from ontologia.actors.schema import Decoder, decode, decode_as
from ontologia.actors.timeouts import Timeouts
from ontologia.errors import InvalidValueError


class Dispatch:
    """The part of the loop that routes."""

    def __init__(self, router: Router, lanes: Lanes[Packet]) -> None:
        self.signals = Signals(self._signal, router.subscriptions)
        self.posts = Posts(self.signals, lanes.wake)
        self._timeouts = Timeouts(self.accept)
        self.outcomes = Outcomes(lanes, self.posts, self.signals, self._timeouts)
        self.router, self.lanes = router, lanes

    @property
    def pending(self) -> PendingTable:
        """The requests without an outcome so far."""
        return self.outcomes.pending

    # -- in ---------------------------------------------------------------------------------------

    def accept(
        self,
        message: Message | Sealed,
        source: Owner,
        lane: Lane | None = None,
        body: bytes | None = None,
        checker: Decoder | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Put a message into a lane; a command or query is entered as pending first."""
        body = encode(message) if body is None else body
        entry = None
        if is_answered(message):
            origin = opened(message).metadata
            entry = Entry(origin.id, message.type, source, origin.correlation)
            if not self.pending.add(entry):
                text = f"The id {origin.id} is that of another request, which has no outcome yet"
                self.outcomes.deliver(entry, failure(entry, 409, text))
                if receipt is not None:
                    receipt.less()
                return
            if isinstance(source, Client) and source.adapter.timeout is not None:
                self._timeouts.begin(entry, source.adapter.timeout)
        packet = Packet(message, body, source, entry, checker, receipt)
        self.lanes.put(packet, lane or lane_of(message.type))

    def receive(self, message: Message, client: Client) -> None:
        """Take what a client says; InvalidValueError if it is not for clients to say."""
        check_client_may_say(message)
        receipt = None if client.handled is None else Receipt(client.handled)
        self.accept(message, client, "user", receipt=receipt)

    # -- the turn ---------------------------------------------------------------------------------

    def route(self, packet: Packet) -> None:
        """Post one message to whoever is to have it."""
        try:
            self._route(packet)
        finally:
            if packet.receipt is not None:
                packet.receipt.less()

    def _route(self, packet: Packet) -> None:
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
        route = self.router.handlers.get((packet.kind, packet.type))
        if route is None:
            text = f"No capability takes the {packet.kind} {packet.type}"
            self.signals.about(ROUTING_ERROR, decode(packet.body), reason=text)
            self.outcomes.answer(entry, 404, text)
            return
        try:
            message = self._decoded(packet, route)
        except InvalidValueError as error:
            self.outcomes.answer(entry, 400, f"Not a valid {packet.type}: {error}")
            return
        if message is None:
            return
        self.pending.dispatched(entry, route.capability_id)
        if isinstance(entry.owner, Program) and entry.owner.timeout is not None:
            host = asyncio.get_running_loop()
            entry.guard = host.call_later(entry.owner.timeout, self.outcomes.give_up, entry)
        if not self.posts.post(route.capability_id, message, packet.receipt):
            self.outcomes.answer(entry, 500, f"{packet.type} could not be given to its actor")
        elif self.signals.wanted(ROUTED):
            self._routed(packet, route)

    def _tell(self, packet: Packet) -> None:
        for route in self.router.subscriptions.get(packet.type, ()):
            try:
                message = self._decoded(packet, route)
            except InvalidValueError as error:
                said = {"capability": route.capability_id, "reason": str(error)}
                self.signals.about(ROUTING_ERROR, decode(packet.body), **said)
                continue
            if message is None:
                return
            if self.posts.post(
                route.capability_id, message, packet.receipt
            ) and self.signals.wanted(ROUTED):
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
        by = packet.source.capability_id if isinstance(packet.source, Peer) else None
        try:
            message = decode(packet.body)
        except ValidationError as error:
            self._cannot_bring_back(packet, by, explain(error))
            return
        answered = message.metadata.causation
        if packet.checker is not None:
            try:
                decode_as(packet.checker, packet.body)
            except InvalidValueError as error:
                self._refuse_packet(packet, str(error))
                return
        entry = self.pending.resolve(answered, by)
        if entry is not None:
            self.outcomes.finish(entry, message)
            return
        said: dict[str, Any] = {"kind": packet.kind, "answers": answered, "by": by}
        if packet.kind == "error":
            said["error"] = message.data
        self.signals.about(ORPHAN, message, **said)

    def _cannot_bring_back(self, packet: Packet, by: str | None, reason: str) -> None:
        """Answer for an outcome that could be written but not be read: it is nested too deep."""
        answered = orjson.loads(packet.body)["metadata"].get("causation")
        text = f"{packet.type} gave a {packet.kind} that cannot be read: {reason}"
        self.signals.fault(by or "", None, text)
        entry = self.pending.resolve(answered, by)
        if entry is not None:
            self.outcomes.finish(entry, failure(entry, 500, text))

    def _time_out(self, packet: Packet) -> None:
        data = decode(packet.body).data
        request_id = data.get("requestId") if isinstance(data, dict) else None
        entry = self.pending.get(request_id) if isinstance(request_id, str) else None
        if entry is None or data.get("number", entry.number) != entry.number:
            return
        if isinstance(packet.source, Client) and entry.owner != packet.source:
            return  # a client may give up on its own requests alone
        self.outcomes.give_up(entry)

    # -- what must not be said --------------------------------------------------------------------

    def refuse(self, capability_id: str, message: Message, reason: str) -> None:
        """Drop what an actor must not say; whoever waits for it is told."""
        self.signals.fault(capability_id, message, reason)
        text = f"{message.type} gave a {message.kind} that is not allowed: {reason}"
        if message.kind in REQUESTS:
            self.posts.post(capability_id, message.error(500, text))
        elif message.kind in OUTCOMES:
            entry = self.pending.resolve(message.metadata.causation, capability_id)
            if entry is not None:
                self.outcomes.finish(entry, failure(entry, 500, text))

    def _refuse_packet(self, packet: Packet, reason: str) -> None:
        by = cast(Peer, packet.source).capability_id
        message = decode(packet.body)
        if packet.entry is None:
            self.refuse(by, message, reason)
            return
        self.signals.fault(by, message, reason)
        text = f"{message.type} is not allowed to its sender: {reason}"
        self.outcomes.answer(packet.entry, 500, text)

    # -- signals ----------------------------------------------------------------------------------

    def _routed(self, packet: Packet, route: Route) -> None:
        if not packet.type.startswith("Sys."):
            told = {"kind": packet.kind, "capability": route.capability_id}
            self.signals.about(ROUTED, decode(packet.body), **told)

    def _signal(self, message: Message) -> None:
        self.accept(message, Program(), "system")
