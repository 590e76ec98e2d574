"""`Host`: the extensions of a folder, running on a bus.

bus = EventBus("assistant.db")
async with Host("extensions", bus) as host:
    print(host.health())
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ontologia.errors import ExtensionError
from ontologia.extensions.bus import EventBus
from ontologia.extensions.channels import (
    TERMINAL,
    Channels,
    TerminalChannel,
    invoke_agent,
    notify_user,
)
from ontologia.extensions.context import ExtensionContext
from ontologia.extensions.contract import AgentProvider, Handler
from ontologia.extensions.loader import (
    LoadedExtension,
    check_dependencies,
    in_order,
    instantiate,
    is_extension,
    load_all,
    read_one,
)
from ontologia.extensions.manifest import (
    Manifest,
    describe_exception,
    one_line,
    unknown_variables,
)

log = logging.getLogger(__name__)
_PATIENCE = 30.0  # seconds that initialize, start and stop of an extension may take
_CANCEL_GRACE = 1.0  # seconds that a method has to clean up after it is cancelled


class Host:
    """Starts extensions in the order of their dependencies, and stops them in reverse.

    A broken extension breaks those that depend on it, and no others; `health` says why. Meanwhile it
    misses events, but if no extension runs, events wait. Without `channels`, the terminal is the
    only one and the default.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        bus: EventBus,
        *,
        channels: Channels | None = None,
        environment: Mapping[str, str] = os.environ,
        patience: float = _PATIENCE,
    ) -> None:
        self.folder = Path(folder)
        self.bus = bus
        self.channels = channels or Channels()
        if channels is None:
            self.channels.add(TERMINAL, TerminalChannel())
        self._environment = environment
        self._patience = patience
        self._hosted: list[HostedExtension] = []
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Load all extensions, wire, initialize and start them, and then deliver events.

        NotFoundError if the folder has none.
        """
        loaded = load_all(self.folder, self._environment)
        manifests = [each.manifest for each in loaded if each.manifest is not None]
        for warning in unknown_variables(manifests, self._environment):
            log.warning(warning)
        self._hosted = [self._host(each) for each in loaded]
        for each in self._hosted:
            each.wire()
        for each in self._hosted:
            await self._initialize(each)
        await self.bus.recover()
        await self._deliver()
        for each in self._hosted:
            await self._start(each)

    async def _deliver(self) -> None:
        """Start the bus, unless no extension runs: events without subscribers would be done."""
        if self.running:
            await self.bus.start()

    def _host(self, loaded: LoadedExtension) -> HostedExtension:
        return HostedExtension(loaded, self.bus, self.channels, self._patience)

    async def _initialize(self, hosted: HostedExtension) -> None:
        """Initialize one, unless a dependency has failed in the meantime."""
        await self._check(hosted)
        await hosted.initialize()
        for reason in hosted.loaded.reasons:
            log.error("extension %s is broken: %s", hosted.loaded.id, reason)

    async def _start(self, hosted: HostedExtension) -> None:
        await self._check(hosted)
        await hosted.start()

    async def _check(self, hosted: HostedExtension) -> None:
        if not hosted.loaded.broken:
            check_dependencies(hosted.loaded, [each.loaded for each in self._hosted])
        if hosted.loaded.broken:
            await hosted.stop()

    async def stop(self) -> None:
        """Deliver no more events, and stop the extensions, the last one first."""
        async with self._lock:
            await self.bus.stop()
            for each in reversed(self._hosted):
                await each.stop()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def health(self) -> dict[str, dict[str, Any]]:
        """By the id of each extension: `state` (running, broken, stopped), `reasons`, `health`."""
        found: dict[str, dict[str, Any]] = {}
        for each in self._hosted:
            found.setdefault(each.loaded.id, each.health())  # of two with one id, the first
        return found

    @property
    def running(self) -> list[str]:
        """The ids of the running extensions, in the order in which they were started."""
        return [each.loaded.id for each in self._hosted if each.running]

    # -- reloading --------------------------------------------------------------------------------

    async def reload(self, folder: Path) -> None:
        """Replace the extension in a folder by what the folder has now; the others stay.

        Meanwhile no event is delivered, so that it misses none. If the new version cannot be
        loaded, the old one continues to run.
        """
        async with self._lock:
            old = next((each for each in self._hosted if each.loaded.folder == folder), None)
            others = [each for each in self._hosted if each is not old]
            new = self._load(folder, others)
            if new is not None and new.broken and old is not None and old.running:
                for reason in new.reasons:
                    log.error("extension %s goes on as it was: %s", old.loaded.id, reason)
                return
            async with self._paused():
                if old is not None:
                    await old.stop()
                self._hosted = others
                if new is not None:
                    await self._add(self._host(new))
                await self._stop_dependents()
                if new is not None:
                    await self._start_waiting(new.id)
                if old is not None:
                    await self._start_duplicate(old.loaded.id)
            log.info("%s was reloaded: %s", folder, "gone" if new is None else self._state(new))

    def _load(self, folder: Path, others: list[HostedExtension]) -> LoadedExtension | None:
        if not is_extension(folder):
            return None
        new = read_one(folder)
        known = [each.loaded for each in others]
        if any(each.id == new.id for each in known):
            new.has_duplicate_id = True
            new.fail("id", f"{new.id} is the id of another extension", "give one of them another")
        instantiate(new, self._environment)
        check_dependencies(new, [*known, new])
        if new.broken:
            new.discard()
        return new

    async def _add(self, hosted: HostedExtension) -> None:
        by_loaded = {each.loaded: each for each in [*self._hosted, hosted]}
        self._hosted = [by_loaded[each] for each in in_order([*by_loaded])]
        hosted.wire()
        await self._initialize(hosted)
        await self._start(hosted)

    async def _stop_dependents(self) -> None:
        """Stop those whose dependency is missing or broken now; dependencies come first."""
        for each in self._hosted:
            if each.running:
                await self._check(each)
                for reason in each.loaded.reasons:
                    log.error("extension %s is broken: %s", each.loaded.id, reason)

    async def _start_waiting(self, id: str) -> None:
        """Start those that waited only for this one, and those that waited for them."""
        waiting = [each for each in self._hosted if each.loaded.waits_for == id]
        for each in waiting if id in self.running else ():
            await self._load_again(each)

    async def _start_duplicate(self, id: str) -> None:
        """Start another extension with an id that is free now: its folder may have been renamed."""
        same_id = [each for each in self._hosted if each.loaded.id == id]
        if len(same_id) == 1 and same_id[0].loaded.has_duplicate_id:
            await self._load_again(same_id[0])

    async def _load_again(self, hosted: HostedExtension) -> None:
        others = [other for other in self._hosted if other is not hosted]
        new = self._load(hosted.loaded.folder, others)
        self._hosted = others
        if new is not None:
            await self._add(self._host(new))
            await self._start_waiting(new.id)

    def _state(self, loaded: LoadedExtension) -> str:
        return next(each.state for each in self._hosted if each.loaded is loaded)

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None]:
        await self.bus.stop()
        try:
            yield
        finally:
            await self._deliver()


class HostedExtension:
    """One extension in a host: wired, initialized, started, and stopped again.

    An exception of the extension is never raised here: it becomes a reason why it is broken.
    """

    def __init__(
        self, loaded: LoadedExtension, bus: EventBus, channels: Channels, patience: float
    ) -> None:
        self.loaded = loaded
        self.state = "broken" if loaded.broken else "found"
        self._bus = bus
        self._channels = channels
        self._patience = patience
        self._unsubscribe: list[Callable[[], None]] = []
        """Ends the subscriptions of its manifest."""
        self._context: ExtensionContext | None = None
        self._is_channel = False

    @property
    def running(self) -> bool:
        """Whether it is given events."""
        return self.state == "running"

    def wire(self) -> None:
        """Make the subscriptions of the manifest, in its order, and add its channel, if it is one."""
        if self.loaded.broken or self.loaded.manifest is None:
            return
        for each in self.loaded.manifest.events.subscribes:
            handler = self._handler(each.handler)
            if handler is not None:
                self._unsubscribe.append(
                    self._bus.subscribe(
                        each.topic,
                        handler,
                        subscriber_id=self.loaded.id,
                        max_attempts=each.max_attempts,
                    )
                )
        if inspect.iscoroutinefunction(getattr(self.loaded.instance, "send", None)):
            if self.loaded.id in self._channels.names:
                self.loaded.fail("id", "is the name of a channel that is there", "choose another")
                return
            self._channels.add(self.loaded.id, self.loaded.instance)
            self._is_channel = True

    def _handler(self, name: str) -> Handler | None:
        if name == "notify_user":
            return notify_user(self._channels)
        if name == "invoke_agent":
            return invoke_agent(self._agent, self._channels)
        return None  # custom: the code of the extension subscribes

    def _agent(self) -> AgentProvider:
        if self.loaded.agent is None:
            raise ExtensionError(f"{self.loaded.id} is not running, and cannot be asked")
        return self.loaded.agent

    async def initialize(self) -> None:
        """Call its `initialize` with a context; it is running afterwards, or broken."""
        manifest = self.loaded.manifest
        if self.loaded.broken or manifest is None:
            self.state = "broken"
            return
        if self.loaded.instance is not None:
            self._context = self._new_context(manifest)
            await self._call("initialize", self._context)
        if not self.loaded.broken:
            self.state = "running"

    def _new_context(self, manifest: Manifest) -> ExtensionContext:
        granted = manifest.permissions
        return ExtensionContext(
            extension_id=manifest.id,
            event_bus=self._bus,
            permissions=None if granted is None else granted.model_dump(),
            settings=self.loaded.settings,
            agent=manifest.agent,
            attempts={
                each.topic: each.max_attempts
                for each in manifest.events.subscribes
                if each.handler == "custom"
            },
        )

    async def start(self) -> None:
        """Call its `start`: all others are initialized, and events come from now on."""
        if self.running:
            await self._call("start")
            if self.loaded.broken:
                await self._call("stop")  # it was initialized, and may hold resources

    async def stop(self) -> None:
        """End its subscriptions, and call its `stop`."""
        self._release()
        if self.running:
            self.state = "stopped"
            await self._call("stop")
        if self.loaded.broken:
            self.state = "broken"
        self.loaded.discard()

    async def _call(self, method: str, *arguments: Any) -> None:
        """Call one of its methods, if it has it. It is broken if that raises or takes too long."""
        found = getattr(self.loaded.instance, method, None)
        if found is None:
            return
        try:
            await _within(self._patience, _guarded(found, *arguments))
        except TimeoutError:
            self._fail(f"{method}() did not end within {self._patience:g} s", "mend it")
        except _Raised as raised:
            error = raised.error
            where = "" if self.loaded.code is None else self.loaded.code.line_of(error)
            helps = getattr(error, "hint", None) or "mend it"
            self._fail(f"{method}() raised {describe_exception(error)}{where}", helps)

    def _fail(self, what: str, remedy: str) -> None:
        log.error("extension %s: %s", self.loaded.id, what)
        if self.state != "found" and not self.running:
            return  # it is being stopped
        self.loaded.reasons.append(one_line(f"{self.loaded.folder}: {what}; {remedy}"))
        self.state = "broken"
        self._release()

    def _release(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        if self._is_channel:
            self._channels.remove(self.loaded.id)
            self._is_channel = False
        if self._context is not None:
            self._context.close()

    def health(self) -> dict[str, Any]:
        """`state`, `reasons`, and `health`, the result of the extension's own method, if any."""
        found: dict[str, Any] = {"state": self.state, "reasons": list(self.loaded.reasons)}
        method = getattr(self.loaded.instance, "health", None)
        if self.running and callable(method):
            try:
                found["health"] = method()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise anything
                found["health"] = {"error": f"health() raised {describe_exception(error)}"}
        return found


class _Raised(Exception):
    """What an extension raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def _within(seconds: float, coroutine: Coroutine[Any, Any, None]) -> None:
    """Await it; TimeoutError, and it is cancelled, if it takes longer.

    Unlike `asyncio.wait_for`, this does not wait for one that ignores its cancellation: it would
    keep all other extensions from running.
    """
    task = asyncio.create_task(coroutine)
    try:
        await asyncio.wait({task}, timeout=seconds)
        in_time = task.done()
        if not in_time:
            task.cancel()
            await asyncio.wait({task}, timeout=min(seconds, _CANCEL_GRACE))
    finally:
        task.cancel()  # also when this wait is cancelled; does nothing to a task that has ended
    if not in_time:
        raise TimeoutError
    task.result()


async def _guarded(method: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    """Await it; all that it raises, also SystemExit and a cancellation of its own, as `_Raised`."""
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
