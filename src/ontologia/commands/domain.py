"""Search domains, orders and aggregates, as lists and text, made into questions.

A domain is a list of `(field, operator, value)`, all of which must hold. `|`, `&` and `!` stand
before what they join: `["|", ("tier", "=", "gold"), ("spent", ">", 1000)]`. A field may be dotted
to look into its JSON. A comparison with a missing value is neither true nor false; `=` and `!=`
with None ask whether the value is missing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ontologia.errors import QueryError, QueryTypeError
from ontologia.query import aggregates
from ontologia.query.aggregates import Aggregate, GroupOrder
from ontologia.schema.expression import And, Condition, Expr, Not, Order
from ontologia.schema.shape import Shape

Domain: TypeAlias = Sequence[Any]
_COMPARISONS: dict[str, Callable[[Expr[Any], Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda field, values: field.in_(values),
    "not in": lambda field, values: ~field.in_(values),
    "like": lambda field, pattern: field.like(pattern),
    "ilike": lambda field, pattern: field.ilike(pattern),
}
_MOST_TERMS = 1_000
_DEEPEST = 50


def condition(shape: Shape, domain: Domain | None) -> Condition | None:
    """What a domain asks of a record; None if it asks nothing. QueryError if it makes no sense."""
    if domain is None:
        return None
    if isinstance(domain, str | bytes) or not isinstance(domain, Sequence):
        raise QueryTypeError(f"a domain is a list of (field, operator, value), got {domain!r:.200}")
    if len(domain) > _MOST_TERMS:
        raise QueryError(f"a domain has at most {_MOST_TERMS} terms, got {len(domain)}")
    stack: list[_Joined] = []
    # From the end: what an operator joins has been understood when the operator is met.
    for term in reversed(domain):
        if isinstance(term, str):
            stack.append(_joined(term, stack))
        else:
            stack.append(_Joined(_term(shape, term), 1))
    stack.reverse()
    if len(stack) <= 1:
        return stack[0].condition if stack else None
    return And(tuple(each.condition for each in stack))


class _Joined(NamedTuple):
    """A part of a domain, and how deep its operators stand in each other."""

    condition: Condition
    depth: int


def _joined(word: str, stack: list[_Joined]) -> _Joined:
    if word not in ("|", "&", "!"):
        raise QueryError(
            f"{word!r:.200} joins nothing in a domain; write '|', '&', '!' or a "
            f"(field, operator, value)"
        )
    needed = 1 if word == "!" else 2
    if len(stack) < needed:
        raise QueryError(f"{word!r} in a domain stands before {needed} more, got {len(stack)}")
    first = stack.pop()
    if word == "!":
        if isinstance(first.condition, Not):  # twice is not at all, also of what is unknown
            return _Joined(first.condition.part, first.depth - 1)
        return _within(~first.condition, first)
    second = stack.pop()
    one, other = first.condition, second.condition
    return _within(one | other if word == "|" else one & other, first, second)


def _within(condition: Condition, *joined: _Joined) -> _Joined:
    # A chain of the same operator is one level: that is how long lists of alternatives are written.
    depth = max(each.depth + (type(each.condition) is not type(condition)) for each in joined)
    if depth > _DEEPEST:
        raise QueryError(f"the operators of a domain stand more than {_DEEPEST} deep in each other")
    return _Joined(condition, depth)


def _term(shape: Shape, term: Any) -> Condition:
    if not isinstance(term, list | tuple) or len(term) != 3:
        raise (QueryError if isinstance(term, list | tuple) else QueryTypeError)(
            f"a term of a domain is (field, operator, value), got {term!r:.200}"
        )
    name, word, value = term
    field = expression(shape, name)
    if value is None and word in ("=", "!="):
        return field.is_null() if word == "=" else field.is_not_null()
    compare = _COMPARISONS.get(word) if isinstance(word, str) else None
    if compare is None:
        raise (QueryError if isinstance(word, str) else QueryTypeError)(
            f"{word!r:.200} compares nothing; write one of {', '.join(_COMPARISONS)}"
        )
    condition: Condition = compare(field, value)
    return condition


def expression(shape: Shape, name: Any) -> Expr[Any]:
    """A field by its name, dotted to look into its JSON."""
    if not isinstance(name, str) or not name:
        raise (QueryError if isinstance(name, str) else QueryTypeError)(
            f"a field of {shape.name} has a name, got {name!r:.200}"
        )
    field, _, inside = name.partition(".")
    found = shape.expression(field)
    return found.path(inside) if inside else found


def orders(shape: Shape, order: str | None) -> list[Order]:
    """What `"field desc, other"` sorts by."""
    return [
        expression(shape, name).desc() if descending else expression(shape, name).asc()
        for name, descending in _terms(order)
    ]


def group_orders(
    shape: Shape, order: str | None, figures: Mapping[str, Aggregate]
) -> list[Order | GroupOrder]:
    """The same for groups, which are sorted by what they are grouped by and by their aggregates."""
    found: list[Order | GroupOrder] = []
    for name, descending in _terms(order):
        by = figures[name] if name in figures else expression(shape, name)
        found.append(by.desc() if descending else by.asc())
    return found


def _terms(order: str | None) -> Iterator[tuple[str, bool]]:
    """Each name with whether it sorts downwards."""
    if order is None:
        return
    if not isinstance(order, str):
        raise QueryTypeError(f'an order is text like "name, created desc", got {order!r:.200}')
    for term in filter(None, map(str.strip, order.split(","))):
        name, *rest = term.split()
        direction = " ".join(rest).lower()
        if direction not in ("", "asc", "desc"):
            raise QueryError(
                f"{term!r} sorts by nothing; write 'field', 'field asc' or 'field desc'"
            )
        yield name, direction == "desc"


def figures(shape: Shape, wanted: Mapping[str, str] | None) -> dict[str, Aggregate]:
    """What `{alias: "sum:field"}` adds up; without any it is `{"count": "count"}`."""
    if not wanted:
        return {"count": aggregates.count()}
    if not isinstance(wanted, Mapping):
        raise QueryTypeError(f'aggregate takes {{alias: "sum:field"}}, got {wanted!r:.200}')
    return {_alias(alias): _figure(shape, text) for alias, text in wanted.items()}


def _alias(alias: Any) -> str:
    if not isinstance(alias, str) or not alias.isidentifier():
        raise (QueryError if isinstance(alias, str) else QueryTypeError)(
            f"an aggregate's alias is an identifier, got {alias!r:.200}"
        )
    return alias


def _figure(shape: Shape, text: Any) -> Aggregate:
    function, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    match function:
        case "count" if not name:
            return aggregates.count()
        case "sum" if name:
            return aggregates.sum(expression(shape, name))
        case "avg" if name:
            return aggregates.avg(expression(shape, name))
        case "min" if name:
            return aggregates.min(expression(shape, name))
        case "max" if name:
            return aggregates.max(expression(shape, name))
        case _:
            raise (QueryError if isinstance(text, str) else QueryTypeError)(
                f"{text!r:.200} adds up nothing; write 'count', or 'sum:', 'avg:', 'min:' or "
                f"'max:' and a field"
            )
