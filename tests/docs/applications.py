"""The applications among the examples, as somebody has them who copied one into an empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.integration.commands import invoke
from tests.integration.running import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


class Application:
    """One of them, and what it does when it is told to."""

    def __init__(self, source: str, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(
            EXAMPLES / source,
            folder / Path(source).name,
            ignore=shutil.ignore_patterns("__pycache__", "*.db*"),
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-W", "error", *arguments],
            cwd=self.folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, stdin: str = "", errors: tuple[str, ...] = ()) -> list[str]:
        """What it printed, line by line; its errors are those that are named, and no others."""
        with self.start(*arguments) as process:
            shown, complaints = process.communicate(stdin, timeout=PATIENCE)
        assert process.returncode == 0, complaints
        strange = [
            line for line in complaints.splitlines() if not any(each in line for each in errors)
        ]
        assert strange == []
        return [line.strip() for line in shown.splitlines()]

    def killed_at(self, word: str, *arguments: str, stdin: str = "") -> None:
        """Start it, and kill it as soon as it prints a line with this word."""
        with self.start(*arguments) as process:
            print(stdin, end="", file=process.stdin, flush=True)
            watchdog = threading.Timer(PATIENCE, process.kill)
            watchdog.start()
            seen = any(word in line for line in process.stdout or ())
            process.kill()
            watchdog.cancel()
            process.communicate()
        assert seen, f"it never printed {word!r}"
        assert process.returncode == -signal.SIGKILL  # it had not ended by itself

    def passes_its_own_tests(self, *names: str) -> None:
        # The plugin by its name: in this environment it need not be installed.
        options = ["-q", "-p", "no:cacheprovider", "-p", "ontologia.testing.plugin", *names]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "pytest", *options],
            cwd=self.folder,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def assert_told(source: str, lines: list[str]) -> None:
    """The README of an application shows what it prints; `...` stands for more of the same.

    Workers do several things at once, so the order of lines, and the numbers of commits, may differ.
    """
    page = (EXAMPLES / source / "README.md").read_text()
    [block] = re.findall(r"^```console\n\$ .*?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    told = [_without_numbers(line) for line in block.splitlines()]
    left = [_without_numbers(line) for line in lines]
    for line in told:
        if line != "...":
            assert line in left
            left.remove(line)
    assert "..." in told or left == []


def _without_numbers(line: str) -> str:
    return re.sub(r"commit \d+", "commit N", line.strip())


def objects(uri: str, type_name: str, *, kind: str = "entities") -> dict[str, dict]:
    """The current objects of a type, by key."""
    done = invoke("query", kind, type_name, "--json", "--datastore-uri", uri)
    assert done.exit_code == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {_key(each): each["fields"] for each in found}


def _key(found: dict) -> str:
    return found.get("key") or f"{found['left']} {found['right']}"
