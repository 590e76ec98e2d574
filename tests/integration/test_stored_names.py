"""`class Customer(Entity, name="Client")`: what is stored keeps its name when the class is renamed."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest

from ontologia import Entity, Event, Field, HandlerContext, Relation, Session, left, on_event
from ontologia.commands import DomainModel, api
from ontologia.errors import DefinitionError
from ontologia.schema.event import event_class
from tests.integration.commands import invoke


def old_types() -> tuple[Any, Any]:
    class Client(Entity):
        id: Field[str]
        tier: Field[str] = Field(default="standard", index=True)

    class Bought(Relation[Client, Client]):
        pieces: Field[int] = Field(default=1)

    return Client, Bought


class Patron(Entity, name="Client"):
    id: Field[str]
    tier: Field[str] = Field(default="standard", index=True)


class Purchase(Relation[Patron, Patron], name="Bought"):
    pieces: Field[int] = Field(default=1)


class PatronCame(Event, name="Client:came/v1"):
    patron: Field[str]


@on_event(PatronCame, name="stored_names.greet")
def greet(ctx: HandlerContext[PatronCame]) -> None:
    ctx.ensure(Patron(id=ctx.event.patron, tier="seen"))
    ctx.commit()


@pytest.fixture
def renamed(uri, open_session):
    """A store that was filled by the old classes, and a session with the new ones."""
    Client, Bought = old_types()
    with Session(uri) as session:
        session.ensure([Client(id="c1", tier="gold"), Client(id="c2")])
        session.ensure(Bought(left_key="c1", right_key="c2"))
    return open_session(entity_types=[Patron], relation_types=[Purchase])


def test_a_renamed_class_has_the_objects_of_the_old_one(renamed):
    renamed.validate()
    patrons = renamed.query().entities(Patron)

    found = patrons.where(Patron.tier == "gold").first()
    found.tier = "silver"
    renamed.ensure(found)
    renamed.commit()

    assert repr(found) == "Patron(id='c1', tier='silver')"
    assert found.meta().type_name == "Client"
    assert renamed.list_commit_changes(2)[0]["entity_id"] == "Client:c1"
    [purchase] = (
        renamed.query().relations(Purchase).where(left(Purchase).tier == "silver").collect()
    )
    assert (purchase.left.id, purchase.meta().type_name) == ("c1", "Bought")
    assert [len(walk.relations) for walk in patrons.via(Purchase).collect()] == [1]
    assert renamed.why(Patron, "c1", "tier").commit_id == 2
    assert renamed.diff(1, 2).updated[0].type_name == "Client"
    assert not renamed.migrate()


def test_the_command_line_knows_the_stored_name(renamed, uri):
    def lines(*arguments: str) -> list[Any]:
        done = invoke(*arguments, "--datastore-uri", uri, "--json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert [each["key"] for each in lines("query", "entities", "Client")] == ["c1", "c2"]
    assert lines("query", "relations", "Bought")[0]["type"] == "Bought"
    assert lines("why", "Client", "c1", "--field", "tier")[0]["value"] == "gold"
    assert lines("migrate", "--models", __name__)[0]["types"] == []
    assert {each["name"] for each in lines("schema", "export")} == {"Client", "Bought"}


def test_an_event_has_its_type_to_the_letter(renamed):
    assert PatronCame.__event_type__ == "Client:came/v1"
    assert event_class("Client:came/v1") is PatronCame

    renamed.commit(event=PatronCame(patron="c3"))
    renamed.run([greet], max_iterations=2)

    assert renamed.query().entities(Patron).where(Patron.id == "c3").first().tier == "seen"


def test_two_classes_of_one_stored_name_are_refused_in_one_session(renamed):
    with pytest.raises(
        DefinitionError, match=r"two classes are called Client: .*Patron and .*Clien"
    ):
        renamed.ensure(old_types()[0](id="c9"))


def test_a_subclass_has_a_name_of_its_own():
    class Vip(Patron):
        pass

    assert Vip.__shape__.name == "Vip"


@pytest.mark.parametrize("name", ["", "a b", "1", "a'b", 5, "x" * 201])
def test_a_name_that_cannot_be_stored_is_refused(name):
    for base in (Entity, Relation[Patron, Patron]):
        with pytest.raises(DefinitionError):
            types.new_class("Named", (base,), {"name": name}, _body)
    if name not in ("a b", "1", "a'b"):
        with pytest.raises(DefinitionError, match="an event type is text of 1 to 200 characters"):
            types.new_class("NamedEvent", (Event,), {"name": name})


def _body(namespace: dict[str, Any]) -> None:
    namespace["__annotations__"] = {"id": Field[str]}


def test_two_names_for_one_class_are_refused():
    with pytest.raises(DefinitionError, match="name= and __event_type__ differ"):

        class Twice(Event, name="one"):
            __event_type__ = "other"

    with pytest.raises(DefinitionError, match="has name='one' and is the model 'two'"):

        @api.model("two")
        class TwoNames(DomainModel, name="one"):
            pass
