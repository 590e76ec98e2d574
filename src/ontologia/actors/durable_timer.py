"""Timers that survive a restart: `Timer.Set` with `durable: true`.

Such a timer is a deferred event of the store, and fires through the mirror: in the loop of the same
name that claims the event, and again if that loop crashes before it has routed it. The message that
it sends is in memory from then on, like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

from ontologia.actors.capability import Capability
from ontologia.actors.message import Message
from ontologia.actors.observability import TIMER_CANCELLED, TIMER_SET
from ontologia.actors.router import system_type_in
from ontologia.actors.store_actor import Data, StoreAccess, error_answer, instant
from ontologia.actors.timer import TimerActor, TimerCancel, TimerSet, TimerSetData
from ontologia.codec import encode
from ontologia.errors import InvalidValueError

STORED_TYPE = "actors.timer.due"
_DUE = "Actors.TimerDue"
_DURABLE = "durable-"


class DurableSetData(TimerSetData):
    """As for any timer, and whether it is stored."""

    durable: bool = False


class DurableTimerSet(TimerSet):
    """Send a message later; answered with `{timerId}`."""

    data: DurableSetData


class DueData(Data):
    """A timer that is due: the name of its loops, and the command that set it."""

    loop: str
    timer_id: str
    command: dict[str, Any]


class TimerDue(Message):
    """The stored event of a durable timer."""

    kind: Literal["event"]
    type: Literal["Actors.TimerDue"]
    data: DueData


class DurableTimerActor(TimerActor):
    """Holds timers in memory, and durable ones in the store."""

    def __init__(self, store: StoreAccess, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, message: TimerSet | TimerCancel | TimerDue) -> None:
        """Set, cancel or fire a timer. The store is used concurrently, and holds up no timer."""
        if isinstance(message, TimerDue):
            if message.data.loop == self._name:
                self.fire(message.data.timer_id, _sendable(message.data.command))
        elif isinstance(message, DurableTimerSet) and message.data.durable:
            self._run_concurrently(message, self._set_durable(message))
        elif isinstance(message, TimerCancel) and message.data.timer_id.startswith(_DURABLE):
            self._run_concurrently(message, self._cancel_durable(message))
        else:
            await super().handle(message)

    async def stop(self) -> None:
        """Cancel the timers in memory; the durable ones stay stored."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await super().stop()

    async def _set_durable(self, message: DurableTimerSet) -> None:
        timer_id: str = await self._store.run(lambda: self._defer(message))
        facts = {"timerId": timer_id, "type": message.data.message.type, "durable": True}
        self.emit(TIMER_SET, facts)
        self.reply(message, {"timerId": timer_id})

    async def _cancel_durable(self, message: TimerCancel) -> None:
        timer_id = message.data.timer_id
        cancelled: bool = await self._store.run(lambda: self._cancel_deferred(timer_id))
        if cancelled:
            self.emit(TIMER_CANCELLED, {"timerId": timer_id})
        self.reply(message, {"cancelled": cancelled})

    def _run_concurrently(self, message: Message, step: Coroutine[Any, Any, None]) -> None:
        async def answered() -> None:
            try:
                await step
            except Exception as error:  # noqa: BLE001 - every error is an answer
                self.emit(error_answer(message, error))

        task = asyncio.create_task(answered(), name=message.type)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- in threads -------------------------------------------------------------------------------

    def _defer(self, message: DurableTimerSet) -> str:
        session, data = self._store.session, message.data
        _check(message)
        events = session.event_store
        timer_id = f"{_DURABLE}{events.log.ids.new()}"  # the event's id as well
        payload = {
            "loop": self._name,
            "timerId": timer_id,
            "command": Message.from_json(message.to_json()).model_dump(exclude_none=True),
        }
        row = events.log.untyped_row(STORED_TYPE, encode(payload), session.namespace)
        correlation = message.metadata.correlation or timer_id
        row = row._replace(id=timer_id, root_event_id=timer_id, correlation_id=correlation)
        delay = None if data.delay_ms is None else data.delay_ms / 1000
        events.announce(row, delay=delay, at=instant(data.due_at))
        return timer_id

    def _cancel_deferred(self, timer_id: str) -> bool:
        events, namespace = self._store.session.event_store, self._store.session.namespace
        number = events.journal.deferred_number(namespace, timer_id, STORED_TYPE)
        return number is not None and events.cancel_deferred(namespace, number)


def _sendable(command: dict[str, Any]) -> DurableTimerSet:
    """The command that set a timer, checked again: any program that publishes events can forge one."""
    message = DurableTimerSet.from_data(command)
    _check(message)
    return message


def _check(message: DurableTimerSet) -> None:
    template = message.data.message
    found = system_type_in(template.type, template.data)
    if found is not None:
        raise InvalidValueError(f"{found} is for the loop to say; no durable timer may")
    # Timers in memory are counted by the client that sets them, and of this one it is not known.
    if template.type == message.type and not (
        isinstance(template.data, dict) and template.data.get("durable") is True
    ):
        raise InvalidValueError("a durable timer may not set one that is not durable")


def durable_timer(store: StoreAccess, name: str) -> Capability:
    """The capability that replaces the Timer of a loop."""
    return Capability(
        "timer",
        "Sends messages later",
        inbound=DurableTimerSet | TimerCancel | TimerDue,
        outbound=Message,
        subscribes=[_DUE],
        spawn=lambda: DurableTimerActor(store, name),
    )
