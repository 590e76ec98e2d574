"""What the loop reports about itself: signals of the domain `Sys`, and counts.

A signal is an event: an actor may subscribe to it. It is also a line of the log `ontologia.actors`,
with the type and a JSON object. Messages of the domain `Sys` cause no signals, so that no signal
leads to another; they are only logged.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from ontologia.actors.message import Message, message_with
from ontologia.clock import now_ms

log = logging.getLogger("ontologia.actors")

ROUTED = "Sys.Routed"
ROUTING_ERROR = "Sys.RoutingError"
ACTOR_FAULT = "Sys.ActorFault"
ADAPTER_FAULT = "Sys.AdapterFault"
LOOP_FAULT = "Sys.LoopFault"
ORPHAN = "Sys.OrphanOutcome"
TIMER_SET = "Sys.TimerSet"
TIMER_FIRED = "Sys.TimerFired"
TIMER_CANCELLED = "Sys.TimerCancelled"

_LEVELS = {
    ROUTING_ERROR: logging.WARNING,
    ACTOR_FAULT: logging.ERROR,
    ADAPTER_FAULT: logging.ERROR,
    LOOP_FAULT: logging.ERROR,
    ORPHAN: logging.WARNING,
}


class Signals:
    """Counts, logs and sends signals."""

    def __init__(self, send: Callable[[Message], object], subscribed: Mapping[str, object]) -> None:
        self.counts: Counter[str] = Counter()
        self._send, self._subscribed = send, subscribed

    def wanted(self, type: str) -> bool:
        """Whether such a signal has a subscriber or is logged."""
        return type in self._subscribed or log.isEnabledFor(_LEVELS.get(type, logging.DEBUG))

    def emit(self, type: str, about: str, data: dict[str, Any], **lineage: str | None) -> None:
        """Signal something that happened to a message of the type `about`."""
        self.note(type, data)
        if type in self._subscribed and not about.startswith("Sys."):
            self._send(message_with("event", type, data, **lineage))

    def about(self, type: str, message: Message, **data: Any) -> None:
        """Signal something that happened to this message."""
        origin = message.metadata
        data = {"messageId": origin.id, "messageType": message.type, **data}
        lineage = {"causation": origin.id, "correlation": origin.correlation}
        self.emit(type, message.type, data, **lineage)

    def fault(
        self, capability_id: str, message: Message | None, error: str, *, traceback: str = ""
    ) -> None:
        """Signal a fault of an actor, with the message that it was handling or sent."""
        data: dict[str, Any] = {"capability": capability_id, "error": error}
        if traceback:
            data["traceback"] = traceback
        if isinstance(message, Message):
            self.about(ACTOR_FAULT, message, **data)
        else:
            self.emit(ACTOR_FAULT, "", data)

    def note(self, type: str, data: object) -> None:
        """Count a signal, and log it."""
        self.counts[type] += 1
        level = _LEVELS.get(type, logging.DEBUG)
        if log.isEnabledFor(level):
            text = orjson.dumps({"at": now_ms(), "data": data}, default=repr).decode()
            log.log(level, "%s %s", type, text, extra={"signal": type, "data": data})
