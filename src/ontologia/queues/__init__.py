"""Queues: named events, delivered to workers that handle, retry and bury them.

queue = open_queue("store", session=session)
queue.enqueue(DomainEvent.build(name="shipment.confirmed", payload={"shipment_id": "s1"}))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ontologia.errors import ConfigError
from ontologia.queues.current import (
    Delivered,
    get_current_tenant_id,
    reset_current_tenant_id,
    set_current_tenant_id,
)
from ontologia.queues.dispatch import EventDispatcher
from ontologia.queues.memory import DeadLetter, InMemoryEventQueue
from ontologia.queues.protocol import (
    CarefulQueue,
    DomainEvent,
    EventDelivery,
    EventQueue,
    RetryPolicy,
)
from ontologia.queues.store import StoreEventQueue
from ontologia.queues.worker import EventWorker

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

__all__ = [
    "CarefulQueue",
    "DeadLetter",
    "Delivered",
    "DomainEvent",
    "EventDelivery",
    "EventDispatcher",
    "EventQueue",
    "EventWorker",
    "InMemoryEventQueue",
    "RetryPolicy",
    "StoreEventQueue",
    "get_current_tenant_id",
    "open_queue",
    "reset_current_tenant_id",
    "set_current_tenant_id",
]

_SETTINGS = ("session", "group")


def open_queue(provider: str, **settings: Any) -> CarefulQueue:
    """The queue of a provider: `"store"` with `session=` and `group=`, or `"inmemory"`.

    All providers take the same settings, and each uses what it needs, so that another one is
    chosen by its name alone. Of a session, the queue in memory takes the clock.
    """
    unknown = [name for name in settings if name not in _SETTINGS]
    if unknown:
        raise ConfigError(f"a queue has no setting {unknown[0]!r}; there are session= and group=")
    session: Session | None = settings.get("session")
    if provider == InMemoryEventQueue.provider_key:
        return InMemoryEventQueue(None if session is None else session._clock)
    if provider == StoreEventQueue.provider_key:
        if session is None:
            raise ConfigError("the queue provider store needs session=, an open Session")
        return StoreEventQueue(session, settings.get("group", "default"))
    raise ConfigError(_unknown_provider(provider))


def _unknown_provider(provider: object) -> str:
    known = "the providers are inmemory and store"
    if provider == "none":
        return f"the provider none means no queue at all, and cannot be opened; {known}"
    if provider == "kafka":
        return f"the queue provider kafka is not part of this version; {known}"
    return f"there is no queue provider {provider!r}; {known}"
