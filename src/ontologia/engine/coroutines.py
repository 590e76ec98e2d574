"""`async def` handlers: run on one event loop, in a thread of its own.

asyncio is imported when the first one runs: with TLS, which it brings, it takes 3 MB that other
workers need not have.
"""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from traceback import FrameSummary, StackSummary, extract_stack
from types import CoroutineType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


_collecting = threading.Lock()  # two threads that switch the collector would leave it off
_LOOK = 0.05  # seconds between two looks whether a loop that was left is empty
home: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("ontologia_loop", default=None)
"""The event loop of a program that awaits the run: its `async def` handlers run there."""


class Coroutines:
    """Runs awaitables for threads that wait for them. The event loop starts when it is needed.

    A loop of our own works wherever `run` is called: in the main thread, in a thread, and in a
    program that has an event loop already. What `home` names is used instead.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = home.get()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._running: dict[int, Running] = {}
        """By the thread that waits for it."""

    def run(self, awaitable: Awaitable[Any], begin: Callable[[], object] = lambda: None) -> None:
        """Run to the end; whatever it raises is raised here. An interrupt here cancels it.

        `begin` is called first, in the task.
        """
        import asyncio

        with self._lock:  # the loop is not left in between
            loop = self._started()
            thread = None if self._thread is None else self._thread.ident
            running = Running(awaitable, loop, thread)
            future = running.future = asyncio.run_coroutine_threadsafe(
                running.to_its_end(awaitable, begin), loop
            )
        self._running[threading.get_ident()] = running
        try:
            future.result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None  # the word for it that handlers know
        except _Exit as exit:
            raise exit.error from None
        except BaseException:
            running.cancel()
            raise
        finally:
            self._running.pop(threading.get_ident(), None)

    def waited_for(self, thread: int) -> Running | None:
        """What this thread waits for."""
        return self._running.get(thread)

    def cancel_all(self) -> None:
        """Cancel what is running."""
        for running in list(self._running.values()):
            running.cancel()

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run nothing more on this event loop, which a coroutine blocks, unless it is the program's."""
        with self._lock:
            if self._loop is loop and self._thread is not None:
                self._loop = self._thread = None
                # Once it is free, and what else runs there has come to its end.
                loop.call_soon_threadsafe(_stop_when_empty, loop)

    def close(self, patience: float) -> None:
        """Stop the event loop; what is still running is cancelled, and waited for this long."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if thread is None:
            self.cancel_all()
        if loop is not None and thread is not None:
            self.cancel_all()
            loop.call_soon_threadsafe(loop.stop)
            thread.join(patience)

    def _started(self) -> asyncio.AbstractEventLoop:
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="ontologia-async", daemon=True
            )
            self._thread.start()
        return self._loop


class Running:
    """A coroutine on an event loop, that a thread waits for."""

    def __init__(
        self, awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop, thread: int | None
    ) -> None:
        """`thread` is that of the event loop, if it is known."""
        self.loop = loop
        self.future: Future[Any] | None = None
        self._awaited: Awaitable[Any] | None = awaitable
        self._thread = thread or 0
        self._dropped = False
        self.begun = False
        """Whether it was called; it is not while another one keeps the event loop from going on."""
        self.ended = False
        """Whether it has come to its end; the thread does not wait for one that was cancelled."""

    def cancel(self) -> None:
        """Cancel it, and end the wait of the thread."""
        if self.future is not None:
            self.future.cancel()
        with suppress(RuntimeError):  # the event loop is closed
            self.loop.call_soon_threadsafe(self._drop)

    def _drop(self) -> None:
        """On the event loop: do not call what was cancelled before it was called."""
        if not self.begun:
            self._dropped = self.ended = True
            if isinstance(self._awaited, CoroutineType):
                self._awaited.close()  # Python would warn of one that is not awaited

    def stack(self) -> list[FrameSummary]:
        """Where it is: what each coroutine awaits, or where its event loop is kept from going on."""
        waiting = _frames(self._awaited)
        if not self.begun or any(running for _, running in waiting):
            return stack_of(self._thread)
        return StackSummary.extract((frame, frame.f_lineno) for frame, _ in waiting)

    async def to_its_end(self, awaitable: Awaitable[Any], begin: Callable[[], object]) -> None:
        """Await it."""
        if self._dropped:
            return
        self.begun, self._thread = True, threading.get_ident()
        begin()
        try:
            await awaitable
        except (SystemExit, KeyboardInterrupt) as error:
            raise _Exit(error) from error
        finally:
            self._awaited = None
            self.ended = True


def stack_of(thread: int) -> list[FrameSummary]:
    """Where a thread is; [] if it has ended."""
    # A variable with all frames would be in one of them: a cycle, which keeps what they hold.
    with _without_collection():
        frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - no public name
    return [] if frame is None else extract_stack(frame)


@contextmanager
def _without_collection() -> Generator[None]:
    """Keep the garbage collector off.

    CPython 3.11 holds the lock of its list of threads while it makes the dict of their frames. A
    collection then that frees a `threading.local` takes that lock again, and the process hangs.
    """
    with _collecting:
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_on:
                gc.enable()


def _frames(awaited: object) -> list[tuple[FrameType, bool]]:
    """The frames of a coroutine and of those it awaits, each with whether it is running."""
    found: list[tuple[FrameType | None, bool]] = []
    while True:
        match awaited:
            case CoroutineType():
                found.append((awaited.cr_frame, awaited.cr_running))
                awaited = awaited.cr_await
            case GeneratorType():
                found.append((awaited.gi_frame, awaited.gi_running))
                awaited = awaited.gi_yieldfrom
            case _:  # a future, or what a library has in its place
                return [(frame, running) for frame, running in found if frame is not None]


class _Exit(Exception):
    """SystemExit or KeyboardInterrupt: as such it would end the event loop, with all coroutines."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _stop_when_empty(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    if asyncio.all_tasks(loop):
        loop.call_later(_LOOK, _stop_when_empty, loop)
    else:
        loop.stop()


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
