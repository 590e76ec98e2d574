"""Other processes, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

_ROOT = Path(__file__).parent.parent
_LONGEST = 180.0  # seconds: then something hangs


class Worker:
    """A process that runs `bench.worker`: it prints JSON, one value a line.

    Compiled modules are in a cache beside the store, as they are where packages are installed.
    """

    def __init__(self, what: str, path: Path) -> None:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(path.parent / "modules")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", what, str(path)],
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

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
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


@contextmanager
def stopped(worker: Worker) -> Iterator[Worker]:
    """A worker that is stopped at the end."""
    with worker:
        yield worker
        worker.stop()
