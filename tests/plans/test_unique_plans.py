"""Whether a value is taken is one seek in the index of its field, and only where it may be taken."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, Relation
from ontologia.store.questions.names import index_name


class Badge(Entity):
    id: Field[str]
    serial: Field[str] = Field(unique=True)
    note: Field[str] = Field(default="")


class Plain(Entity):
    id: Field[str]
    serial: Field[str] = Field(index=True)
    note: Field[str] = Field(default="")


class Wears(Relation[Badge, Badge]):
    clip: Field[int] = Field(unique=True)


@pytest.fixture
def session(watch, open_session):
    session = open_session()
    session.ensure(cls(id=f"b{n}", serial=f"s{n}") for cls in (Badge, Plain) for n in range(20))
    session.ensure(Wears(left_key="b1", right_key=f"b{n}", clip=n) for n in range(20))
    session.commit()
    return session


def committed(session, watch, make):
    """The statements of a commit of what `make` gives for a number that is new each time."""
    numbers = iter(range(100, 200))

    def commit():
        session.ensure(make(next(numbers)))
        session.commit()

    return watch.statements(commit), watch.plan(commit)


@pytest.mark.parametrize(
    ("make", "index"),
    [
        (lambda n: Badge(id="b1", serial=f"s{n}"), index_name("entity", "Badge", "serial", "text")),
        (
            lambda n: [Badge(id=f"b{i}", serial=f"s{n}-{i}") for i in range(15)],
            index_name("entity", "Badge", "serial", "text"),
        ),
        (
            lambda n: Wears(left_key="b1", right_key="b2", clip=n),
            index_name("relation", "Wears", "clip", "number"),
        ),
    ],
    ids=["one", "several", "relation"],
)
def test_who_holds_a_value_is_found_by_its_index(session, watch, make, index):
    statements, plan = committed(session, watch, make)

    asked = [text for text in statements if text.startswith("SELECT") and "json_extract" in text]
    assert len(asked) == 1
    assert any(f"USING INDEX {index} " in step for step in plan)
    assert not [
        step for step in plan if step.startswith(("SCAN e", "SCAN entity", "SCAN relation"))
    ]


def test_without_a_new_value_nobody_is_asked(session, watch):
    unique, _ = committed(session, watch, lambda n: Badge(id="b1", serial="s1", note=f"{n}"))
    plain, _ = committed(session, watch, lambda n: Plain(id="b1", serial=f"s{n}"))

    assert unique == plain
    assert not [text for text in plain if "json_extract" in text]
