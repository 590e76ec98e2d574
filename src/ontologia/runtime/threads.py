"""Threads that wait for the database in place of the tasks of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from ontologia.forking import in_forked_child

P = ParamSpec("P")
R = TypeVar("R")
_IDLE = 10.0  # seconds after which a thread that has nothing to do ends


class Deliveries:
    """Carries results from threads to one event loop; what is ready at once wakes it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._woken = False

    def put(self, *calls: Callable[[], object]) -> None:
        """Have the loop call these, one after the other, whatever they raise. For any thread."""
        self._calls.extend(calls)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed, and no task waits any more
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before the first: what comes from now on wakes it again
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            if self._calls:  # one has raised, which concerns none of the others
                self.loop.call_soon(self._deliver)


class Job(Generic[R]):
    """Something to be done in a thread, and the task that waits for it.

    Cancelling the task does not leave it open what became of the job: one that has not begun is
    withdrawn, any other comes to its end before CancelledError is raised.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._unclaimed = [True]
        self._future: asyncio.Future[R] = deliveries.loop.create_future()
        self.done = False

    def begin(self) -> bool:
        """Begin it; False if its task waits no more. Called once, by the thread that does it."""
        return not self._future.cancelled() and self.withdraw()

    def withdraw(self) -> bool:
        """Keep it from being begun; False if that is too late."""
        try:
            return self._unclaimed.pop()  # one thread can, and no other
        except IndexError:
            return False

    def end(self, result: R | None, error: BaseException | None) -> None:
        """Give the result to the task that waits. Called on the loop."""
        self.done = True
        if self._future.done():  # the task is cancelled
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    async def abandoned(self) -> R:
        """The result. A task that is cancelled does not wait for it: for jobs that only read."""
        try:
            return await self._future
        except asyncio.CancelledError:
            self.withdraw()
            raise

    async def finished(self, again: Callable[[], None] | None = None) -> R:
        """The result. A task that is cancelled waits until the job is withdrawn or done.

        Then `again` is called now and then, if there is one, to have the job end.
        """
        try:
            return await self._future
        except asyncio.CancelledError:
            if self.done or self.withdraw():
                raise
            while not self.done:
                if again is not None:
                    again()
                self._future = self._deliveries.loop.create_future()
                # Another cancellation is the same one; of its error the task was not to be told.
                with suppress(asyncio.CancelledError, Exception):
                    async with asyncio.timeout(None if again is None else 0.05):
                        await self._future
            raise


class Threads:
    """Up to `most` threads, started when they are needed. For any number of event loops.

    A forked child has threads of its own: those of its parent are not there.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loops: dict[asyncio.AbstractEventLoop, Deliveries] = {}
        self._closed = False
        self.renew()
        _all.add(self)

    def renew(self) -> None:
        """Begin with no thread, and nothing to do."""
        self._ready = threading.Condition(threading.Lock())
        self._jobs: deque[Callable[[], None]] = deque()
        self._count = 0
        self._idle = 0

    def deliveries(self) -> Deliveries:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            for each in list(self._loops):
                if each.is_closed():
                    self._loops.pop(each, None)
            found = self._loops.setdefault(loop, Deliveries(loop))
        return found

    def do(self, work: Callable[[], None]) -> None:
        """Have a thread do this. It must not raise."""
        with self._ready:
            self._jobs.append(work)
            if self._idle >= len(self._jobs):
                self._ready.notify()
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Have each thread end once there is nothing to do for it. Idempotent; does not wait.

        What is to be done later is done by threads that end then.
        """
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def call(self, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> Job[R]:
        """Have a thread call a function, in a copy of the caller's context."""
        deliveries = self.deliveries()
        job: Job[R] = Job(deliveries)
        self.do(partial(carry_out, job, deliveries, in_context(function, *args, **options)))
        return job

    def call_apart(self, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> Job[R]:
        """The same in a thread of its own: for what lasts."""
        deliveries = self.deliveries()
        job: Job[R] = Job(deliveries)
        work = partial(carry_out, job, deliveries, in_context(function, *args, **options))
        threading.Thread(target=work, name=self._name, daemon=True).start()
        return job

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._jobs:
                    self._idle += 1
                    try:
                        notified = self._ready.wait(0.0 if self._closed else _IDLE)
                    finally:
                        self._idle -= 1
                    if not notified and not self._jobs:
                        self._count -= 1
                        return
                work = self._jobs.popleft()
            work()
            del work  # not kept alive by a thread that waits


_all: WeakSet[Threads] = WeakSet()


def _renew() -> None:
    for each in _all:
        each.renew()


in_forked_child(_renew)


def in_context(function: Callable[P, R], *args: P.args, **options: P.kwargs) -> Callable[[], R]:
    """A function that calls this one in a copy of the context of now."""
    context = copy_context()
    return lambda: context.run(function, *args, **options)


def carry_out(job: Job[Any], deliveries: Deliveries, function: Callable[[], Any]) -> None:
    """Do a job, unless it was withdrawn, and give its result to the loop."""
    if not job.begin():
        return
    result, error = None, None
    try:
        result = function()
    except BaseException as raised:  # noqa: BLE001 - raised by the task that waits
        error = for_task(raised)
    deliveries.put(partial(job.end, result, error))


def for_task(raised: BaseException) -> Exception:
    """What a task raises for an error of a thread.

    A future takes no StopIteration, and an interrupt is for the thread it was meant for.
    """
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    error = RuntimeError(f"a function that ran in a thread raised {raised!r:.200}")
    error.__cause__ = raised
    return error
