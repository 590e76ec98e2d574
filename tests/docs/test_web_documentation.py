"""What the page on web applications says is so: its program is served and asked."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from ontologia import Session
from tests.docs.pages import commands
from tests.docs.test_documentation import DOCS, blocks
from tests.integration.running import PATIENCE

pytest.importorskip("fastapi")
PAGE = DOCS / "howto/web.md"


@contextmanager
def served(folder):
    """The program of the page, served at a free port; its address."""
    (folder / "shop.py").write_text("\n".join(blocks(PAGE, "python")))
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "uvicorn", "shop:app", "--port", "0"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        watchdog = threading.Timer(PATIENCE, server.kill)
        watchdog.start()
        try:
            said = next(line for line in server.stderr if "Uvicorn running" in line)
            yield re.findall(r"http://[\d.:]+", said)[0]
        finally:
            server.terminate()
            server.communicate()
            watchdog.cancel()


def test_the_application_of_the_page_answers_as_it_says(tmp_path):
    [asked] = blocks(PAGE, "console")

    with served(tmp_path) as address:
        for command, expected in commands(asked):
            words = shlex.split(command.replace("http://127.0.0.1:8000", address))
            done = subprocess.run(
                words, capture_output=True, text=True, check=True, timeout=PATIENCE
            )
            assert done.stdout.splitlines() == expected, command


@pytest.mark.thorough
def test_requests_at_once_do_not_get_into_each_others_commits(tmp_path):
    with served(tmp_path) as address, ThreadPoolExecutor(8) as pool:

        def place(number):
            where = f"{address}/orders/o{number}?cents={number}"
            return httpx.put(where, timeout=PATIENCE).json()["commit"]

        commits = list(pool.map(place, range(40)))

    with Session(str(tmp_path / "shop.db")) as session:
        for number, commit in enumerate(commits):
            [change] = session.list_commit_changes(commit)
            assert change["entity_id"] == f"Order:o{number}"


def test_the_program_of_the_page_passes_a_strict_type_check(tmp_path):
    program = tmp_path / "shop.py"
    program.write_text("\n".join(blocks(PAGE, "python")))

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert done.returncode == 0, done.stdout + done.stderr
