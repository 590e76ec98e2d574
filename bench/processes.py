"""Other processes of the parts, beside those that the package brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ontologia.bench import processes
from ontologia.bench.processes import begin, say, start

__all__ = ["Worker", "begin", "say", "start", "stopped"]

_ROOT = Path(__file__).parent.parent


class Worker(processes.Worker):
    """A process that runs a module of the benchmark. `where` is the path of a file, or a URI."""

    def __init__(self, what: str, where: str | Path, module: str = "bench.worker") -> None:
        super().__init__(module, what, str(where), folder=_ROOT)


@contextmanager
def stopped(worker: Worker) -> Iterator[Worker]:
    """A worker that is stopped at the end."""
    with worker:
        yield worker
        worker.stop()
