"""What only PostgreSQL can show, on each version; `ontologia_conformance` has the rest.

These tests end connections and count who waits. Each process of tests has its own database, so
they ask about `current_database()`; what concerns a whole server needs `tests.servers.own_server`.
"""

from __future__ import annotations

import pytest

from ontologia_conformance.schemas import Postgres


@pytest.fixture(scope="session", params=["postgres18", "postgres16"])
def backend(request: pytest.FixtureRequest) -> Postgres:
    found: Postgres = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def postgres_uri(backend: Postgres) -> str:
    """The server, without a schema."""
    return backend.server
