"""The tutorial, done from top to bottom: its files, its commands, and what they show."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import assert_shown, commands
from tests.integration.commands import Terminal
from tests.integration.running import PATIENCE

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
# The fixtures as an installed Ontologia brings them, and no other plugin's words.
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "ontologia.testing.plugin"}
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def test_everything_in_the_tutorial_happens_as_it_says(tmp_path):
    with Reader(tmp_path) as reader:
        for kind, before, text in parts(PAGE.read_text()):
            reader.edits(before)
            if kind == "console" and text.startswith("$ "):
                for command, expected in commands(text):
                    reader.sees(command, expected)
            elif kind == "console":
                reader.hears(text.splitlines())
            elif kind == "toml":
                (tmp_path / "ontologia.toml").write_text(text)
            elif kind == "python":
                reader.writes(before, text)

    assert reader.commands > 30


def test_the_programs_of_the_tutorial_pass_a_strict_type_check(tmp_path):
    reader = Reader(tmp_path)
    for kind, before, text in parts(PAGE.read_text()):
        reader.edits(before)
        if kind == "python":
            reader.writes(before, text)
    programs = sorted(path for path in tmp_path.glob("*.py") if path.name != "test_library.py")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, programs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert len(programs) == 5
    assert done.returncode == 0, done.stdout + done.stderr


def parts(page):
    """Each block of code with its language and the words before it."""
    pieces = re.split(r"^```(\w+)\n(.*?)^```\n", page, flags=re.MULTILINE | re.DOTALL)
    return [
        (kind, before, text)
        for before, kind, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=False)
    ]


class Reader:
    """Somebody who types what the page says, and has a second terminal for a server."""

    def __init__(self, folder):
        self.folder = folder
        self.token = ""
        self.ids = {}  # those on the page, and what they are here
        self.commands = 0
        self.server = None
        self.worker = None
        self.address = ""

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        """Ctrl+C in the second terminal."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.communicate()
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            with patience(self.server):
                shown = self.server.communicate()[0]
            assert error or self.server.returncode == 0, shown

    def writes(self, before, text):
        """A new file; or what is added to one: imports at its top, and what is there anew, in its place."""
        path = self.folder / re.findall(r"`(\w+\.py)`", before)[-1]
        if path.exists():
            text = merged(path.read_text(), text)
        path.write_text(text)

    def edits(self, before):
        """The field that the words before a block add to a class."""
        if field := re.search(r"In `(\w+\.py)`, add `(author: .*?)` to", before):
            path = self.folder / field[1]
            path.write_text(path.read_text().replace("    title: ", f"    {field[2]}\n    title: "))

    def sees(self, command, expected):
        """The command shows this; its ids are the ones that the page means from here on."""
        self.commands += 1
        shown = re.sub(r" in [\d.]+s$", " in 1 s", self.does(command, expected), flags=re.MULTILINE)
        expected = [re.sub(r" in [\d.]+s$", " in 1 s", line) for line in expected]
        assert_shown(expected, shown, command)
        told, here = (re.findall(ID, each) for each in ("\n".join(expected), shown))
        if len(told) == len(here):
            self.ids |= dict(zip(told, here, strict=True))

    def hears(self, expected):
        """What the worker in the second terminal has said since, until Ctrl+C."""
        worker, self.worker = self.worker, None
        shown = self._until(worker, last_of(expected))
        assert_shown(expected, re.sub(r" in [\d.]+s$", " in 1 s", shown, flags=re.MULTILINE), "run")

    def does(self, command, expected):
        command = re.sub(ID, lambda found: self.ids[found[0]], command)
        program, *words = shlex.split(command)
        if program == "python":
            return self._program([sys.executable, *words], fails="1 failed" in str(expected))
        if program == "curl":
            words = [word.replace("http://127.0.0.1:8000", self.address) for word in words]
            return self._program([program, *words])
        assert program == "ontologia"
        if words[0] == "run" and "^C" in expected:
            return self._until(self._starts(words), last_of(expected))
        if words[0] == "run":
            self.worker = self._starts(words)
            with patience(self.worker):
                return "".join(until(self.worker.stdout, "runs 3 handlers"))
        if words[0] == "serve":
            return self._serves(words)
        if "--token" in words:
            words[words.index("--token") + 1] = self.token
        with Terminal(*words, columns=160, cwd=self.folder) as terminal:
            terminal.end()
        if found := re.search(r"^token: (\S+)", terminal.shown, re.MULTILINE):
            self.token = found[1]
        return terminal.shown

    def _program(self, words, fails=False):
        done = subprocess.run(
            words,
            cwd=self.folder,
            env={**os.environ, **PLUGINS},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == int(fails), done.stdout + done.stderr
        return done.stdout + done.stderr

    def _starts(self, words):
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "ontologia", *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _until(self, worker, last):
        """Until it has said this, and then Ctrl+C."""
        shown = ""
        with worker, patience(worker):
            for line in worker.stdout:
                shown += line
                if last in line:
                    worker.send_signal(signal.SIGINT)
        assert worker.returncode == 0, shown
        return shown

    def _serves(self, words):
        """At any port that is free; shown as the one on the page."""
        self.server = self._starts([*words, "--port", "0"])
        with patience(self.server):
            line = self.server.stdout.readline()
        [self.address] = re.findall(r"http://\S+", line) or [line]
        return line.replace(self.address, "http://127.0.0.1:8000")


@contextmanager
def patience(process):
    """Wait for a process no longer than this."""
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def until(lines, words):
    """The lines up to one that has these words."""
    for line in lines:
        yield line
        if words in line:
            return


def last_of(expected):
    """What a worker says last before it is stopped."""
    said = re.findall(r"library:\w+ (?:done|failed for good)", "\n".join(expected))
    return said[-1] if said else "library:mark done"


def merged(file, block):
    """A file with a block in it, as somebody would do it by hand."""
    added = ast.parse(block).body
    for node in added:
        text = source(block, node)
        there = [
            each for each in ast.parse(file).body if named(each) and named(each) == named(node)
        ]
        if isinstance(node, ast.ImportFrom):
            file = f"{text}\n{file}"
        elif there:
            file = file.replace(source(file, there[0]), text)
        else:
            file = f"{file}\n\n{text}\n"
    return file


def named(node):
    return getattr(node, "name", None)


def source(text, node):
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
