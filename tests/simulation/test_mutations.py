"""A test of the tests: each of these bugs, planted in the engine, is found by the simulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ontologia
from tests.simulation.mutations import MUTATIONS

SEEDS = 1_000
HUNT = """
import sys
from ontologia.testing.simulation import SimulationFailed, simulate

for seed in range(int(sys.argv[1])):
    try:
        simulate(seed)
    except SimulationFailed as error:
        print(str(error).splitlines()[0])
        break
else:
    print("nothing was found")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package; files that stay as they are need not be compiled again."""
    return Path(shutil.copytree(Path(ontologia.__file__).parent, tmp_path / "ontologia"))


@pytest.mark.thorough
@pytest.mark.req("ONT-172")
@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, package: Path) -> None:
    for edit in MUTATIONS[bug]:
        file = package / edit.file
        text = file.read_text("utf-8")
        assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
        file.write_text(text.replace(edit.old, edit.new), "utf-8")

    found = subprocess.run(
        [sys.executable, "-c", HUNT, str(SEEDS)],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        cwd=package.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    ).stdout

    assert found.startswith("seed "), found
    assert "Violation" in found


def test_there_are_ten_of_them_and_more() -> None:
    assert len(MUTATIONS) >= 10
