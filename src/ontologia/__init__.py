"""Ontologia: typed, versioned state and a durable event bus in one database."""

from typing import TYPE_CHECKING, Any

from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.delivery.retry import Discard, Retry
from ontologia.delivery.schedule import Schedule
from ontologia.errors import EventLoopLimitError, LeaseExpiredError
from ontologia.migration.upgraders import load_upgraders, upgrader
from ontologia.runtime.context import HandlerContext
from ontologia.runtime.handlers import on_event
from ontologia.runtime.session import Session
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.field import Field
from ontologia.schema.relation import Relation, left, right
from ontologia.store.protocol import EventStore

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

__version__ = "0.1.0"

__all__ = [
    "Discard",
    "Entity",
    "Event",
    "EventDeadLetter",
    "EventLoopLimitError",
    "EventStore",
    "Field",
    "HandlerContext",
    "LeaseExpiredError",
    "OntologiaConfig",
    "Relation",
    "Retry",
    "Schedule",
    "Session",
    "left",
    "load_upgraders",
    "on_event",
    "right",
    "upgrader",
]


def __getattr__(name: str) -> Any:
    # The library behind the settings takes a third of the time that everything else takes to
    # import; a program that only defines its types does not need it.
    if name == "OntologiaConfig":
        from ontologia.config import OntologiaConfig

        return OntologiaConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
