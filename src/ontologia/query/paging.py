"""An answer of any length, a page of it in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ontologia.query.builder import EntityQuery, PathQuery, RelationQuery, question_of
from ontologia.schema.expression import Column, Compare, Condition, Or, Path
from ontologia.schema.relation import instance_key_of
from ontologia.schema.shape import Shape

_BY_KEY = 1_000
_BY_PLACE = 10_000  # what is sorted is sorted anew for each page


def stream(
    query: EntityQuery[Any] | RelationQuery[Any] | PathQuery[Any],
    head: int,
    page: int | None = None,
) -> Iterator[Any]:
    """What `collect()` would give, in the same order, page by page; `head` is the last commit.

    Each page is a read of its own. In the order of keys, no object is left out or given twice
    whatever is committed meanwhile, and a history ends at `head`; a page of another order or of
    ways begins where the one before ended, and may not fit to it when something was committed.
    """
    question = question_of(query)
    if question.history and question.as_of is None:
        query = query.as_of(head)
    first = query
    by_key = not (question.order or question.history or question.hops)
    page = page or (_BY_KEY if by_key else _BY_PLACE)
    rest, done = question.limit, 0
    while rest is None or rest > 0:
        wanted = page if rest is None else min(page, rest)
        skipped = question.offset + done if not by_key or done == 0 else 0
        found: list[Any] = query.limit(wanted).offset(skipped).collect()
        yield from found
        if len(found) < wanted:
            return
        done += wanted
        rest = None if rest is None else rest - wanted
        if by_key:
            query = first.where(after_key(question.shape, _key_of(question.shape, found[-1])))


def after_key(shape: Shape, key: Sequence[str]) -> Condition:
    """What comes after the object with this key in the order of keys, which are texts there."""
    # As text, which is how objects are ordered: 10 comes before 9.
    names: list[tuple[str, Column]] = [(shape.key or "", "key")]
    if shape.kind == "relation":
        names = [("left_key", "left_key"), ("right_key", "right_key")]
        if shape.instance_key is not None:
            names.append((shape.instance_key, "instance_key"))
    paths = [
        (Path(shape.name, name, "text", column=column), text)
        for (name, column), text in zip(names, key, strict=False)
    ]
    ways: list[Condition] = []
    for number, (path, text) in enumerate(paths):
        way: Condition = Compare(path, ">", text)
        for before, same in paths[:number]:
            way = Compare(before, "==", same) & way
        ways.append(way)
    if len(ways) == 1:
        return ways[0]
    # The first part lets an index begin at the right place.
    return Compare(paths[0][0], ">=", paths[0][1]) & Or(tuple(ways))


def _key_of(shape: Shape, obj: Any) -> tuple[str, ...]:
    if shape.kind == "entity":
        return (shape.key_text(obj.__dict__[shape.key or ""]),)
    ends = (obj.left_key, obj.right_key)
    return ends if shape.instance_key is None else (*ends, instance_key_of(obj))
