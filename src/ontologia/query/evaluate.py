"""Questions answered in Python, over documents in memory.

Backends answer in SQL; this is for the one case they cannot: the past, read across a change of
schema, where a row must pass through its upgraders before anything can be asked of it. The tests
hold it against every backend: both must mean the same.

A document is an object's fields as JSON. Unknown is None, as NULL is in SQL.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from ontologia import codec
from ontologia.query.aggregates import Aggregate, GroupCondition, GroupOrder
from ontologia.query.question import Question
from ontologia.schema.expression import (
    And,
    Compare,
    Condition,
    In,
    IsBool,
    IsNull,
    Like,
    Match,
    Not,
    Or,
    Order,
    Path,
    Step,
    path_of,
)
from ontologia.schema.pattern import pieces

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Doc:
    """One object: its fields and the text of its keys."""

    fields: dict[str, Any]
    columns: dict[str, str]


@dataclass(frozen=True, slots=True)
class Item:
    """What a condition may speak of: documents by (type name, side), None where nothing stands."""

    docs: dict[tuple[str, str], Doc | None]
    keys: tuple[Any, ...]
    """What the item is ordered by when nothing else decides."""
    payload: Any = None


def answer(question: Question, items: Iterable[Item]) -> list[Item]:
    """Those items that the question asks for, in its order, within its bounds."""
    found = matching(question, items)
    found.sort(key=lambda item: item.keys)
    for order in reversed(question.order):
        if isinstance(order, Order):
            found.sort(key=_by_path(order.path), reverse=order.descending)
    return _page(question, found)


def matching(question: Question, items: Iterable[Item]) -> list[Item]:
    """Those items that satisfy the question's conditions."""
    where = question.where
    return [item for item in items if where is None or truth(where, item) is True]


def _page(question: Question, found: list[T]) -> list[T]:
    end = None if question.limit is None else question.offset + question.limit
    return found[question.offset : end]


# -- conditions -----------------------------------------------------------------------------------


def truth(condition: Condition, item: Item) -> bool | None:
    """Whether `condition` holds of `item`; None where that is unknown."""
    match condition:
        case And(parts):
            return _all([truth(part, item) for part in parts])
        case Or(parts):
            return _not(_all([_not(truth(part, item)) for part in parts]))
        case Not(part):
            return _not(truth(part, item))
        case Compare(path, op, value):
            return _leaf(item, path, lambda found: _compare(path, found, op, value))
        case In(path, values):
            return _leaf(item, path, lambda found: _in(path, found, values))
        case Match(path, op, text):
            return _leaf(item, path, lambda found: _match(found, op, text))
        case Like(path, pattern, fold):
            return _leaf(item, path, lambda found: _like(found, pattern, fold))
        case IsNull(path, expected):
            return _leaf(item, path, lambda found: (found is None) is expected)
        case IsBool(path, expected):
            return _leaf(item, path, lambda found: found is expected)
        case _:
            raise TypeError(f"not a condition: {condition!r}")


def _all(parts: Sequence[bool | None]) -> bool | None:
    if False in parts:
        return False
    return None if None in parts else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _leaf(item: Item, path: Path, test: Callable[[Any], bool | None]) -> bool | None:
    if item.docs[path.owner, path.side] is None:
        return None
    if path.each is None:
        return test(value_at(item, path))
    listed = value_at(item, path._replace(each=None))
    if not isinstance(listed, list):
        return False
    return any(test(_walk(e, path.each)) is True for e in listed if isinstance(e, dict))


def value_at(item: Item, path: Path) -> Any:
    """The JSON value at `path`; None where it is missing or null."""
    doc = item.docs[path.owner, path.side]
    if doc is None:
        return None
    if path.column == "instance_key" or (path.column != "fields" and path.kind == "text"):
        text = doc.columns[path.column]
        return int(text) if path.kind == "number" else text
    return _walk(doc.fields, (path.field, *path.steps) if path.field else path.steps)


def _walk(value: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def _compare(path: Path, found: Any, op: str, value: Any) -> bool | None:
    if found is None:
        return None
    if path.kind == "decimal":
        found, value = Decimal(found), Decimal(value)
    same_type = _rank(found) == _rank(value)
    if op == "==":
        return same_type and found == value
    if op == "!=":
        return not (same_type and found == value)
    if not same_type:
        return None
    return _ordered(found, op, value)


def _ordered(found: Any, op: str, value: Any) -> bool:
    match op:
        case "<":
            return bool(found < value)
        case "<=":
            return bool(found <= value)
        case ">":
            return bool(found > value)
        case _:
            return bool(found >= value)


def _in(path: Path, found: Any, values: tuple[Any, ...]) -> bool | None:
    if not values:
        return False
    return _not(_all([_not(_compare(path, found, "==", value)) for value in values]))


def _match(found: Any, op: str, text: str) -> bool | None:
    if not isinstance(found, str):
        return None
    if op == "startswith":
        return found.startswith(text)
    return found.endswith(text) if op == "endswith" else text in found


def _like(found: Any, pattern: str, fold: bool) -> bool | None:
    if not isinstance(found, str):
        return None
    return _regex(pattern, fold).fullmatch(found) is not None


@functools.lru_cache
def _regex(pattern: str, fold: bool) -> re.Pattern[str]:
    """An SQL pattern as a regular expression; ASCII, so that other letters keep their case."""
    runs = [""]  # what stands between one % and the next
    for character, wild in pieces(pattern):
        if wild and character == "%":
            runs.append("")
        else:
            runs[-1] += "." if wild else re.escape(character)
    first, *rest = runs
    # A run is taken where it is found first, and for good: looking for it further on finds no more.
    middle = "".join(f"(?>.*?{run})" for run in rest[:-1])
    text = first + middle + (f".*{rest[-1]}" if rest else "")
    return re.compile(text, re.DOTALL | re.ASCII | (re.IGNORECASE if fold else re.NOFLAG))


# -- order ----------------------------------------------------------------------------------------


def _rank(value: Any) -> int:
    """Missing, truth values, numbers, text, the rest: the order of types among each other."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float | Decimal):
        return 2
    return 3 if isinstance(value, str) else 4


def _sortable(path: Path, value: Any) -> tuple[int, Any]:
    if path.kind == "decimal" and value is not None:
        value = Decimal(value)
    rank = _rank(value)
    return (rank, codec.encode(value) if rank == 4 else 0 if rank == 0 else value)


def _by_path(path: Path) -> Callable[[Item], tuple[int, Any]]:
    return lambda item: _sortable(path, value_at(item, path))


# -- aggregates -----------------------------------------------------------------------------------


def groups(question: Question, items: Iterable[Item]) -> list[tuple[Any, ...]]:
    """One row a group: the values it is grouped by, then the aggregates."""
    paths = [path_of(expr) for expr in question.group_by]
    found: dict[tuple[Any, ...], list[Item]] = {} if paths else {(): []}
    for item in matching(question, items):
        found.setdefault(tuple(_by_path(path)(item) for path in paths), []).append(item)
    kept = [
        (key, members)
        for key, members in sorted(found.items(), key=lambda entry: entry[0])
        if question.having is None or group_truth(question.having, members) is True
    ]
    for order in reversed(question.order):
        kept.sort(key=functools.partial(_group_key, order), reverse=order.descending)
    return [
        (
            *(_group_value(path, members) for path in paths),
            *(aggregate(agg, members) for _, agg in question.aggregates),
        )
        for _, members in _page(question, kept)
    ]


def _group_key(order: Order | GroupOrder, entry: tuple[Any, list[Item]]) -> tuple[int, Any]:
    members = entry[1]
    if isinstance(order, Order):
        return _by_path(order.path)(members[0]) if members else (0, 0)
    value = aggregate(order.aggregate, members)
    path = order.aggregate.path
    return (_rank(value), 0 if value is None else value) if path is None else _sortable(path, value)


def _group_value(path: Path, members: list[Item]) -> Any:
    values = [value_at(item, path) for item in members]
    if path.kind == "json":
        return min((codec.encode(value) for value in values if value is not None), default=None)
    return min(values) if path.kind == "decimal" and values[0] is not None else values[0]


def group_truth(condition: Condition, members: list[Item]) -> bool | None:
    """Whether a condition on groups holds of this one."""
    match condition:
        case And(parts):
            return _all([group_truth(part, members) for part in parts])
        case Or(parts):
            return _not(_all([_not(group_truth(part, members)) for part in parts]))
        case Not(part):
            return _not(group_truth(part, members))
        case GroupCondition(agg, op, value):
            found = aggregate(agg, members)
            if found is None:
                return None
            path = agg.path or Path("", "", "number")
            return _compare_groups(_sortable(path, found), op, _sortable(path, value))
        case _:
            raise TypeError(f"not a condition on groups: {condition!r}")


def _compare_groups(found: tuple[int, Any], op: str, value: tuple[int, Any]) -> bool:
    if op in ("==", "!="):
        return (found == value) is (op == "==")
    return _ordered(found, op, value)


def aggregate(agg: Aggregate, members: list[Item]) -> Any:
    """The value of one aggregate over these items, as JSON."""
    if agg.function == "count":
        return len(members)
    if agg.condition is not None:
        return sum(truth(agg.condition, item) is True for item in members)
    path = agg.path or Path("", "", "json")
    values = [value for item in members if (value := value_at(item, path)) is not None]
    if agg.function == "avg_len":
        lengths = [len(value) for value in values if isinstance(value, list)]
        return sum(lengths) / len(lengths) if lengths else None
    if agg.function in ("min", "max"):
        pick = min if agg.function == "min" else max
        comparable = [value for value in values if path.kind != "json" or _rank(value) in (2, 3)]
        return pick(comparable, key=functools.partial(_sortable, path), default=None)
    numbers = [float(value) for value in values if path.kind != "json" or _rank(value) == 2]
    if not numbers:
        return None
    return sum(numbers) / (len(numbers) if agg.function == "avg" else 1)
