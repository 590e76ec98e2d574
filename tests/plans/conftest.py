"""What every test of plans watches by."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from tests.plans.test_query_plans import Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Every statement of every connection that is opened meanwhile."""
    watch = Watch()
    apsw.connection_hooks.append(watch)
    yield watch
    apsw.connection_hooks.remove(watch)
