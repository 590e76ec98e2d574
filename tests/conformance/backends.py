"""Marks for tests that are about one backend alone."""

from __future__ import annotations

import pytest

SQLITE = pytest.mark.parametrize("backend", ["sqlite"], scope="session")
POSTGRES = pytest.mark.parametrize("backend", ["postgres"], scope="session")
