"""Changes of a type that stored objects fit as they are: nothing is written anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia import Entity, Field, Relation, Session, left, right
from ontologia.errors import (
    MigrationTokenError,
    MissingUpgraderError,
    SchemaOutdatedError,
    UniqueViolationError,
)
from ontologia.query import QueryBuilder, count, max, min
from ontologia.runtime.reader import Reader
from ontologia.runtime.session import core_of
from ontologia_conformance import tiers

WHEN = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Old(Enum):
    A = "a"


class More(Enum):
    A = "a"
    B = "b"


def entity(called: str = "Tool", /, **fields: Any) -> Any:
    """A class with an id and these fields: types, or types with their `Field`."""
    declared: dict[str, Any] = {"__annotations__": {"id": Field[str]}}
    for name, kind in fields.items():
        kind, field = kind if isinstance(kind, tuple) else (kind, None)
        declared["__annotations__"][name] = Field[kind]
        if field is not None:
            declared[name] = field
    return type(Entity)(called, (Entity,), declared)


def apply(session: Any) -> Any:
    return session.migrate(dry_run=False, token=session.migrate().token)


@pytest.fixture
def tool(open_session) -> Callable[..., Any]:
    """Store one object of a class; then a session with another class of the same name."""

    def change(before: Any, after: Any, **values: Any) -> Any:
        session = open_session(entity_types=[before])
        session.ensure(before(id="a", **values))
        session.commit()
        return open_session(entity_types=[after])

    return change


COMPATIBLE = [
    ({}, {"size": (int, Field(default=7))}, {}, {"size": 7}),
    ({}, {"size": int | None}, {}, {"size": None}),
    ({}, {"tags": (list[str], Field(default_factory=lambda: ["x"]))}, {}, {"tags": ["x"]}),
    ({}, {"price": (Decimal, Field(default=Decimal("1.50")))}, {}, {"price": Decimal("1.50")}),
    ({}, {"at": (datetime, Field(default=WHEN))}, {}, {"at": WHEN}),
    ({"size": int}, {"size": float}, {"size": 5}, {"size": 5.0}),
    ({"size": int}, {"size": float | None}, {"size": 5}, {"size": 5.0}),
    ({"size": int}, {"size": int | None}, {"size": 5}, {"size": 5}),
    ({"size": int}, {"size": int | str}, {"size": 5}, {"size": 5}),
    ({"size": int | str}, {"size": Any}, {"size": "5"}, {"size": "5"}),
    ({"kind": Old}, {"kind": More}, {"kind": Old.A}, {"kind": More.A}),
    ({"kind": Old}, {"kind": str}, {"kind": Old.A}, {"kind": "a"}),
    ({"kind": Literal["a"]}, {"kind": Literal["a", "b"]}, {"kind": "a"}, {"kind": "a"}),
    ({"sizes": list[int]}, {"sizes": list[int | str]}, {"sizes": [1]}, {"sizes": [1]}),
    ({"old": str}, {}, {"old": "x"}, {}),
]


@pytest.mark.req("NEW-140")
def test_a_compatible_change_needs_no_upgrader_and_writes_no_object(open_session, sql):
    names = [f"Tool{number}" for number in range(len(COMPATIBLE))]
    cases = list(zip(names, COMPATIBLE, strict=True))
    before = {name: entity(name, **case[0]) for name, case in cases}
    after = {name: entity(name, **case[1]) for name, case in cases}
    session = open_session(entity_types=before.values())
    session.ensure(before[name](id="a", **case[2]) for name, case in cases)
    session.commit()
    session = open_session(entity_types=after.values())
    preview = session.migrate()
    assert {diff.name: diff.breaking for diff in preview.diffs} == dict.fromkeys(names, ())
    assert (preview.objects, preview.missing_upgraders) == (dict.fromkeys(names, 0), {})

    result = apply(session)

    assert (result.versions, result.commit_id) == (dict.fromkeys(names, 2), None)
    assert sql("SELECT COUNT(*) FROM entity_history") == [[len(cases)]]
    for name, (*_, read) in cases:
        found = session.one(after[name], "a")
        assert found == after[name](id="a", **read)
        for field, value in read.items():
            assert type(getattr(found, field)) is type(value)
        assert session.query().entities(after[name]).as_of(1).collect() == [found]
    assert not session.migrate()


@pytest.mark.req("NEW-140")
def test_a_breaking_change_says_why_and_needs_an_upgrader(tool):
    session = tool(entity(size=int), entity(size=str), size=5)

    preview = session.migrate()

    assert preview.diffs[0].breaking == (("size", "int may not fit str"),)
    assert preview.missing_upgraders == {"Tool": [1]}
    with pytest.raises(MissingUpgraderError):
        apply(session)


def test_a_name_that_an_earlier_version_had_is_breaking(open_session, tool):
    """Objects of that version still have the old value under this name."""
    apply(tool(entity(size=int), entity(), size=5))

    again = open_session(entity_types=[entity(size=(str, Field(default="big")))])

    assert again.migrate().diffs[0].breaking == (
        ("size", "an earlier version had a field of this name"),
    )


def test_an_upgrader_for_a_compatible_step_has_its_say(tool):
    Tool = entity(size=(int, Field(default=7)))
    session = tool(entity(), Tool)

    session.migrate(
        dry_run=False,
        force=True,
        upgraders={("Tool", 1): lambda fields: fields | {"size": len(fields["id"])}},
    )

    assert session.one(Tool, "a").size == 1


@pytest.mark.req("NEW-140", "SQL-099")
def test_compatible_and_breaking_steps_are_read_in_their_order(open_session, tool):
    """v1 → v2 fills, v2 → v3 renames, v3 → v4 fills."""
    apply(tool(entity(a=int), entity(a=int, b=(int, Field(default=2))), a=1))
    rename = {("Tool", 2): lambda fields: {"id": fields["id"], "c": fields["a"] + fields["b"]}}
    open_session(entity_types=[entity(c=int)], upgraders=rename).migrate(dry_run=False, force=True)
    Tool = entity(c=int, d=(str, Field(default="x")))
    session = open_session(entity_types=[Tool], upgraders=rename)

    apply(session)

    assert session.one(Tool, "a") == Tool(id="a", c=3, d="x")
    past = session.query().entities(Tool).as_of(1)
    assert past.where((Tool.c == 3) & (Tool.d == "x")).collect() == [Tool(id="a", c=3, d="x")]


@pytest.mark.req("NEW-140")
def test_the_default_at_the_time_of_the_change_is_kept(open_session, tool):
    """A default that changes later says what new objects get, and changes no old one."""
    apply(tool(entity(), entity(size=(int, Field(default=7)))))

    Tool = entity(size=(int, Field(default=9)))
    session = open_session(entity_types=[Tool])

    assert not session.migrate()
    assert session.one(Tool, "a").size == 7
    assert [each.id for each in session.query().entities(Tool).where(Tool.size == 7).collect()] == [
        "a"
    ]


@pytest.mark.req("NEW-140")
def test_what_reads_as_it_is_wanted_is_not_written(tool, sql):
    Tool = entity(size=(float, Field(default=7.0)), kind=(str, Field(default="x")))
    session = tool(entity(size=int), Tool, size=5)
    apply(session)

    session.ensure(session.one(Tool, "a"))
    assert session.commit() is None
    session.ensure(Tool(id="a", size=5.0, kind="x"))
    assert session.commit() is None
    session.update(Tool, "a", kind="y")
    assert session.commit() == 2

    assert session.one(Tool, "a") == Tool(id="a", size=5.0, kind="y")
    assert not session.diff(0, 1).updated
    assert session.diff(1, 2).updated[0].fields == {"kind": ("x", "y")}
    assert sql("SELECT schema_version_id FROM entity_latest") == [[2]]


@pytest.mark.req("NEW-140")
def test_a_difference_across_versions_is_that_of_objects_with_the_defaults(open_session, tool):
    """Also for a program that does not know the type."""
    after = entity(size=int, tier=(str, Field(default="basic")))
    session = tool(entity(size=int), after, size=1)
    apply(session)
    session.ensure(after(id="a", size=5))
    session.commit()

    for each in (session, open_session()):
        assert each.diff(1, 2).updated[0].fields == {"size": (1, 5)}


@pytest.mark.req("NEW-140")
def test_an_object_of_an_older_version_conflicts_like_any_other(open_session, tool):
    Tool = entity(size=(int, Field(default=7)))
    session = tool(entity(), Tool)
    apply(session)
    found = session.one(Tool, "a")
    other = open_session(entity_types=[Tool])
    other.update(Tool, "a", size=1)
    other.commit()

    found.size = 2
    session.ensure(found)

    with pytest.raises(Exception, match="changed"):
        session.commit()
    assert session.one(Tool, "a").size == 1


def test_relations_and_the_ends_of_relations_are_filled(open_session):
    def types(*, new: bool) -> tuple[Any, Any]:
        extra = {"kind": (str, Field(default="x"))} if new else {}
        Tool = entity(**extra)

        class Uses(Relation[Tool, Tool]):
            since: Field[int]
            if new:
                often: Field[bool] = Field(default=True)

        return Tool, Uses

    Tool, Uses = types(new=False)
    session = open_session(entity_types=[Tool], relation_types=[Uses])
    session.ensure([Tool(id="a"), Tool(id="b"), Uses(left_key="a", right_key="b", since=1)])
    session.commit()
    Tool, Uses = types(new=True)
    session = open_session(entity_types=[Tool], relation_types=[Uses])
    apply(session)

    asked = session.query().relations(Uses)
    for condition in (Uses.often.is_true(), left(Uses).kind == "x", right(Uses).kind == "x"):
        [found] = asked.where(condition).collect()
        assert (found.often, found.left.kind, found.since) == (True, "x", 1)
    assert asked.where(left(Uses).kind != "x").collect() == []
    [path] = session.query().entities(Tool).via(Uses).where(Uses.often.is_true()).collect()
    assert path.relations[0].right.kind == "x"


@pytest.mark.req("NEW-140")
def test_a_session_that_was_open_before_sees_the_change(open_session, tool):
    Tool = entity(size=(int, Field(default=7)))
    early = tool(entity(), Tool)
    asked = early.query().entities(Tool).where(Tool.size == 7)
    assert [each.id for each in asked.collect()] == ["a"]  # read as a class that is ahead
    early.ensure(Tool(id="b", size=1))
    with pytest.raises(SchemaOutdatedError):
        early.commit()

    apply(open_session(entity_types=[Tool]))

    assert early.commit() == 2
    assert [each.id for each in asked.collect()] == ["a"]
    assert early.query().entities(Tool).group_by(Tool.size).agg(n=count()) == [
        {"size": 1, "n": 1},
        {"size": 7, "n": 1},
    ]


@pytest.mark.req("NEW-141", "SQL-092")
def test_a_token_that_follows_is_for_the_plan_and_not_for_the_head(open_session, tool):
    Other = type(Entity)("Other", (Entity,), {"__annotations__": {"id": Field[str]}})
    session = tool(entity(), entity(size=(int, Field(default=7))))
    token = session.migrate().token
    busy = open_session(entity_types=[Other])
    busy.ensure(Other(id="o"))
    busy.commit()

    with pytest.raises(MigrationTokenError, match="at commit 1, and the store is at 2"):
        session.migrate(dry_run=False, token=token)
    assert session.migrate(dry_run=False, token=token, follow=True).versions == {"Tool": 2}
    with pytest.raises(MigrationTokenError, match="plan"):
        open_session(entity_types=[entity(size=(int, Field(default=7)), x=int | None)]).migrate(
            dry_run=False, token=token, follow=True
        )


def test_a_field_that_becomes_unique_is_looked_at_also_where_it_is_new(open_session, tool):
    Tool = entity(code=(str | None, Field(default=None, unique=True)))
    session = tool(entity(), Tool)
    assert apply(session).versions == {"Tool": 2}

    session.ensure([Tool(id="b", code="x"), Tool(id="c", code="x")])

    with pytest.raises(UniqueViolationError):
        session.commit()


# -- questions over objects of several versions ---------------------------------------------------

First = entity(n=int, kind=Old)
Second = entity(
    n=(float, Field(index=True)),
    kind=More,
    tier=(str, Field(default="b%'", index=True)),
    price=(Decimal, Field(default=Decimal("1.50"), index=True)),
    at=(datetime, Field(default=WHEN, index=True)),
    on=(bool, Field(default=True, index=True)),
    note=(str | None, Field(default="n")),
    data=(dict[str, Any], Field(default_factory=lambda: {"a": {"b": 1}, "l": [{"k": "v"}]})),
)
TIERS, NUMBERS = ["a", "b%'", "c"], [0, 1, 2.5, 5]
PRICES = [Decimal("1.5"), Decimal("1.50"), Decimal(2)]
CONDITIONS: list[Callable[[Any], Any]] = [
    lambda x: Second.n == x.choice(NUMBERS),
    lambda x: Second.n >= x.choice(NUMBERS),
    lambda x: Second.kind == x.choice(list(More)),
    lambda x: Second.tier == x.choice(TIERS),
    lambda x: Second.tier != x.choice(TIERS),
    lambda x: Second.tier < x.choice(TIERS),
    lambda x: Second.tier.in_(x.sample(TIERS, 2)),
    lambda x: Second.tier.startswith(x.choice(["b", "b%", ""])),
    lambda x: Second.tier.contains(x.choice(["%", "c"])),
    lambda x: Second.tier.is_null(),
    lambda x: Second.price == x.choice(PRICES),
    lambda x: Second.price > x.choice(PRICES),
    lambda x: Second.price.in_(PRICES[:2]),
    lambda x: Second.at >= WHEN,
    lambda x: Second.on.is_true(),
    lambda x: Second.on.is_false(),
    lambda x: Second.note == x.choice(["n", "m"]),
    lambda x: Second.note.is_null(),
    lambda x: Second.note.is_not_null(),
    lambda x: Second.data.path("a.b") == x.choice([1, 2]),
    lambda x: Second.data["a"]["b"] > 0,
    lambda x: Second.data["x"].is_null(),
    lambda x: Second.data["l"].any_path("k") == "v",
]
ORDERS = [Second.n, Second.tier.desc(), Second.price, Second.note, Second.on, Second.data["a"]]


class Evaluating(Reader):
    """Answers everything in Python."""

    def _must_evaluate(self, question: Any) -> bool:
        return bool(question.where is not None or question.order or question.aggregates)


@pytest.mark.req("NEW-140")
@tiers.examples(12)
@given(seed=st.integers(0, 2**32))
def test_questions_over_several_versions_are_answered_as_if_all_were_of_the_last(backend, seed):
    with TemporaryDirectory() as folder, backend.store(Path(folder)) as uri:
        _ask_many(uri, random.Random(seed))


def _ask_many(uri: str, chance: random.Random) -> None:
    with Session(uri, entity_types=[First]) as old:
        old.ensure(First(id=str(n), n=chance.choice([0, 1, 5]), kind=Old.A) for n in range(6))
    with Session(uri, entity_types=[Second]) as session:
        apply(session)
        session.ensure(_tool(chance, n) for n in chance.sample(range(9), 4))
        session.update(Second, "5", tier="c")
        session.commit()
        core = core_of(session)
        oracle = QueryBuilder(Evaluating(core.store, core.registry, core.versions))
        for _ in range(15):
            _ask(chance, session.query(), oracle)


def _tool(chance: random.Random, number: int) -> Any:
    return Second(
        id=str(number),
        n=chance.choice(NUMBERS),
        kind=chance.choice(list(More)),
        tier=chance.choice(TIERS),
        price=chance.choice(PRICES),
        on=chance.random() < 0.5,
        note=chance.choice([None, "n", "m"]),
        data=chance.choice([{}, {"a": {"b": 2}}, {"l": []}]),
    )


def _ask(chance: random.Random, *builders: Any) -> None:
    """One random question, of the store and of the oracle."""
    first, *others = (chance.choice(CONDITIONS)(chance) for _ in range(chance.randint(1, 3)))
    asked = first
    for other in others:
        asked = chance.choice([asked & other, asked | other, asked & ~other])
    order, as_of = chance.sample(ORDERS, 2), chance.choice([None, None, 1, 2])
    by = chance.choice([Second.tier, Second.price, Second.on, Second.note, Second.n])
    figures = {"how_many": count(), "least": min(Second.price), "most": max(Second.tier)}
    answers = []
    for builder in builders:
        query = builder.entities(Second).where(asked)
        query = query if as_of is None else query.as_of(as_of)
        answers.append((query.order_by(*order).collect(), query.group_by(by).agg(**figures)))
    assert answers[0] == answers[1]
