"""Fixtures of the conformance suite for all tests: a store is a SQLite file, unless a folder says
more.
"""

from __future__ import annotations

import pytest

from ontologia.testing.conformance.backends import SQLite

pytest_plugins = ["ontologia.testing.conformance.plugin"]


@pytest.fixture(scope="session")
def backend(sqlite: SQLite) -> SQLite:
    return sqlite
