"""What a queue is: events that are delivered to one of several workers, until one has done them.

A provider keeps the events; a worker takes them, and says of each how it ended. Handlers, retries
and dead letters are the same over all providers, and one suite of tests is put to them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from ontologia import codec
from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import InvalidTypeError, InvalidValueError
from ontologia.ids import Ids
from ontologia.store.events import checks

_IDS = Ids(SYSTEM_CLOCK)
_MOST_DOUBLINGS = 1023  # more than a float can hold, and than any cap needs
_LONGEST_WAIT = 10 * 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """Something that happened, by name. `DomainEvent.build(...)` makes one that can be enqueued.

    All handlers of a delivery are given the same one: its payload is to be read, not changed.
    """

    name: str
    payload: dict[str, Any]
    event_id: str
    occurred_at: datetime
    """An aware instant; of an event that names none, the one at which it was stored."""
    tenant_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    root_event_id: str | None = None
    """The first event of the chain; None if this is the first."""
    chain_depth: int = 0

    @classmethod
    def build(
        cls,
        *,
        name: str,
        payload: dict[str, Any],
        tenant_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> DomainEvent:
        """A new event that happened now, with an id of its own and a copy of the payload.

        InvalidValueError if the name is no event type, or the payload no JSON object.
        """
        for what, value in (
            ("tenant_id", tenant_id),
            ("correlation_id", correlation_id),
            ("causation_id", causation_id),
        ):
            if value is not None:
                checks.name(what, value)
        return cls(
            checked_name(name),
            codec.decode_stored(encoded_payload(name, payload)),
            _IDS.new(),
            SYSTEM_CLOCK.now(),
            tenant_id,
            correlation_id,
            causation_id,
        )


def checked_name(name: Any) -> str:
    """InvalidValueError unless events can be called that."""
    if name == "*":
        raise InvalidValueError("* stands for all names of events, and is none itself")
    return checks.name("an event's name", name)


def encoded_payload(name: str, payload: Any) -> str:
    """A payload as JSON text; InvalidValueError, with the place, if it is no JSON object."""
    if not isinstance(payload, dict):
        raise InvalidTypeError(
            f"{name}: a payload is a JSON object, got {payload!r:.200}",
            hint="Give a dict; without anything to say it is {}.",
        )
    return codec.encode(payload, where=f"{name}: payload")


@dataclass(frozen=True, slots=True)
class EventDelivery:
    """An event in the hands of a worker. The receipt handle says how it ended, once."""

    event: DomainEvent
    receipt_handle: str
    attempt_number: int
    """1 at the first try."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a worker tries an event, and how long it waits in between.

    Attempts that ended with their process count like those that failed.
    """

    max_attempts: int = 5
    base_delay_seconds: float = 0.25
    max_delay_seconds: float = 10.0

    def __post_init__(self) -> None:
        checks.whole("max_attempts", self.max_attempts, 1, 2**31 - 1)
        checked_seconds("base_delay_seconds", self.base_delay_seconds)
        checked_seconds("max_delay_seconds", self.max_delay_seconds)

    def compute_delay_seconds(self, attempt_number: int) -> float:
        """The wait after this attempt has failed: doubled with each, up to the cap, no chance."""
        checks.whole("attempt_number", attempt_number, 1, 2**63 - 1)
        doubled = 2.0 ** min(attempt_number - 1, _MOST_DOUBLINGS)
        return float(min(doubled * self.base_delay_seconds, self.max_delay_seconds))


def checked_seconds(what: str, value: Any) -> float:
    """A time that can be waited for; InvalidValueError if it is none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 <= value <= _LONGEST_WAIT
    ):
        raise checks.error_for(value, int, float)(
            f"{what} is a number of seconds, 0 to ten years, got {value!r}"
        )
    return value


class EventQueue(Protocol):
    """What every provider has."""

    @property
    def provider_key(self) -> str:
        """The name of the provider, as it is chosen by."""
        ...

    def enqueue(self, event: DomainEvent) -> None:
        """Add an event. When this returns it is kept as well as the provider can."""
        ...

    def dequeue(self, batch_size: int, timeout_seconds: float) -> list[EventDelivery]:
        """At most this many events, the oldest first; [] if none came within the time.

        They are in flight from then on: nobody is given them until they come back.
        """
        ...

    def ack(self, receipt_handle: str) -> None:
        """It is done, and never comes back."""
        ...

    def nack(self, receipt_handle: str, *, retry_after_seconds: float) -> None:
        """It failed: it comes back after this time, not earlier, as the next attempt."""
        ...

    def dead_letter(self, receipt_handle: str, *, reason: str) -> None:
        """It failed for good: it is kept apart with the reason, and never comes back."""
        ...

    def describe(self) -> str:
        """One line for a person: what this is, and where."""
        ...


@runtime_checkable
class CarefulQueue(EventQueue, Protocol):
    """What the providers of this package have besides; a worker does without where it is missing.

    UnknownReceiptError, from all of these and of those above: the receipt is not one of this
    queue's, was used before, or the delivery was lost to another worker.
    """

    def nack(
        self, receipt_handle: str, *, retry_after_seconds: float, reason: str | None = None
    ) -> None:
        """It failed, for this reason, which is kept where there is a place for it."""
        ...

    def dead_letter(self, receipt_handle: str, *, reason: str, tried: bool = True) -> None:
        """It failed for good; unless it was `tried`, this delivery counts as no attempt."""
        ...

    def abandon(self, receipt_handle: str) -> None:
        """It was not tried: it comes back at once, to its old place, as the same attempt."""
        ...

    def settle(self) -> None:
        """Write the acks that are not written yet, and release what was not delivered."""
        ...

    def close(self) -> None:
        """The end: deliveries in flight are abandoned. Closing again is nothing."""
        ...


def check_dequeue(batch_size: Any, timeout_seconds: Any) -> None:
    """InvalidValueError unless `dequeue` can be called like this."""
    checks.whole("batch_size", batch_size, 1, 10_000)
    checked_seconds("timeout_seconds", timeout_seconds)


def check_event(event: Any) -> None:
    """TypeError unless this is an event, InvalidValueError unless it can be enqueued."""
    if not isinstance(event, DomainEvent):
        raise TypeError(f"a queue takes a DomainEvent, got {event!r:.200}")
    checks.instant("occurred_at of a DomainEvent", event.occurred_at)
