"""Fixtures of the conformance suite for all tests: a store is a SQLite file, unless a folder says
more.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from ontologia.testing.conformance.backends import SQLite

pytest_plugins = ["ontologia.testing.conformance.plugin"]

# On a busy machine any example may take long, and that says nothing about the code. In CI the plugin
# puts another profile in the place of this one, which has no deadline, either.
settings.register_profile("desk", deadline=None)
settings.load_profile("desk")


@pytest.fixture(scope="session")
def backend(sqlite: SQLite) -> SQLite:
    return sqlite
