"""The loop: one message a turn, the system's before the users', and then everybody else's turn.

It routes and does nothing else. Each turn takes one message from the lanes, posts it, runs the
microtasks, and yields to asyncio, where the actors run. With nothing in the lanes it sleeps; with
nothing left that could bring a message it ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from ontologia.actors.actor import TIMEOUT
from ontologia.actors.adapter import Adapter
from ontologia.actors.crew import Crew
from ontologia.actors.dispatch import Dispatch
from ontologia.actors.lanes import MOST_MICROTASKS, Lane, Lanes, others_turn
from ontologia.actors.message import Message, is_answered
from ontologia.actors.observability import LOOP_FAULT
from ontologia.actors.packet import Packet
from ontologia.actors.pending import Client, Program
from ontologia.actors.router import Router
from ontologia.actors.timer import TIMER
from ontologia.errors import ActorBootError


class ActorLoop:
    """Runs capabilities and adapters. All of it belongs to one thread and one asyncio loop.

    `await loop.run()` ends when there is nothing left to be alive for: no adapter that may bring
    messages, no pending request, no timer, no message. `async with loop:` keeps it alive meanwhile.
    """

    def __init__(self, capabilities: Sequence[Any], *, adapters: Sequence[Adapter] = ()) -> None:
        own = [] if any(getattr(each, "id", "") == TIMER.id for each in capabilities) else [TIMER]
        known, outside = [*own, *capabilities], list(adapters)
        names = Counter(each.id for each in outside)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise ActorBootError(
                [f"{name}: there is another adapter with this id" for name in twice]
            )
        self._lanes: Lanes[Packet] = Lanes()
        self._dispatch = Dispatch(Router(known), self._lanes)
        self._crew = Crew(known, outside, self._dispatch)
        self._turns = 0
        self._held = self._stopping = self._over = False
        self._running: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    # -- for programs -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Boot, route until there is nothing left to do or `stop` is called, and shut down.

        ActorBootError names every capability that could not be started.
        """
        if self._over or self._crew.actors:
            raise RuntimeError("an ActorLoop runs once; make another one")
        try:
            await self._crew.start(self)
            self._ready.set()
            await self._turn_after_turn()
        finally:
            await self._shut()

    async def ready(self) -> None:
        """Wait until actors listen and adapters accept."""
        await self._ready.wait()

    def stop(self) -> None:
        """End after this turn: what is pending is answered with error 503."""
        self._stopping = True
        self._lanes.wake()

    def enqueue(self, message: Message, lane: Lane | None = None) -> None:
        """Put a message into a lane, by its type if none is given; its outcome goes nowhere.

        InvalidValueError if it is not JSON.
        """
        self._check_open()
        self._dispatch.accept(message, Program(timeout=TIMEOUT), lane)

    async def request(
        self,
        message: Message,
        *,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109 - it ends as an error of the loop
    ) -> Message:
        """Send a command or query and wait for its outcome, a `reply` or an `error`."""
        self._check_open()
        if not is_answered(message):
            raise ValueError(f"the {message.kind} {message.type} has no outcome to wait for")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._dispatch.accept(message, Program(partial(_settle, future), timeout))
        return await future

    def queue_microtask(self, task: Callable[[], object]) -> None:
        """Run this at the end of the turn. It must not wait; at most 1000 are run in a turn."""
        self._lanes.queue_microtask(task)

    @property
    def alive(self) -> bool:
        """Whether anything is left that could lead to another turn."""
        return bool(self._held or self._lanes or len(self._dispatch.pending) or self._crew.busy)

    def metrics(self) -> dict[str, Any]:
        """What is waiting where, and what was counted so far; all of it JSON."""
        owners = Counter(type(e.owner).__name__ for e in self._dispatch.pending.entries())
        lanes = self._lanes
        return {
            "turns": self._turns,
            "lanes": {
                "system": len(lanes.system),
                "user": len(lanes.user),
                "microtasks": len(lanes.microtasks),
            },
            "pending": {
                "adapters": owners["Client"],
                "actors": owners["Peer"],
                "loop": owners["Program"],
            },
            "mailboxes": {
                name: int(getattr(actor, "pending", 0)) - int(getattr(actor, "timers", 0))
                for name, actor in self._crew.actors.items()
            },
            "timers": sum(int(getattr(each, "timers", 0)) for each in self._crew.actors.values()),
            "buffered": {each.id: each.buffered for each in self._crew.adapters},
            "signals": dict(self._dispatch.signals.counts),
        }

    async def __aenter__(self) -> Self:
        """Run beside the block, and stay alive until it ends."""
        self._held = True
        self._running = asyncio.create_task(self.run(), name="actor loop")
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait([self._running, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._running.done():
            await self._running
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()
        if self._running is not None:
            await self._running

    # -- for adapters -----------------------------------------------------------------------------

    def receive(
        self,
        adapter: Adapter,
        connection_id: str,
        message: Message,
        handled: Callable[[], object] | None = None,
    ) -> None:
        """Take a message of a client; it goes to the user lane, whatever its type.

        InvalidValueError if it is a `reply` or an `error`, which only actors give. `handled` is
        called once all who got it are done with it.
        """
        if not self._over:
            self._dispatch.receive(message, Client(adapter, connection_id, handled))

    def disconnected(self, adapter: Adapter, connection_id: str) -> None:
        """Forget what a connection asked for: late outcomes go to nobody."""
        self._dispatch.outcomes.disconnected(adapter.id, connection_id)
        self._lanes.wake()

    def wake(self) -> None:
        """Look again whether there is anything left to be alive for."""
        self._lanes.wake()

    # -- inside -----------------------------------------------------------------------------------

    async def _turn_after_turn(self) -> None:
        lanes, route = self._lanes, self._dispatch.route
        while not self._stopping:
            packet = lanes.next()
            if packet is None and not lanes.microtasks:
                if not self.alive:
                    return
                await lanes.wait()
                continue
            self._turns += 1
            if packet is not None:
                try:
                    route(packet)
                except Exception as error:  # noqa: BLE001 - the next message is another
                    self._fault(packet.type, error)
            if lanes.microtasks:
                self._drain()
            await others_turn()

    def _drain(self) -> None:
        if not self._lanes.drain(partial(self._fault, "")):
            said = f"more than {MOST_MICROTASKS} microtasks in a turn; the rest is left to the next"
            self._dispatch.signals.emit(LOOP_FAULT, "", {"error": said})

    def _fault(self, about: str, error: Exception) -> None:
        self._dispatch.signals.emit(LOOP_FAULT, about, {"error": repr(error)})

    async def _shut(self) -> None:
        self._dispatch.outcomes.close()
        self._lanes.drain(partial(self._fault, ""))
        self._over = True
        for error in await self._crew.stop():
            self._fault("", error)

    def _check_open(self) -> None:
        if self._over:
            raise RuntimeError("the actor loop has ended; the message was not sent")


def _settle(future: asyncio.Future[Message], outcome: Message) -> None:
    if not future.done():
        future.set_result(outcome)
