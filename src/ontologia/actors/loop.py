"""The actor loop: one message per turn, the system lane before the user lane.

Each turn takes one message from the lanes, routes it, runs the microtasks, and yields to asyncio,
where the actors run. With empty lanes the loop sleeps; when nothing is left that could bring a
message, it ends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from ontologia.actors.actor import TIMEOUT, listen_to, yield_once
from ontologia.actors.adapter import Adapter
from ontologia.actors.lanes import MOST_MICROTASKS, Lane, Lanes
from ontologia.actors.message import Message, expects_outcome
from ontologia.actors.observability import LOOP_FAULT
from ontologia.actors.pending import Client, Program
from ontologia.actors.process import ProcessActor
from ontologia.actors.router import ActorListener, Packet, Router, RoutingTable
from ontologia.actors.timer import TIMER
from ontologia.errors import ActorBootError


class ActorLoop:
    """Runs capabilities and adapters. All of it belongs to one thread and one asyncio loop.

    `await loop.run()` ends when nothing keeps the loop alive: no adapter that may bring messages, no
    pending request, no timer, no message. `async with loop:` keeps it alive until the block ends.
    """

    def __init__(self, capabilities: Sequence[Any], *, adapters: Sequence[Adapter] = ()) -> None:
        own = [] if any(getattr(each, "id", "") == TIMER.id for each in capabilities) else [TIMER]
        self._capabilities, self._unstarted = [*own, *capabilities], list(adapters)
        names = Counter(each.id for each in self._unstarted)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise ActorBootError(
                [f"{name}: there is another adapter with this id" for name in twice]
            )
        self._lanes: Lanes[Packet] = Lanes()
        self._router = Router(RoutingTable(self._capabilities), self._lanes)
        self._actors: dict[str, Any] = {}
        """The running actors, by the id of their capability."""
        self._adapters: list[Adapter] = []
        self._turns = 0
        self._held = self._stopping = self._over = False
        self._running: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    # -- for programs -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Boot, route until nothing is left to do or `stop` is called, and shut down.

        ActorBootError names every capability that could not be started.
        """
        if self._over or self._actors:
            raise RuntimeError("an ActorLoop runs once; make another one")
        try:
            await self._boot()
            self._ready.set()
            await self._turn_after_turn()
        finally:
            await self._shut_down()

    async def ready(self) -> None:
        """Wait until actors listen and adapters accept."""
        await self._ready.wait()

    def stop(self) -> None:
        """End after this turn: pending requests are answered with error 503."""
        self._stopping = True
        self._lanes.wake()

    def enqueue(self, message: Message, lane: Lane | None = None) -> None:
        """Put a message into a lane, by default that of its type; its outcome is dropped.

        InvalidValueError if it is not JSON.
        """
        self._check_open()
        self._router.accept(message, Program(timeout=TIMEOUT), lane)

    async def request(
        self,
        message: Message,
        *,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109 - it ends as an error of the loop
    ) -> Message:
        """Send a command or query and wait for its outcome, a `reply` or an `error`."""
        self._check_open()
        if not expects_outcome(message):
            raise ValueError(f"the {message.kind} {message.type} has no outcome to wait for")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._router.accept(message, Program(partial(_resolve, future), timeout))
        return await future

    def queue_microtask(self, task: Callable[[], object]) -> None:
        """Run this at the end of the turn. It must not block; a turn runs at most 1000."""
        self._lanes.queue_microtask(task)

    @property
    def alive(self) -> bool:
        """Whether anything is left that could lead to another turn."""
        return bool(
            self._held
            or self._lanes
            or len(self._router.pending)
            or any(getattr(each, "pending", 0) for each in self._actors.values())
            or any(each.active or each.buffered for each in self._adapters)
        )

    def metrics(self) -> dict[str, Any]:
        """Current queue lengths and counts since the start, as JSON."""
        owners = Counter(type(e.owner).__name__ for e in self._router.pending.entries())
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
                for name, actor in self._actors.items()
            },
            "timers": sum(int(getattr(each, "timers", 0)) for each in self._actors.values()),
            "buffered": {each.id: each.buffered for each in self._adapters},
            "signals": dict(self._router.signals.counts),
        }

    async def __aenter__(self) -> Self:
        """Run as a task, and stay alive until the block ends."""
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
        """Accept a message of a client; it goes to the user lane, whatever its type.

        InvalidValueError if it is a `reply` or an `error`, which only actors send. `handled` is
        called once all its receivers have handled it.
        """
        if not self._over:
            self._router.receive(message, Client(adapter, connection_id, handled))

    def disconnected(self, adapter: Adapter, connection_id: str) -> None:
        """Abandon all requests of a connection, and cancel its timers; late outcomes are dropped."""
        self._router.disconnected(adapter.id, connection_id)
        self._lanes.wake()

    def wake(self) -> None:
        """Check again whether anything keeps the loop alive."""
        self._lanes.wake()

    # -- actors and adapters ----------------------------------------------------------------------

    async def _boot(self) -> None:
        """Start all actors, then all adapters; ActorBootError names all actors that failed."""
        problems: list[str] = []
        for capability in self._capabilities:
            try:
                await self._spawn(capability)
            except Exception as error:  # noqa: BLE001 - an actor may raise anything
                problems.append(f"{capability.id}: spawn: {type(error).__name__}: {error}")
        if problems:
            raise ActorBootError(problems)
        for adapter in self._unstarted:
            self._adapters.append(adapter)
            await adapter.start(self)

    async def _spawn(self, capability: Any) -> None:
        name: str = capability.id
        actor: Any
        if getattr(capability, "isolation", "task") == "process":
            actor = ProcessActor(name, capability.spawn, capability.inbound)
        else:
            actor = capability.spawn()
        self._router.mailboxes.add(name, actor)
        self._actors[name] = actor
        listener = ActorListener(name, self._router)
        listen_to(actor, listener.on_message, listener.on_error)
        if hasattr(actor, "start"):
            await _call(actor.start)

    async def _shut_down(self) -> None:
        self._router.outcomes.close()
        self._lanes.drain(partial(self._fault, ""))
        self._over = True
        stops = [_call(each.stop) for each in self._adapters]
        stops += [_call(each.stop) for each in self._actors.values() if hasattr(each, "stop")]
        for ended in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(ended, Exception):
                self._fault("", ended)

    # -- turns ------------------------------------------------------------------------------------

    async def _turn_after_turn(self) -> None:
        lanes, route = self._lanes, self._router.route
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
                except Exception as error:  # noqa: BLE001 - the next message is routed all the same
                    self._fault(packet.type, error)
            if lanes.microtasks:
                self._drain()
            await yield_once()

    def _drain(self) -> None:
        if not self._lanes.drain(partial(self._fault, "")):
            text = f"more than {MOST_MICROTASKS} microtasks in a turn; the rest is left to the next"
            self._router.signals.emit(LOOP_FAULT, "", {"error": text})

    def _fault(self, about: str, error: Exception) -> None:
        self._router.signals.emit(LOOP_FAULT, about, {"error": repr(error)})

    def _check_open(self) -> None:
        if self._over:
            raise RuntimeError("the actor loop has ended; the message was not sent")


async def _call(method: Callable[[], Any]) -> None:
    """Call a method that may be `async` or not: actors need not derive from Actor."""
    found = method()
    if inspect.isawaitable(found):
        await found


def _resolve(future: asyncio.Future[Message], outcome: Message) -> None:
    if not future.done():
        future.set_result(outcome)
