"""A batch of a migration costs its objects, and not those that are stored."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation
from ontologia.store import staging
from tests.plans.test_query_plans import scans

SMALL = {"m", "h", "pending_migration", "CONSTANT"}
"""The row of the migration, and a page of changes."""


class Lamp(Entity):
    id: Field[str]
    watts: Field[int] = Field(index=True)


class Near(Relation[Lamp, Lamp]):
    metres: Field[int]


class DimLamp(Entity, name="Lamp"):
    id: Field[str]
    level: Field[str] = Field(unique=True)


class Beside(Relation[Lamp, Lamp], name="Near"):
    feet: Field[int]


UPGRADERS = {
    ("Lamp", 1): lambda fields: {"id": fields["id"], "level": str(fields["watts"])},
    ("Near", 1): lambda fields: {"feet": 3 * fields["metres"]},
}


@pytest.mark.req("NEW-144")
def test_no_statement_of_a_migration_in_the_background_scans_a_table(
    watch, open_session, monkeypatch
):
    monkeypatch.setattr(staging, "PAGE", 5)
    old = open_session(entity_types=[Lamp], relation_types=[Near])
    old.ensure(Lamp(id=f"l{n}", watts=n) for n in range(20))
    old.ensure(Near(left_key="l1", right_key=f"l{n}", metres=n) for n in range(20))
    old.commit()
    session = open_session(
        entity_types=[DimLamp],
        relation_types=[Beside],
        upgraders=UPGRADERS,
        settings={"migration_at_once": 0},
    )

    def stop(now):
        if now.done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.migrate(dry_run=False, force=True, progress=stop)
    old.ensure([Lamp(id="l0", watts=100), Near(left_key="l1", right_key="l0", metres=100)])
    old.commit()

    with watch.at():
        result = session.migrate(dry_run=False, force=True)

    assert result.objects == 40
    plan = {
        sql: [
            row[3]
            for row in watch.connections[id(cursor)].execute(f"EXPLAIN QUERY PLAN {sql}", values)
        ]
        for cursor, sql, values in watch.seen
        if "staged_" in sql or "pending_migration" in sql
    }
    assert len(plan) > 20
    scanned = {
        (step.split()[1], sql.partition(" ")[0])
        for sql, steps in plan.items()
        for step in scans(steps)
    }
    # Values are compared once among all, before the switch, and taken back in portions.
    assert {each for each in scanned if each[0] not in SMALL} == {
        ("staged_values", "SELECT"),
        ("staged_values", "DELETE"),
    }
    assert all(
        "LIMIT" in sql for sql in plan if sql.startswith("DELETE FROM staged_values\n WHERE (")
    )
    first = next(steps for sql, steps in plan.items() if "IS NOT l.commit_id" in sql)
    assert first[0].startswith("SEARCH l USING INDEX sqlite_autoindex_entity_latest_1")
    assert "entity_key>?" in first[0]
