"""The program, as tests run it: in this process, as a process of its own, or at a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from ontologia.cli.main import app

ROOT = Path(__file__).parents[2]
ONTOLOGIA = [sys.executable, "-m", "ontologia"]


def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
    """In this process: fast, and an error that nobody expected is raised here."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """As a process of its own."""
    return subprocess.run(
        [*ONTOLOGIA, *map(str, arguments)], capture_output=True, check=False, **options
    )


def at_a_terminal(*arguments: str) -> tuple[int, str]:
    """As a process whose output is a terminal; its exit code and what was shown."""
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        [*ONTOLOGIA, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as running:
        os.close(theirs)
        shown = b""
        while chunk := _read(mine):
            shown += chunk
    os.close(mine)
    return running.returncode, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""
