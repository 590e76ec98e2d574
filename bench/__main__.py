"""Prints one line a figure; exit code 1 if a goal is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from bench import machine
from bench.goals import (
    actors,
    bucket,
    changes,
    commands,
    console,
    events,
    http,
    imports,
    kafka,
    postgres,
    queues,
    state,
    tasks,
    threads,
)
from bench.goals.figures import HEADINGS, Figure
from bench.measure import BenchError

_PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "state": state.figures,
    "threads": threads.figures,
    "events": events.figures,
    "queues": queues.figures,
    "tasks": tasks.figures,
    "commands": commands.figures,
    "actors": actors.figures,
    "http": http.figures,
    "imports": imports.figures,
    "postgres": postgres.figures,
    "kafka": kafka.figures,
    "bucket": bucket.figures,
    "changes": changes.figures,
    "console": console.figures,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of: {' '.join(_PARTS)}")
    chosen: list[str] = parser.parse_args().parts or list(_PARTS)
    unknown = [name for name in chosen if name not in _PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {' '.join(_PARTS)}")
    started = time.monotonic()
    print(_machine(), HEADINGS, sep="\n\n", flush=True)
    missed: list[Figure] = []
    for name in chosen:
        for figure in _PARTS[name]():
            print(figure, flush=True)
            missed += [figure] if figure.missed else []
    verdict = f"goals missed: {len(missed)}" if missed else "all goals reached"
    print(f"\n{verdict}, in {time.monotonic() - started:.0f} s{machine.load()}")
    return 1 if missed else 0


def _machine() -> str:
    return f"{machine.described()}\n{machine.in_words(machine.versions(('orjson', 'pydantic')))}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"error: {error}")
