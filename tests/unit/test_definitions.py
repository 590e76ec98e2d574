"""A class says what is stored, and a class that cannot be stored is refused with a reason."""

from __future__ import annotations

import sys
import types
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, ClassVar, NewType
from uuid import UUID

import pytest
from pydantic import BaseModel

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import DefinitionError, InvalidValueError
from ontologia.schema.expression import Expr

Serial = NewType("Serial", int)


class Colour(Enum):
    RED = "red"


class Person(Entity):
    id: Field[str]
    name: Field[str] = Field(default="")


class Knows(Relation["Person", "Person"]):
    since: Field[int] = Field(default=0)


def _with_field(name, annotation, base=Entity):
    """A class with a key and one more field, made without writing its name."""
    body = {"__module__": __name__, "__annotations__": {"id": Field[str], name: Field[annotation]}}
    return type(base)("Thing", (base,), body)


def _keyed(annotation):
    body = {"__module__": __name__, "__annotations__": {"code": Field[annotation]}}
    return type(Entity)("Thing", (Entity,), body | {"code": Field(primary_key=True)})


@pytest.fixture(params=["annotations as text", "annotations as types"])
def module(request, monkeypatch):
    """Run source as a module of its own, with and without `from __future__ import annotations`."""
    flag = annotations.compiler_flag if "text" in request.param else 0

    def run(source):
        made = types.ModuleType("a_module_under_test")
        monkeypatch.setitem(sys.modules, made.__name__, made)
        code = "from ontologia import Entity, Field, Relation, left, right\n" + source
        exec(compile(code, "module.py", "exec", flag, dont_inherit=True), vars(made))  # noqa: S102
        return made

    return run


# -- keys --------------------------------------------------------------------------------------


def test_an_entity_without_a_key_is_refused_and_told_how_to_have_one():
    with pytest.raises(DefinitionError, match="Order has no primary key") as caught:

        class Order(Entity):
            number: Field[str]

    assert "Field(primary_key=True)" in caught.value.hint
    assert "abstract=True" in caught.value.hint


def test_a_field_called_id_is_the_key_unless_another_is_marked():
    class Marked(Entity):
        id: Field[str]
        sku: Field[str] = Field(primary_key=True)

    assert Person.__shape__.key == "id"
    assert Marked.__shape__.key == "sku"


def test_two_primary_keys_are_refused_also_when_one_is_inherited():
    class First(Entity):
        a: Field[str] = Field(primary_key=True)

    with pytest.raises(DefinitionError, match="Both has 2 primary keys: a, b"):

        class Both(Entity):
            a: Field[str] = Field(primary_key=True)
            b: Field[str] = Field(primary_key=True)

    with pytest.raises(DefinitionError, match="Second has 2 primary keys: a, b"):

        class Second(First):
            b: Field[str] = Field(primary_key=True)


def test_each_kind_has_its_own_kind_of_key():
    with pytest.raises(DefinitionError, match=r"Order\.line: only relations have an instance_key"):

        class Order(Entity):
            id: Field[str]
            line: Field[str] = Field(instance_key=True)

    with pytest.raises(DefinitionError, match=r"Owns\.deed: a relation is named by its two ends"):

        class Owns(Relation[Person, Person]):
            deed: Field[str] = Field(primary_key=True)

    with pytest.raises(DefinitionError, match="Lends has 2 instance keys"):

        class Lends(Relation[Person, Person]):
            day: Field[str] = Field(instance_key=True)
            hour: Field[str] = Field(instance_key=True)


@pytest.mark.parametrize("annotation", [str, int, UUID, Colour, Annotated[str, "a note"], Serial])
def test_text_whole_numbers_and_uuids_are_keys(annotation):
    assert isinstance(_keyed(annotation).code, Expr)


@pytest.mark.parametrize(
    "annotation",
    [float, bool, Decimal, timedelta, list[str], dict[str, str], str | None, int | str, Any],
)
def test_what_has_no_single_text_is_no_key(annotation):
    with pytest.raises(DefinitionError, match=r"Thing\.code: a key is text"):
        _ = _keyed(annotation).code


def test_an_instance_key_follows_the_same_rule():
    class Owns(Relation[Person, Person]):
        share: Field[float] = Field(instance_key=True)

    with pytest.raises(DefinitionError, match=r"Owns\.share: a key is text"):
        Owns(left_key="a", right_key="b", share=0.5)


# -- annotations -------------------------------------------------------------------------------


def test_a_plain_annotation_is_refused_and_corrected(module):
    with pytest.raises(DefinitionError, match=r"Order\.note is annotated str") as caught:
        module("class Order(Entity):\n    id: Field[str]\n    note: str = 'x'")

    assert caught.value.hint == "Write note: Field[str], or ClassVar[str] if it is no field."


def test_a_field_without_a_type_is_refused(module):
    with pytest.raises(DefinitionError, match=r"Order\.note has no type"):
        module("class Order(Entity):\n    id: Field[str]\n    note = Field(default='x')")

    with pytest.raises(DefinitionError, match=r"Order\.note"):
        module("class Order(Entity):\n    id: Field[str]\n    note: Field\nOrder(id='1', note='x')")


def test_class_variables_methods_and_constants_are_no_fields():
    class Order(Entity):
        TABLE: ClassVar[str] = "orders"
        LIMIT = 5
        _cache: ClassVar[dict[str, str]] = {}
        id: Field[str]

        def label(self):
            return f"{self.TABLE}/{self.id}"

    assert list(Order.__shape__.fields) == ["id"]
    assert Order(id="1").label() == "orders/1"
    assert Order.LIMIT == 5


def test_a_field_whose_name_begins_with_an_underscore_is_refused():
    with pytest.raises(DefinitionError, match="_secret"):

        class Order(Entity):
            id: Field[str]
            _secret: Field[str] = Field(default="x")


def test_annotations_may_be_text_or_types(module):
    made = module(
        "class Order(Entity):\n"
        "    id: Field[int]\n"
        "    tags: Field[list[str]] = Field(default_factory=list)\n"
        "    parent: Field['int | None'] = Field(default=None)\n"
    )

    order = made.Order(id="7", tags=("a", "b"))

    assert (order.id, order.tags, order.parent) == (7, ["a", "b"], None)
    assert repr(made.Order.tags) == "Order.tags"


def test_an_annotation_may_name_a_class_that_comes_later():
    made = types.ModuleType("a_module_with_a_forward_reference")
    sys.modules[made.__name__] = made
    source = (
        "from __future__ import annotations\n"
        "from ontologia import Entity, Field\n"
        "from pydantic import BaseModel\n"
        "class Order(Entity):\n"
        "    id: Field[str]\n"
        "    address: Field[Address]\n"
        "class Address(BaseModel):\n"
        "    city: str\n"
    )
    try:
        exec(source, vars(made))  # noqa: S102

        order = made.Order(id="1", address={"city": "Paris"})
    finally:
        del sys.modules[made.__name__]

    assert order.address == made.Address(city="Paris")


def test_a_name_that_is_never_defined_is_an_error_at_first_use_that_names_it():
    class Order(Entity):
        id: Field[str]
        address: Field[Adress]  # noqa: F821 - that is the mistake

    with pytest.raises(DefinitionError, match="Order: an annotation names 'Adress'"):
        Order(id="1", address="x")


def test_a_class_inside_a_function_sees_the_names_around_it():
    class Address(BaseModel):
        city: str

    class Order(Entity):
        id: Field[str]
        address: Field[Address | None] = Field(default=None)

    assert Order(id="1", address={"city": "Paris"}).address == Address(city="Paris")


def test_a_type_nobody_can_validate_is_refused_at_first_use():
    class Opaque:
        pass

    made = _with_field("thing", Opaque)

    with pytest.raises(DefinitionError, match="Thing has a field that cannot be validated"):
        made(id="1", thing=Opaque())


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["json", "copy", "schema", "model_config", "self", "type", "values", "mro", "name", "kind"],
)
def test_a_field_may_have_a_name_that_means_something_elsewhere(name):
    made = _with_field(name, str)

    thing = made(**{"id": "1", name: "first"})
    setattr(thing, name, "second")

    assert getattr(thing, name) == "second"
    assert repr(getattr(made, name)) == f"Thing.{name}"
    assert thing == made(**{"id": "1", name: "second"})


def test_names_that_every_object_has_are_refused():
    with pytest.raises(DefinitionError, match=r"Thing\.meta: the name is taken by every entity"):
        _with_field("meta", str)

    for name in ("meta", "left", "right", "left_key", "right_key", "instance_key"):
        body = {"__module__": __name__, "__annotations__": {name: Field[str]}}
        with pytest.raises(DefinitionError, match=f"{name}: the name is taken by every relation"):
            type(Relation)("Tie", (Relation,), body)


# -- defaults and indexes ----------------------------------------------------------------------


def test_a_default_may_be_written_plainly():
    class Rule(Entity):
        id: Field[str]
        days: Field[int] = 90
        note: Field[str | None] = None

    rule = Rule(id="1")

    assert (rule.days, rule.note) == (90, None)
    assert isinstance(Rule.days, Expr)
    assert Rule(id="1", days=5).days == 5


def test_a_default_that_does_not_fit_is_refused_before_the_first_instance():
    class Rule(Entity):
        id: Field[str]
        days: Field[int] = Field(default="soon")

    with pytest.raises(DefinitionError, match=r"Rule\.days: the default 'soon' does not fit"):
        Rule(id="1", days=5)


def test_a_default_is_converted_like_any_other_value():
    class Rule(Entity):
        id: Field[str]
        days: Field[int] = Field(default="90")
        start: Field[date] = Field(default="2026-01-01")

    rule = Rule(id="1")

    assert (rule.days, rule.start) == (90, date(2026, 1, 1))


def test_what_a_factory_makes_is_checked_like_any_other_value():
    class Rule(Entity):
        id: Field[str]
        days: Field[int] = Field(default_factory=lambda: "soon")

    with pytest.raises(InvalidValueError, match="days"):
        Rule(id="1")


def test_one_instance_s_default_is_not_the_next_one_s():
    class Basket(Entity):
        id: Field[str]
        items: Field[list[str]] = Field(default=[])
        notes: Field[dict[str, list[int]]] = Field(default={"seen": []})
        tags: Field[list[str]] = Field(default_factory=list)

    first = Basket(id="1")
    first.items.append("x")
    first.notes["seen"].append(1)
    first.tags.append("y")

    assert Basket(id="1") == Basket(id="1", items=[], notes={"seen": []}, tags=[])


def test_a_default_and_a_factory_exclude_each_other():
    with pytest.raises(DefinitionError, match="a default or a default_factory, not both"):
        Field(default=1, default_factory=int)
    with pytest.raises(DefinitionError, match="default_factory must be callable, got 5"):
        Field(default_factory=5)


@pytest.mark.parametrize("annotation", [list[str], dict[str, int], Any, int | str])
def test_an_index_needs_single_values_of_one_type(annotation):
    body = {"__annotations__": {"id": Field[str], "tags": Field[annotation]}}
    made = type(Entity)("Thing", (Entity,), body | {"tags": Field(index=True)})

    with pytest.raises(DefinitionError, match=r"Thing\.tags: an index needs single values"):
        _ = made.tags


@pytest.mark.parametrize("annotation", [str, int, bool, datetime, Decimal, str | None, Colour])
def test_single_values_can_have_an_index(annotation):
    body = {"__annotations__": {"id": Field[str], "tag": Field[annotation]}}
    made = type(Entity)("Thing", (Entity,), body | {"tag": Field(index=True)})

    assert made.__shape__.types["tag"].kind != "json"


# -- inheritance -------------------------------------------------------------------------------


def test_fields_of_abstract_bases_are_inherited_and_the_bases_are_never_stored():
    class Named(Entity, abstract=True):
        name: Field[str]

    class Stamped(Entity, abstract=True):
        version: Field[int] = Field(default=1)

    class Shop(Named, Stamped):
        id: Field[str]

    assert Shop(id="s", name="Corner") == Shop(id="s", name="Corner", version=1)
    assert repr(Shop.name) == "Shop.name"
    with pytest.raises(DefinitionError, match="Named is abstract and has no instances"):
        Named(name="x")


def test_a_subclass_may_change_a_field_without_changing_its_base():
    class Base(Entity):
        id: Field[str]
        size: Field[int] = Field(default=1)

    class Other(Base):
        size: Field[str] = Field(default="large")

    class Leaf(Other):
        pass

    assert Other(id="1").size == "large"
    assert Leaf(id="1").size == "large"
    assert Base(id="1").size == 1


def test_a_bare_value_over_an_inherited_field_is_refused():
    class Base(Entity):
        id: Field[str]
        size: Field[int] = Field(default=1)

    with pytest.raises(DefinitionError, match="size"):

        class Other(Base):
            size = 5


def test_a_plain_mixin_brings_methods_and_no_fields():
    class Greets:
        def hello(self):
            return f"hello {self.name}"

    class Guest(Greets, Entity):
        id: Field[str]
        name: Field[str]

    class Loose:
        mood: Field[str] = Field(default="good")

    assert Guest(id="1", name="Ada").hello() == "hello Ada"
    with pytest.raises(DefinitionError, match="mood"):

        class Host(Loose, Entity):
            id: Field[str]


# -- relations ---------------------------------------------------------------------------------


def test_the_ends_of_a_relation_may_be_named_by_text_and_be_the_same_class():
    assert repr(left(Knows).name) == "left(Knows).name"
    assert repr(right(Knows).name) == "right(Knows).name"
    assert Knows.__shape__.end("left") is Person.__shape__


def test_an_end_may_be_an_entity_that_is_defined_later_in_the_same_function():
    class Hires(Relation["Firm", "Person"]):
        pass

    class Firm(Entity):
        vat: Field[int] = Field(primary_key=True)

    assert Hires.__shape__.end("left") is Firm.__shape__
    assert Hires(left_key=7, right_key="p").left_key == "7"


def test_a_relation_inherits_the_ends_and_fields_of_its_base():
    class Tie(Relation[Person, Person], abstract=True):
        strength: Field[int] = Field(default=1)

    class Friendship(Tie):
        place: Field[str]

    assert repr(left(Friendship).name) == "left(Friendship).name"
    assert Friendship(left_key="a", right_key="b", place="school").strength == 1


def test_an_end_that_does_not_exist_or_is_no_entity_is_refused_when_it_is_used():
    class Haunts(Relation["Ghost", "Person"]):
        pass

    class Counts(Relation[int, Person]):
        pass

    with pytest.raises(DefinitionError, match="Haunts names the entity 'Ghost', which is not def"):
        _ = left(Haunts).name
    with pytest.raises(DefinitionError, match="Counts connects entities, and <class 'int'> is no"):
        _ = left(Counts).name
