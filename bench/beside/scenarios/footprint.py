"""What it costs to have it: memory, the start of its command, and backlogs of any length."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.beside.contenders import queue
from bench.beside.contenders.contender import BARE, OURS
from bench.beside.harness import Harness
from bench.beside.scenarios.scenario import Scenario
from bench.beside.sizes import Size
from bench.measure import BenchError, quantile, seconds
from bench.processes import Worker, environment

_HANDLED = 20
_REST = 0.5
_STARTS = 3
_MB = 1024 * 1024


def _idle(harness: Harness, key: str) -> Mapping[str, float]:
    """The resident memory of a worker that has handled a few events and has nothing to do."""
    found: list[float] = []

    def look(workers: Sequence[Worker]) -> None:
        time.sleep(_REST)
        found.append(_resident(workers[0].pid) / _MB)

    with harness.filled(key, _HANDLED) as where:
        harness.drained(key, where, "nothing", _HANDLED, before_stop=look)
    return {"": found[0]}


def _resident(pid: int) -> int:
    """Bytes of memory of a process."""
    pages = Path(f"/proc/{pid}/statm")
    if pages.is_file():
        import resource

        return int(pages.read_text().split()[1]) * resource.getpagesize()
    told = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)],  # noqa: S607
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(told.stdout) * 1024


def _growth(harness: Harness, key: str) -> Mapping[str, float]:
    """What an event costs, and the most memory that was used, in a short backlog and a long one."""
    found: dict[str, float] = {}
    for count in (harness.size.few, harness.size.many):
        with harness.filled(key, count) as where:
            drained = harness.drained(key, where, "nothing", count)
        found[_cost(count)] = drained.seconds / drained.handled * 1e6
        found[_memory(count)] = drained.reports[0]["peak"] / _MB
    return found


def _cost(count: int) -> str:
    return f"each of {count:,}"


def _memory(count: int) -> str:
    return f"memory, {count:,}"


def _growing(size: Size) -> dict[str, str]:
    counts = (size.few, size.many)
    return {_cost(each): "µs" for each in counts} | {_memory(each): "MB" for each in counts}


def _started(harness: Harness, key: str) -> Mapping[str, float]:
    """Until `--help` has been said; bare is an interpreter that does nothing."""
    contender = queue(key)
    words = ["-c", "pass"] if contender.name == BARE else ["-m", *contender.command]

    def start() -> None:
        done = subprocess.run(
            [sys.executable, *words], env=environment(), capture_output=True, check=False
        )
        if done.returncode:
            raise BenchError(f"{' '.join(words)} ended with code {done.returncode}")

    start()
    return {"": quantile([seconds(start) for _ in range(_STARTS)], 0.5) * 1e3}


SCENARIOS = (
    Scenario(
        "growth", "what an event costs in a short backlog and in a long one, and memory", "µs",
        _growth, _growing, only=frozenset({BARE, OURS}), databases=("SQLite",), once=True,
    ),
    Scenario("memory", "a worker with nothing to do", "MB", _idle),
    Scenario("start-up", "the command line, until its help is there", "ms", _started),
)  # fmt: skip
