"""Threads for the database, so that the event loop of the extensions never waits for it."""

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
    """A few threads of a bus's own, whatever the number of extensions."""

    def __init__(self) -> None:
        self._all = ThreadPoolExecutor(_MOST, "ontologia-bus")
        self._in_order = ThreadPoolExecutor(1, "ontologia-publish")
        self._closed = False

    async def run(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do this in a thread."""
        return await self._run(self._all, functools.partial(step, *args, **kwargs))

    async def in_order(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, after all that was given here before: events are stored as they come."""
        return await self._run(self._in_order, functools.partial(step, *args, **kwargs))

    async def _run(self, pool: ThreadPoolExecutor, step: Callable[[], T]) -> T:
        if self._closed:
            raise SessionClosedError("the bus is closed", hint="Make another EventBus.")
        # Shielded: whoever stops waiting does not take back what has begun.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(pool, step))

    def close(self) -> None:
        """Take nothing more; the threads end when what was given is done."""
        self._closed = True
        self._all.shutdown(wait=False)
        self._in_order.shutdown(wait=False)
