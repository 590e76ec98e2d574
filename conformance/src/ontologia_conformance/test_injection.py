"""Text is text: quotes, SQL, patterns and path syntax in values, steps, keys and names."""

from __future__ import annotations

import keyword
import types
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ontologia import Entity, Field, Relation, Session, left, right
from ontologia.errors import DefinitionError, QueryError
from ontologia.query import count
from ontologia_conformance.tiers import examples


class Note(Entity):
    id: Field[str] = Field(primary_key=True)
    body: Field[str] = Field(default="", index=True)
    plain: Field[str | None] = Field(default=None)
    data: Field[dict[str, object]] = Field(default_factory=dict)
    items: Field[list[object]] = Field(default_factory=list)


class Tie(Relation[Note, Note]):
    mark: Field[str] = Field(instance_key=True)
    text: Field[str] = Field(default="")


class Größe(Entity):
    schlüssel: Field[str] = Field(primary_key=True)
    名前: Field[str] = Field(index=True)
    größer: Field[int] = Field(default=0, index=True)


class Связь(Relation[Größe, Größe]):
    вид: Field[str] = Field(instance_key=True)
    вес: Field[int] = Field(default=0, index=True)


NASTY = ["'", "''", '"', '""', "\\", "\\\\", "\\'", '\\"', ";", "--", "/*", "*/", "`", "?", ":p0"]
NASTY += ["@x", "?1", "{}", "{0}", "%s", "%", "%%", "_", "a_c", "abc", "a%c", "[", "]", "[0]", "$"]
NASTY += ["$.a", "a.b", "*", "#-1", '."a"', '$."a"', "\\u0041", "A", "\n", "\r\n", "\t", "\x1a"]
NASTY += [
    "\x7f",
    "\u2028",
    "\ufeff",
    "é",
    "e\u0301",
    "🦊",
    "\U0010ffff",
    "\ud7ff",
    "null",
    "NULL",
    "true",
]
NASTY += ["'; DROP TABLE entity_latest; --", "' OR 1=1 --", "') OR ('a'='a", "x' UNION SELECT 1 --"]
ANY = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXT = st.sampled_from(NASTY) | st.text(st.sampled_from("'\"\\;%_[]$.:?-/ aAé🦊"), max_size=4)
TEXT |= st.text(ANY, max_size=6)
TEXTS = st.lists(TEXT, min_size=2, max_size=8, unique=True)
NAMES = st.lists(TEXT.filter(bool), min_size=2, max_size=8, unique=True)

Stored = Callable[..., AbstractContextManager[Session]]


@pytest.fixture(scope="session")
def stored(fresh_uri: Callable[[], str]) -> Stored:
    """Open a store that holds these objects and nothing else."""

    @contextmanager
    def open_with(*objects: Any) -> Iterator[Session]:
        with Session(fresh_uri(), entity_types=[Note], relation_types=[Tie]) as session:
            session.ensure(objects)
            session.commit()
            yield session

    return open_with


def ids(session: Session, condition: Any, *, as_of: int | None = None) -> list[str]:
    query = session.query().entities(Note).where(condition)
    query = query if as_of is None else query.as_of(as_of)
    return [note.id for note in query.collect()]


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.req("SQL-039", "SQL-040")
@examples(40)
@given(TEXTS)
def test_a_value_finds_itself_and_nothing_else(stored, texts):
    notes = [
        Note(id=f"{n}", body=t, plain=t, data={"at": {"deep": t}}, items=[{"kind": t}, {"kind": 0}])
        for n, t in enumerate(texts)
    ]

    with stored(*notes) as session:
        for number, text in enumerate(texts):
            for path in (Note.body, Note.plain, Note.data.path("at.deep"), Note.data["at"]["deep"]):
                assert ids(session, path == text) == [f"{number}"]
                assert ids(session, path.in_([text])) == [f"{number}"]
                assert ids(session, path == text, as_of=1) == [f"{number}"]
                assert len(ids(session, path != text)) == len(texts) - 1
            assert ids(session, Note.items.any_path("kind") == text) == [f"{number}"]
        assert ids(session, Note.body.in_(texts)) == [note.id for note in notes]
        assert session.query().entities(Note).collect() == notes


@pytest.mark.req("SQL-039", "SQL-045")
@examples(40)
@given(TEXTS, TEXT)
def test_parts_of_text_are_found_as_python_finds_them(stored, texts, part):
    notes = [Note(id=f"{n}", body=t, plain=t, data={"text": t}) for n, t in enumerate(texts)]

    with stored(*notes) as session:
        for piece in {part, texts[0], texts[0][:1], texts[1][1:]}:
            starting = [note.id for note in notes if note.body.startswith(piece)]
            ending = [note.id for note in notes if note.body.endswith(piece)]
            containing = [note.id for note in notes if piece in note.body]
            for path in (Note.body, Note.plain, Note.data["text"]):
                assert ids(session, path.startswith(piece)) == starting
                assert ids(session, path.endswith(piece)) == ending
                assert ids(session, path.contains(piece)) == containing
            listed = Note.data["text"].any_path("text").contains(piece)
            assert ids(session, listed) == []


@pytest.mark.req("SQL-045")
def test_patterns_are_literal_and_case_counts(stored):
    texts = ["abc", "a_c", "a%c", "A_C", "xa_", "a\\_c"]

    with stored(*(Note(id=text, body=text) for text in texts)) as session:
        assert ids(session, Note.body.startswith("a_")) == ["a_c"]
        assert ids(session, Note.body.startswith("a%")) == ["a%c"]
        assert ids(session, Note.body.endswith("_c")) == ["a\\_c", "a_c"]
        assert ids(session, Note.body.contains("\\")) == ["a\\_c"]
        assert ids(session, Note.body.endswith("C")) == ["A_C"]


@pytest.mark.req("SQL-051")
def test_types_are_not_mixed(stored):
    values: dict[str, object] = {"true": True, "one": 1, "real": 1.0, "text": "1", "yes": "true"}

    with stored(*(Note(id=key, data={"v": v}) for key, v in values.items())) as session:
        assert ids(session, Note.data["v"] == True) == ["true"]
        assert ids(session, Note.data["v"] == 1) == ["one", "real"]
        assert ids(session, Note.data["v"] == "1") == ["text"]
        assert ids(session, Note.data["v"].in_(["true", True])) == ["true", "yes"]
        assert ids(session, Note.data["v"] != 1) == ["text", "true", "yes"]


@pytest.mark.req("SQL-049")
def test_neither_a_comparison_nor_its_negation_matches_what_is_missing(stored):
    notes = [Note(id="missing"), Note(id="null", data={"v": None}), Note(id="one", data={"v": 1})]

    with stored(*notes) as session:
        value = Note.data["v"]
        assert ids(session, ~(value == 2)) == ids(session, value != 2) == ["one"]
        assert ids(session, ~(value == 2) | value.is_null()) == ["missing", "null", "one"]
        assert ids(session, ~(Note.plain == "x")) == ids(session, Note.plain != "x") == []
        assert ids(session, ~value.in_([2])) == ["one"]
        assert ids(session, ~(value == True)) == ids(session, value != True) == ["one"]
        assert ids(session, ~value.startswith("x")) == []


@pytest.mark.req("SQL-048")
def test_parentheses_are_kept_and_a_thousand_alternatives_are_no_deep_tree(stored):
    with stored(*(Note(id=f"{n:02}", data={"n": n}) for n in range(10))) as session:
        n = Note.data["n"]

        either_then_and = ids(session, ((n == 1) | (n == 2)) & (n > 1))
        and_then_either = ids(session, (n == 1) | ((n == 2) & (n > 1)))
        nobody = ids(session, ~((n == 1) | ~(n == 1)))
        many = n == 0
        for number in range(3, 1500):
            many = many | (n == number)

        assert (either_then_and, and_then_either, nobody) == (["02"], ["01", "02"], [])
        assert ids(session, ~many) == ["01", "02"]


# -- paths ----------------------------------------------------------------------------------------


@pytest.mark.req("SQL-039", "SQL-040", "SQL-046")
@examples(40)
@given(NAMES)
def test_a_step_of_a_path_is_a_name_and_nothing_else(stored, names):
    notes = [
        Note(id=f"{n}", data={name: {name: n}}, items=[{"in": {name: n}}, {name: n}])
        for n, name in enumerate(names)
    ]

    with stored(*notes) as session:
        for number, name in enumerate(names):
            inside = Note.data[name][name]
            groups = session.query().entities(Note).group_by(inside).agg(many=count())
            assert ids(session, inside == number) == [f"{number}"]
            assert ids(session, inside.is_not_null(), as_of=1) == [f"{number}"]
            assert ids(session, Note.items.any_path("in")[name] == number) == [f"{number}"]
            assert ids(session, Note.items[0]["in"][name] >= 0) == [f"{number}"]
            assert [group["many"] for group in groups] == [len(names) - 1, 1]
            assert session.query().entities(Note).max(inside) == number
            if "." not in name:
                assert ids(session, Note.data.path(f"{name}.{name}") == number) == [f"{number}"]
                assert ids(session, Note.items.any_path(name) == number) == [f"{number}"]


@examples(40)
@given(NAMES)
def test_objects_are_ordered_by_a_value_under_any_name(stored, names):
    notes = [Note(id=f"{n}", data={names[0]: -n, names[1]: n}) for n in range(4)]

    with stored(*notes) as session:
        falling = session.query().entities(Note).order_by(Note.data[names[0]]).collect()
        rising = session.query().entities(Note).order_by(Note.data[names[0]].desc()).as_of(1)

        assert [note.id for note in falling] == ["3", "2", "1", "0"]
        assert [note.id for note in rising.collect()] == ["0", "1", "2", "3"]


@pytest.mark.req("SQL-046", "SQL-047")
def test_any_path_is_false_of_everything_but_a_list_with_a_fitting_object(stored):
    values: dict[str, Any] = {
        "hit": [{"kind": "view"}, {"kind": "click"}],
        "late": [1, None, "x", [{"kind": "click"}], {"kind": "click"}],
        "miss": [{"kind": "view"}],
        "null": None,
        "empty": [],
        "scalars": [1, "click", None],
        "text": '[{"kind": "click"}]',
        "object": {"kind": "click"},
        "deeper": {"inside": {"kind": "click"}},
    }
    notes = [Note(id=key, data={"events": value}) for key, value in values.items()]

    with stored(*notes, Note(id="missing")) as session:
        clicked = Note.data["events"].any_path("kind") == "click"

        assert ids(session, clicked) == ["hit", "late"]
        assert ids(session, clicked, as_of=1) == ["hit", "late"]
        assert set(ids(session, ~clicked)) == {"missing", *values} - {"hit", "late"}


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.req("SQL-039")
@examples(40)
@given(NAMES)
def test_any_text_is_a_key(stored, names):
    notes = [Note(id=name, body=name) for name in names]
    ties = [Tie(left_key=names[0], right_key=name, mark=name, text=name) for name in names]

    with stored(*notes, *ties) as session:
        for note, tie in zip(notes, ties, strict=True):
            asked = session.query().relations(Tie)
            by_end = asked.where(right(Tie).id == note.id, left(Tie).id == names[0])
            by_mark = asked.where(Tie.mark == note.id)
            ways = session.query().entities(Note).where(Note.id == names[0]).via(Tie)
            [way] = ways.where(Tie.mark.in_([note.id])).collect()
            [found] = by_end.collect()
            assert ids(session, Note.id == note.id) == [note.id]
            assert ids(session, Note.id.in_([note.id, "nobody"]), as_of=1) == [note.id]
            assert (found.right, found.meta().instance_key) == (note, note.id)
            assert by_mark.collect() == by_mark.as_of(1).collect() == [tie]
            assert way.relations == (tie,)
        session.delete(notes[1])
        session.delete(ties[1])
        session.commit()

        assert names[1] not in ids(session, Note.id.is_not_null())
        assert session.query().relations(Tie).count() == len(names) - 1


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.req("SQL-039")
def test_classes_and_fields_are_named_in_any_script(open_session):
    session = open_session(entity_types=[Größe], relation_types=[Связь])
    one, two = Größe(schlüssel="ä", 名前="é", größer=1), Größe(schlüssel="b", 名前="e", größer=2)
    tie = Связь(left_key="ä", right_key="b", вид="друг", вес=3)
    session.ensure([one, two, tie])
    session.commit()

    sizes = session.query().entities(Größe)
    ties = session.query().relations(Связь)

    assert sizes.where(Größe.名前 == "é").collect() == [one]
    assert sizes.where(Größe.größer > 1).order_by(Größe.名前).collect() == [two]
    assert ties.where(Связь.вес >= 3, left(Связь).größer == 1, Связь.вид == "друг").count() == 1
    assert sizes.group_by(Größe.größer).agg(n=count()) == [
        {"größer": 1, "n": 1},
        {"größer": 2, "n": 1},
    ]
    assert [way.relations for way in sizes.via(Связь).as_of(1).collect()] == [(tie,)]


LETTERS = st.characters(categories=["Lu", "Ll", "Lo", "Lm", "Nl", "Nd", "Mn"])
IDENTIFIERS = st.text(LETTERS, min_size=1, max_size=5).map(
    lambda text: unicodedata.normalize("NFKC", text)  # as Python itself does with a name
)
IDENTIFIERS = IDENTIFIERS.filter(lambda text: text.isidentifier() and not keyword.iskeyword(text))
IDENTIFIERS |= st.sampled_from(["select", "order", "group", "fields", "value", "key", "rowid"])


@pytest.mark.req("SQL-039")
@examples(25)
@given(IDENTIFIERS, IDENTIFIERS, IDENTIFIERS)
def test_any_identifier_names_a_class_and_an_indexed_field(fresh_uri, name, key, value):
    assume(key != value and not {key, value} & {"meta", "id"})
    made = entity(name, key, value)

    with Session(fresh_uri(), entity_types=[made]) as session:
        objects = [made(**{key: f"{n}", value: n % 2}) for n in range(4)]
        session.ensure(objects)
        session.commit()
        asked = session.query().entities(made)

        assert asked.where(getattr(made, value) == 1).collect() == objects[1::2]
        assert asked.where(getattr(made, key) == "2").collect() == [objects[2]]
        assert asked.order_by(getattr(made, value).desc()).first() == objects[1]
        assert asked.as_of(1).sum(getattr(made, value)) == 2.0


def entity(name: str, key: str, value: str) -> Any:
    """A class made at run time, with an indexed number beside its key."""

    def body(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = {key: Field[str], value: Field[int]}
        namespace[key] = Field(primary_key=True)
        namespace[value] = Field(index=True)

    return types.new_class(name, (Entity,), {}, body)


@pytest.mark.req("SQL-039")
@pytest.mark.parametrize("name", ["x' OR 1=1 --", 'a"b', "a.b", "fields_json", ""])
def test_a_field_that_the_class_does_not_have_cannot_be_asked_for(name):
    with pytest.raises((AttributeError, QueryError)):
        getattr(Note, name)
    with pytest.raises(QueryError):
        getattr(left(Tie), name)


@pytest.mark.req("SQL-039")
@pytest.mark.parametrize("name", ['a"b', "a'b", "a, b", 'x" ON commits(id); --', ""])
def test_a_class_made_at_run_time_cannot_have_a_name_that_is_no_identifier(name):
    with pytest.raises(DefinitionError, match="identifier"):
        entity(name, "key", "size")
    with pytest.raises(DefinitionError, match="identifier"):
        entity("Made", "key", name)
