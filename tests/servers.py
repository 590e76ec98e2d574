"""Servers of a test's own, for what cannot be done to one that others use."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from ontologia_conformance.servers import PgBouncer, Postgres, SharedPostgres


def own_server(**options: Any) -> Postgres:
    """A PostgreSQL server, to be entered; the test is skipped where there is none.

    In CI it is not: there a missing server is a mistake.
    """
    try:
        from ontologia_conformance.servers import Postgres

        return Postgres(**options)
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {error}")


def shared_servers() -> AbstractContextManager[SharedPostgres]:
    """Servers that processes share, as `pytest -n` has them; skips where there are none."""
    own_server().stop()
    from ontologia_conformance.servers import SharedPostgres

    return closing(SharedPostgres())


def own_bouncer(server: Postgres, **options: Any) -> PgBouncer:
    """PgBouncer before a server, to be entered; the test is skipped where there is none."""
    from ontologia_conformance.servers import PgBouncer

    try:
        return PgBouncer(server, **options)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def ask(uri: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Ask a server itself, about the schema that a store's URI names."""
    server, _, schema = uri.partition("?schema=")
    options = f"-c search_path={schema or 'ontologia'}"
    with psycopg.connect(server, autocommit=True, options=options) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []
