"""Queues: named events, delivered to workers that handle, retry and bury them.

queue = open_queue("store", session=session)
queue.enqueue(DomainEvent.build(name="shipment.confirmed", payload={"shipment_id": "s1"}))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ontologia.config import OntologiaConfig
from ontologia.errors import ConfigError
from ontologia.queues.current import (
    Delivered,
    get_current_tenant_id,
    reset_current_tenant_id,
    set_current_tenant_id,
)
from ontologia.queues.memory import DeadLetter, InMemoryEventQueue
from ontologia.queues.protocol import (
    CarefulQueue,
    DomainEvent,
    EventDelivery,
    EventQueue,
    RetryPolicy,
)
from ontologia.queues.store import StoreEventQueue
from ontologia.queues.worker import EventDispatcher, EventWorker
from ontologia.runtime.session import core_of

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

_SETTINGS = ("session", "group", "bootstrap_servers", "topic", "options")


def open_queue(provider: str, **settings: Any) -> CarefulQueue:
    """The queue of a provider: `"store"`, `"inmemory"` or `"kafka"`.

    All providers take the same settings, and each uses what it needs, so that another one is
    chosen by its name alone. `session=` and `group="default"` are for all; of the session, the queue
    in memory takes the clock. `bootstrap_servers=`, `topic=` and `options=` are for Kafka; what is not
    given is as the settings `kafka_bootstrap_servers`, `kafka_topic` and `kafka_options` say.
    """
    unknown = [name for name in settings if name not in _SETTINGS]
    if unknown:
        raise ConfigError(
            f"a queue has no setting {unknown[0]!r}; there are {', '.join(_SETTINGS)}"
        )
    session: Session | None = settings.get("session")
    group = settings.get("group", "default")
    if provider == InMemoryEventQueue.provider_key:
        return InMemoryEventQueue(None if session is None else core_of(session).clock)
    if provider == StoreEventQueue.provider_key:
        if session is None:
            raise ConfigError("the queue provider store needs session=, an open Session")
        return StoreEventQueue(session, group)
    if provider == "kafka":
        return _kafka_queue(session, group, settings)
    raise ConfigError(_unknown_provider(provider))


def _kafka_queue(session: Session | None, group: str, settings: dict[str, Any]) -> CarefulQueue:
    from ontologia.queues.kafka import KafkaEventQueue  # imported only where it is chosen

    config = OntologiaConfig() if session is None else core_of(session).config
    servers, options = settings.get("bootstrap_servers"), settings.get("options")
    return KafkaEventQueue(
        config.kafka_bootstrap_servers or "" if servers is None else servers,
        settings.get("topic") or config.kafka_topic,
        group,
        session=session,
        options=config.kafka_options if options is None else options,
    )


def _unknown_provider(provider: object) -> str:
    known = "the providers are inmemory, kafka and store"
    if provider == "none":
        return f"the provider none means no queue at all, and cannot be opened; {known}"
    return f"there is no queue provider {provider!r}; {known}"
