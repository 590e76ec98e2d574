"""Time, taken the same way everywhere."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class BenchError(Exception):
    """Nothing was measured, and why."""


def quantile(values: list[float], share: float) -> float:
    """The median for 0.5, and so on."""
    if share == 0.5:
        return statistics.median(values)
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes. Its result is freed after the clock has stopped.

    The garbage collector runs as it does for a user, but does not see what the benchmark holds.
    """
    gc.collect()
    gc.freeze()
    try:
        started = time.perf_counter()
        result = work()
        elapsed = time.perf_counter() - started
    finally:
        gc.unfreeze()
    del result
    return elapsed


def same(what: str, wanted: object, found: object) -> None:
    """Stop here if the two sides do not give the same answer: their times would mean nothing."""
    if wanted != found:
        shown = f"{str(wanted)[:300]}\n{str(found)[:300]}"
        raise BenchError(f"{what}: these two differ, so nothing was measured\n{shown}")


@contextmanager
def progress(what: str) -> Generator[None]:
    """Say on stderr what is being done, and how long it took."""
    sys.stderr.write(f"  {what} ...")
    sys.stderr.flush()
    started = time.perf_counter()
    yield
    sys.stderr.write(f" {time.perf_counter() - started:.1f} s\n")
    sys.stderr.flush()
