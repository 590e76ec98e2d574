"""A few objects with a field of every kind, and how to ask for them in two ways."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

from ontologia import Entity, Event, Field, Relation, Session
from ontologia.errors import QueryError
from ontologia.query import QueryBuilder, Question
from ontologia.runtime.reader import Reader
from ontologia.runtime.session import core_of
from ontologia.schema.expression import Condition


class Hue(Enum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    LOW = 1
    HIGH = 2


class Fuzzed(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str] = Field(index=True)
    number: Field[int] = Field(index=True)
    ratio: Field[float]
    flag: Field[bool]
    price: Field[Decimal]
    at: Field[datetime]
    day: Field[date]
    hour: Field[time]
    span: Field[timedelta]
    uid: Field[UUID]
    hue: Field[Hue]
    rank: Field[Rank]
    mixed: Field[int | str | None]
    data: Field[dict[str, object]]
    items: Field[list[dict[str, object]]]


class FuzzedLink(Relation[Fuzzed, Fuzzed]):
    note: Field[str | None]
    weight: Field[float]


class FuzzedEvent(Event):
    text: Field[str]
    number: Field[int] = Field(default=0)
    ratio: Field[float] = Field(default=0.0)
    price: Field[Decimal | None] = Field(default=None)
    at: Field[datetime | None] = Field(default=None)
    span: Field[timedelta | None] = Field(default=None)
    uid: Field[UUID | None] = Field(default=None)
    hue: Field[Hue | None] = Field(default=None)
    data: Field[dict[str, object]] = Field(default_factory=dict)
    items: Field[list[tuple[int, str]]] = Field(default_factory=list)


FIELDS = list(Fuzzed.__shape__.fields)


def fuzzed(key: str, **values: Any) -> Fuzzed:
    """An object with something in every field."""
    instant = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    usual: dict[str, Any] = {
        "text": "a",
        "number": 1,
        "ratio": 0.5,
        "flag": True,
        "price": Decimal("1.50"),
        "at": instant,
        "day": instant.date(),
        "hour": time(3, 4),
        "span": timedelta(hours=1),
        "uid": UUID(int=1),
        "hue": Hue.RED,
        "rank": Rank.LOW,
        "mixed": None,
        "data": {"a": {"b": 1}, "": [True, None, "x"]},
        "items": [{"k": 1}, {"k": "1"}],
    }
    return Fuzzed(id=key, **usual | values)


def filled(session: Session) -> Session:
    """The session, with the objects of this world in its store."""
    session.ensure(
        [
            fuzzed("1"),
            fuzzed("ü", text="Äpfel 😀 %_\\", number=-(2**63), ratio=-0.0, mixed=5, hue=Hue.BLUE),
            fuzzed("z", text="", number=2**63 - 1, ratio=1e308, mixed="5", flag=False, items=[]),
            fuzzed("low", price=Decimal("-0.000"), data={}, rank=Rank.HIGH, number=0, ratio=1.0),
            FuzzedLink(left_key="1", right_key="ü", note=None, weight=1.0),
            FuzzedLink(left_key="z", right_key="gone", note="x", weight=-1.5),
        ]
    )
    session.commit(event=FuzzedEvent(text="first"))
    return session


class EvaluatingReader(Reader):
    """Reads everything and answers in Python."""

    def _must_evaluate(self, question: Question) -> bool:
        return question.where is not None


def ask_both(session: Session, cls: type[Any], condition: Condition) -> int:
    """Ask the store and the evaluator; how many there are, of which both say the same ones."""
    reader = EvaluatingReader(
        core_of(session).store, core_of(session).registry, core_of(session).versions
    )
    found: list[Any] = []
    for builder in (session.query(), QueryBuilder(reader)):
        asked = builder.entities(cls) if issubclass(cls, Entity) else builder.relations(cls)
        try:
            objects = asked.where(condition).collect()
            found.append([vars(each) for each in objects])
        except QueryError as error:
            found.append(str(error))
    assert found[0] == found[1], (condition, found)
    return len(found[0])
