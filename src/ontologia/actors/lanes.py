"""The lanes of the loop: which message is next, and the microtasks at the end of a turn.

The system lane strictly precedes the user lane; each lane is first in, first out. Microtasks are
the loop's own bookkeeping at the end of a turn. Work waits nowhere else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

Lane = Literal["system", "user"]
T = TypeVar("T")
MOST_MICROTASKS = 1000
"""Maximum microtasks per turn; the rest waits for the next turn, so that none can hold the loop."""


def lane_of(type: str) -> Lane:
    """The lane of a message whose sender did not choose one."""
    return "system" if type.startswith("Sys.") else "user"


class Lanes(Generic[T]):
    """Two queues of strict priority and the microtasks."""

    def __init__(self) -> None:
        self.system: deque[T] = deque()
        self.user: deque[T] = deque()
        self.microtasks: deque[Callable[[], object]] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, item: T, lane: Lane) -> None:
        """Add to the end of a lane."""
        (self.system if lane == "system" else self.user).append(item)
        if self._waiting is not None:
            self.wake()

    def next(self) -> T | None:
        """The oldest of the system lane, else the oldest of the user lane, else None."""
        if self.system:
            return self.system.popleft()
        return self.user.popleft() if self.user else None

    def queue_microtask(self, task: Callable[[], object]) -> None:
        """Run this at the end of the turn; wakes the loop if no turn is running."""
        self.microtasks.append(task)
        if self._waiting is not None:
            self.wake()

    def drain(self, failed: Callable[[Exception], object]) -> bool:
        """Run the microtasks, also those they add; False if the limit left some."""
        for _ in range(MOST_MICROTASKS):
            if not self.microtasks:
                return True
            try:
                self.microtasks.popleft()()
            except Exception as error:  # noqa: BLE001 - the others run all the same
                failed(error)
        return not self.microtasks

    def __bool__(self) -> bool:
        return bool(self.system or self.user or self.microtasks)

    async def wait(self) -> None:
        """Sleep until something is put here, or `wake` is called."""
        if self:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def wake(self) -> None:
        """End the sleep of `wait`."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
