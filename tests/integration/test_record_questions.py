"""What a command is answered about its own writes, and what is answered once they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontologia import Field
from ontologia.commands import Command, DomainModel, Env, api
from tests.integration.freight import application, do


@api.model("questions.parcel")
class QuestionedParcel(DomainModel):
    """A field of every kind."""

    name: Field[str]
    weight: Field[int] = 0
    ratio: Field[float | None] = None
    price: Field[Decimal | None] = None
    sent: Field[bool | None] = None
    due: Field[datetime | None] = None
    tags: Field[list[str]] = Field(default_factory=list)
    extra: Field[dict[str, Any]] = Field(default_factory=dict)


@api.model("questions.heap")
class QuestionedHeap(DomainModel):
    """Anything."""


@pytest.fixture
def env(uri: str) -> Iterator[Env]:
    with Env(uri, modules=[application(QuestionedParcel, QuestionedHeap)], queue="none") as env:
        yield env


# Few values, so that they meet: in ties, in groups, in comparisons.
IDS = st.sampled_from(["1", "10", "2", "Z", "a", "é", "\U0001f600", "\uffee"])
TEXTS = st.sampled_from(["", "a", "A", "ab", "b%", "_", "é", "É", "\U0001f600", "\uffee", "1"])
WHOLE = st.sampled_from([-1, 0, 1, 2, 10, 2**53, 2**53 + 1])
FLOATS = st.sampled_from([-1.5, 0.0, 0.5, 1.0, 2.0, 1e300])
PRICES = st.sampled_from([Decimal(text) for text in ("-1", "0", "1", "1.0", "1.10", "10", "9")])
INSTANTS = st.sampled_from(
    [
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    ]
)
TRUTHS = st.sampled_from([None, True, False])
JSON = st.one_of(TEXTS, st.sampled_from([-1, 0, 1, 1.0, 1.5, 10]), TRUTHS, st.just([1]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": TEXTS,
    "weight": WHOLE,
    "ratio": FLOATS | st.none(),
    "price": PRICES | st.none(),
    "sent": TRUTHS,
    "due": INSTANTS | st.none(),
    "tags": st.lists(TEXTS, max_size=2),
    "extra": st.dictionaries(st.sampled_from(["x", "y"]), JSON, max_size=2),
}
OPEN = st.dictionaries(st.sampled_from(["x", "y"]), JSON, max_size=2)
FIELDS = ("id", "name", "weight", "ratio", "price", "sent", "due")


def parcels(*, whole: bool) -> st.SearchStrategy[dict[str, Any]]:
    required = {"name": TEXTS} if whole else {}
    optional = {name: value for name, value in VALUES.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


def compared(name: str) -> st.SearchStrategy[Any]:
    """What a field can be compared with."""
    return IDS if name == "id" else VALUES.get(name, JSON)


def terms(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    def of(name: str) -> st.SearchStrategy[Any]:
        value = compared(name)
        words = ["=", "!="] if name == "sent" else ["=", "!=", "<", "<=", ">", ">="]
        plain = value.filter(lambda found: not isinstance(found, list) and found is not None)
        ordered = st.tuples(st.just(name), st.sampled_from(words), plain).filter(_makes_sense)
        listed = st.tuples(
            st.just(name), st.sampled_from(["in", "not in"]), st.lists(plain, max_size=3)
        )
        missing = st.tuples(st.just(name), st.sampled_from(["=", "!="]), st.none())
        kinds = [ordered, listed, missing]
        if name in ("id", "name") or "." in name or name in ("x", "y"):
            pattern = st.sampled_from(["", "%", "a%", "%B", "_", "é", "%\\%"])
            kinds.append(st.tuples(st.just(name), st.sampled_from(["like", "ilike"]), pattern))
        return st.one_of(kinds)

    return st.sampled_from(names).flatmap(of)


def _makes_sense(term: tuple[str, str, Any]) -> bool:
    return term[1] in ("=", "!=") or not isinstance(term[2], bool)


def domains(names: tuple[str, ...]) -> st.SearchStrategy[list[Any]]:
    one = terms(names).map(lambda term: [term])
    joined = st.recursive(
        one,
        lambda inner: st.one_of(
            inner.map(lambda part: ["!", *part]),
            st.tuples(st.sampled_from("|&"), inner, inner).map(
                lambda found: [found[0], *found[1], *found[2]]
            ),
        ),
        max_leaves=4,
    )
    several = st.lists(joined, max_size=2)
    return st.just([]) | several.map(lambda parts: [each for part in parts for each in part])


def orders(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    term = st.tuples(st.sampled_from(names), st.sampled_from(["", " desc"])).map("".join)
    return st.lists(term, max_size=2).map(", ".join)


def ask(env: Env, key: str, asked: dict[str, Any]) -> list[Any]:
    records = env.models[key]
    domain = asked["domain"]
    found = records.search(
        domain, order=asked["order"], limit=asked["limit"], offset=asked["offset"]
    )
    grouped = records.read_group(
        domain,
        group_by=asked["group_by"],
        aggregate=asked["aggregate"],
        limit=asked["limit"],
        offset=asked["offset"],
    )
    return [found.read(), records.count(domain), [_rounded(group) for group in grouped]]


def _rounded(group: dict[str, Any]) -> dict[str, Any]:
    """Without the last digits: what is added up in another order may differ there."""
    figure = group.get("f")
    return group | {"f": float(f"{figure:.12g}")} if isinstance(figure, float) else group


def questions(
    names: tuple[str, ...], grouped: tuple[str, ...], added: tuple[str, ...]
) -> st.SearchStrategy[dict[str, Any]]:
    figures = [f"{how}:{name}" for how in ("sum", "avg", "min", "max") for name in added]
    return st.fixed_dictionaries(
        {
            "domain": domains(names),
            "order": orders(names),
            "limit": st.none() | st.integers(0, 4) | st.integers(1, 2),
            "offset": st.integers(0, 2),
            "group_by": st.lists(st.sampled_from(grouped), min_size=1, max_size=2, unique=True),
            "aggregate": st.none()
            | st.fixed_dictionaries({"n": st.just("count"), "f": st.sampled_from(figures)}),
        }
    )


def stores(values: st.SearchStrategy[Any]) -> Any:
    """What is there before the command: enough to be sorted, paged and grouped."""
    return st.dictionaries(IDS, values, min_size=3).map(
        lambda found: [("create", id, values) for id, values in found.items()]
    )


def changes(values: st.SearchStrategy[Any], some: st.SearchStrategy[Any]) -> Any:
    return st.lists(
        st.one_of(
            st.tuples(st.just("create"), IDS, values),
            st.tuples(st.just("write"), IDS, some),
            st.tuples(st.just("unlink"), IDS, st.none()),
        ),
        min_size=1,
        max_size=4,
    )


def carry_out(env: Env, key: str, steps: list[Any]) -> None:
    for what, id, values in steps:
        record = env.models[key].browse(id)
        there = bool(record.exists())
        if what == "create" and not there:
            env.models[key].create({**values, "id": id})
        elif what == "write" and there:
            record.write(values)
        elif what == "unlink" and there:
            record.unlink()


def hold(env: Env, key: str, stored: Any, steps: Any, asked: list[dict[str, Any]]) -> None:
    env.models[key].search().unlink()
    do(env, lambda model, cmd: carry_out(env, key, stored))

    def within(model: Any, cmd: Command) -> list[Any]:
        carry_out(env, key, steps)
        return [ask(env, key, each) for each in asked]

    answers = do(env, within)
    assert answers == [ask(env, key, each) for each in asked]


PACE = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.thorough
@PACE
@given(
    stored=stores(parcels(whole=True)),
    steps=changes(parcels(whole=True), parcels(whole=False)),
    asked=st.lists(
        questions(
            (*FIELDS, "extra.x"),
            ("name", "weight", "ratio", "price", "sent", "due", "tags", "extra.x"),
            ("weight", "ratio", "price", "extra.x"),
        ),
        min_size=1,
        max_size=4,
    ),
)
@pytest.mark.req("C-166")
def test_a_command_is_answered_about_its_own_writes_as_everybody_is_later(
    env: Env, stored: Any, steps: Any, asked: list[dict[str, Any]]
) -> None:
    hold(env, "questions.parcel", stored, steps, asked)


@pytest.mark.thorough
@PACE
@given(
    stored=stores(OPEN),
    steps=changes(OPEN, OPEN),
    asked=st.lists(questions(("id", "x", "y"), ("x", "y"), ("x", "y")), min_size=1, max_size=4),
)
@pytest.mark.req("C-166")
def test_so_it_is_about_open_records(
    env: Env, stored: Any, steps: Any, asked: list[dict[str, Any]]
) -> None:
    hold(env, "questions.heap", stored, steps, asked)
