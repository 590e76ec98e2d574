"""Ontologia: typed, versioned state and a durable event bus in one database.

PYTEST_DONT_REWRITE, since it brings a plugin: a program that has imported it may start pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ontologia.errors import EventLoopLimitError, LeaseExpiredError

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.delivery.dead_letter import EventDeadLetter
    from ontologia.delivery.retry import Discard, Retry
    from ontologia.delivery.schedule import Schedule
    from ontologia.runtime.async_session import AsyncSession, AsyncUnit, AsyncUnitOfWork
    from ontologia.runtime.context import HandlerContext
    from ontologia.runtime.handlers import on_event
    from ontologia.runtime.session import Session
    from ontologia.runtime.unit import Later, Unit, UnitOfWork, later
    from ontologia.schema.entity import Entity
    from ontologia.schema.event import Event
    from ontologia.schema.field import Field
    from ontologia.schema.relation import Relation, left, right
    from ontologia.schema.upgraders import load_upgraders, upgrader
    from ontologia.store.events.store import EventStore

__version__ = "0.1.0"

__all__ = [
    "AsyncSession",
    "AsyncUnit",
    "AsyncUnitOfWork",
    "Discard",
    "Entity",
    "Event",
    "EventDeadLetter",
    "EventLoopLimitError",
    "EventStore",
    "Field",
    "HandlerContext",
    "Later",
    "LeaseExpiredError",
    "OntologiaConfig",
    "Relation",
    "Retry",
    "Schedule",
    "Session",
    "Unit",
    "UnitOfWork",
    "later",
    "left",
    "load_upgraders",
    "on_event",
    "right",
    "upgrader",
]

# Imported when they are first asked for: a program that defines its types does not wait for the
# loop and the settings, nor `ontologia --help` for any of it.
_HOMES = {
    "AsyncSession": "runtime.async_session",
    "AsyncUnit": "runtime.async_session",
    "AsyncUnitOfWork": "runtime.async_session",
    "Discard": "delivery.retry",
    "Entity": "schema.entity",
    "Event": "schema.event",
    "EventDeadLetter": "delivery.dead_letter",
    "EventStore": "store.events.store",
    "Field": "schema.field",
    "HandlerContext": "runtime.context",
    "OntologiaConfig": "config",
    "Relation": "schema.relation",
    "Retry": "delivery.retry",
    "Schedule": "delivery.schedule",
    "Session": "runtime.session",
    "Later": "runtime.unit",
    "Unit": "runtime.unit",
    "UnitOfWork": "runtime.unit",
    "later": "runtime.unit",
    "left": "schema.relation",
    "load_upgraders": "schema.upgraders",
    "on_event": "runtime.handlers",
    "right": "schema.relation",
    "upgrader": "schema.upgraders",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
