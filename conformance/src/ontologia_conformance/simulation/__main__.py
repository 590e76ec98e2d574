"""`python -m ontologia_conformance.simulation`: run many seeds, or one of them again with its trace."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from ontologia_conformance.simulation import SimulationFailed, simulate


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 if a seed failed."""
    parser = argparse.ArgumentParser(
        prog="python -m ontologia_conformance.simulation", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default: 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="print every step")
    asked = parser.parse_args(arguments)
    seeds = range(asked.start, asked.start + asked.seeds)
    if asked.seed is not None:
        seeds = range(asked.seed, asked.seed + 1)
    return 1 if run(seeds, trace=asked.trace) else 0


def run(seeds: range, *, trace: bool = False) -> int:
    """Run these seeds, and print what came of them; how many failed."""
    counts: Counter[str] = Counter()
    failed = 0
    began = time.monotonic()
    for number, seed in enumerate(seeds):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number:,} of {len(seeds):,} seeds, {failed:,} failed\033[K\r")
        try:
            report = simulate(seed)
        except SimulationFailed as error:
            failed += 1
            _print("\n".join([*error.trace, ""]) if trace else "", error)
            continue
        counts.update(report.counts)
        if trace:
            _print("\n".join(report.trace))
    _print(f"{len(seeds):,} seeds in {time.monotonic() - began:.1f} s, {failed:,} failed")
    for name, count in sorted(counts.items()):
        _print(f"{count:12,} {name}")
    return failed


def _print(*what: object) -> None:
    sys.stdout.write("".join(map(str, what)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
