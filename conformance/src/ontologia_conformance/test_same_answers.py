"""The same commits and the same questions: every backend answers as SQLite does, in its order.

`test_query_oracle` compares with a model, in a world that a model can hold. Here values come from
the far ends of what can be stored, under every operator, and answers are compared as they come.
Sums are left out: they are rounded on the way, and each backend has its own way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia import Entity, Field, Session, query
from ontologia_conformance.backends import NAMES
from ontologia_conformance.query_world import (
    AWARE,
    COMPARED,
    DECIMALS,
    FLOATS,
    INTS,
    LIKE,
    TEXTS,
    TEXTUAL,
    any_float,
    any_json,
    any_pattern,
    any_text,
    fingerprint,
    sort_key,
)
from ontologia_conformance.query_world import (
    NAMES as STEPS,
)
from ontologia_conformance.tiers import examples

OTHERS = pytest.mark.parametrize(
    "backend", [name for name in NAMES if name != "sqlite"], indirect=True, scope="session"
)


class Wild(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str | None] = Field(index=True)
    whole: Field[int | None] = Field(index=True)
    real: Field[float | None] = Field(index=True)
    number: Field[int | float | None]
    price: Field[Decimal | None] = Field(index=True)
    flag: Field[bool | None]
    at: Field[datetime | None] = Field(index=True)
    data: Field[dict[str, object]]
    items: Field[list[object]]


FAR_TEXTS = [*TEXTS, "A", "ß", "ss", "Z", "z", "ä", "\uffff", " ", "\n", "%", "_", "a" * 600]
FAR_INTS = [*INTS, 2**53, -(2**53) - 1, 2**62, 10**18]
FAR_FLOATS = [*FLOATS, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**63, -(2.0**63), 1e22]
FAR_FLOATS += [2.0**64, 1e23, 2.2250738585072014e-308, 123456789012345680.0, 0.2, 0.3, -1.0]
FAR_DECIMALS = [*DECIMALS, Decimal("0E+3"), Decimal("1.00"), Decimal("1E+300"), Decimal("1E-300")]
FAR_DECIMALS += [Decimal("1E+4000"), Decimal("-1E+4000"), Decimal("1E-4000"), Decimal("1E+9999")]


def _text(random: Random) -> str:
    return random.choice([*FAR_TEXTS, any_text(random)])


def _whole(random: Random) -> int:
    return random.choice([*FAR_INTS, random.randint(-(2**63), 2**63 - 1), random.randint(-9, 9)])


def _real(random: Random) -> float:
    return random.choice([*FAR_FLOATS, any_float(random), random.uniform(-9, 9)])


def _number(random: Random) -> int | float:
    return random.choice([_whole, _real])(random)


def _price(random: Random) -> Decimal:
    digits = Decimal(random.randint(-(10**12), 10**12)).scaleb(random.randint(-15, 15))
    return random.choice([*FAR_DECIMALS, digits])


def _single(random: Random) -> Any:
    return random.choice([lambda _: True, lambda _: False, _number, _number, _text])(random)


DRAWN: dict[str, Callable[[Random], Any]] = {
    "text": _text,
    "whole": _whole,
    "real": _real,
    "number": _number,
    "price": _price,
    "flag": lambda random: random.random() < 0.5,
    "at": lambda random: random.choice(AWARE),
}
COMPARED_WITH = DRAWN | {"id": _text, "whole": _number, "real": _number, "json": _single}


def wild(random: Random) -> Wild:
    values = {name: None if random.random() < 0.2 else draw(random) for name, draw in DRAWN.items()}
    data = {name: any_json(random, 2) for name in random.sample(STEPS, 3)}
    items = [any_json(random, 2) for _ in range(random.randint(0, 3))]
    return Wild(id=random.choice("abcdefghijklmnop"), data=data, items=items, **values)


@dataclass
class Asking:
    """Questions by chance: the same for the same numbers."""

    random: Random

    def term(self) -> tuple[Any, str]:
        """A field, or something inside JSON; and what kind of value it is."""
        random = self.random
        if random.random() < 0.5:
            name = random.choice(["id", *DRAWN])
            return getattr(Wild, name), "json" if name == "number" else name
        expr: Any = random.choice([Wild.data, Wild.data, Wild.items])
        for _ in range(random.choice([0, 1, 1, 1, 2, 2])):
            expr = expr[random.choice([*STEPS, 0, 1, 2])]
        return expr, "json"

    def condition(self, depth: int = 2) -> Any:
        shape = self.random.random() if depth else 0
        if shape < 0.5:
            return self.leaf()
        if shape < 0.65:
            return ~self.condition(depth - 1)
        join = operator.and_ if shape < 0.82 else operator.or_
        return join(self.condition(depth - 1), self.condition(depth - 1))

    def leaf(self) -> Any:
        expr, kind = self.term()
        if kind == "json" and self.random.random() < 0.2:
            expr = self.random.choice([Wild.items, Wild.data["a"]]).any_path(
                self.random.choice(["a", "b", "0"])
            )
        ops = ["is_null", "is_not_null", "in_", *COMPARED, *COMPARED]
        ops += [*TEXTUAL] * (kind in ("id", "text", "json"))
        ops += ["is_true", "is_false"] * (kind in ("flag", "json"))
        op = self.random.choice(ops)
        draw = COMPARED_WITH[kind]
        if op.startswith("is_"):
            return getattr(expr, op)()
        if op in LIKE:
            return getattr(expr, op)(any_pattern(self.random, _text(self.random)))
        if op in TEXTUAL:
            return getattr(expr, op)(_text(self.random))
        if op == "in_":
            return expr.in_([draw(self.random) for _ in range(self.random.randint(0, 4))])
        value = draw(self.random)
        if isinstance(value, bool) and op != "!=":
            op = "=="  # true is not more than false
        return COMPARED[op](expr, value)

    def aggregate(self) -> tuple[Any, str]:
        """An aggregate, and what kind of value it has."""
        function = self.random.choice(["count", "count_where", "avg_len", *["min", "max"] * 3])
        if function == "count":
            return query.count(), "count"
        if function == "count_where":
            return query.count_where(self.condition(1)), "count"
        if function == "avg_len":
            return query.avg_len(self.random.choice([Wild.items, Wild.data["a"]])), "count"
        expr, kind = self.term()
        return getattr(query, function)(expr), kind

    def having(self) -> Any:
        figure, kind = self.aggregate()
        draw = COMPARED_WITH.get(kind, lambda random: random.choice([0, 1, 2, 0.5, -1]))
        return COMPARED[self.random.choice([*COMPARED])](figure, draw(self.random))

    def down_or_up(self, term: Any) -> Any:
        return term.desc() if self.random.random() < 0.5 else term

    def ask(self, session: Session) -> Any:
        """Ask a question; the answer, to be compared."""
        random = self.random
        asked = session.query().entities(Wild)
        if random.random() < 0.8:
            asked = asked.where(self.condition())
        state = random.choice(["now", "now", "now", "as_of", "history", "since"])
        if state == "as_of":
            asked = asked.as_of(random.randint(0, 4))
        elif state != "now":
            asked = asked.with_history() if state == "history" else asked.history_since(2)
        if random.random() < 0.6:
            return self.objects(asked)
        return self.groups(asked)

    def objects(self, asked: Any) -> list[Any]:
        orders = [self.down_or_up(self.term()[0]) for _ in range(self.random.randint(0, 2))]
        asked = asked.order_by(*orders).offset(self.random.choice([0, 0, 1, 3]))
        if self.random.random() < 0.3:
            asked = asked.limit(self.random.randint(0, 5))
        found = [(each.meta(), vars(each)) for each in asked.collect()]
        return [(meta.key, meta.commit_id, meta.deleted, fingerprint(own)) for meta, own in found]

    def groups(self, asked: Any) -> list[Any]:
        by = {repr(expr): expr for expr, _ in (self.term(), self.term())}
        grouped = asked.group_by(*by.values())
        if self.random.random() < 0.4:
            grouped = grouped.having(self.having())
        if self.random.random() < 0.5:
            grouped = grouped.order_by(self.down_or_up(self.aggregate()[0]))
        figures = {f"f{number}": self.aggregate()[0] for number in range(2)}
        # Of values that are equal and written differently, either may stand for both.
        return [[sort_key(value) for value in row.values()] for row in grouped.agg(**figures)]


@OTHERS
@pytest.mark.req("SQL-032", "SQL-040", "SQL-042", "SQL-049", "SQL-051", "SQL-056")
@examples(25)
@given(st.integers(0, 2**32))
def test_the_same_questions_have_the_same_answers_in_the_same_order(fresh_uri, seed):
    with Session("sqlite://") as first, Session(fresh_uri()) as second:
        for session in (first, second):
            random = Random(seed)
            for _ in range(2):
                session.ensure([wild(random) for _ in range(random.randint(3, 14))])
                session.commit()
                gone = session.query().entities(Wild).where(Wild.id.in_(list("bdf")))
                session.delete(gone.collect())
                session.commit()
        for number in range(25):
            answers = [Asking(Random(f"{seed} {number}")).ask(each) for each in (first, second)]
            assert rounded(answers[0]) == rounded(answers[1])


def rounded(value: Any) -> Any:
    """Without the last digits of floats: databases may add in another order."""
    if isinstance(value, float):
        return float(f"{value:.13g}")
    if isinstance(value, (list, tuple)):
        return type(value)(map(rounded, value))
    return value
