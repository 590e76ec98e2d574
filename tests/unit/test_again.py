"""`python -m tools.again`: a failure is red, unless the test passes alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import pytest
from tools.again import _MOST, again

SUITE = """
import os, pytest

@pytest.mark.parametrize("n", range({count}))
def test_lamp(n):
    assert os.path.exists("lit") or not open("lit", "w") if {steady} else False

def test_other():
    open("other", "a").write("x")
"""


def suite(folder, *, count=1, heals):
    (folder / "test_lamps.py").write_text(SUITE.format(count=count, steady=heals))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "run").write_text(
        f"#!{sys.executable}\nimport pytest, sys\nsys.exit(pytest.main())\n"
    )
    (folder / "run").chmod(0o755)
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take a second to load
    run = partial(subprocess.call, cwd=folder, stdout=subprocess.DEVNULL, env=bare)
    return again(["./run", "-q"], run=run, folder=folder)


def test_a_test_that_passes_alone_is_named(tmp_path, capsys):
    assert suite(tmp_path, heals=True) == 0

    named = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert named == ["  test_lamps.py::test_lamp[0]"] * 2
    assert (tmp_path / "other").read_text() == "x"  # what passed is not run again


def test_a_test_that_fails_twice_is_red(tmp_path):
    assert suite(tmp_path, heals=False) == 1


def test_many_failures_are_red_at_once(tmp_path, capsys):
    assert suite(tmp_path, count=_MOST + 1, heals=False) == 1

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5])
def test_a_run_that_did_not_come_to_its_end_is_not_repeated(tmp_path, code):
    calls = []

    def run(command):
        calls.append(command)
        cache = tmp_path / ".pytest_cache/v/cache"
        cache.mkdir(parents=True)
        (cache / "lastfailed").write_text(json.dumps({"test_lamps.py::test_lamp": True}))
        return code

    assert again(["pytest"], run=run, folder=tmp_path) == code
    assert calls == [["pytest"]]
