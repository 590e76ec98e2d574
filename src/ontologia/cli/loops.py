"""Event loops of commands that run the code of others: how they begin to end, and do end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
_LAST_WORD = 1.0  # seconds that tasks and threads have which are left over
_THREADS = "ontologia-extension"


def run_to_the_end(coroutine: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """Like `asyncio.run`, and whether all tasks and threads ended that it left behind.

    `asyncio.run` waits for them, and so does Python at its end; but a task may not heed its
    cancellation, and nothing at all ends a thread (`asyncio.to_thread`). If they did not end,
    `leave`; if the coroutine raises, the process ends soon after, with code 1 at the latest.
    """
    runner = asyncio.Runner()
    threads = ThreadPoolExecutor(thread_name_prefix=_THREADS)
    runner.get_loop().set_default_executor(threads)
    try:
        result = runner.run(coroutine)
    except BaseException:
        if not _all_ended(runner, threads):
            end = threading.Timer(_LAST_WORD, os._exit, (1,))  # time to tell of the error
            end.daemon = True
            end.start()
        raise
    return result, _all_ended(runner, threads)


def _all_ended(runner: asyncio.Runner, threads: ThreadPoolExecutor) -> bool:
    threads.shutdown(wait=False, cancel_futures=True)
    left = [*runner.run(_tasks_left()), *_threads_left()]
    if left:
        log.warning("left to themselves, since they do not end: %s", ", ".join(left))
        return False
    runner.close()
    return True


async def _tasks_left() -> list[str]:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for each in tasks:
        each.cancel()
    _, left = await asyncio.wait(tasks, timeout=_LAST_WORD) if tasks else (tasks, set())
    return [f"task {getattr(each.get_coro(), '__qualname__', each.get_name())}" for each in left]


def _threads_left() -> list[str]:
    mine = [each for each in threading.enumerate() if each.name.startswith(_THREADS)]
    for each in mine:
        each.join(_LAST_WORD / len(mine))
    return [f"thread {each.name}" for each in mine if each.is_alive()]


def leave(code: int = 0) -> NoReturn:
    """End the process without waiting for threads. What they have not committed is not written."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


async def first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them ends, raise what it raised, and let the others go."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in rest:
        each.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for each in done:
        each.result()


@contextmanager
def woken_by_signals(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Let signals end the wait of an event loop.

    One that comes just before the loop begins to wait would otherwise be noticed when something
    else ends the wait, which may be never. What is to be done, others say: here it is nothing.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not there, or not this thread
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
