"""Fixtures of the conformance suite for all tests: a store is a SQLite file, unless a folder says
more.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from ontologia_conformance.backends import SQLite

pytest_plugins = ["ontologia_conformance.plugin"]

_ROOM = 2 * 1024**3  # bytes

# On a busy machine any example may take long, and that says nothing about the code. In CI the plugin
# puts another profile in the place of this one, which has no deadline, either.
settings.register_profile("desk", deadline=None)
settings.load_profile("desk")

# A shell ignores SIGINT for what it runs in the background, and a child inherits that: none of the
# programs that tests start and interrupt would end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _temporary_folder() -> str | None:
    """A folder that is better than the default; None if there is no better one.

    In memory a sync costs nothing, and tests wait for thousands of them; SQLite asks for each as on
    a disk. The path of a Unix socket has at most 107 bytes, and the folders of pytest take 85.
    """
    memory = Path("/dev/shm")  # noqa: S108
    if "TMPDIR" not in os.environ and memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC:
            return str(memory)
    return "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 107 - 85 else None  # noqa: S108


if folder := _temporary_folder():
    os.environ["TMPDIR"] = tempfile.tempdir = folder


@pytest.fixture(scope="session")
def backend(sqlite: SQLite) -> SQLite:
    return sqlite
