"""Counting what SQLite runs, on the connections that a session really uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import apsw


@contextmanager
def counted() -> Generator[Counter[str]]:
    """Every statement that connections opened in here run, by its text.

    SQLite itself reports them, once each time one starts: a prepared statement that is run for
    a thousand rows counts a thousand times.
    """
    ran: Counter[str] = Counter()

    def note(event: dict[str, Any]) -> None:
        ran[event["sql"]] += 1

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, note)

    apsw.connection_hooks.append(watch)
    try:
        yield ran
    finally:
        apsw.connection_hooks.remove(watch)
