"""All troubles that the tests of this folder and of `tests/abuse` make, and a table of what was tried and lost.

`python -m tests.faults.campaign` runs them as CI does, in a few minutes; `--full` at each point of
the short life of a store and for a long time under load, which takes more than an hour. A line
of the table is a trouble; a loss is whatever the checker has found: something lost, done twice or
broken. The last line says whether a test failed for any other reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.figures import FILE

_FULL = "10"
_FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "abuse")


def main() -> int:
    """Run it; 0 if nothing was lost and no test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="at full size")
    parser.add_argument("--processes", default="2", help="how many at once, 2 unless given")
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures")
        failed = _run(figures, given.full, ["-n", given.processes, *more])
        lines = figures.read_text().splitlines() if figures.exists() else []
    table = summed([json.loads(line) for line in lines])
    sys.stdout.write(shown(table) + f"\nother failures: {'yes, see above' if failed else 'none'}\n")
    return 1 if failed or any(losses for _, losses in table.values()) else 0


def _run(figures: Path, full: bool, options: list[str]) -> bool:
    """Run the tests; whether any failed."""
    environment = os.environ | {FILE: str(figures)}
    if full:
        environment["ONTOLOGIA_TEST_SAMPLES"] = _FULL
    command = [sys.executable, "-m", "pytest", "-q", *map(str, _FOLDERS), *options]
    return subprocess.run(command, env=environment, check=False).returncode != 0


Row = tuple[str, str]
"""A promise, and a trouble that it was tried with."""


def summed(lines: list[dict[str, Any]]) -> dict[Row, tuple[int, int]]:
    """Tries and losses of each trouble, over all tests that made it."""
    table: dict[Row, tuple[int, int]] = {}
    for line in lines:
        row = line["promise"], line["trouble"]
        before = table.get(row, (0, 0))
        table[row] = before[0] + line["tries"], before[1] + line["losses"]
    return dict(sorted(table.items()))


def shown(table: dict[Row, tuple[int, int]]) -> str:
    """As Markdown."""
    lines = ["| promise | trouble | tries | losses |", "|---|---|---:|---:|"]
    for (promise, trouble), (tries, losses) in table.items():
        lines.append(f"| {promise} | {trouble} | {tries:,} | {losses:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
