"""Routing: takes messages in, finds their receivers, and brings outcomes back.

`RoutingTable` is made of the capabilities before anything runs. `Router` accepts messages of the
program, of clients and of actors into the lanes, and routes them from there. Nothing here waits, and
no code of an actor runs here: routing a message ends with posting it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from pydantic import ValidationError

from ontologia.actors.actor import MessageEvent, post_method
from ontologia.actors.capability import (
    RESERVED,
    Decoder,
    Handle,
    Schema,
    branches,
    decode,
    decode_as,
)
from ontologia.actors.client_timers import SET_TYPE, ClientTimers
from ontologia.actors.lanes import Lane, Lanes, lane_of
from ontologia.actors.message import (
    OUTCOMES,
    REQUESTS,
    TIMEOUT_TYPE,
    EncodedMessage,
    Message,
    check_error_data,
    decoded,
    encode,
    expects_outcome,
    explain,
    is_type,
)
from ontologia.actors.observability import ORPHAN, ROUTED, ROUTING_ERROR, Signals
from ontologia.actors.pending import (
    Client,
    Entry,
    Outcomes,
    Owner,
    Peer,
    PendingTable,
    Program,
    Timeouts,
)
from ontologia.actors.process import importable_name
from ontologia.actors.timer import TIMER
from ontologia.errors import ActorBootError, InvalidValueError

_MEMBERS = ("id", "description", "inbound", "outbound", "subscribes", "spawn")


# -- the routing table ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """One receiver of a message, and the decoder of its schema."""

    capability_id: str
    decoder: Decoder


class RoutingTable:
    """The handler of each command and query, and the subscribers of each event.

    ActorBootError lists all that is wrong with all capabilities, one line each.
    """

    def __init__(self, capabilities: Iterable[Any]) -> None:
        self.handlers: dict[Handle, Route] = {}
        self.subscriptions: dict[str, list[Route]] = {}
        self.outbound: dict[str, Schema] = {}
        self._problems: list[str] = []
        for position, capability in enumerate(capabilities):
            name = _name(capability, position)
            faults = list(_faults(capability))
            if not faults and name in self.outbound:
                faults = ["there is another capability with this id"]
            self._note(name, faults)
            if not faults:
                self._add(capability)
        if self._problems:
            raise ActorBootError(self._problems)

    def index(self) -> dict[str, list[str]]:
        """Each type of event with the ids of its subscribers."""
        return {
            each: [route.capability_id for route in routes]
            for each, routes in self.subscriptions.items()
        }

    def _add(self, capability: Any) -> None:
        inbound = Schema(capability.inbound, open_allowed=False)
        outbound = Schema(capability.outbound, open_allowed=True)
        self.outbound[capability.id] = outbound
        self._note(capability.id, [f"inbound: {each}" for each in inbound.problems])
        self._note(capability.id, [f"outbound: {each}" for each in outbound.problems])
        self._claim(capability.id, inbound)
        self._subscribe(capability, inbound)
        if getattr(capability, "isolation", "task") == "process":
            self._note(capability.id, list(_not_importable(capability)))

    def _claim(self, name: str, inbound: Schema) -> None:
        for handle, decoder in inbound.decoders.items():
            kind, type = handle
            if handle == RESERVED:
                self._note(name, [f"inbound: the {kind} {type} belongs to the loop"])
            elif kind in REQUESTS:
                other = self.handlers.setdefault(handle, Route(name, decoder))
                if other.capability_id != name:
                    fault = f"the {kind} {type} is already that of {other.capability_id!r}"
                    self._note(name, [f"inbound: {fault}; each has one capability"])
            elif kind != "event":
                fault = f"a {kind} ({type}) goes to whoever asked"
                self._note(name, [f"inbound: {fault}; only commands, queries and events come in"])

    def _subscribe(self, capability: Any, inbound: Schema) -> None:
        for each in dict.fromkeys(capability.subscribes):
            if is_type(each):
                decoder = inbound.decoders.get(("event", each), decode)
                route = Route(capability.id, decoder)
                self.subscriptions.setdefault(each, []).append(route)
            else:
                fault = f'{each!r} is not a type of events; they are written "Domain.Action"'
                self._note(capability.id, [f"subscribes: {fault}"])

    def _note(self, name: str, faults: Sequence[str]) -> None:
        self._problems += [f"{name}: {fault}" for fault in faults]


def _name(capability: Any, position: int) -> str:
    found = getattr(capability, "id", None)
    return found if isinstance(found, str) and found else f"capability number {position + 1}"


def _faults(capability: Any) -> Iterable[str]:
    """Members that are missing or of the wrong type; any object with the right ones will do."""
    missing = [each for each in _MEMBERS if not hasattr(capability, each)]
    if missing:
        yield from (f"{each} is missing" for each in missing)
        return
    if not isinstance(capability.id, str) or not capability.id:
        yield f"id must be a text, got {capability.id!r}"
    if not isinstance(capability.description, str):
        yield f"description must be a text, got {capability.description!r}"
    if not isinstance(capability.subscribes, list | tuple):
        yield f"subscribes must be a list of types, got {capability.subscribes!r}"
    if not callable(capability.spawn):
        yield f"spawn must be a function or class, got {capability.spawn!r}"
    isolation = getattr(capability, "isolation", "task")
    if isolation not in ("task", "process"):
        yield f'isolation must be "task" or "process", got {isolation!r}'


def _not_importable(capability: Any) -> Iterable[str]:
    for what, things in (("spawn", [capability.spawn]), ("inbound", branches(capability.inbound))):
        for each in things:
            try:
                importable_name(each)
            except InvalidValueError as error:
                yield f"{what} must be importable to run in a process: {error.args[0]}"


# -- delivery to actors -----------------------------------------------------------------------------


class Receipt:
    """Counts the receivers that still handle a message of a client.

    A client that sends more than the actors handle has to be slowed down, also when it waits for no
    answers. So a message counts against its client until the last receiver has handled it.
    """

    __slots__ = ("_handled", "_left")

    def __init__(self, handled: Callable[[], object]) -> None:
        self._left, self._handled = 1, handled  # one for the loop, until it has routed the message

    def add(self) -> None:
        """One more receiver has it."""
        self._left += 1

    def done(self) -> None:
        """One receiver has handled it; the last one calls `handled`."""
        self._left -= 1
        if not self._left:
            self._handled()


class Mailboxes:
    """Posts messages to actors."""

    def __init__(self, signals: Signals, wake: Callable[[], object]) -> None:
        self._signals, self._wake = signals, wake
        self._post: dict[str, Callable[[Message], object]] = {}
        self._with_on_done: set[str] = set()
        self._receipts: dict[int, Receipt] = {}

    def add(self, capability_id: str, actor: Any) -> None:
        """Post to this actor; AttributeError or TypeError if it takes no messages."""
        self._post[capability_id] = post_method(actor)
        if hasattr(actor, "on_done"):
            actor.on_done = self._done
            self._with_on_done.add(capability_id)

    def post(self, capability_id: str, message: Message, receipt: Receipt | None = None) -> bool:
        """Post a message; False if that failed, which is signalled."""
        if receipt is not None and capability_id in self._with_on_done:
            receipt.add()
            self._receipts[id(message)] = receipt
        try:
            self._post[capability_id](message)
        except Exception as error:  # noqa: BLE001 - any object may be an actor
            self._done(message)
            self._signals.fault(capability_id, message, f"it does not take messages: {error!r}")
            return False
        return True

    def _done(self, message: Message) -> None:
        if self._receipts:
            receipt = self._receipts.pop(id(message), None)
            if receipt is not None:
                receipt.done()
        self._wake()  # it may have been the last thing that kept the loop alive


# -- the router -------------------------------------------------------------------------------------


class Packet:
    """A message in a lane: its bytes, and what routing needs to know about it."""

    __slots__ = ("body", "checker", "entry", "kind", "receipt", "source", "type")

    def __init__(
        self,
        message: Message | EncodedMessage,
        body: bytes,
        source: Owner,
        entry: Entry | None = None,
        checker: Decoder | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        self.kind, self.type, self.body = message.kind, message.type, body
        self.source, self.entry, self.checker, self.receipt = source, entry, checker, receipt


class Router:
    """Accepts messages into the lanes, and routes them."""

    def __init__(self, table: RoutingTable, lanes: Lanes[Packet]) -> None:
        self.signals = Signals(self._send_signal, table.subscriptions)
        self.mailboxes = Mailboxes(self.signals, lanes.wake)
        self._timeouts = Timeouts(self.accept)
        self.outcomes = Outcomes(lanes, self.mailboxes.post, self.signals, self._timeouts)
        self.client_timers = ClientTimers(self._cancel_timer)
        self.table, self.lanes = table, lanes

    @property
    def pending(self) -> PendingTable:
        """The requests without an outcome so far."""
        return self.outcomes.pending

    # -- in ---------------------------------------------------------------------------------------

    def accept(
        self,
        message: Message | EncodedMessage,
        source: Owner,
        lane: Lane | None = None,
        body: bytes | None = None,
        checker: Decoder | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Put a message into a lane; a command or query becomes pending first."""
        body = encode(message) if body is None else body
        entry = None
        if expects_outcome(message):
            origin = decoded(message).metadata
            entry = Entry(origin.id, message.type, source, origin.correlation)
            if not self.pending.add(entry):
                text = f"The id {origin.id} is that of another request, which has no outcome yet"
                self.outcomes.deliver(entry, entry.failure(409, text))
                if receipt is not None:
                    receipt.done()
                return
            if isinstance(source, Client) and source.adapter.timeout is not None:
                self._timeouts.begin(entry, source.adapter.timeout)
        packet = Packet(message, body, source, entry, checker, receipt)
        self.lanes.put(packet, lane or lane_of(message.type))

    def receive(self, message: Message, client: Client) -> None:
        """Accept a message of a client; InvalidValueError if clients may not send it."""
        _check_client_may_send(message)
        receipt = None if client.handled is None else Receipt(client.handled)
        self.accept(message, client, "user", receipt=receipt)

    def disconnected(self, adapter_id: str, connection_id: str) -> None:
        """Abandon all requests of a connection, and cancel its timers."""
        self.outcomes.disconnected(adapter_id, connection_id)
        self.client_timers.disconnected(adapter_id, connection_id)

    # -- the turn ---------------------------------------------------------------------------------

    def route(self, packet: Packet) -> None:
        """Post one message to its receivers."""
        try:
            self._route(packet)
        finally:
            if packet.receipt is not None:
                packet.receipt.done()

    def _route(self, packet: Packet) -> None:
        if packet.kind == "event":
            self._route_event(packet)
        elif packet.kind in OUTCOMES:
            self._route_outcome(packet)
        elif packet.kind == "command" and packet.type == TIMEOUT_TYPE:
            self._time_out(packet)
        else:
            self._route_request(packet)

    def _route_request(self, packet: Packet) -> None:
        entry = cast(Entry, packet.entry)
        route = self.table.handlers.get((packet.kind, packet.type))
        if route is None:
            text = f"No capability takes the {packet.kind} {packet.type}"
            self.signals.about(ROUTING_ERROR, decode(packet.body), reason=text)
            self.outcomes.answer(entry, 404, text)
            return
        try:
            message = self._decode_for(route, packet)
        except InvalidValueError as error:
            if isinstance(packet.source, Peer):
                self.client_timers.drop(entry.request_id)
            self.outcomes.answer(entry, 400, f"Not a valid {packet.type}: {error}")
            return
        if message is None:
            return
        if packet.type == SET_TYPE:
            refusal = self.client_timers.admit(entry, len(packet.body))
            if refusal is not None:
                self.outcomes.answer(entry, 429, refusal)
                return
        self.pending.dispatched(entry, route.capability_id)
        if isinstance(entry.owner, Program) and entry.owner.timeout is not None:
            host = asyncio.get_running_loop()
            entry.timeout = host.call_later(entry.owner.timeout, self.outcomes.time_out, entry)
        if not self.mailboxes.post(route.capability_id, message, packet.receipt):
            if packet.type == SET_TYPE:
                self.client_timers.drop(entry.request_id)
            self.outcomes.answer(entry, 500, f"{packet.type} could not be given to its actor")
        elif self.signals.wanted(ROUTED):
            self._signal_routed(packet, route)

    def _route_event(self, packet: Packet) -> None:
        for route in self.table.subscriptions.get(packet.type, ()):
            try:
                message = self._decode_for(route, packet)
            except InvalidValueError as error:
                reason = {"capability": route.capability_id, "reason": str(error)}
                self.signals.about(ROUTING_ERROR, decode(packet.body), **reason)
                continue
            if message is None:
                return
            if self.mailboxes.post(
                route.capability_id, message, packet.receipt
            ) and self.signals.wanted(ROUTED):
                self._signal_routed(packet, route)

    def _decode_for(self, route: Route, packet: Packet) -> Message | None:
        """A message of this receiver's own; None if the sender was not allowed to send it.

        InvalidValueError if this receiver does not take it. Where sender and receiver have the same
        schema, it is checked once for both.
        """
        checker = packet.checker
        if checker is None:
            return decode_as(route.decoder, packet.body)
        try:
            checked = checker(packet.body)
        except ValidationError as error:
            self._reject_packet(packet, explain(error))
            return None
        packet.checker = None
        return checked if checker is route.decoder else decode_as(route.decoder, packet.body)

    def _route_outcome(self, packet: Packet) -> None:
        by = packet.source.capability_id if isinstance(packet.source, Peer) else None
        try:
            message = decode(packet.body)
        except ValidationError as error:
            self._answer_for_undecodable(packet, by, explain(error))
            return
        request_id = message.metadata.causation
        if packet.checker is not None:
            try:
                decode_as(packet.checker, packet.body)
            except InvalidValueError as error:
                self._reject_packet(packet, str(error))
                return
        entry = self.pending.resolve(request_id, by)
        if entry is not None:
            self.outcomes.finish(entry, message)
            return
        data: dict[str, Any] = {"kind": packet.kind, "answers": request_id, "by": by}
        if packet.kind == "error":
            data["error"] = message.data
        self.signals.about(ORPHAN, message, **data)

    def _answer_for_undecodable(self, packet: Packet, by: str | None, reason: str) -> None:
        """Answer with an error for an outcome that orjson encoded and pydantic finds too deep."""
        request_id = orjson.loads(packet.body)["metadata"].get("causation")
        text = f"{packet.type} gave a {packet.kind} that cannot be read: {reason}"
        self.signals.fault(by or "", None, text)
        entry = self.pending.resolve(request_id, by)
        if entry is not None:
            self.outcomes.finish(entry, entry.failure(500, text))

    def _time_out(self, packet: Packet) -> None:
        data = decode(packet.body).data
        request_id = data.get("requestId") if isinstance(data, dict) else None
        entry = self.pending.get(request_id) if isinstance(request_id, str) else None
        if entry is None or data.get("number", entry.number) != entry.number:
            return
        if isinstance(packet.source, Client) and entry.owner != packet.source:
            return  # a client may time out only its own requests
        self.outcomes.time_out(entry)

    def _cancel_timer(self, timer_id: str) -> None:
        self.accept(Message.command("Timer.Cancel", {"timerId": timer_id}), Program(), "system")

    # -- messages that their sender may not send --------------------------------------------------

    def reject(self, capability_id: str, message: Message, reason: str) -> None:
        """Drop a message that an actor may not send; the requester gets error 500."""
        self.signals.fault(capability_id, message, reason)
        text = f"{message.type} gave a {message.kind} that is not allowed: {reason}"
        if message.kind in REQUESTS:
            self.mailboxes.post(capability_id, message.error(500, text))
        elif message.kind in OUTCOMES:
            entry = self.pending.resolve(message.metadata.causation, capability_id)
            if entry is not None:
                self.outcomes.finish(entry, entry.failure(500, text))

    def _reject_packet(self, packet: Packet, reason: str) -> None:
        by = cast(Peer, packet.source).capability_id
        message = decode(packet.body)
        if packet.entry is None:
            self.reject(by, message, reason)
            return
        self.signals.fault(by, message, reason)
        text = f"{message.type} is not allowed to its sender: {reason}"
        self.outcomes.answer(packet.entry, 500, text)

    # -- signals ----------------------------------------------------------------------------------

    def _signal_routed(self, packet: Packet, route: Route) -> None:
        if not packet.type.startswith("Sys."):
            data = {"kind": packet.kind, "capability": route.capability_id}
            self.signals.about(ROUTED, decode(packet.body), **data)

    def _send_signal(self, message: Message) -> None:
        self.accept(message, Program(), "system")


# -- messages of actors -----------------------------------------------------------------------------


class ActorListener:
    """Accepts the messages of one actor: checks them against its schema."""

    def __init__(self, capability_id: str, router: Router) -> None:
        self._id, self._router = capability_id, router
        self._peer = Peer(capability_id)
        self._outbound = router.table.outbound[capability_id]
        self._put = router.lanes.put
        self._accepted: dict[str, Decoder | None] = {}
        """The checker of each type of event that it sent before and that has subscribers."""

    def on_message(self, event: Any) -> None:
        """Accept a message that the actor sends."""
        sent = event.content if type(event) is MessageEvent else None
        if type(sent) is EncodedMessage and sent.kind == "event" and sent.type in self._accepted:
            checker = self._accepted[sent.type]
            self._put(Packet(sent, sent.body, self._peer, None, checker), "user")
            return
        try:
            sent = _content(event)
        except InvalidValueError as error:
            self._router.signals.fault(self._id, None, str(error))
            return
        try:
            self._accept(sent)
        except InvalidValueError as error:
            self._router.reject(self._id, decoded(sent), str(error))

    def on_error(self, event: Any) -> None:
        """Signal an error that the actor reports."""
        error = str(getattr(event, "error", None) or getattr(event, "message", event))
        traceback = str(getattr(event, "traceback", ""))
        cause = getattr(event, "cause", None)
        self._router.signals.fault(self._id, cause, error, traceback=traceback)

    def _accept(self, sent: Message | EncodedMessage) -> None:
        body, checker = encode(sent), self._outbound.checker(sent)
        if self._id == TIMER.id:
            self._router.client_timers.sent(decoded(sent), len(body))
        if sent.kind == "event":
            self._accept_event(sent, body, checker)
            return
        if sent.kind == "error":
            check_error_data(decoded(sent).data)
        self._router.accept(sent, self._peer, None, body, checker)

    def _accept_event(
        self, sent: Message | EncodedMessage, body: bytes, checker: Decoder | None
    ) -> None:
        lane = lane_of(sent.type)
        if lane == "system":
            self._router.signals.note(sent.type, decoded(sent).data)
        if sent.type in self._router.table.subscriptions:
            if lane == "user" and type(sent) is EncodedMessage:
                self._accepted[sent.type] = checker
            self._put(Packet(sent, body, self._peer, None, checker), lane)
            return
        if checker is not None:
            decode_as(checker, body)
        self._router.lanes.wake()  # no subscriber; it may have kept the loop alive


def _content(event: Any) -> Message | EncodedMessage:
    if type(event) is MessageEvent and isinstance(event.content, Message | EncodedMessage):
        return event.content
    found = getattr(event, "data", None)
    if isinstance(found, Message):
        return found
    if isinstance(found, Mapping):
        return Message.from_data(cast("Mapping[str, Any]", found))
    raise InvalidValueError(f"an event without a message: {event!r}")


# -- messages of clients ----------------------------------------------------------------------------


def _check_client_may_send(message: Message) -> None:
    """InvalidValueError for outcomes and for the domain `Sys`, which is the loop's own.

    Actors trust its signals, and its one command ends requests. A client may time out its own
    requests, and send nothing else of that domain: neither directly nor through a timer.
    """
    if message.kind in OUTCOMES:
        raise InvalidValueError(
            f"clients send commands, queries and events; a {message.kind} is for actors to give"
        )
    if (message.kind, message.type) == RESERVED:
        return  # _time_out checks whose request it is
    found = system_type_in(message.type, message.data)
    if found is not None:
        by = "" if found == message.type else ", also by a timer"
        raise InvalidValueError(f"{found} is for the loop to say; clients may not{by}")


def system_type_in(type: str, data: object) -> str | None:
    """The type of the domain `Sys` that this message has or leads to; None if there is none.

    The message of a timer may set another timer, and so on.
    """
    while not type.startswith("Sys."):
        template = _member(data, "message") if type == SET_TYPE else None
        inner = _member(template, "type")
        if not isinstance(inner, str):
            return None
        type, data = inner, _member(template, "data")
    return type


def _member(value: object, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
