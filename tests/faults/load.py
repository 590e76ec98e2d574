"""Eight workers and two producers on one file for a while: what it costs, and whether it stays so.

`python -m tests.faults.load --seconds 600` prints the figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ontologia import Session
from tests.faults import workers
from tests.faults.checker import ask, unsound
from tests.faults.children import Child, noted, wait_until_finished
from tests.faults.workers import CONSUMERS

WORKERS, PRODUCERS = 8, 2
ORDERS_PER_SECOND = 15.0  # of each producer; each order is three runs of handlers
_STEADY = 300  # seconds: from here on figures of time mean something


def carry_load(folder: Path, seconds: float) -> dict[str, Any]:
    """Let them work for that long; figures, with what is wrong under `losses`."""
    path = folder / "load.db"
    Session(str(path)).close()
    # Finished events are collected on the way, or the file would grow and nothing could be flat.
    settings = {
        "event_retention_ms": int(seconds * 100),
        "event_gc_interval_ms": int(seconds * 50),
    }
    began = time.monotonic()
    with ExitStack() as stack:
        crew = [
            stack.enter_context(Child(folder, workers.work_and_measure, str(path), settings))
            for _ in range(WORKERS)
        ]
        for worker in crew:
            worker.hear("running")
        producers = [
            stack.enter_context(
                Child(folder, workers.produce, str(path), f"p{number}", 1 / ORDERS_PER_SECOND)
            )
            for number in range(PRODUCERS)
        ]
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        for producer in producers:
            producer.tell()
            producer.hear("ended")
        wait_until_finished(path, *crew)
        for worker in crew:
            worker.stop()
    return {
        "seconds": round(time.monotonic() - began, 1),
        **_figures(folder),
        "file_mib": round(path.stat().st_size / 2**20, 1),
        "losses": losses(path, folder),
    }


def losses(path: Path, folder: Path) -> list[str]:
    """What was committed and has no result, or more than one; what was run twice; what is broken."""
    notes = noted(folder)
    committed = sorted(about for what, about in notes if what == "committed")
    found = [*unsound(path)]
    for kind in ("Order", "Receipt", "Parcel"):
        rows = ask(path, f"SELECT entity_key FROM entity_history WHERE entity_type = '{kind}'")
        keys = sorted(key for (key,) in rows)
        if keys != committed:
            found.append(f"{len(keys)} of {kind} for {len(committed)} commits")
    for name in (name for names in CONSUMERS.values() for name in names):
        runs = [times for (what, _), times in notes.items() if what == name]
        if sum(runs) != len(committed) or len(runs) != len(committed):
            found.append(f"{sum(runs)} runs of {name} for {len(committed)} events")
    buried = ask(path, "SELECT event_id, last_error FROM dead_letters")
    return found + [f"buried: {row}" for row in buried]


def is_flat(figures: dict[str, Any]) -> bool:
    """Whether the last third took no more memory, and, if it was long enough, no longer."""
    memory, delay = figures["memory_mib"], figures["delay_ms"]
    less = memory[-1] <= 1.25 * memory[0] + 16
    if figures["seconds"] < _STEADY:
        return less
    return less and delay[-1] <= 2 * delay[0] + 20


def _figures(folder: Path) -> dict[str, Any]:
    """By thirds of the time: memory of the largest worker, the middle and the slow delays."""
    memory: dict[Path, list[tuple[float, float]]] = {}
    delays: list[tuple[float, float]] = []
    for file in folder.glob("child-*.measured"):
        for line in file.read_text().splitlines():
            what, at, value = line.split()
            if what == "memory":
                memory.setdefault(file, []).append((float(at), float(value)))
            else:
                delays.append((float(at), float(value)))
    largest = [
        max(part) for part in zip(*(map(median, _thirds(m)) for m in memory.values()), strict=True)
    ]
    parts = _thirds(delays)
    return {
        "events": len(delays),
        "memory_mib": [round(each, 1) for each in largest],
        "delay_ms": [round(median(part), 1) for part in parts],
        "delay_p99_ms": [round(quantiles(part, n=100)[-1], 1) for part in parts],
    }


def _thirds(series: Sequence[tuple[float, float]]) -> list[list[float]]:
    """The values of the first third of the time, without the tenth that warms up, and so on."""
    first, last = min(at for at, _ in series), max(at for at, _ in series)
    length = (last - first) or 1.0
    parts: list[list[float]] = [[], [], []]
    for at, value in series:
        share = (at - first) / length
        if share >= 0.1:
            parts[min(2, int(share * 3))].append(value)
    return parts


def main() -> int:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        figures = carry_load(Path(folder), seconds)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if not figures["losses"] and is_flat(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
