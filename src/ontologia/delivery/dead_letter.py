"""The event that announces a dead letter."""

from __future__ import annotations

from ontologia.schema.event import Event
from ontologia.schema.field import Field


class EventDeadLetter(Event):
    """An event was buried for one handler: subscribe to it to be told.

    It is stored by the store itself, with the root of the buried event and one hop more; burying
    one of these makes no other.
    """

    __event_type__ = "event.dead_letter"

    event_id: Field[str]
    handler_id: Field[str]
    attempts: Field[int]
    last_error: Field[str]
