"""Those who work for a loop: its actors and adapters, which start and stop together."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ontologia.actors.adapter import Adapter, Ingress
from ontologia.actors.dispatch import Dispatch
from ontologia.actors.process import ProcessActor
from ontologia.actors.voice import Voice
from ontologia.actors.worker import listen_to
from ontologia.errors import ActorBootError


class Crew:
    """The actors, by the ids of their capabilities, and the adapters that were started."""

    def __init__(
        self, capabilities: Sequence[Any], adapters: Sequence[Adapter], dispatch: Dispatch
    ) -> None:
        self._capabilities, self._unstarted, self._dispatch = capabilities, adapters, dispatch
        self.actors: dict[str, Any] = {}
        self.adapters: list[Adapter] = []

    @property
    def busy(self) -> bool:
        """Whether any of them may lead to another message, or has something to write out."""
        return any(getattr(each, "pending", 0) for each in self.actors.values()) or any(
            each.active or each.buffered for each in self.adapters
        )

    async def start(self, loop: Ingress) -> None:
        """Make all actors, and then accept input; ActorBootError names all that cannot be made."""
        problems: list[str] = []
        for capability in self._capabilities:
            try:
                await self._spawn(capability)
            except Exception as error:  # noqa: BLE001 - an actor may raise anything
                problems.append(f"{capability.id}: spawn: {type(error).__name__}: {error}")
        if problems:
            raise ActorBootError(problems)
        for adapter in self._unstarted:
            self.adapters.append(adapter)
            await adapter.start(loop)

    async def stop(self) -> list[Exception]:
        """Stop all of them, side by side; gives what went wrong with that."""
        stops = [_done(each.stop) for each in self.adapters]
        stops += [_done(each.stop) for each in self.actors.values() if hasattr(each, "stop")]
        ends = await asyncio.gather(*stops, return_exceptions=True)
        return [each for each in ends if isinstance(each, Exception)]

    async def _spawn(self, capability: Any) -> None:
        name: str = capability.id
        actor: Any
        if getattr(capability, "isolation", "task") == "process":
            actor = ProcessActor(name, capability.spawn, capability.inbound)
        else:
            actor = capability.spawn()
        self._dispatch.posts.add(name, actor)
        self.actors[name] = actor
        voice = Voice(name, self._dispatch)
        listen_to(actor, voice.heard, voice.failed)
        if hasattr(actor, "start"):
            await _done(actor.start)


async def _done(step: Callable[[], Any]) -> None:
    """Take a step, be it `async` or not: objects that are shaped like a Worker may be either."""
    found = step()
    if inspect.isawaitable(found):
        await found
