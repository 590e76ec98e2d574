"""Other processes, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from ontologia.bench.measure import BenchError, same

_LONGEST = 300.0  # seconds until it says something: then it hangs
_ENDING = 60.0  # the same, until it has ended


class Worker:
    """A process that runs a module of the benchmark: it prints JSON, one value a line.

    Compiled modules are in a cache, as they are where packages are installed.
    """

    def __init__(self, module: str, *words: str, folder: Path | None = None) -> None:
        self._said = f"{module} {' '.join(words)}"
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and modules of ours
            [sys.executable, "-m", module, *words],
            cwd=folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def read(self) -> Any:
        """The next value; BenchError if the process ended without one."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        watchdog = threading.Timer(_LONGEST, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line:
            raise BenchError(
                f"a process ended early, with code {self._process.wait()}: {self._said}"
            )
        return orjson.loads(line)

    def go(self, order: str = "") -> None:
        """Let it begin, or do the next thing."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
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


def begin() -> str:
    """Say that all is open, and wait for the signal, which may bring an order."""
    say("open")
    return sys.stdin.readline()
