"""On PostgreSQL, too, a batch of a migration costs its objects, and not those that are stored."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation, Session
from ontologia.runtime.session import core_of

ENTITY = {"type": "Lamp", "key": "l05"}
RELATION = {"type": "Near", "left": "l01", "right": "l05", "instance": ""}
ENTITIES = ENTITY | {"key_to": "l09"}
RELATIONS = RELATION | {"left_to": "l01", "right_to": "l09", "instance_to": ""}
CHANGES = {"commit_id": 1, "row_id": 0, "most": 500}


class Lamp(Entity):
    id: Field[str]
    watts: Field[int]


class Near(Relation[Lamp, Lamp]):
    metres: Field[int]


@pytest.fixture
def explained(uri):
    """The plan of a statement, in a store that nobody has analysed."""
    with Session(uri) as session:
        session.ensure(Lamp(id=f"l{n:02}", watts=n) for n in range(50))
        session.ensure(Near(left_key="l01", right_key=f"l{n:02}", metres=n) for n in range(50))
        session.commit()
        store = core_of(session).store

        def ask(name, values):
            with store.database.read() as tx:
                return [row[0] for row in tx.all(f"EXPLAIN {store._sql[name]}", values)]

        yield ask


@pytest.mark.req("NEW-144")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("unstaged_entities", ENTITY | {"most": 500}),
        ("unstaged_relations", RELATION | {"most": 500}),
        ("changed_entities", CHANGES | {"type": "Lamp"}),
        ("changed_relations", CHANGES | {"type": "Near"}),
        ("staged_entities_after", ENTITY | {"most": 500}),
        ("staged_relations_after", RELATION | {"most": 500}),
        ("settle_entities_history", ENTITIES | {"commit_id": 2}),
        ("settle_relations_history", RELATIONS | {"commit_id": 2}),
        ("settle_entities_latest", ENTITIES | {"commit_id": 2}),
        ("settle_relations_latest", RELATIONS | {"commit_id": 2}),
        ("settle_entities_staged", ENTITIES),
        ("settle_relations_staged", RELATIONS),
        ("settling_get_entity", ENTITY),
    ],
)
def test_every_object_is_looked_up_by_its_key(explained, name, values):
    plan = explained(name, values)

    assert not any("Merge" in step or "Hash" in step for step in plan), plan
    scans = [step.strip() for step in plan if "Scan" in step and "Subquery Scan" not in step]
    scans = [step for step in scans if "pending_migration" not in step]
    assert all("Index" in step for step in scans), plan
    keys = [step for step in plan if "Index Cond" in step and "_key" in step]
    assert keys or name.startswith("changed"), plan
