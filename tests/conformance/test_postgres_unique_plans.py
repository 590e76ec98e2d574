"""On PostgreSQL, too, whether a value is taken is found by the index of its field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ontologia import Entity, Field, Session
from ontologia.store.postgres.database import Tx
from ontologia.store.postgres.place import place_of
from ontologia.store.questions.names import short_index_name
from tests.conformance.test_postgres_plans import parts


class Ticket(Entity):
    id: Field[str]
    serial: Field[str] = Field(unique=True)
    note: Field[str] = Field(default="")


def test_who_holds_a_value_is_found_by_its_index(
    session: Session, uri: str, direct: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session.ensure(Ticket(id=f"t{n}", serial=f"s{n}") for n in range(3000))
    session.commit()
    direct("ANALYZE entity_latest")
    seen: list[tuple[str, Any]] = []
    ask = Tx.ask

    def watched(tx: Tx, sql: str, bindings: Any = ()) -> Any:
        if sql.startswith("SELECT") and "serial" in sql:
            seen.append((sql, bindings))
        return ask(tx, sql, bindings)

    monkeypatch.setattr(Tx, "ask", watched)
    session.ensure(Ticket(id="t1", serial="s1", note="the same serial"))
    session.commit()
    assert seen == []

    session.ensure(Ticket(id="t1", serial="new"))
    session.commit()

    [(sql, bindings)] = seen
    with psycopg.connect(place_of(uri).conninfo) as connection:
        [[found]] = connection.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode(), bindings).fetchall()
    plan = json.loads(found) if isinstance(found, str) else found
    used = [step.get("Index Name") for step in parts(plan[0]["Plan"])]
    assert short_index_name("entity", "Ticket", "serial", "text") in used
    assert "Seq Scan" not in [step["Node Type"] for step in parts(plan[0]["Plan"])]
