"""One extension in a running host: wired, initialized, started, and stopped again."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ontologia.errors import ExtensionError
from ontologia.extensions.agents import invoke_agent, notify_user
from ontologia.extensions.context import ExtensionContext
from ontologia.extensions.problems import of_error, one_line

if TYPE_CHECKING:
    from ontologia.extensions.bus import EventBus
    from ontologia.extensions.channels import Channels
    from ontologia.extensions.contract import AgentProvider, Handler
    from ontologia.extensions.loader import Found
    from ontologia.extensions.manifest import Manifest

log = logging.getLogger(__name__)
_LAST_WORD = 1.0  # seconds that a method has to clean up when its time is over


class Hosted:
    """An extension, and what it has of the host. None of its methods raises what it raises."""

    def __init__(self, found: Found, bus: EventBus, channels: Channels, patience: float) -> None:
        self.found = found
        self.state = "broken" if found.broken else "found"
        self._bus = bus
        self._channels = channels
        self._patience = patience
        self._ends: list[Callable[[], None]] = []
        """What ends its subscriptions from the manifest."""
        self._context: ExtensionContext | None = None
        self._is_channel = False

    @property
    def running(self) -> bool:
        """Whether it is given events."""
        return self.state == "running"

    def wire(self) -> None:
        """Subscribe what the manifest says, in its order, and have its channel, if it is one."""
        if self.found.broken or self.found.manifest is None:
            return
        for each in self.found.manifest.events.subscribes:
            handler = self._handler(each.handler)
            if handler is not None:
                self._ends.append(
                    self._bus.subscribe(
                        each.topic,
                        handler,
                        subscriber_id=self.found.id,
                        max_attempts=each.max_attempts,
                    )
                )
        if inspect.iscoroutinefunction(getattr(self.found.instance, "send", None)):
            if self.found.id in self._channels.names:
                self.found.fail("id", "is the name of a channel that is there", "choose another")
                return
            self._channels.add(self.found.id, self.found.instance)
            self._is_channel = True

    def _handler(self, name: str) -> Handler | None:
        if name == "notify_user":
            return notify_user(self._channels)
        if name == "invoke_agent":
            return invoke_agent(self._agent, self._channels)
        return None  # custom: the extension subscribes by itself

    def _agent(self) -> AgentProvider:
        if self.found.agent is None:
            raise ExtensionError(f"{self.found.id} is not running, and cannot be asked")
        return self.found.agent

    async def initialize(self) -> None:
        """Give it its context; it runs from now on, or is broken."""
        manifest = self.found.manifest
        if self.found.broken or manifest is None:
            self.state = "broken"
            return
        if self.found.instance is not None:
            self._context = self._new_context(manifest)
            await self._do("initialize", self._context)
        if not self.found.broken:
            self.state = "running"

    def _new_context(self, manifest: Manifest) -> ExtensionContext:
        granted = manifest.permissions
        return ExtensionContext(
            extension_id=manifest.id,
            event_bus=self._bus,
            permissions=None if granted is None else granted.model_dump(),
            settings=self.found.settings,
            agent=manifest.agent,
            attempts={
                each.topic: each.max_attempts
                for each in manifest.events.subscribes
                if each.handler == "custom"
            },
        )

    async def start(self) -> None:
        """Tell it that all others are there, and that events come from now on."""
        if self.running:
            await self._do("start")
            if self.found.broken:
                await self._do("stop")  # it was initialized, and may have something to give back

    async def stop(self) -> None:
        """Give it nothing more, and let it clean up."""
        self._release()
        if self.running:
            self.state = "stopped"
            await self._do("stop")
        if self.found.broken:
            self.state = "broken"
        self.found.discard()

    async def _do(self, method: str, *arguments: Any) -> None:
        """Call one of its methods, if it has it. What goes wrong is why it is broken."""
        written = getattr(self.found.instance, method, None)
        if written is None:
            return
        try:
            await _within(self._patience, _guarded(written, *arguments))
        except TimeoutError:
            self._fail(f"{method}() did not end within {self._patience:g} s", "mend it")
        except _Raised as raised:
            error = raised.error
            place = "" if self.found.code is None else self.found.code.place_of(error)
            helps = getattr(error, "hint", None) or "mend it"
            self._fail(f"{method}() raised {of_error(error)}{place}", helps)

    def _fail(self, what: str, remedy: str) -> None:
        log.error("extension %s: %s", self.found.id, what)
        if self.state != "found" and not self.running:
            return  # it is at its end
        self.found.reasons.append(one_line(f"{self.found.folder}: {what}; {remedy}"))
        self.state = "broken"
        self._release()

    def _release(self) -> None:
        for end in self._ends:
            end()
        self._ends.clear()
        if self._is_channel:
            self._channels.remove(self.found.id)
            self._is_channel = False
        if self._context is not None:
            self._context.close()

    def health(self) -> dict[str, Any]:
        """`state`, `reasons`, and `health` with what the extension says of itself, if it does."""
        said: dict[str, Any] = {"state": self.state, "reasons": list(self.found.reasons)}
        asked = getattr(self.found.instance, "health", None)
        if self.running and callable(asked):
            try:
                said["health"] = asked()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise anything
                said["health"] = {"error": f"health() raised {of_error(error)}"}
        return said


class _Raised(Exception):
    """What an extension raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def _within(seconds: float, coroutine: Coroutine[Any, Any, None]) -> None:
    """Wait so long for it; TimeoutError, and it is cancelled, if it takes longer.

    Other than with `asyncio.wait_for`, one that does not heed that is left to itself: it would
    keep all other extensions from running.
    """
    task = asyncio.create_task(coroutine)
    try:
        await asyncio.wait({task}, timeout=seconds)
        in_time = task.done()
        if not in_time:
            task.cancel()
            await asyncio.wait({task}, timeout=min(seconds, _LAST_WORD))
    finally:
        task.cancel()  # nothing if it has ended; else nobody waits for it any more
    if not in_time:
        raise TimeoutError
    task.result()


async def _guarded(method: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """Whatever an extension raises, SystemExit and its own cancellations too, as `_Raised`."""
    try:
        await method(*arguments)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _Raised(error) from error
    except (Exception, SystemExit) as error:
        log.debug("an extension raised", exc_info=error)
        raise _Raised(error) from error
