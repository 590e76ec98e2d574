"""Where a simulation takes place: a folder in memory, a fresh store in it, and silence."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import apsw

from ontologia.config import OntologiaConfig
from ontologia.runtime.session import Session
from ontologia.testing.clock import ManualClock
from ontologia_conformance.simulation.tables import learn_columns
from ontologia_conformance.simulation.world import START

_MEMORY = "/dev/shm"  # noqa: S108 - a directory of ours is made in it


@cache
def empty_store() -> bytes:
    """A file with all tables and nothing in them: making them takes longer than a whole run."""
    with folder_in_memory() as folder:
        path = os.path.join(folder, "empty.db")
        Session(path, config=OntologiaConfig(clock=ManualClock(START))).close()
        connection = apsw.Connection(path)
        connection.execute("DELETE FROM sessions")
        learn_columns(connection)
        connection.close()
        return Path(path).read_bytes()


@contextmanager
def folder_in_memory() -> Generator[str]:
    """A folder in memory where there is such a thing: what is synced there costs nothing."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ontologia-simulation-", dir=place) as folder:
        yield folder


@contextmanager
def quiet() -> Generator[None]:
    """What the simulated sessions log is what was done to them, and no news."""
    logger = logging.getLogger("ontologia")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
