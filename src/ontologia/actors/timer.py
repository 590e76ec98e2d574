"""The Timer: sends a message later.

An ordinary capability, which every loop has; its timers are in memory and end with the loop. A
capability with the id `timer` among those given to a loop replaces it: derive from TimerActor, and
override `schedule` and `cancel` to store timers elsewhere; call `fire` when one is due.
"""

from __future__ import annotations

import asyncio
import secrets
from contextvars import Context
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ontologia.actors.actor import Actor
from ontologia.actors.capability import Capability
from ontologia.actors.message import TYPE_PATTERN, Message, new_id
from ontologia.actors.observability import TIMER_CANCELLED, TIMER_FIRED, TIMER_SET
from ontologia.clock import now_ms

_Milliseconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class TemplateMetadata(BaseModel):
    """Lineage of a message that is not sent yet; additional fields are preserved."""

    model_config = ConfigDict(extra="allow")

    correlation: Annotated[str | None, Field(strict=True)] = None


class Template(BaseModel):
    """A message that is not sent yet: it has no id and no timestamp."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["command", "query", "event"]
    """Not an outcome: a timer must not answer on behalf of an actor."""
    type: Annotated[str, Field(pattern=TYPE_PATTERN)]
    data: Any
    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata)


class TimerSetData(BaseModel):
    """The message, and when to send it: exactly one of `delayMs` and `dueAt`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    delay_ms: Annotated[_Milliseconds | None, Field(alias="delayMs")] = None
    due_at: Annotated[_Milliseconds | None, Field(alias="dueAt")] = None
    message: Template

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.delay_ms is None) == (self.due_at is None):
            raise ValueError("give delayMs or dueAt, and not both")
        return self


class TimerCancelData(BaseModel):
    """The timer to cancel."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    timer_id: Annotated[str, Field(alias="timerId")]


class TimerSet(Message):
    """Send a message later; answered with `{timerId}`."""

    kind: Literal["command"]
    type: Literal["Timer.Set"]
    data: TimerSetData


class TimerCancel(Message):
    """Cancel a timer; answered with `{cancelled}`, which is false if it fired or is unknown."""

    kind: Literal["command"]
    type: Literal["Timer.Cancel"]
    data: TimerCancelData


class TimerActor(Actor):
    """Holds timers in memory, as timers of the asyncio loop."""

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def handle(self, message: TimerSet | TimerCancel) -> None:
        """Set or cancel a timer."""
        if isinstance(message, TimerSet):
            timer_id = self.schedule(message)
            self.emit(TIMER_SET, {"timerId": timer_id, "type": message.data.message.type})
            self.reply(message, {"timerId": timer_id})
            return
        timer_id = message.data.timer_id
        cancelled = self.cancel(timer_id)
        if cancelled:
            self.emit(TIMER_CANCELLED, {"timerId": timer_id})
        self.reply(message, {"cancelled": cancelled})

    @property
    def timers(self) -> int:
        """Number of timers that are set."""
        return len(self._timers)

    @property
    def pending(self) -> int:
        """Number of messages in the mailbox and of timers: both keep the loop alive."""
        return super().pending + self.timers

    def schedule(self, message: TimerSet) -> str:
        """Set a timer; returns its id."""
        # Unguessable: any client that knows the id may cancel the timer.
        timer_id, delay = secrets.token_hex(16), delay_of(message.data)
        host = asyncio.get_running_loop()
        # As JSON, and in a context that does not have the message either: objects of Python take many
        # times the bytes by which the timers of clients are bounded.
        due = partial(self._due, timer_id, type(message), message.to_json())
        self._timers[timer_id] = host.call_later(delay, due, context=Context())
        return timer_id

    def cancel(self, timer_id: str) -> bool:
        """Cancel a timer; False if there is none of this id."""
        timer = self._timers.pop(timer_id, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def fire(self, timer_id: str, message: TimerSet) -> None:
        """Send the events that a timer is due, and then its message."""
        self.emit(Message.event("Timer.Fired", {"timerId": timer_id}, cause=message))
        self.emit(Message.event(TIMER_FIRED, {"timerId": timer_id}, cause=message))
        self.emit(scheduled(message))

    async def stop(self) -> None:
        """Cancel all timers."""
        for timer_id in tuple(self._timers):
            self.cancel(timer_id)
        await super().stop()

    def _due(self, timer_id: str, kind: type[TimerSet], body: bytes) -> None:
        self._timers.pop(timer_id)
        self.fire(timer_id, kind.from_json(body))


def delay_of(data: TimerSetData) -> float:
    """Seconds from now; 0 for an instant in the past."""
    if data.delay_ms is not None:
        return data.delay_ms / 1000
    return max(0.0, ((data.due_at or 0) - now_ms()) / 1000)


def scheduled(message: TimerSet) -> Message:
    """The message of a Timer.Set, with a new id and timestamp, and the command as its causation."""
    template = message.data.message
    metadata = {
        **template.metadata.model_dump(),
        "id": new_id(),
        "timestamp": now_ms(),
        "causation": message.metadata.id,
    }
    if metadata["correlation"] is None:
        metadata["correlation"] = message.metadata.correlation
    return Message.model_validate(
        {
            "kind": template.kind,
            "type": template.type,
            "data": template.data,
            "metadata": metadata,
        }
    )


TIMER = Capability(
    "timer",
    "Sends messages later",
    inbound=TimerSet | TimerCancel,
    outbound=Message,
    subscribes=(),
    spawn=TimerActor,
)
