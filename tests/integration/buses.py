"""Event buses for tests: what subscribers heard, and waiting for what a bus does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ontologia.extensions.bus import EventBus
from ontologia.extensions.contract import Event

PATIENCE = 60.0  # seconds; only a hang takes that long
NEVER = 3600.0  # a poll interval that no test waits for


class Ear:
    """A subscriber that remembers what it was given; `fails` says with which error, if any."""

    def __init__(self, fails: Callable[[Event], BaseException | None] | None = None) -> None:
        self.events: list[Event] = []
        self._fails = fails

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        error = self._fails(event) if self._fails else None
        if error is not None:
            raise error

    def heard(self, name: str = "n") -> list[Any]:
        """One value of each payload."""
        return [event.payload.get(name) for event in self.events]


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until this, a value or an awaitable, is true; what it is."""
    async with asyncio.timeout(PATIENCE):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.002)


async def ended(bus: EventBus, *numbers: int) -> list[dict[str, Any]]:
    """Wait until these events are done or failed; what the journal says of them."""

    async def entries() -> list[dict[str, Any]]:
        found = [await bus.journal.get(number) for number in numbers]
        over = [each for each in found if each and each["status"] in ("done", "failed")]
        return over if len(over) == len(numbers) else []

    found: list[dict[str, Any]] = await until(entries)
    return found
