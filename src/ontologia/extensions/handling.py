"""What is being handled here: where what is announced comes from, and the fence for what is written."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ontologia.delivery.lineage import Lineage, child_of
from ontologia.runtime.intents import Intents
from ontologia.runtime.session import Session
from ontologia.store.rows import Claim, EventRow

if TYPE_CHECKING:
    from ontologia.extensions.bus import EventBus


class Handling:
    """One attempt of a bus at one event, with all its subscribers."""

    def __init__(self, bus: EventBus, claim: Claim) -> None:
        self.bus = bus
        self.claim = claim
        self.ended = False
        """A task that outlives the handlers is fenced no more: the event is not theirs to lose."""
        self._intents: dict[str, Intents] = {}

    @property
    def event(self) -> EventRow:
        """The event as it is stored."""
        return self.claim.event

    @property
    def attempt(self) -> int:
        """1 at the first try."""
        return self.claim.attempts + 1

    def intents_of(self, extension_id: str) -> Intents:
        """What an extension has queued while it handles this event; nothing of it leaks out."""
        return self._intents.setdefault(extension_id, self.bus.session._new_intents())

    def left_behind(self) -> dict[str, int]:
        """How many objects each extension queued and did not commit."""
        return {name: len(intents) for name, intents in self._intents.items() if len(intents)}


current: ContextVar[Handling | None] = ContextVar("ontologia_extension_event", default=None)
"""What is being handled in this context, also in tasks that a handler starts."""


def fence(session: Session) -> Claim | None:
    """The claim that must be held when something is written here to this session's store."""
    handling = current.get()
    if handling is None or handling.ended or handling.bus.session is not session:
        return None
    return handling.claim


def lineage() -> Lineage:
    """Where an event comes from that is announced here."""
    handling = current.get()
    if handling is None:
        return Lineage()
    row = handling.event
    return child_of(
        row.id, row.root_event_id, row.chain_depth, row.correlation_id, handling.claim.handler_id
    )
