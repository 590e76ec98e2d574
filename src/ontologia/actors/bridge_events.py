"""`Event.*`: events of the store, published and looked at."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from ontologia import codec
from ontologia.actors.capability import Capability
from ontologia.actors.message import Message
from ontologia.actors.storing import Data, Place, StoreActor
from ontologia.delivery.lineage import Lineage
from ontologia.errors import InvalidValueError, NotFoundError
from ontologia.queues.protocol import checked_name, encoded_payload
from ontologia.runtime.session import Session
from ontologia.schema.event import event_class, event_of
from ontologia.store.events import checks
from ontologia.store.rows import EventRow

_Milliseconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]


class EventData(Data):
    """An event: its type as it is stored, `order.placed`, and its payload."""

    type: str
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    dedup_key: str | None = None
    """While an event of the type has this key, there is no other one."""


class PublishData(EventData):
    """The same, now or for later."""

    delay_ms: _Milliseconds | None = None
    due_at: _Milliseconds | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.delay_ms is not None and self.due_at is not None:
            raise ValueError("give delayMs or dueAt, and not both")
        return self


class InspectData(Data):
    """Which."""

    event_id: str


class EventPublish(Message):
    """Store an event; answered with `{eventId, stored}`, where stored is false for a known key."""

    kind: Literal["command"]
    type: Literal["Event.Publish"]
    data: PublishData


class EventInspect(Message):
    """All that is known of an event, its claims and failed attempts; error 404 if there is none."""

    kind: Literal["query"]
    type: Literal["Event.Inspect"]
    data: InspectData


class EventActor(StoreActor):
    """Publishes and inspects."""

    def answer(self, message: EventPublish | EventInspect) -> dict[str, Any]:
        """What was stored, or is."""
        if isinstance(message, EventPublish):
            return self._publish(message)
        wanted = message.data.event_id
        found = self.session.event_store.inspect_event(wanted, self.session.namespace)
        if found is None:
            raise NotFoundError(f"there is no event {wanted}")
        lists = {name: [_camel(each) for each in found[name]] for name in ("claims", "attempts")}
        return _camel({**found, **lists})

    def _publish(self, message: EventPublish) -> dict[str, Any]:
        data = message.data
        row = row_of(self.session, data, message)
        stored = self.session.event_store.announce(
            row,
            delay=None if data.delay_ms is None else data.delay_ms / 1000,
            at=instant(data.due_at),
        )
        return {"eventId": stored.id, "stored": stored.id == row.id}


def row_of(session: Session, data: EventData, message: Message) -> EventRow:
    """An event as it will be stored; checked by its class, if this program has one for its type."""
    type, correlation = checked_name(data.type), message.metadata.correlation
    payload = encoded_payload(type, data.payload)
    log, cls = session.event_store.log, event_class(type)
    if correlation is not None:
        checks.name("correlation", correlation)
    if cls is None:
        row = log.untyped_row(type, payload, session.namespace, dedup_key=data.dedup_key)
    else:
        event = event_of(cls, payload)
        unknown = sorted(set(data.payload) - set(codec.decode(cls.__shape__.dump(vars(event)))))
        if unknown:
            raise InvalidValueError(f"{type} has no field {unknown[0]!r}")
        row = log.row(event, session.namespace, Lineage(), dedup_key=data.dedup_key)
    return row if correlation is None else row._replace(correlation_id=correlation)


def _camel(names: dict[str, Any]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in names.items()}


def instant(milliseconds: float | None) -> datetime | None:
    """An instant, from milliseconds since 1970; InvalidValueError if no calendar has it."""
    if milliseconds is None:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidValueError(
            f"dueAt={milliseconds:g} is further away than any calendar goes"
        ) from error


def events(place: Place) -> Capability:
    """The capability."""
    return Capability(
        "events",
        "Publishes and inspects events of the store",
        inbound=EventPublish | EventInspect,
        outbound=Message,
        subscribes=(),
        spawn=lambda: EventActor(place),
    )
