"""A test of the tests: each of these bugs, planted in the engine, is found.

Those of delivery by the simulator, those of the writer by its own tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ontologia
from tests.simulation.mutations import MUTATIONS, WRITER_MUTATIONS, Edit

SEEDS = 1_000
HUNT = """
import sys
from ontologia_conformance.simulation import SimulationFailed, simulate

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


def plant(edits: list[Edit], package: Path) -> None:
    for edit in edits:
        file = package / edit.file
        text = file.read_text("utf-8")
        assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
        file.write_text(text.replace(edit.old, edit.new), "utf-8")


@pytest.mark.thorough
@pytest.mark.req("ONT-172")
@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, package: Path) -> None:
    plant(MUTATIONS[bug], package)

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


@pytest.mark.thorough
@pytest.mark.parametrize("bug", WRITER_MUTATIONS)
def test_a_planted_bug_of_the_writer_is_found(bug: str, package: Path) -> None:
    plant(WRITER_MUTATIONS[bug], package)
    # Neither the server nor the tier of this run.
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("ONTOLOGIA_TEST_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", "sqlite", "-p", "no:cacheprovider"]
    command += ["--timeout=30", "--timeout-method=signal"]  # a bug may make a test go on for ever

    found = subprocess.run(
        [*command, "tests/integration/test_writer.py"],
        env={**ours, "PYTHONPATH": str(package.parent), "ONTOLOGIA_TEST_PATIENCE": "3"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert found.returncode == 1, found.stdout
    assert "FAILED tests/integration/test_writer.py" in found.stdout, found.stdout


def test_there_are_ten_of_them_and_more() -> None:
    assert len(MUTATIONS) >= 10
