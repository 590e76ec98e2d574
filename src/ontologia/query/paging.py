"""An answer of any length, a page of it in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
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
            query = first.where(_further(question.shape, found[-1]))


def _further(shape: Shape, last: Any) -> Condition:
    """What comes after this object in the order of keys."""
    values: list[tuple[str, Column, str]]
    if shape.kind == "entity":
        key = shape.key or ""
        values = [(key, "key", shape.key_text(last.__dict__[key]))]
    else:
        values = [
            ("left_key", "left_key", last.left_key),
            ("right_key", "right_key", last.right_key),
        ]
        if shape.instance_key is not None:
            values.append((shape.instance_key, "instance_key", instance_key_of(last)))
    # As text, which is how objects are ordered: 10 comes before 9.
    paths = [(Path(shape.name, name, "text", column=column), text) for name, column, text in values]
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
