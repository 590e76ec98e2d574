"""What only PostgreSQL can show, on each version; `ontologia.testing.conformance` has the rest.

These tests end connections and count who waits, so the servers are always their own.
"""

from __future__ import annotations

import pytest

from ontologia.testing.conformance.schemas import Postgres


@pytest.fixture(scope="session", params=["postgres18", "postgres16"])
def backend(request: pytest.FixtureRequest) -> Postgres:
    found: Postgres = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def postgres_uri(backend: Postgres) -> str:
    """The server, without a schema."""
    return backend.server
