"""Threads for the database, so that it never blocks the event loop of the extensions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ontologia.errors import SessionClosedError

P = ParamSpec("P")
T = TypeVar("T")
_MOST = 4


class Threads:
    """The threads of a bus: a fixed number, whatever the number of extensions."""

    def __init__(self) -> None:
        self._all = ThreadPoolExecutor(_MOST, "ontologia-bus")
        self._in_order = ThreadPoolExecutor(1, "ontologia-publish")
        self._closed = False

    async def run(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run this in a thread."""
        return await self._run(self._all, functools.partial(step, *args, **kwargs))

    async def in_order(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run this after all earlier calls of `in_order`: events are stored in call order."""
        return await self._run(self._in_order, functools.partial(step, *args, **kwargs))

    async def _run(self, pool: ThreadPoolExecutor, step: Callable[[], T]) -> T:
        if self._closed:
            raise SessionClosedError("the bus is closed", hint="Make another EventBus.")
        # Shielded: a cancelled caller does not stop what has begun.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(pool, step))

    def close(self) -> None:
        """Accept no more calls; the threads end after the accepted ones."""
        self._closed = True
        self._all.shutdown(wait=False)
        self._in_order.shutdown(wait=False)
