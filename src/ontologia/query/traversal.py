"""Walking from entities along relations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ontologia.errors import QueryError
from ontologia.query.question import Hop, Question
from ontologia.schema.entity import Entity
from ontologia.schema.registry import shape_of
from ontologia.schema.relation import Relation
from ontologia.schema.shape import Shape

E = TypeVar("E", bound=Entity)


@dataclass(frozen=True, slots=True)
class Path(Generic[E]):
    """One way that was found: where it starts, and the relations walked, in order."""

    source: E
    relations: tuple[Relation[Any, Any], ...]


def next_hop(question: Question, relation: type[Relation[Any, Any]]) -> Hop:
    """The hop along `relation` from where the question's walk has come to.

    Forward (left to right) where the left end fits, backward where only the right one does.
    """
    shape = shape_of(relation, "relation")
    here = _reached(question)
    if shape.end("left") is here:
        return Hop(shape, "forward")
    if shape.end("right") is here:
        return Hop(shape, "backward")
    raise QueryError(
        f"via({shape.name}) does not start at {here.name}: it goes from "
        f"{shape.end('left').name} to {shape.end('right').name}"
    )


def _reached(question: Question) -> Shape:
    if not question.hops:
        return question.shape
    last = question.hops[-1]
    return last.relation.end(last.far)
