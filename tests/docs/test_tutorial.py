"""The tutorial, done from top to bottom: its files, its commands, and what they show."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.docs.pages import assert_shown, commands
from tests.integration.commands import Terminal
from tests.integration.running import PATIENCE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"


def test_everything_in_the_tutorial_happens_as_it_says(tmp_path):
    reader = Reader(tmp_path)

    for kind, before, text in parts(PAGE.read_text()):
        if kind == "console":
            for command, expected in commands(text):
                assert_shown(expected, reader.does(command), command)
        elif kind == "toml":
            (tmp_path / "ontologia.toml").write_text(text)
        elif "at the\nend the step" in before:
            reader.changes_the_type(before, text)
        else:
            name = re.findall(r"`(\w+\.py)`", before)[-1]
            (tmp_path / name).write_text(text)

    assert reader.commands > 15


def parts(page):
    """Each block of code with its language and the words before it."""
    pieces = re.split(r"^```(\w+)\n(.*?)^```\n", page, flags=re.MULTILINE | re.DOTALL)
    return [
        (kind, before, text)
        for before, kind, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=False)
    ]


class Reader:
    """Somebody who types what the page says."""

    def __init__(self, folder):
        self.folder = folder
        self.token = ""
        self.commands = 0

    def does(self, command):
        self.commands += 1
        program, *words = shlex.split(command)
        if program == "python":
            return self._program(words)
        assert program == "ontologia"
        if words[0] == "run":
            return self._worker(words)
        if "--token" in words:
            words[words.index("--token") + 1] = self.token
        with Terminal(*words, columns=160, cwd=self.folder) as terminal:
            terminal.end()
        if found := re.search(r"^token: (\S+)", terminal.shown, re.MULTILINE):
            self.token = found[1]
        return terminal.shown

    def changes_the_type(self, before, step):
        path = self.folder / "library.py"
        [field] = re.findall(r"add `(author: .*?)` to", before)
        changed = path.read_text().replace("    title: ", f"    {field}\n    title: ")
        path.write_text(f"{changed}\n\n{step}")

    def _program(self, words):
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def _worker(self, words):
        """Until nothing waits any more, and then Ctrl+C."""
        shown = ""
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "ontologia", *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as worker:
            watchdog = threading.Timer(PATIENCE, worker.kill)
            watchdog.start()
            for line in worker.stdout:
                shown += line
                if "library:mark done" in line or "failed for good" in line:
                    worker.send_signal(signal.SIGINT)
            watchdog.cancel()
        assert worker.returncode == 0, shown
        return shown
