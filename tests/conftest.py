"""What tests share: a clock that stands still, a database of their own, sessions that get closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ontologia import OntologiaConfig, Session
from ontologia.testing import ManualClock

# At the desk each run looks at new examples; CI looks at the same ones each time, so that a run
# says something about the change and not about luck.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's database is."""
    return tmp_path / "test.db"


@pytest.fixture
def uri(path: Path) -> str:
    """The store under test; each backend in turn, once there are several."""
    return f"sqlite:///{path}"


@pytest.fixture
def open_session(uri: str, clock: ManualClock) -> Iterator[Callable[..., Session]]:
    """Open sessions on the test's store; they are closed at the end.

    Keywords of OntologiaConfig are given as `settings={...}`.
    """
    opened: list[Session] = []

    def open_(*, settings: dict[str, Any] | None = None, **options: Any) -> Session:
        config = OntologiaConfig(**({"clock": clock} | (settings or {})))
        session = Session(options.pop("uri", uri), config=config, **options)
        opened.append(session)
        return session

    yield open_
    for session in opened:
        session.close()


@pytest.fixture
def session(open_session: Callable[..., Session]) -> Session:
    return open_session()


@pytest.fixture
def sql(path: Path) -> Callable[..., list[list[Any]]]:
    """Ask the database file itself, in a process of its own.

    Two copies of SQLite in one process drop each other's locks, so tests never open a store's
    file with the standard library here.
    """

    def ask(*statements: str) -> list[list[Any]]:
        program = (
            "import json, sqlite3, sys\n"
            "db = sqlite3.connect(sys.argv[1])\n"
            "for s in sys.argv[2:]: rows = db.execute(s).fetchall()\n"
            "db.commit(); print(json.dumps(rows))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), *statements],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        rows: list[list[Any]] = json.loads(done.stdout)
        return rows

    return ask
