"""What is being handled here: where what is announced comes from, and the fence for what is written."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ontologia.delivery.lineage import Lineage
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.unit import ClientUnit, lineage_of
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
        self._units: dict[str, ClientUnit] = {}

    @property
    def event(self) -> EventRow:
        """The event as it is stored."""
        return self.claim.event

    @property
    def attempt(self) -> int:
        """1 at the first try."""
        return self.claim.attempts + 1

    def unit_of(self, extension_id: str) -> ClientUnit:
        """An extension's unit of work while it handles this event; nothing of it leaks out."""
        made = ClientUnit(core_of(self.bus.session), {"extension_id": extension_id}, self.claim)
        return self._units.setdefault(extension_id, made)

    def left_behind(self) -> dict[str, int]:
        """How many objects each extension queued and did not commit."""
        return {name: n for name, unit in self._units.items() if (n := unit.queued)}


current: ContextVar[Handling | None] = ContextVar("ontologia_extension_event", default=None)
"""What is being handled in this context, also in tasks that a handler starts."""


def in_progress(session: Session) -> Handling | None:
    """What is being handled here by a bus on this session, and has not ended."""
    handling = current.get()
    if handling is None or handling.ended or handling.bus.session is not session:
        return None
    return handling


def fence(session: Session) -> Claim | None:
    """The claim that must be held when something is written here to this session's store."""
    handling = in_progress(session)
    return None if handling is None else handling.claim


def lineage() -> Lineage:
    """Where an event comes from that is announced here."""
    handling = current.get()
    return Lineage() if handling is None else lineage_of(handling.claim)
