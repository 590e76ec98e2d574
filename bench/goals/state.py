"""Typed, versioned state: reads from two stores that are built first, then writes.

Everything lies in a temporary folder; TMPDIR chooses the disk. On one that is only memory a hard
transaction costs nothing, and the figures of writes flatter both sides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.goals import reads, writes
from bench.goals.figures import Figure
from bench.shop import VERSIONS, build


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
        folder = Path(name)
        large, small = folder / "large.db", folder / "small.db"
        build(large, versions=VERSIONS)
        build(small, versions=1)
        yield from reads.figures(large, small)
        yield from writes.figures(folder)
