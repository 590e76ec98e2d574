"""Timers that survive a restart: `Timer.Set` with `durable: true`.

Such a timer is a deferred event of the store, and fires through the mirror: in whichever loop of
the same name takes the event, and again if that one is cut off by a crash before it was routed.
What it sends is a message like any other from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

from ontologia.actors.bridge_events import instant
from ontologia.actors.capability import Capability
from ontologia.actors.message import Message
from ontologia.actors.observability import TIMER_CANCELLED, TIMER_SET
from ontologia.actors.permission import system_type_in
from ontologia.actors.problems import problem
from ontologia.actors.storing import Data, Place
from ontologia.actors.timer import TimerActor, TimerCancel, TimerSet, TimerSetData
from ontologia.codec import encode
from ontologia.errors import InvalidValueError

STORED_TYPE = "actors.timer.due"
_DUE = "Actors.TimerDue"
_DURABLE = "durable-"


class DurableSetData(TimerSetData):
    """As for any timer, and whether it is kept in the store."""

    durable: bool = False


class DurableTimerSet(TimerSet):
    """Send a message later; answered with `{timerId}`."""

    data: DurableSetData


class DueData(Data):
    """A timer that is due: of which loops, and the command that set it."""

    loop: str
    timer_id: str
    command: dict[str, Any]


class TimerDue(Message):
    """The event of the store that a durable timer is."""

    kind: Literal["event"]
    type: Literal["Actors.TimerDue"]
    data: DueData


class DurableTimerActor(TimerActor):
    """Holds timers in memory, and durable ones in the store."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__()
        self._place, self._name = place, name
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, message: TimerSet | TimerCancel | TimerDue) -> None:
        """Set, cancel or fire a timer. What takes the store its time does not hold up the others."""
        if isinstance(message, TimerDue):
            if message.data.loop == self._name:
                self.fire(message.data.timer_id, _sendable(message.data.command))
        elif isinstance(message, DurableTimerSet) and message.data.durable:
            self._beside(message, self._keep(message))
        elif isinstance(message, TimerCancel) and message.data.timer_id.startswith(_DURABLE):
            self._beside(message, self._take_back(message))
        else:
            await super().handle(message)

    async def stop(self) -> None:
        """Forget the timers in memory."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await super().stop()

    async def _keep(self, message: DurableTimerSet) -> None:
        timer_id: str = await self._place.run(lambda: self._defer(message))
        self.emit(TIMER_SET, {"timerId": timer_id, "type": message.data.message.type})
        self.reply(message, {"timerId": timer_id})

    async def _take_back(self, message: TimerCancel) -> None:
        timer_id = message.data.timer_id
        cancelled: bool = await self._place.run(lambda: self._cancel(timer_id))
        if cancelled:
            self.emit(TIMER_CANCELLED, {"timerId": timer_id})
        self.reply(message, {"cancelled": cancelled})

    def _beside(self, message: Message, step: Coroutine[Any, Any, None]) -> None:
        async def answered() -> None:
            try:
                await step
            except Exception as error:  # noqa: BLE001 - every error is an answer
                self.emit(problem(message, error))

        task = asyncio.create_task(answered(), name=message.type)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- in threads -------------------------------------------------------------------------------

    def _defer(self, message: DurableTimerSet) -> str:
        session, data = self._place.session, message.data
        _check(message)
        events = session.event_store
        timer_id = f"{_DURABLE}{events.log._ids.new()}"  # the event's id as well
        payload = {
            "loop": self._name,
            "timerId": timer_id,
            "command": Message.from_json(message.to_json()).model_dump(exclude_none=True),
        }
        row = events.log.untyped_row(STORED_TYPE, encode(payload), session.namespace)
        group = message.metadata.correlation or timer_id
        row = row._replace(id=timer_id, root_event_id=timer_id, correlation_id=group)
        delay = None if data.delay_ms is None else data.delay_ms / 1000
        events.announce(row, delay=delay, at=instant(data.due_at))
        return timer_id

    def _cancel(self, timer_id: str) -> bool:
        events, namespace = self._place.session.event_store, self._place.session.namespace
        number = events.journal.deferred_number(namespace, timer_id, STORED_TYPE)
        return number is not None and events.cancel_deferred(namespace, number)


def _sendable(command: dict[str, Any]) -> DurableTimerSet:
    """The command that set a timer. Whoever may publish events can write one of these as well."""
    message = DurableTimerSet.from_data(command)
    _check(message)
    return message


def _check(message: DurableTimerSet) -> None:
    template = message.data.message
    found = system_type_in(template.type, template.data)
    if found is not None:
        raise InvalidValueError(f"{found} is for the loop to say; no durable timer may")


def durable_timer(place: Place, name: str) -> Capability:
    """The capability, in the place of the Timer that every loop has."""
    return Capability(
        "timer",
        "Sends messages later",
        inbound=DurableTimerSet | TimerCancel | TimerDue,
        outbound=Message,
        subscribes=[_DUE],
        spawn=lambda: DurableTimerActor(place, name),
    )
