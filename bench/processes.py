"""Other processes, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from bench.measure import same

_ROOT = Path(__file__).parent.parent
_LONGEST = 180.0  # seconds: then something hangs


class Worker:
    """A process that runs a module of the benchmark: it prints JSON, one value a line.

    `where` is the path of a file, or a URI. Compiled modules are in a cache, as they are where
    packages are installed.
    """

    def __init__(self, what: str, where: str | Path, module: str = "bench.worker") -> None:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": _compiled().name}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, what, str(where)],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._watchdog = threading.Timer(_LONGEST, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def read(self) -> Any:
        """The next value; the benchmark ends if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended early, with code {self._process.wait()}")
        return orjson.loads(line)

    def go(self, order: str = "") -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()

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
        self._process.communicate()
        self._watchdog.cancel()


def start(workers: Sequence[Worker], order: str = "") -> float:
    """Let them begin together, once all of them are open; when that was."""
    for worker in workers:
        same("first word", "open", worker.read())
    started = time.perf_counter()
    for worker in workers:
        worker.go(order)
    return started


@cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    """One cache for all workers; it goes with this process."""
    return tempfile.TemporaryDirectory(prefix="ontologia-bench-modules-")


@contextmanager
def stopped(worker: Worker) -> Iterator[Worker]:
    """A worker that is stopped at the end."""
    with worker:
        yield worker
        worker.stop()
