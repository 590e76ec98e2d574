"""Other processes, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

import orjson

from bench.measure import BenchError, same

ROOT = Path(__file__).parents[1]
"""The folder of the clone: a process that runs a module of the benchmark starts here."""
_LONGEST = 300.0  # seconds until it says something: then it hangs
_ENDING = 60.0  # the same, until it has ended
_AGAIN = 0.05  # seconds between two calls of what stops a run
_LOOK = 0.002  # seconds between two looks whether all is handled


class Worker:
    """A process that runs a module of the benchmark: it prints JSON, one value a line.

    Compiled modules are in a cache, as they are where packages are installed.
    """

    def __init__(self, module: str, *words: str) -> None:
        self._said = f"{module} {' '.join(words)}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def read(self) -> Any:
        """The next value; BenchError if the process ended without one."""
        assert self._process.stdout is not None  # it is a pipe
        watchdog = threading.Timer(_LONGEST, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line:
            raise BenchError(f"a process ended early, with code {self._process.wait()}: {self}")
        return orjson.loads(line)

    def go(self, order: str = "") -> None:
        """Let it begin, or do the next thing."""
        assert self._process.stdin is not None  # it is a pipe
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end, as an operator would."""
        self._process.send_signal(signal.SIGTERM)

    def __str__(self) -> str:
        return self._said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def start(workers: Sequence[Worker], order: str = "") -> float:
    """Let them begin together, once all of them are open; when that was."""
    for worker in workers:
        same("first word", "open", worker.read())
    started = time.perf_counter()
    for worker in workers:
        worker.go(order)
    return started


class Drained(NamedTuple):
    """How a backlog was handled."""

    seconds: float
    """From the common start until everything was acknowledged, or patience was at its end."""
    late: bool
    """Whether something is left."""
    reports: list[Any]
    """What each worker said at its end."""


def drain(
    workers: Sequence[Worker],
    left: Callable[[], object],
    *,
    patience: float,
    meanwhile: Callable[[], object] = lambda: None,
    before_stop: Callable[[], object] = lambda: None,
) -> Drained:
    """Let workers handle all that is there, and what comes while `meanwhile` runs.

    `left` says whether there is more. BenchError if a worker ends before there is not.
    """
    started = start(workers)
    meanwhile()
    while (late := bool(left())) and time.perf_counter() < started + patience:
        for worker in workers:
            if not worker.alive:
                raise BenchError(f"a worker ended before the work was done: {worker}")
        time.sleep(_LOOK)
    elapsed = time.perf_counter() - started
    before_stop()
    for worker in workers:
        worker.stop()
    return Drained(elapsed, late, [worker.read() for worker in workers])


def environment() -> dict[str, str]:
    """Of this process, with the cache of compiled modules."""
    variables = os.environ | {"PYTHONPYCACHEPREFIX": _compiled().name}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


@cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    """One cache for all workers; it goes with this process."""
    return tempfile.TemporaryDirectory(prefix="ontologia-bench-modules-")


@contextmanager
def stopped(worker: Worker) -> Generator[Worker]:
    """A worker that is stopped at the end."""
    with worker:
        yield worker
        worker.stop()


def say(value: Any) -> None:
    """What a worker prints: one value, on a line."""
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


def stop_on_sigterm(stop: Callable[[], object]) -> None:
    """Call `stop` on SIGTERM, again and again: the signal may come before what it stops has begun."""

    def insist() -> None:
        while True:
            stop()
            time.sleep(_AGAIN)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=insist, daemon=True).start()

    signal.signal(signal.SIGTERM, on_signal)


def begin() -> str:
    """Say that all is open, and wait for the signal, which may bring an order."""
    say("open")
    return sys.stdin.readline()
