"""`Host`: the extensions of a folder, running on a bus.

bus = EventBus("assistant.db")
async with Host("extensions", bus) as host:
    print(host.health())
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ontologia.extensions.bus import EventBus
from ontologia.extensions.channels import TERMINAL, Channels, TerminalChannel
from ontologia.extensions.hosted import Hosted
from ontologia.extensions.loader import (
    Found,
    check_dependencies,
    in_order,
    is_extension,
    load_all,
    make,
    read_one,
)
from ontologia.extensions.settings import unknown_variables

log = logging.getLogger(__name__)
_PATIENCE = 30.0  # seconds that initialize, start and stop of an extension may take


class Host:
    """Starts extensions in the order of their dependencies, and stops them in reverse.

    One that is broken, or whose dependency is, keeps none of the others from running; `health`
    says why. Events that come in the meantime pass it by, but when none runs, they wait. Without
    `channels`, the terminal is the only one and the default.
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
        self._hosted: list[Hosted] = []
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Load all extensions, wire, initialize and start them, and then deliver events.

        NotFoundError if the folder has none.
        """
        found = load_all(self.folder, self._environment)
        manifests = [each.manifest for each in found if each.manifest is not None]
        for sentence in unknown_variables(manifests, self._environment):
            log.warning(sentence)
        self._hosted = [self._host(each) for each in found]
        for each in self._hosted:
            each.wire()
        for each in self._hosted:
            await self._bring_up(each)
        await self.bus.recover()
        await self._deliver()
        for each in self._hosted:
            await self._start_up(each)

    async def _deliver(self) -> None:
        """Let events come, unless there is nobody: they would be done without anybody's doing."""
        if self.running:
            await self.bus.start()

    def _host(self, found: Found) -> Hosted:
        return Hosted(found, self.bus, self.channels, self._patience)

    async def _bring_up(self, hosted: Hosted) -> None:
        """Initialize one, unless what it depends on has failed in the meantime."""
        await self._check(hosted)
        await hosted.initialize()
        for reason in hosted.found.reasons:
            log.error("extension %s is broken: %s", hosted.found.id, reason)

    async def _start_up(self, hosted: Hosted) -> None:
        await self._check(hosted)
        await hosted.start()

    async def _check(self, hosted: Hosted) -> None:
        if not hosted.found.broken:
            check_dependencies(hosted.found, [each.found for each in self._hosted])
        if hosted.found.broken:
            await hosted.stop()

    async def stop(self) -> None:
        """Deliver no more events, and stop the extensions, the last one first."""
        async with self._turn:
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
        told: dict[str, dict[str, Any]] = {}
        for each in self._hosted:
            told.setdefault(each.found.id, each.health())  # of two with one id, the first
        return told

    @property
    def running(self) -> list[str]:
        """The ids of those that run, in the order in which they were started."""
        return [each.found.id for each in self._hosted if each.running]

    # -- reloading --------------------------------------------------------------------------------

    async def reload(self, folder: Path) -> None:
        """Replace the extension in a folder by what the folder has now; the others stay.

        While that happens no event is delivered, so that none passes it by; they come right after.
        A version that cannot be loaded leaves the one before it running.
        """
        async with self._turn:
            old = next((each for each in self._hosted if each.found.folder == folder), None)
            others = [each for each in self._hosted if each is not old]
            new = self._read_again(folder, others)
            if new is not None and new.broken and old is not None and old.running:
                for reason in new.reasons:
                    log.error("extension %s goes on as it was: %s", old.found.id, reason)
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
                    await self._start_namesake(old.found.id)
            log.info("%s was reloaded: %s", folder, "gone" if new is None else self._state(new))

    def _read_again(self, folder: Path, others: list[Hosted]) -> Found | None:
        if not is_extension(folder):
            return None
        new = read_one(folder)
        known = [each.found for each in others]
        if any(each.id == new.id for each in known):
            new.is_namesake = True
            new.fail("id", f"{new.id} is the id of another extension", "give one of them another")
        make(new, self._environment)
        check_dependencies(new, [*known, new])
        if new.broken:
            new.discard()
        return new

    async def _add(self, hosted: Hosted) -> None:
        by_found = {each.found: each for each in [*self._hosted, hosted]}
        self._hosted = [by_found[each] for each in in_order([*by_found])]
        hosted.wire()
        await self._bring_up(hosted)
        await self._start_up(hosted)

    async def _stop_dependents(self) -> None:
        """Stop those whose dependency is gone or broken now; those it depends on stand before it."""
        for each in self._hosted:
            if each.running:
                await self._check(each)
                for reason in each.found.reasons:
                    log.error("extension %s is broken: %s", each.found.id, reason)

    async def _start_waiting(self, id: str) -> None:
        """Start those that only waited for this one, and those that waited for them."""
        waiting = [each for each in self._hosted if each.found.waits_for == id]
        for each in waiting if id in self.running else ():
            await self._try_again(each)

    async def _start_namesake(self, id: str) -> None:
        """Start another one with an id that is free now: its folder may just have been renamed."""
        namesakes = [each for each in self._hosted if each.found.id == id]
        if len(namesakes) == 1 and namesakes[0].found.is_namesake:
            await self._try_again(namesakes[0])

    async def _try_again(self, hosted: Hosted) -> None:
        others = [other for other in self._hosted if other is not hosted]
        new = self._read_again(hosted.found.folder, others)
        self._hosted = others
        if new is not None:
            await self._add(self._host(new))
            await self._start_waiting(new.id)

    def _state(self, found: Found) -> str:
        return next(each.state for each in self._hosted if each.found is found)

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None]:
        await self.bus.stop()
        try:
            yield
        finally:
            await self._deliver()
