"""`ontologia --version`: asked by scripts, and so without a wait for the commands."""

from __future__ import annotations

import subprocess
import sys

from ontologia import __version__
from tests.integration.commands import ONTOLOGIA


def test_the_version_is_the_same_wherever_it_is_asked_for():
    for words in (["--version"], ["--json", "--version"]):
        done = subprocess.run([*ONTOLOGIA, *words], capture_output=True, text=True, check=True)

        assert (done.stdout, done.stderr) == (f"ontologia {__version__}\n", "")


def test_the_version_is_told_without_the_commands():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ontologia", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )

    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ontologia.cli.start" in imported
    assert {"typer", "pydantic", "ontologia.cli.main"} & imported == set()


def test_a_reader_who_has_gone_is_no_error_of_ours():
    asked = subprocess.Popen(
        [*ONTOLOGIA, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert asked.stdout is not None
    asked.stdout.close()

    assert asked.stderr.read() == b""
    asked.stderr.close()
    assert asked.wait() == 141
