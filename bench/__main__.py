"""Prints one line a figure; exit code 1 if a goal is missed."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import orjson
import pydantic

import ontologia
from bench import actors, commands, events, http, imports, queues, state
from bench.measure import HEADINGS, Figure
from bench.postgres import part as postgres

_PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "state": state.figures,
    "events": events.figures,
    "queues": queues.figures,
    "commands": commands.figures,
    "actors": actors.figures,
    "http": http.figures,
    "imports": imports.figures,
    "postgres": postgres.figures,
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
    print(f"\n{verdict}, in {time.monotonic() - started:.0f} s{_load()}")
    return 1 if missed else 0


def _machine() -> str:
    versions = {
        "Python": platform.python_version(),
        "SQLite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "orjson": orjson.__version__,
        "pydantic": pydantic.VERSION,
        "ontologia": ontologia.__version__,
    }
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{os.cpu_count()} cores, {_processor()}, {platform.system()}{_load()}\n{named}"


def _load() -> str:
    """How busy the machine is: above the number of its cores, the ratios are mostly noise."""
    return f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
