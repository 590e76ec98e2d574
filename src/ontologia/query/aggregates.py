"""Aggregates: a number or a value drawn from many objects.

They work on the objects that the question's filters let through. Missing and null values do not
count. `sum` and `avg` are floats; over nothing, everything but `count` and `count_where` is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from ontologia import codec
from ontologia.errors import QueryTypeError, shown
from ontologia.schema.expression import CompareOp, Condition, Expr, Path, field_type_of, path_of
from ontologia.schema.fieldtype import FieldType

Function: TypeAlias = Literal["count", "count_where", "sum", "avg", "min", "max", "avg_len"]


class Aggregate:
    """One aggregate; comparing it gives a condition on groups, for `having`."""

    __slots__ = ("condition", "function", "path", "type")

    def __init__(
        self,
        function: Function,
        path: Path | None = None,
        field_type: FieldType | None = None,
        condition: Condition | None = None,
    ) -> None:
        self.function: Function = function
        self.path = path
        self.type = field_type
        self.condition = condition

    def __eq__(self, other: object) -> GroupCondition:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compare("==", other)

    def __ne__(self, other: object) -> GroupCondition:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compare("!=", other)

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> GroupCondition:
        return self._compare("<", other)

    def __le__(self, other: Any) -> GroupCondition:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> GroupCondition:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> GroupCondition:
        return self._compare(">=", other)

    def asc(self) -> GroupOrder:
        """Groups in ascending order of this aggregate."""
        return GroupOrder(self)

    def desc(self) -> GroupOrder:
        """Groups in descending order of this aggregate."""
        return GroupOrder(self, descending=True)

    def __repr__(self) -> str:
        if self.path is not None:
            return f"{self.function}({self.path.label})"
        return f"{self.function}({'...' if self.condition is not None else ''})"

    def _compare(self, op: CompareOp, value: Any) -> GroupCondition:
        if self.function in ("min", "max") and self.type is not None:
            value = self.type.literal(value, repr(self))
        elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise QueryTypeError(f"{self!r} is a number and cannot be compared with {shown(value)}")
        else:
            value = self._number(value)
        return GroupCondition(self, op, value)

    def _number(self, value: float | Decimal) -> int | float:
        try:
            number = int(value) if isinstance(value, int) else float(value)
            codec.check(number, repr(self))
        except ValueError as error:
            raise QueryTypeError(
                f"{self!r} cannot be compared with {shown(value)}: {error}",
                hint="A whole number has 64 bits; give a larger one as a float.",
            ) from error
        return number


@dataclass(frozen=True, slots=True, eq=False)
class GroupCondition(Condition):
    """A comparison of an aggregate, for `having`."""

    aggregate: Aggregate
    op: CompareOp
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class GroupOrder:
    """Groups ordered by an aggregate."""

    aggregate: Aggregate
    descending: bool = False


def count() -> Aggregate:
    """How many objects."""
    return Aggregate("count")


def count_where(condition: Condition) -> Aggregate:
    """How many of them satisfy `condition`."""
    if not isinstance(condition, Condition):
        raise QueryTypeError(f"count_where takes a condition, got {condition!r}")
    return Aggregate("count_where", condition=condition)


def sum(field: Expr[Any]) -> Aggregate:
    """The sum of a number, as a float."""
    return _numeric("sum", field)


def avg(field: Expr[Any]) -> Aggregate:
    """The mean of a number, as a float."""
    return _numeric("avg", field)


def min(field: Expr[Any]) -> Aggregate:
    """The least value, in the field's own type."""
    return _plain("min", field)


def max(field: Expr[Any]) -> Aggregate:
    """The greatest value, in the field's own type."""
    return _plain("max", field)


def avg_len(field: Expr[Any]) -> Aggregate:
    """The mean length of a list; objects without a list there do not count."""
    if path_of(_expr("avg_len", field)).kind != "json":
        raise QueryTypeError(f"avg_len needs a list, and {field!r} is none")
    return _plain("avg_len", field)


def _expr(function: str, field: object) -> Expr[Any]:
    if not isinstance(field, Expr):
        raise QueryTypeError(f"{function} takes a field like Customer.age, got {field!r}")
    if path_of(field).each is not None:
        raise QueryTypeError(f"{function} cannot look into every element of a list: {field!r}")
    return field


def _plain(function: Function, field: Expr[Any]) -> Aggregate:
    expr = _expr(function, field)
    return Aggregate(function, path_of(expr), field_type_of(expr))


def _numeric(function: Function, field: Expr[Any]) -> Aggregate:
    if path_of(_expr(function, field)).kind not in ("number", "decimal", "json"):
        raise QueryTypeError(f"{function} needs numbers, and {field!r} has none")
    return _plain(function, field)
