"""Taking what an actor says: it is checked against its schema and put into a lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ontologia.actors.lanes import lane_of
from ontologia.actors.message import Message, Sealed, encode, opened
from ontologia.actors.packet import Packet
from ontologia.actors.parts import checked_error
from ontologia.actors.pending import Peer
from ontologia.actors.schema import Decoder, decode_as
from ontologia.actors.worker import MessageEvent
from ontologia.errors import InvalidValueError

if TYPE_CHECKING:
    from ontologia.actors.dispatch import Dispatch


class Voice:
    """The listener of one actor."""

    def __init__(self, capability_id: str, dispatch: Dispatch) -> None:
        self._id, self._dispatch = capability_id, dispatch
        self._peer = Peer(capability_id)
        self._outbound = dispatch.router.outbound[capability_id]
        self._put = dispatch.lanes.put
        self._usual: dict[str, Decoder | None] = {}
        """What it said before, and may say again: events to which somebody subscribed, by type, and
        what they have yet to pass."""

    def heard(self, event: Any) -> None:
        """Take what the actor says."""
        said = event.said if type(event) is MessageEvent else None
        if type(said) is Sealed and said.kind == "event" and said.type in self._usual:
            checker = self._usual[said.type]
            self._put(Packet(said, said.body, self._peer, None, checker), "user")
            return
        try:
            said = _said(event)
        except InvalidValueError as error:
            self._dispatch.signals.fault(self._id, None, str(error))
            return
        try:
            self._take(said)
        except InvalidValueError as error:
            self._dispatch.refuse(self._id, opened(said), str(error))

    def failed(self, event: Any) -> None:
        """Take the actor's word that something went wrong in it."""
        error = str(getattr(event, "error", None) or getattr(event, "message", event))
        told = str(getattr(event, "traceback", ""))
        cause = getattr(event, "cause", None)
        self._dispatch.signals.fault(self._id, cause, error, traceback=told)

    def _take(self, said: Message | Sealed) -> None:
        body, checker = encode(said), self._outbound.checker(said)
        if said.kind == "event":
            self._take_event(said, body, checker)
            return
        if said.kind == "error":
            checked_error(opened(said).data)
        self._dispatch.accept(said, self._peer, None, body, checker)

    def _take_event(self, said: Message | Sealed, body: bytes, checker: Decoder | None) -> None:
        lane = lane_of(said.type)
        if lane == "system":
            self._dispatch.signals.note(said.type, opened(said).data)
        if said.type in self._dispatch.router.subscriptions:
            if lane == "user" and type(said) is Sealed:
                self._usual[said.type] = checker
            self._put(Packet(said, body, self._peer, None, checker), lane)
            return
        if checker is not None:
            decode_as(checker, body)
        self._dispatch.lanes.wake()  # nobody wants it; it may have been the last to be alive for


def _said(event: Any) -> Message | Sealed:
    if type(event) is MessageEvent and isinstance(event.said, Message | Sealed):
        return event.said
    found = getattr(event, "data", None)
    if isinstance(found, Message):
        return found
    if isinstance(found, Mapping):
        return Message.from_data(cast("Mapping[str, Any]", found))
    raise InvalidValueError(f"an event without a message: {event!r}")
