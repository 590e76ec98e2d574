"""`async def` handlers: run on one event loop, in a thread of its own.

asyncio is imported when the first one runs: with TLS, which it brings, it takes 3 MB that other
workers need not have.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class Coroutines:
    """Runs awaitables for threads that wait for them. The event loop starts when it is needed.

    A loop of our own works wherever `run` is called: in the main thread, in a thread, and in a
    program that has an event loop already.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()

    def run(self, awaitable: Awaitable[Any]) -> None:
        """Run to the end; whatever it raises is raised here. An interrupt here cancels it."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._started())
        self._running.add(future)
        try:
            future.result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None  # the word for it that handlers know
        except _Exit as exit:
            raise exit.error from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._running.discard(future)

    def cancel_all(self) -> None:
        """Cancel what is running."""
        for future in list(self._running):
            future.cancel()

    def close(self, patience: float) -> None:
        """Stop the event loop; what is still running is cancelled, and waited for this long."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            self.cancel_all()
            loop.call_soon_threadsafe(loop.stop)
            thread.join(patience)

    def _started(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="ontologia-async", daemon=True
                )
                self._thread.start()
            return self._loop


class _Exit(Exception):
    """SystemExit or KeyboardInterrupt: as such it would end the event loop, with all coroutines."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Exit(error) from error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
