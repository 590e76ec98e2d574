"""Other processes, for tests: real ones, which commit, hold locks, get signals and die.

A program is text. It talks to the test in lines: `say("...")` in the program is `hear("...")` in
the test, and what the test `tell`s is what the program's `listen()` returns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any, Self

import apsw

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds, for each thing that a process says; only a hang takes that long

PRELUDE = """
import json, os, signal, sys
from ontologia import OntologiaConfig, Session
from ontologia.clock import SystemClock
from ontologia.errors import *
from tests.shop import Customer

def say(*words):
    print(*words, flush=True)

def listen():
    return sys.stdin.readline().strip()

def report(result):
    say("report", json.dumps(result))

class Gate(SystemClock):
    # A commit looks at the clock inside its write transaction: there it can be stopped.
    closed = False

    def now(self):
        if self.closed:
            self.closed = False
            say("inside")
            listen()
        return super().now()
"""

HOLD_A_COMMIT = """
clock = Gate()
session = Session(sys.argv[1], config=OntologiaConfig(clock=clock))
session.ensure([Customer(id=f"held-{n}", name="held") for n in range(20)])
clock.closed = True
report(session.commit())
"""
"""A session that stops inside its commit, with the write transaction open, until it is told."""


class Process:
    """A program in a Python of its own; killed, if need be, when the block is left."""

    def __init__(self, program: str, *arguments: object) -> None:
        source = PRELUDE + textwrap.dedent(program)
        # Not a pipe: a program that logs more than a pipe holds would wait for a reader.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.popen = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._watchdog = self._watch()

    def _watch(self) -> threading.Timer:
        """Kill it after `PATIENCE`, unless that is cancelled."""
        timer = threading.Timer(PATIENCE, self.popen.kill)
        timer.start()
        return timer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate()
        self._stderr.close()

    def hear(self, word: str) -> str:
        """The next line, which must begin with `word`; what follows it."""
        assert self.popen.stdout is not None
        self._watchdog.cancel()
        self._watchdog = self._watch()
        line = self.popen.stdout.readline()
        if line.split(" ", 1)[0].strip() != word:
            rest, _ = self.popen.communicate(timeout=PATIENCE)
            raise AssertionError(f"wanted {word!r}, heard {line!r}{rest!r}\n{self.errors()}")
        return line[len(word) :].strip()

    def tell(self, line: str = "go") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def report(self) -> Any:
        """What the program reports at its end."""
        result = json.loads(self.hear("report"))
        self.popen.communicate(timeout=PATIENCE)
        assert self.popen.returncode == 0, self.errors()
        return result

    def errors(self) -> str:
        """What the program has written to stderr so far."""
        number = self._stderr.fileno()  # the program's position in it stays where it is
        return os.pread(number, os.fstat(number).st_size, 0).decode()

    def interrupt(self) -> None:
        os.kill(self.popen.pid, signal.SIGINT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait(timeout=PATIENCE)


def run(program: str, *arguments: object) -> Any:
    """Run a program to its end; what it reports."""
    with Process(program, *arguments) as process:
        return process.report()


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Ask a store's file, through the copy of SQLite that the store has itself."""
    database = apsw.Connection(str(path))
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()
