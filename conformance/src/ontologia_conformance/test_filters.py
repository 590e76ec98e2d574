"""Every condition, on typed fields and inside free JSON, and the logic between them."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field
from ontologia.errors import QueryTypeError


class Doc(Entity):
    id: Field[str] = Field(primary_key=True)
    title: Field[str | None] = None
    size: Field[int | None] = None
    ratio: Field[float | None] = None
    draft: Field[bool | None] = None
    data: Field[dict[str, object] | None] = None
    items: Field[list[object] | None] = None


@pytest.fixture
def find(session):
    """Store documents; then ask with a condition and get the keys that match, as one text."""

    def store(*docs):
        session.ensure(docs)
        session.commit()

        def keys(*conditions, as_of=None):
            query = session.query().entities(Doc).where(*conditions)
            query = query if as_of is None else query.as_of(as_of)
            return "".join(doc.id for doc in query.collect())

        return keys

    return store


@pytest.fixture
def sizes(find):
    return find(
        Doc(id="a", size=1, ratio=0.5, title="alpha", draft=True),
        Doc(id="b", size=2, ratio=2.0, title="Beta", draft=False),
        Doc(id="c", size=10, ratio=-1.5, title="", draft=True),
        Doc(id="d"),
    )


# -- comparison -----------------------------------------------------------------------------------


@pytest.mark.req("SQL-040", "SQL-042")
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Doc.size == 2, "b"),
        (Doc.size != 2, "ac"),
        (Doc.size < 2, "a"),
        (Doc.size <= 2, "ab"),
        (Doc.size > 2, "c"),
        (Doc.size >= 2, "bc"),
        (Doc.size == 2.0, "b"),
        (Doc.size > 1.5, "bc"),
        (Doc.ratio > -2, "abc"),
        (Doc.ratio == 2, "b"),
        (Doc.ratio < 0, "c"),
        (Doc.title == "Beta", "b"),
        (Doc.title == "beta", ""),
        (Doc.title == "", "c"),
        (Doc.title < "a", "bc"),
        (Doc.title >= "alpha", "a"),
    ],
)
def test_a_comparison_matches_the_values_it_says(sizes, condition, expected):
    assert sizes(condition) == expected


@pytest.mark.req("SQL-049")
@pytest.mark.parametrize(
    "condition",
    [
        Doc.size == 1, Doc.size != 1, Doc.size < 5, Doc.size.in_([1]), Doc.title.startswith("a"),
        Doc.title.contains(""), Doc.title.like("%"), Doc.title.ilike("a%"), Doc.draft == True,
        Doc.data["x"].like("%"), Doc.data["x"].ilike("%"),
        Doc.data["x"] == 1, Doc.data["x"] != 1, Doc.data["x"] > 1, Doc.data["x"].contains("a"),
    ],
)  # fmt: skip
def test_neither_a_comparison_nor_its_negation_matches_a_missing_value(find, condition):
    keys = find(Doc(id="d"), Doc(id="e", data={"y": 1}), Doc(id="f", data={"x": None}))

    assert keys(condition) == ""
    assert keys(~condition) == ""


@pytest.mark.req("SQL-049")
def test_not_equal_means_the_same_as_the_negation_of_equal(sizes):
    assert sizes(~(Doc.size == 2)) == sizes(Doc.size != 2) == "ac"
    assert sizes(~(Doc.title == "nothing")) == "abc"


@pytest.mark.req("SQL-050")
def test_comparing_with_none_says_what_to_write_instead():
    with pytest.raises(TypeError, match=r"Use \.is_null\(\) instead"):
        _ = Doc.size == None
    with pytest.raises(TypeError, match=r"Use \.is_not_null\(\) instead"):
        _ = Doc.size != None
    with pytest.raises(TypeError, match=r"\.is_null\(\)"):
        _ = Doc.data["x"] == None


@pytest.mark.req("SQL-051")
def test_a_value_of_another_type_is_refused_on_a_typed_field():
    for compare in (
        lambda: Doc.size == "5",
        lambda: Doc.title == 5,
        lambda: Doc.size == True,
        lambda: Doc.draft == 1,
        lambda: Doc.draft < True,
        lambda: Doc.size.in_([1, "2"]),
        lambda: Doc.size == Doc.ratio,
        lambda: Doc.size.startswith("1"),
    ):
        with pytest.raises(QueryTypeError):
            compare()


# -- null, truth, lists ---------------------------------------------------------------------------


@pytest.mark.req("SQL-043")
def test_null_is_a_missing_key_and_a_json_null_alike(find):
    keys = find(
        Doc(id="a", size=0, data={"x": None}),
        Doc(id="b", data={}),
        Doc(id="c", data={"x": 0, "y": {"z": ""}}),
        Doc(id="d", data={"x": False, "y": {"z": None}}),
    )

    assert keys(Doc.size.is_null()) == "bcd"
    assert keys(Doc.size.is_not_null()) == "a"
    assert keys(Doc.data["x"].is_null()) == "ab"
    assert keys(Doc.data["x"].is_not_null()) == "cd"
    assert keys(Doc.data.path("y.z").is_null()) == "abd"
    assert keys(~Doc.data.path("y.z").is_null()) == "c"


@pytest.mark.req("SQL-051")
def test_a_truth_value_is_compared_as_one(sizes):
    assert sizes(Doc.draft == True) == "ac"
    assert sizes(Doc.draft != True) == "b"
    assert sizes(Doc.draft.in_([False])) == "b"
    assert sizes(Doc.draft.is_true()) == "ac"
    assert sizes(Doc.draft.is_false()) == "b"


def test_is_true_and_is_false_always_answer_so_their_negation_takes_missing_in(sizes):
    assert sizes(~Doc.draft.is_true()) == "bd"
    assert sizes(~Doc.draft.is_false()) == "acd"


@pytest.mark.req("SQL-044")
def test_in_matches_any_of_the_values_and_an_empty_list_nothing(sizes):
    assert sizes(Doc.size.in_([1, 10, 99])) == "ac"
    assert sizes(Doc.size.in_((2.0,))) == "b"
    assert sizes(Doc.title.in_({"alpha", ""})) == "ac"
    assert sizes(Doc.size.in_([])) == ""
    assert sizes(~Doc.size.in_([])) == "abcd"
    assert sizes(~Doc.size.in_([1, 2])) == "c"


def test_in_takes_many_values(find):
    keys = find(*(Doc(id=key, size=number) for number, key in enumerate("abc")))

    assert keys(Doc.size.in_(range(1, 5000))) == "bc"
    assert keys(Doc.data["n"].in_(range(2000))) == ""


def test_in_refuses_a_bare_text_and_a_none_among_the_values():
    with pytest.raises(TypeError, match="list of values"):
        Doc.title.in_("abc")
    with pytest.raises(TypeError, match=r"\.is_null\(\)"):
        Doc.title.in_(["a", None])


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.req("SQL-045")
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Doc.title.startswith("a_"), "b"),
        (Doc.title.startswith("ab"), "a"),
        (Doc.title.startswith("AB"), "c"),
        (Doc.title.startswith("100%"), "d"),
        (Doc.title.startswith("100\\"), "e"),
        (Doc.title.startswith("é"), "f"),
        (Doc.title.startswith(""), "abcdef"),
        (Doc.title.startswith("abcdefg"), ""),
        (Doc.title.endswith("c"), "ab"),
        (Doc.title.endswith("C"), "c"),
        (Doc.title.endswith("_c"), "b"),
        (Doc.title.endswith("%"), "d"),
        (Doc.title.endswith("abc"), "a"),
        (Doc.title.endswith("xabc"), ""),
        (Doc.title.endswith(""), "abcdef"),
        (Doc.title.contains("b"), "a"),
        (Doc.title.contains("_"), "be"),
        (Doc.title.contains("%"), "d"),
        (Doc.title.contains("\\"), "e"),
        (Doc.title.contains("té"), "f"),
        (Doc.title.contains("B"), "c"),
        (Doc.title.contains("'; DROP TABLE commits; --"), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.op} {value.text}",
)
def test_text_is_matched_literally_and_case_counts(find, condition, expected):
    keys = find(
        Doc(id="a", title="abc"),
        Doc(id="b", title="a_c"),
        Doc(id="c", title="ABC"),
        Doc(id="d", title="100%"),
        Doc(id="e", title="100\\_x"),
        Doc(id="f", title="été"),
        Doc(id="g"),
    )

    assert keys(condition) == expected


def test_a_prefix_ends_where_the_next_text_begins(find):
    keys = find(
        Doc(id="a", title="a\U0010ffff"),
        Doc(id="b", title="a\U0010ffffz"),
        Doc(id="c", title="b"),
        Doc(id="d", title="\ud7ffx"),
        Doc(id="e", title="\ue000"),
    )

    assert keys(Doc.title.startswith("a")) == "ab"
    assert keys(Doc.title.startswith("a\U0010ffff")) == "ab"
    assert keys(Doc.title.startswith("\ud7ff")) == "d"


# -- inside JSON ----------------------------------------------------------------------------------


@pytest.mark.req("SQL-040")
def test_a_path_leads_to_a_value_inside(find):
    keys = find(
        Doc(id="a", data={"address": {"city": "Paris", "lines": ["x", "y"]}}),
        Doc(id="b", data={"address": {"city": "Rome", "lines": []}}),
        Doc(id="c", data={"address": "Paris"}),
        Doc(id="d", data={"address.city": "Paris", "a b": {"é'\"": 1}}),
    )

    assert keys(Doc.data.path("address.city") == "Paris") == "a"
    assert keys(Doc.data["address"]["city"] != "Paris") == "b"
    assert keys(Doc.data["address.city"] == "Paris") == "d"
    assert keys(Doc.data["a b"]["é'\""] == 1) == "d"
    assert keys(Doc.data["address"]["lines"][1] == "y") == "a"
    assert keys(Doc.data["address"].path("city").startswith("R")) == "b"


@pytest.mark.req("SQL-051")
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Doc.data["x"] == 5, "be"),
        (Doc.data["x"] == 5.0, "be"),
        (Doc.data["x"] == "5", "a"),
        (Doc.data["x"] == 1, "f"),
        (Doc.data["x"] == True, "c"),
        (Doc.data["x"] == False, "d"),
        (Doc.data["x"] != True, "abdefg"),
        (Doc.data["x"] != 5, "acdfg"),
        (Doc.data["x"] != "5", "bcdefg"),
        (Doc.data["x"].in_(["5", True]), "ac"),
        (Doc.data["x"].in_([1, 5]), "bef"),
        (Doc.data["x"] > 1, "be"),
        (Doc.data["x"] > "1", "a"),
        (~(Doc.data["x"] > 1), "f"),
        (Doc.data["x"].startswith("5"), "a"),
        (Doc.data["x"].is_true(), "c"),
        (~Doc.data["x"].is_true(), "abdefghi"),
        (Doc.data["x"].is_not_null(), "abcdefg"),
    ],
)
def test_values_of_different_json_types_are_never_equal(find, condition, expected):
    values = {"a": "5", "b": 5, "c": True, "d": False, "e": 5.0, "f": 1, "g": ["5"], "h": None}
    keys = find(*(Doc(id=key, data={"x": value}) for key, value in values.items()), Doc(id="i"))

    assert keys(condition) == expected


@pytest.mark.req("SQL-046")
def test_any_path_matches_when_one_element_does(find):
    keys = find(
        Doc(id="a", items=[{"kind": "view"}, {"kind": "click", "at": {"x": 3}}]),
        Doc(id="b", items=[{"kind": "view", "at": {"x": 9}}]),
        Doc(id="c", items=[{"other": "click"}]),
        Doc(id="d", data={"log": [{"kind": "click"}]}),
    )

    assert keys(Doc.items.any_path("kind") == "click") == "a"
    assert keys(Doc.items.any_path("kind") == "view") == "ab"
    assert keys(Doc.items.any_path("at.x") > 5) == "b"
    assert keys(Doc.items.any_path("kind").in_(["click", "tap"])) == "a"
    assert keys(Doc.items.any_path("kind").startswith("v")) == "ab"
    assert keys(Doc.data["log"].any_path("kind") == "click") == "d"


@pytest.mark.req("SQL-047")
def test_any_path_is_false_where_there_is_no_list_of_objects(find):
    keys = find(
        Doc(id="a"),
        Doc(id="b", items=[]),
        Doc(id="c", items=["click", 1, None, ["click"]]),
        Doc(id="d", data={"log": "click"}),
        Doc(id="e", data={"log": {"kind": "click", "a": {"kind": "click"}}}),
        Doc(id="f", items=[{"kind": "click"}], data={"log": [{"kind": "click"}]}),
    )
    clicked, logged = (
        Doc.items.any_path("kind") == "click",
        Doc.data["log"].any_path("kind") == "click",
    )

    assert keys(clicked) == keys(logged) == "f"
    assert keys(~clicked) == keys(~logged) == "abcde"
    assert keys(clicked | (Doc.id == "b")) == "bf"


@pytest.mark.req("SQL-046", "SQL-048")
def test_two_any_paths_may_be_satisfied_by_different_elements(find):
    keys = find(
        Doc(id="a", items=[{"kind": "x", "n": 1}, {"kind": "y", "n": 2}]),
        Doc(id="b", items=[{"kind": "x", "n": 2}]),
    )
    kind, number = Doc.items.any_path("kind"), Doc.items.any_path("n")

    assert keys((kind == "x") & (number == 2)) == "ab"
    assert keys((kind == "y") | (number == 1)) == "a"
    assert keys((kind == "x") & ~(kind == "y")) == "b"


# -- and, or, not ---------------------------------------------------------------------------------

ONE, RED, BIG = Doc.size == 1, Doc.title == "red", Doc.ratio > 0.5


@pytest.mark.req("SQL-048")
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (ONE & RED, "a"),
        (ONE | RED, "abc"),
        (~ONE, "c"),
        (~(ONE & RED), "bcd"),
        (~(ONE | RED), ""),
        (~ONE & ~BIG, "c"),
        (ONE | (RED & BIG), "ab"),
        ((ONE | RED) & BIG, "b"),
        (ONE & RED | BIG, "ab"),
        (~(ONE & ~BIG), "bc"),
        (RED | ~RED, "abcd"),
        (~(~ONE | RED), "b"),
    ],
    ids=[
        "and",
        "or",
        "not",
        "not-and",
        "not-or",
        "not-and-not",
        "or-of-and",
        "and-of-or",
        "and-before-or",
        "not-of-and-not",
        "or-not",
        "not-of-or",
    ],
)
def test_conditions_nest_as_they_are_written(find, condition, expected):
    keys = find(
        Doc(id="a", size=1, title="red", ratio=0.1),
        Doc(id="b", size=1, title="blue", ratio=0.9),
        Doc(id="c", size=2, title="red", ratio=0.2),
        Doc(id="d", title="blue"),
    )

    assert keys(condition) == expected
    assert keys(condition, as_of=1) == expected  # the past is compiled in another way


def test_a_long_chain_of_conditions_is_no_deep_tree(find):
    keys = find(Doc(id="a", size=4999), Doc(id="b", size=-1))
    wanted = Doc.size == 0
    unwanted = Doc.size != 0
    for number in range(1, 5000):
        wanted |= Doc.size == number
        unwanted &= Doc.size != number

    assert keys(wanted) == "a"
    assert keys(unwanted) == "b"


def test_python_and_or_not_and_missing_parentheses_are_refused():
    with pytest.raises(TypeError, match=r"& \| ~ instead of and/or/not"):
        _ = ONE and RED
    with pytest.raises(TypeError):
        _ = not ONE
    with pytest.raises(TypeError):
        _ = 1 < Doc.size < 3
    with pytest.raises(TypeError):
        _ = 5 in Doc.items
    with pytest.raises(TypeError, match="parentheses"):
        _ = ONE & "red"


@pytest.mark.req("SQL-039")
def test_values_and_path_steps_are_never_read_as_sql(find):
    evil = """x' OR 1=1; --"\\ ]) UNION SELECT * FROM commits"""
    keys = find(
        Doc(id="a", title=evil, data={evil: evil}, items=[{evil: 1}]),
        Doc(id="b", title="x", data={}),
    )

    assert keys(Doc.title == evil) == "a"
    assert keys(Doc.title.in_([evil])) == "a"
    assert keys(Doc.title.contains("' OR 1=1")) == "a"
    assert keys(Doc.data[evil] == evil) == "a"
    assert keys(Doc.items.any_path("kind") == evil) == ""
    assert keys(Doc.id == evil) == ""
