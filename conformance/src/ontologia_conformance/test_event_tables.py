"""The tables of the event store, as the documents describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ontologia_conformance.backends import Backend

Ask = Callable[[str], list[Any]]

TEXT, WHOLE = "text", "whole number"
_KINDS = {"text": TEXT, "integer": WHOLE, "bigint": WHOLE, "real": "number"}


@pytest.fixture
def columns(ask: Ask, backend: Backend) -> Callable[[str], dict[str, tuple[str, bool]]]:
    """The columns of a table: what they hold, and whether they must have a value."""

    def of(table: str) -> dict[str, tuple[str, bool]]:
        rows = (
            ask(f"SELECT name, type, \"notnull\" OR pk FROM pragma_table_info('{table}')")
            if backend.name == "sqlite"
            else ask(
                "SELECT column_name, data_type, is_nullable = 'NO' FROM information_schema.columns "
                f"WHERE table_schema = current_schema() AND table_name = '{table}'"
            )
        )
        return {name: (_KINDS[kind.lower()], bool(needed)) for name, kind, needed in rows}

    return of


@pytest.fixture
def indexes(ask: Ask, backend: Backend) -> Callable[[str], dict[str, str]]:
    """The indexes of a table by name: their columns as they were written."""

    def of(table: str) -> dict[str, str]:
        rows = (
            ask(
                f"SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = '{table}'"
            )
            if backend.name == "sqlite"
            else ask(
                "SELECT indexname, indexdef FROM pg_indexes "
                f"WHERE schemaname = current_schema() AND tablename = '{table}'"
            )
        )
        return {
            name: sql.partition("(")[2].replace(" ASC", "").replace(") WHERE (", ") WHERE ")
            for name, sql in rows
            if sql
        }

    return of


def required(*names: str) -> dict[str, tuple[str, bool]]:
    return dict.fromkeys(names, (TEXT, True))


def optional(*names: str) -> dict[str, tuple[str, bool]]:
    return dict.fromkeys(names, (TEXT, False))


@pytest.mark.req("ONT-122", "SQL-117", "SQL-118", "ONT-126")
def test_the_table_of_events(columns: Any, indexes: Any) -> None:
    found = columns("events")
    found.pop("seq")
    assert found == {
        **required("id", "namespace", "type", "payload", "created_at", "root_event_id"),
        **optional("source", "correlation_id", "causation_id", "tenant_id", "dedup_key"),
        **optional("occurred_at"),
        "priority": (WHOLE, True),
        "chain_depth": (WHOLE, True),
    }
    ordered = indexes("events")["idx_events_namespace_type_order"]
    assert ordered == "namespace, type, priority DESC, created_at, id)"


@pytest.mark.req("SQL-119", "SQL-120")
def test_the_table_of_claims(columns: Any, indexes: Any) -> None:
    assert columns("event_claims") == {
        **required("event_id", "handler_id", "session_id", "claimed_at", "lease_until"),
        **required("available_at"),
        **optional("ack_at", "last_error", "dead_lettered_at", "lease_token", "started_at"),
        **optional("due_at"),
        "attempts": (WHOLE, True),
        "conflicts": (WHOLE, True),
        "consumer_id": (WHOLE, True),
        "read_commit": (WHOLE, False),
    }
    named = {k: v for k, v in indexes("event_claims").items() if k != "event_claims_pkey"}
    assert {name: text.rstrip(")") for name, text in named.items()} == {
        "idx_claims_due": "consumer_id, due_at) WHERE due_at IS NOT NULL"
    }


@pytest.mark.req("SQL-121")
def test_the_table_of_dead_letters(columns: Any, indexes: Any) -> None:
    found = columns("dead_letters")
    assert found == {
        "id": (WHOLE, True),
        **required("event_id", "handler_id", "namespace", "failed_at", "last_error"),
        **required("event_type", "event_payload", "root_event_id"),
        "attempts": (WHOLE, True),
        "chain_depth": (WHOLE, True),
    }
    listed = indexes("dead_letters")["idx_dead_letters_namespace_failed"]
    assert listed == "namespace, failed_at DESC)"


@pytest.mark.req("SQL-122")
def test_the_table_of_sessions(columns: Any, indexes: Any) -> None:
    assert columns("sessions") == {
        **required("session_id", "namespace", "started_at", "last_heartbeat"),
        **optional("metadata"),
    }
    found = indexes("sessions")
    assert found["idx_sessions_heartbeat"] == "last_heartbeat)"
    assert found["idx_sessions_namespace"] == "namespace)"
