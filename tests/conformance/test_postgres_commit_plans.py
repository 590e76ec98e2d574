"""On PostgreSQL, too, a look for the commit of a time is one seek by number."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ontologia import Session
from ontologia.runtime.session import core_of
from tests.conformance.test_postgres_plans import parts

MANY = """
INSERT INTO commits(id, created_at)
SELECT n, '2026-01-01T00:00:00.000000+00:00' FROM generate_series(1, 20000) n"""


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "not analysed"])
def test_a_look_for_the_commit_of_a_time_reads_the_primary_key(
    session: Session, direct: Callable[[str], Any], analysed: bool
) -> None:
    direct(MANY)
    if analysed:
        direct("ANALYZE commits")
    text = core_of(session).store._sql["commit_between"]  # type: ignore[attr-defined]
    numbered = re.sub(r"%\((first|last)\)s", lambda m: {"first": "$1", "last": "$2"}[m[1]], text)

    [[[found]]] = direct(f"EXPLAIN (FORMAT JSON, GENERIC_PLAN) {numbered}")

    steps = [(step["Node Type"], step.get("Index Name")) for step in parts(found["Plan"])]
    assert steps == [("Limit", None), ("Index Scan", "commits_pkey")]
