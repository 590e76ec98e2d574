"""Entity types whose names have dots, as `logistics.shipment` has."""

from __future__ import annotations

import types
from typing import Any

import pytest

from ontologia import Entity, Field, Relation, left
from ontologia.errors import DefinitionError
from ontologia.migration.drop import TypeDrop
from ontologia.runtime.session import core_of
from ontologia.runtime.stored import StoredTypes
from ontologia.schema.typespec import TypeSpec


def entity(name: str, /, **annotations: Any) -> Any:
    """An entity class with a name that a class statement cannot give."""
    body: dict[str, Any] = {
        "__annotations__": {"id": Field[str], **{n: Field[a] for n, a in annotations.items()}},
        **{n: Field(index=True) for n in annotations},
    }
    return types.new_class(name, (Entity,), exec_body=lambda namespace: namespace.update(body))


Shipment = entity("logistics.shipment", status=str, size=int)
Namesake = entity("logistics_shipment", status=str, size=int)


class Follows(Relation[Shipment, Shipment]):
    days: Field[int] = 0


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".a", "a..b", "a.1", "a b.c", "a.b'c", 'a."b', "a." + "b" * 199]
)
def test_the_parts_of_a_name_are_identifiers(name):
    with pytest.raises(DefinitionError, match="names are identifiers of at most 200 characters"):
        entity(name)


def test_only_entities_have_dots_in_their_names():
    with pytest.raises(DefinitionError, match="names are identifiers"):
        types.new_class("logistics.follows", (Relation[Shipment, Shipment],))


def test_a_dotted_type_is_written_read_and_asked_like_any_other(session, open_session):
    session.ensure([Shipment(id="s1", status="new", size=1), Namesake(id="s1", status="x", size=9)])
    session.ensure([Shipment(id="s2", status="old", size=2)])
    session.ensure(Follows(left_key="s1", right_key="s2", days=3))
    session.commit()
    session.ensure(Shipment(id="s1", status="sent", size=1))
    session.commit()
    shipments = open_session(entity_types=[Shipment, Namesake]).query().entities(Shipment)

    assert repr(shipments.first()) == "logistics.shipment(id='s1', status='sent', size=1)"
    assert [each.id for each in shipments.where(Shipment.status == "sent").collect()] == ["s1"]
    assert [each.id for each in shipments.where(Shipment.size > 1).collect()] == ["s2"]
    assert shipments.as_of(1).where(Shipment.status == "new").count() == 1
    assert len(shipments.with_history().collect()) == 3
    asked = session.query().relations(Follows).where(left(Follows).status == "sent")
    assert [each.left.id for each in asked.collect()] == ["s1"]
    assert [len(walk.relations) for walk in shipments.via(Follows).collect()] == [1]
    [change] = session.list_commit_changes(2)
    assert change["entity_id"] == "logistics.shipment:s1"
    assert session.why(Shipment, "s1", "status").commit_id == 2
    assert session.diff(1, 2).updated[0].type_name == "logistics.shipment"


def test_types_that_differ_in_a_dot_alone_have_indexes_of_their_own(backend, open_session, direct):
    open_session(entity_types=[Shipment, Namesake]).close()

    column, catalog = ("name", "sqlite_master")
    if backend.name != "sqlite":
        column, catalog = ("indexname", "pg_indexes WHERE schemaname = current_schema()")
    found = [row[0] for row in direct(f"SELECT {column} FROM {catalog}")]

    assert sum("logistics_shipment_status" in name for name in found) == 2


@pytest.mark.parametrize("letter", ["b", "é"])
def test_long_names_have_indexes_of_their_own_all_the_same(open_session, letter):
    """PostgreSQL cuts names off after 63 bytes."""
    long = "a" * 60 + "." + letter * 60
    classes = [entity(long + ".c", name=str, nam=str), entity(long + ".d", name=str)]
    session = open_session(entity_types=classes)
    session.ensure([classes[0](id="a", name="n", nam="m"), classes[1](id="b", name="n")])
    session.commit()

    again = open_session(entity_types=classes).query()

    for cls, key in zip(classes, "ab", strict=True):
        assert [each.id for each in again.entities(cls).where(cls.name == "n").collect()] == [key]


def test_a_dotted_type_is_known_by_its_name_migrated_and_dropped(session, open_session):
    session.ensure(Shipment(id="s1", status="new", size=1))
    session.commit()
    other = open_session()
    stored = StoredTypes.of(other).entity("logistics.shipment")
    assert other.query().entities(stored).first().status == "new"
    more = entity("logistics.shipment", status=str, size=int, weight=float)
    step = {("logistics.shipment", 1): lambda fields: fields | {"weight": 0.5}}

    open_session(entity_types=[more], upgraders=step).migrate(dry_run=False, force=True)

    store = core_of(session).store
    versions = store.list_schema_versions("entity", "logistics.shipment")
    assert [TypeSpec.from_json(each.schema_json).name for each in versions] == (
        ["logistics.shipment"] * 2
    )
    drop = TypeDrop(store)
    plan = drop.plan("entity", "logistics.shipment", with_objects=True)
    gone = drop.apply(
        "me", "entity", "logistics.shipment", token=plan.token, with_objects=True, metadata={}
    )
    assert (gone.objects, gone.version) == (1, 3)
