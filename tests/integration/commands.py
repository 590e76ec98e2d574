"""The program, as tests run it: in this process, as a process of its own, or at a terminal."""

from __future__ import annotations

import codecs
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner, Result

from ontologia.cli.main import app
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import POST
from tests.integration.running import PATIENCE

ROOT = Path(__file__).parents[2]
ONTOLOGIA = [sys.executable, "-m", "ontologia"]


def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
    """In this process: fast, and an error that nobody expected is raised here."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def events_of(uri: str) -> Callable[..., Result]:
    """`ontologia events …` on a store, in the namespace of the tests' parcels."""

    def events(*arguments: str, namespace: str = POST) -> Result:
        where = ["--datastore-uri", uri, "--namespace", namespace]
        return CliRunner().invoke(app, [*where, "events", *arguments])

    return events


def two_hours_ago() -> ManualClock:
    """For what tests do before the program, which has the real time, looks at it."""
    return ManualClock(datetime.now(UTC) - timedelta(hours=2))


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """As a process of its own."""
    return subprocess.run(
        [*ONTOLOGIA, *map(str, arguments)], capture_output=True, check=False, **options
    )


def at_a_terminal(*arguments: str, **options: Any) -> tuple[int, str]:
    """As a process whose output is a terminal; its exit code and what was shown."""
    with Terminal(*arguments, **options) as terminal:
        return terminal.end(), terminal.shown


class Terminal:
    """The program as somebody at a terminal has it: what it shows, as it comes."""

    def __init__(self, *arguments: str, columns: int = 120, cwd: Path | None = None) -> None:
        self._mine, theirs = pty.openpty()
        colours = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [*ONTOLOGIA, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**colours, "TERM": "xterm", "COLUMNS": str(columns)},
        )
        os.close(theirs)
        self.shown = ""
        self.portions = 0
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._watchdog = threading.Timer(PATIENCE, self.process.kill)
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def see(self, words: str) -> None:
        """Wait until these words are shown, after all that was shown before."""
        before = len(self.shown)
        while words not in self.shown[before:]:
            assert self._read(), f"never saw {words!r}; saw:\n{self.shown[-2_000:]}"

    def end(self) -> int:
        """Wait for its end; the exit code."""
        while self._read():
            pass
        return self.process.wait()

    def _read(self) -> bool:
        try:
            chunk = os.read(self._mine, 65536)
        except OSError:  # the other end is closed
            return False
        self.shown += self._decode(chunk)
        self.portions += 1
        return bool(chunk)
