"""`like` and `ilike`: one meaning of an SQL pattern, wherever the text stands and whoever answers."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation, left, right


class Sign(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str | None] = None
    found: Field[str | None] = Field(default=None, index=True)
    data: Field[dict[str, object]] = Field(default_factory=dict)
    parts: Field[list[object]] = Field(default_factory=list)


class PointsTo(Relation[Sign, Sign]):
    label: Field[str] = Field(instance_key=True)


EVERYWHERE = (Sign.text, Sign.found, Sign.data.path("in.side"), Sign.parts.any_path("kind"))


@pytest.fixture
def found(session):
    """Store texts; then the texts that a condition on each place where they stand agrees on."""

    def store(*texts):
        signs = [
            Sign(id=f"{n:02}", text=t, found=t, data={"in": {"side": t}}, parts=[{"kind": t}])
            for n, t in enumerate(texts)
        ]
        session.ensure(signs)
        session.commit()

        def matching(method, pattern, *, but=False):
            answers = []
            for path in EVERYWHERE:
                condition = getattr(path, method)(pattern)
                for as_of in (None, 1):
                    asked = session.query().entities(Sign).where(~condition if but else condition)
                    asked = asked if as_of is None else asked.as_of(as_of)
                    answers.append([sign.text for sign in asked.collect()])
            assert all(answer == answers[0] for answer in answers)
            return answers[0]

        return matching

    return store


@pytest.mark.req("C-164")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ab", ["ab"]),
        ("a%", ["ab", "abc", "a%c", "a_c", "a\nc"]),
        ("%c", ["abc", "a%c", "a_c", "a\nc"]),
        ("a_c", ["abc", "a%c", "a_c", "a\nc"]),
        ("_", ["🦊", "\\"]),
        ("__", ["ab", "AB", "é*"]),
        ("%", ["", "ab", "abc", "AB", "a%c", "a_c", "a\nc", "🦊", "\\", "é*", "[x]?"]),
        ("", [""]),
        (r"a\%c", ["a%c"]),
        (r"a\_c", ["a_c"]),
        (r"\a\b", ["ab"]),
        (r"\\", ["\\"]),
        ("%*", ["é*"]),
        ("[x]_", ["[x]?"]),
        ("[x]?", ["[x]?"]),
        ("%b%", ["ab", "abc"]),
        ("%a%c%", ["abc", "a%c", "a_c", "a\nc"]),
        ("ac", []),
    ],
)
def test_a_pattern_matches_the_texts_it_describes(found, pattern, expected):
    texts = ["", "ab", "abc", "AB", "a%c", "a_c", "a\nc", "🦊", "\\", "é*", "[x]?"]
    matching = found(*texts)

    assert matching("like", pattern) == expected
    assert matching("like", pattern, but=True) == [t for t in texts if t not in expected]


@pytest.mark.req("C-164")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("AB%", ["ab", "Abc"]),
        ("%K", ["k", "K"]),  # not the Kelvin sign
        ("\u212a", ["\u212a"]),
        ("é", ["é"]),
        ("É_", ["Éa"]),
        ("éA", []),
        ("ß", ["ß"]),
        (r"\A\B", ["ab"]),
    ],
)
def test_ilike_takes_letters_of_ascii_in_either_case_and_no_others(found, pattern, expected):
    matching = found("ab", "Abc", "k", "K", "\u212a", "é", "Éa", "ß", "SS")

    assert matching("ilike", pattern) == expected


def test_what_is_no_text_has_no_pattern(session):
    session.ensure(
        [
            Sign(id="number", data={"in": {"side": 5}}),
            Sign(id="truth", data={"in": {"side": True}}),
            Sign(id="list", data={"in": {"side": ["5"]}}),
            Sign(id="null", data={"in": {"side": None}}),
            Sign(id="text", data={"in": {"side": "5"}}),
        ]
    )
    session.commit()
    path, asked = Sign.data.path("in.side"), session.query().entities(Sign)

    for condition in (path.like("%"), path.ilike("%"), path.like("5"), ~path.ilike("6")):
        assert [sign.id for sign in asked.where(condition).collect()] == ["text"]
    assert asked.where(Sign.text.like("%") | ~Sign.text.like("%")).count() == 0


def test_keys_and_the_ends_of_relations_have_patterns_too(session):
    session.ensure([Sign(id="a_1", text="North"), Sign(id="ab1", text="South")])
    session.ensure(PointsTo(left_key="a_1", right_key="ab1", label="50%"))
    session.ensure(PointsTo(left_key="ab1", right_key="gone", label="50"))
    session.commit()
    signs, pointers = session.query().entities(Sign), session.query().relations(PointsTo)

    def labels(condition):
        return [pointer.label for pointer in pointers.where(condition).collect()]

    assert [sign.id for sign in signs.where(Sign.id.like(r"a\_%")).collect()] == ["a_1"]
    assert [sign.id for sign in signs.where(Sign.id.ilike("A_1")).collect()] == ["a_1", "ab1"]
    assert labels(PointsTo.label.like(r"%\%")) == ["50%"]
    assert labels(PointsTo.left_key.like("a_1")) == ["50%", "50"]
    assert labels(left(PointsTo).text.like("N%")) == ["50%"]
    assert labels(right(PointsTo).text.ilike("s%")) == ["50%"]
    assert labels(~right(PointsTo).text.like("N%")) == [
        "50%"
    ]  # unknown of an end that is not there


def test_patterns_count_in_groups_and_aggregates(session):
    session.ensure([Sign(id=f"{n}", text=text) for n, text in enumerate(["ab", "AB", "b", None])])
    session.commit()

    asked = session.query().entities(Sign)

    assert asked.count_where(Sign.text.like("a%")) == 1
    assert asked.count_where(Sign.text.ilike("a%")) == 2


def test_a_long_pattern_with_many_wildcards_is_answered(session):
    session.ensure([Sign(id="a", text="ab" * 2_000), Sign(id="b", text="ab" * 2_000 + "c")])
    session.commit()
    asked = session.query().entities(Sign)

    assert [sign.id for sign in asked.where(Sign.text.like("%ab" * 300 + "%c")).collect()] == ["b"]
    assert asked.where(Sign.text.like("%🦊" + "*" * 9_998)).collect() == []
    assert asked.where(Sign.text.ilike("🦊" * 10_000)).collect() == []
