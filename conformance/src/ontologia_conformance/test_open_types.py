"""Open types: a class that declares some fields, at least its key, and takes any others as JSON."""

from __future__ import annotations

import functools
import types
from decimal import Decimal
from typing import Any

import pytest

from ontologia import Entity, Field, Relation, left
from ontologia.errors import InvalidValueError, SchemaOutdatedError
from ontologia.query import count, max
from ontologia.schema.stored import class_of, plain
from ontologia.schema.typespec import spec_of


class Crate(Entity):
    __open__ = True

    id: Field[str]
    price: Field[Decimal] = Decimal(1)

    @functools.cached_property
    def doubled(self) -> Decimal:
        return self.price * 2


class Holds(Relation[Crate, Crate]):
    __open__ = True

    pieces: Field[int] = 1


STRANGE = {
    "with space": 1, "dots.in.it": 2, 'quote"': 3, "it's": 4, "back\\slash": 5, "%s": 6, "[0]": 7,
    "🦊": 8, "$": 9, "--": 10, ":p0": 11, "%(p0)s": 12, "fields": 13, "select": 14, "\t": 15, "0": 16,
}  # fmt: skip


@pytest.fixture
def crates(session):
    session.ensure(
        [
            Crate(id="a", color="red", size=5, inside={"kind": "tea", "tins": [{"g": 50}]}),
            Crate(id="b", color="blue", size="5", price=Decimal("2.50")),
            Crate(id="c", color=None, size=True),
            Crate(id="d"),
        ]
    )
    session.commit()
    return session.query().entities(Crate)


def ids(query):
    return "".join(crate.id for crate in query.collect())


# -- objects --------------------------------------------------------------------------------------


@pytest.mark.req("C-166")
def test_an_open_object_keeps_what_it_was_given(crates):
    a, b, c, d = crates.collect()

    assert a == Crate(id="a", color="red", size=5, inside={"kind": "tea", "tins": [{"g": 50}]})
    assert (a.color, a.size, a.inside["kind"], b.price) == ("red", 5, "tea", Decimal("2.50"))
    assert c.color is None
    assert not hasattr(d, "color")
    assert c != Crate(id="c", size=True)  # null is something
    assert repr(b) == "Crate(id='b', price=Decimal('2.50'), color='blue', size='5')"


def test_fields_come_and_go(session, crates):
    a, *_ = crates.collect()
    a.weight = 3.5
    a.size = [1, 2]
    del a.color
    session.ensure(a)
    session.commit()

    assert plain(Crate.__shape__, vars(crates.first())) == {
        "id": "a", "price": "1", "size": [1, 2], "weight": 3.5,
        "inside": {"kind": "tea", "tins": [{"g": 50}]},
    }  # fmt: skip
    delta = session.diff(1, 2)
    assert delta.updated[0].fields == {
        "color": ("red", None), "size": (5, [1, 2]), "weight": (None, 3.5),
    }  # fmt: skip


def test_the_same_object_again_is_no_change(session, crates):
    session.ensure(crates.collect())

    assert session.commit() is None


def test_what_a_class_computes_is_no_field(session, crates):
    a = crates.first()

    assert a.doubled == 2
    assert a == crates.first()
    assert "doubled" not in repr(a)
    session.ensure(a)
    assert session.commit() is None


@pytest.mark.parametrize(
    "value", [float("nan"), 2**63, "\0", "\ud800", Decimal(1), {1: 2}, {"a": (1,)}, object()]
)
def test_an_undeclared_value_is_json(value):
    crate = Crate(id="a")

    with pytest.raises(InvalidValueError, match=r"Crate\.other"):
        Crate(id="a", other=value)
    with pytest.raises(InvalidValueError, match=r"Crate\.other"):
        crate.other = value
    assert crate == Crate(id="a")


def test_what_became_no_json_after_it_was_given_is_not_stored(session):
    crate = Crate(id="a", inside={})
    crate.inside["x"] = float("inf")

    with pytest.raises(InvalidValueError, match=r"Crate\.inside\.x: inf"):
        session.ensure(crate)


@pytest.mark.parametrize("name", ["", "meta", "doubled", "__class__", "_origin", "\0", "\ud800"])
def test_a_name_that_is_taken_or_none_is_refused(name):
    with pytest.raises(InvalidValueError):
        Crate(**{"id": "a", name: 1})


def test_a_declared_field_is_checked_as_ever():
    with pytest.raises(InvalidValueError, match="price"):
        Crate(id="a", price="much")
    with pytest.raises(InvalidValueError, match="id is missing"):
        Crate(color="red")


# -- questions ------------------------------------------------------------------------------------


@pytest.mark.req("C-166")
@pytest.mark.parametrize("as_of", [None, 1], ids=["now", "then"])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Crate.color == "red", "a"),
        (Crate.color != "red", "b"),
        (~(Crate.color == "red"), "b"),
        (Crate.color.in_(["red", "blue"]), "ab"),
        (Crate.color.like("%e%") & Crate.color.startswith("b"), "b"),
        (Crate.color.is_null(), "cd"),
        (Crate.size == 5, "a"),
        (Crate.size == "5", "b"),
        (Crate.size.is_true(), "c"),
        (Crate.size > 4, "a"),
        (Crate.inside.path("kind") == "tea", "a"),
        (Crate.inside["tins"][0]["g"] == 50, "a"),
        (Crate.inside["tins"].any_path("g") == 50, "a"),
        (Crate.never_there == 1, ""),
        (Crate.never_there.is_null(), "abcd"),
        ((Crate.color == "blue") & (Crate.price > Decimal(2)), "b"),
    ],
)
def test_undeclared_fields_are_filtered_like_free_json(crates, condition, expected, as_of):
    asked = crates.where(condition)

    assert ids(asked if as_of is None else asked.as_of(as_of)) == expected


def test_undeclared_fields_order_and_group(crates):
    assert ids(crates.order_by(Crate.size.desc())) == "bacd"
    assert ids(crates.order_by(Crate.color, Crate.id.desc())) == "dcba"
    rows = crates.group_by(Crate.color).agg(n=count(), top=max(Crate.size))
    assert rows == [
        {"color": None, "n": 2, "top": None},
        {"color": "blue", "n": 1, "top": "5"},
        {"color": "red", "n": 1, "top": 5},
    ]
    assert crates.max(Crate.inside["tins"][0]["g"]) == 50


def test_a_name_may_be_any_text_and_is_never_part_of_a_statement(session):
    session.ensure([Crate(id="a", **STRANGE), Crate(id="b")])
    session.commit()
    asked = session.query().entities(Crate)

    assert asked.first() == Crate(id="a", **STRANGE)
    for name, value in STRANGE.items():
        expr: Any = Crate.__shape__.expression(name)
        assert ids(asked.where(expr == value)) == "a"
        assert ids(asked.as_of(1).where(expr.in_([value]))) == "a"
        assert ids(asked.order_by(expr)) == "ba"
        assert asked.group_by(expr).agg(n=count()) == [{name: None, "n": 1}, {name: value, "n": 1}]


def test_open_relations_and_open_ends_are_asked_alike(session, crates):
    session.ensure(
        [
            Holds(left_key="a", right_key="b", since=1999, note={"by": "Ada"}),
            Holds(left_key="b", right_key="c", pieces=2),
        ]
    )
    session.commit()
    asked = session.query().relations(Holds)

    def ends(condition):
        return [held.left_key + held.right_key for held in asked.where(condition).collect()]

    first, _ = asked.collect()
    assert first == Holds(left_key="a", right_key="b", since=1999, note={"by": "Ada"})
    assert ends(Holds.since > 1990) == ["ab"]
    assert ends(Holds.note["by"] == "Ada") == ["ab"]
    assert ends(left(Holds).color == "blue") == ["bc"]
    assert ends(Holds.pieces == 2) == ["bc"]
    session.ensure(asked.collect())
    assert session.commit() is None


def test_history_shows_fields_that_came_and_went(session, crates):
    session.ensure(Crate(id="a", weight=1))
    session.commit()
    session.delete(Crate(id="a"))
    session.commit()

    versions = crates.where(Crate.id == "a").with_history().collect()

    assert [plain(Crate.__shape__, vars(each)).get("weight") for each in versions] == [None, 1, 1]
    assert [each.meta().deleted for each in versions] == [False, False, True]
    assert [
        each.meta().commit_id for each in crates.where(Crate.weight == 1).with_history().collect()
    ] == [2, 3]
    assert session.why(Crate, "b", "color").value == "blue"


# -- schema ---------------------------------------------------------------------------------------


def made(name: str, *, is_open: bool, **annotations: Any) -> Any:
    """A class of this name and these fields, beside others of the same name."""
    body = {
        "__open__": is_open,
        "__annotations__": {"id": Field[str], **{n: Field[a] for n, a in annotations.items()}},
        **{n: Field(default=None) for n in annotations},
    }
    return types.new_class(name, (Entity,), exec_body=lambda namespace: namespace.update(body))


def test_only_an_open_type_says_so_in_its_schema():
    assert '"open":true' in spec_of(Crate.__shape__).to_json()
    assert "open" not in spec_of(made("Bin", is_open=False).__shape__).to_json()


def test_the_class_of_a_stored_open_type_is_open(open_session, session, crates):
    again = class_of(spec_of(Crate.__shape__))
    other = open_session()

    found = other.query().entities(again).where(again.color == "blue").collect()

    assert [(each.id, each.size, each.price) for each in found] == [("b", "5", Decimal("2.50"))]
    other.ensure(other.query().entities(again).collect())
    assert other.commit() is None


def test_a_type_is_opened_without_touching_its_objects(open_session):
    before, after = made("Bin", is_open=False), made("Bin", is_open=True)
    first = open_session(entity_types=[before])
    first.ensure([before(id="a"), before(id="b")])
    first.commit()
    second = open_session(entity_types=[after])

    with pytest.raises(SchemaOutdatedError, match=r"\(open\): false → true"):
        second.validate()
    assert second.query().entities(after).count() == 2
    preview = second.migrate()
    assert (preview.objects, preview.missing_upgraders) == ({"Bin": 0}, {})
    result = second.migrate(dry_run=False, token=preview.token)

    assert (result.versions, result.commit_id) == ({"Bin": 2}, None)
    second.ensure(after(id="a", color="red"))
    assert second.commit() == 2
    bins = second.query().entities(after)
    assert bins.collect() == [after(id="a", color="red"), after(id="b")]
    assert [each.id for each in bins.where(after.color == "red").collect()] == ["a"]
    assert bins.as_of(1).where(after.color.is_null()).collect() == [after(id="a"), after(id="b")]
    assert second.diff(1, 2).updated[0].fields == {"color": (None, "red")}
    # A program that still has the closed class goes on, and keeps what it does not know.
    assert first.query().entities(before).collect() == [before(id="a"), before(id="b")]
    first.ensure([before(id="a"), before(id="c")])
    assert first.commit() == 3
    assert second.one(after, "a") == after(id="a", color="red")


def test_a_class_of_another_version_reads_undeclared_fields_too(open_session):
    before, after = made("Bin", is_open=True), made("Bin", is_open=True, size=int | None)
    first = open_session(entity_types=[before])
    first.ensure([before(id="a", color="red"), before(id="b")])
    first.commit()

    bins = open_session(entity_types=[after]).query().entities(after)

    assert bins.collect() == [after(id="a", color="red"), after(id="b")]
    assert [each.id for each in bins.where(after.color == "red").collect()] == ["a"]
    assert [each.id for each in bins.order_by(after.color.desc()).collect()] == ["a", "b"]


def test_an_upgrader_for_the_opening_has_its_say(open_session):
    before, after = made("Bin", is_open=False), made("Bin", is_open=True)
    first = open_session(entity_types=[before])
    first.ensure(before(id="a"))
    first.commit()
    paint = {("Bin", 1): lambda fields: fields | {"color": "red"}}
    second = open_session(entity_types=[after], upgraders=paint)

    assert second.migrate().objects == {"Bin": 1}
    second.migrate(dry_run=False, force=True)

    assert second.query().entities(after).collect() == [after(id="a", color="red")]
    assert second.query().entities(after).as_of(1).collect() == [after(id="a", color="red")]


def test_opening_is_a_step_between_upgrades(open_session):
    """Rows of a version before the opening go through the upgraders before and after it."""
    one, two, three = (
        made("Bin", is_open=False, old=str | None),
        made("Bin", is_open=True, old=str | None),
        made("Bin", is_open=True, new=str | None),
    )
    session = open_session(entity_types=[one])
    session.ensure(one(id="a", old="x"))
    session.commit()
    open_session(entity_types=[two]).migrate(dry_run=False, force=True)
    rename = {("Bin", 2): lambda fields: {"id": fields["id"], "new": fields["old"], "kept": 1}}
    last = open_session(entity_types=[three], upgraders=rename)

    last.migrate(dry_run=False, force=True)

    asked = last.query().entities(three)
    assert asked.collect() == [three(id="a", new="x", kept=1)]
    assert asked.as_of(1).where(three.kept == 1).collect() == [three(id="a", new="x", kept=1)]
    assert not last.diff(1, 2)  # seen as it is now, it was the same then
    assert last.diff(0, 1).created[0].fields["kept"] == (None, 1)


def test_a_type_is_closed_by_an_upgrader_that_says_what_becomes_of_the_rest(open_session):
    before, after = made("Bin", is_open=True), made("Bin", is_open=False)
    first = open_session(entity_types=[before])
    first.ensure(before(id="a", color="red"))
    first.commit()
    second = open_session(entity_types=[after])

    assert second.query().entities(after).collect() == [after(id="a")]
    assert second.migrate().missing_upgraders == {"Bin": [1]}
    second.migrate(
        dry_run=False, force=True, upgraders={("Bin", 1): lambda fields: {"id": fields["id"]}}
    )

    assert second.query().entities(after).collect() == [after(id="a")]
    with pytest.raises(InvalidValueError, match="color is not a field"):
        after(id="a", color="red")
