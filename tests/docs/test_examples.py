"""Every example runs, and so does the code a reader of the README would copy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_prints_what_it_did_and_leaves_nothing_behind(example, tmp_path):
    done = _run(tmp_path, str(example))

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 3
    assert list(tmp_path.iterdir()) == []


def test_an_example_says_what_it_shows():
    silent = [path.name for path in EXAMPLES if not path.read_text().startswith('"""')]

    assert silent == []


def test_the_code_in_the_readme_runs_from_top_to_bottom(tmp_path):
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)

    (tmp_path / "readme.py").write_text("\n".join(blocks))
    done = _run(tmp_path, "readme.py")

    assert blocks
    assert (done.returncode, done.stderr) == (0, "")
