"""A field seen from its class: a path, and the conditions that can be said of it, as data.

`Customer.tier == "gold"` is a `Condition`; nothing is asked of anybody here. The logic is SQL's:
a comparison with a missing or null value is neither true nor false, so neither `x == v`, nor
`x != v`, nor `~(x == v)` matches it. `is_null`, `is_true` and `is_false` always answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from ontologia.errors import QueryError, QueryTypeError, shown
from ontologia.schema.fieldtype import ANY, FieldType, Kind
from ontologia.schema.pattern import check_pattern

T = TypeVar("T")
Side: TypeAlias = Literal["own", "left", "right"]
Column: TypeAlias = Literal["fields", "key", "left_key", "right_key", "instance_key"]
CompareOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
MatchOp: TypeAlias = Literal["startswith", "endswith", "contains"]
Step: TypeAlias = str | int

MAX_STEPS = 50


class Path(NamedTuple):
    """Where a value is found, from the object that is asked for."""

    owner: str
    """Name of the type whose class was used to write it."""
    field: str
    """Empty for one that the class does not declare: its name is the first of `steps`."""
    kind: Kind
    side: Side = "own"
    """`own`, or the end of a relation where the object with this field stands."""
    column: Column = "fields"
    """`fields`, or the key column that holds the field's text."""
    steps: tuple[Step, ...] = ()
    """The way from the field into its JSON."""
    each: tuple[Step, ...] | None = None
    """For `any_path`: the way from each element of the list at `steps`."""

    @property
    def label(self) -> str:
        """The path as a person would write it."""
        start = self.owner if self.side == "own" else f"{self.side}({self.owner})"
        names = [step for step in (self.field, *self.steps) if step != ""]
        text = ".".join(map(str, (start, *names[:1]))) + "".join(f"[{n!r}]" for n in names[1:])
        return text if self.each is None else f"{text}.any_path({'.'.join(map(str, self.each))!r})"


class Condition:
    """Something that is true of an object, false, or unknown. Combine with `&`, `|` and `~`."""

    __slots__ = ()

    # A chain of the same operator is one flat node: a thousand alternatives are no deep tree.
    def __and__(self, other: Condition) -> Condition:
        return And((*_parts(And, self), *_parts(And, _condition(other))))

    def __or__(self, other: Condition) -> Condition:
        return Or((*_parts(Or, self), *_parts(Or, _condition(other))))

    def __invert__(self) -> Condition:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise QueryTypeError(
            "a condition is a question, not an answer, and has no truth value in Python",
            hint="Combine conditions with & | ~ instead of and/or/not; use .in_([...]) for `in`, and "
            "(1 < A.x) & (A.x < 5) for 1 < A.x < 5.",
        )


@dataclass(frozen=True, slots=True)
class Compare(Condition):
    path: Path
    op: CompareOp
    value: Any


@dataclass(frozen=True, slots=True)
class In(Condition):
    path: Path
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Match(Condition):
    path: Path
    op: MatchOp
    text: str


@dataclass(frozen=True, slots=True)
class Like(Condition):
    path: Path
    pattern: str
    fold: bool
    """Whether a letter of ASCII matches its other case."""


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    path: Path
    expected: bool


@dataclass(frozen=True, slots=True)
class IsBool(Condition):
    path: Path
    expected: bool


@dataclass(frozen=True, slots=True)
class And(Condition):
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or(Condition):
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not(Condition):
    part: Condition


@dataclass(frozen=True, slots=True)
class Order:
    """One term of `order_by`."""

    path: Path
    descending: bool = False


class Expr(Generic[T]):
    """A field of a class, or a value inside it, to be filtered, ordered or aggregated by."""

    __slots__ = ("_path", "_type")

    def __init__(self, path: Path, field_type: FieldType) -> None:
        self._path = path
        self._type = field_type

    # The types of == and != are not object's: they give a condition, and take only a T.
    def __eq__(self, other: T) -> Condition:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        if other is None:
            raise QueryTypeError("Use .is_null() instead")
        return self._compare("==", other)

    def __ne__(self, other: T) -> Condition:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        if other is None:
            raise QueryTypeError("Use .is_not_null() instead")
        return self._compare("!=", other)

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: T) -> Condition:
        return self._ordered("<", other)

    def __le__(self, other: T) -> Condition:
        return self._ordered("<=", other)

    def __gt__(self, other: T) -> Condition:
        return self._ordered(">", other)

    def __ge__(self, other: T) -> Condition:
        return self._ordered(">=", other)

    def in_(self, values: Iterable[T]) -> Condition:
        """Equal to one of `values`; an empty list matches nothing."""
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise QueryTypeError(f"{self._path.label}.in_() takes a list of values, got {values!r}")
        return In(self._path, tuple(self._literal(value) for value in values))

    def startswith(self, text: str) -> Condition:
        """Text that begins so; case counts, and `%` and `_` are themselves."""
        return self._match("startswith", text)

    def endswith(self, text: str) -> Condition:
        """Text that ends so; case counts, and `%` and `_` are themselves."""
        return self._match("endswith", text)

    def contains(self, text: str) -> Condition:
        """Text that holds this; case counts, and `%` and `_` are themselves."""
        return self._match("contains", text)

    def like(self, pattern: str) -> Condition:
        """Text of this SQL pattern: `%` is any text, `_` one character; case counts.

        A backslash before a character makes it stand for itself.
        """
        return self._like(pattern, fold=False)

    def ilike(self, pattern: str) -> Condition:
        """Like `like`, but ASCII letters match in either case; other letters only in their own."""
        return self._like(pattern, fold=True)

    def is_null(self) -> Condition:
        """Missing, or JSON null."""
        return IsNull(self._path, True)

    def is_not_null(self) -> Condition:
        """There, and not JSON null."""
        return IsNull(self._path, False)

    def is_true(self) -> Condition:
        """JSON true; never unknown, so its negation matches everything else, missing included."""
        return self._is_bool(True)

    def is_false(self) -> Condition:
        """JSON false; never unknown, so its negation matches everything else, missing included."""
        return self._is_bool(False)

    def asc(self) -> Order:
        """Ascending, for `order_by`: missing first, then false, true, numbers, text, the rest."""
        return Order(self._path)

    def desc(self) -> Order:
        """Descending, for `order_by`: the reverse of `asc`."""
        return Order(self._path, descending=True)

    def path(self, dotted: str) -> Expr[Any]:
        """A value inside: `profile.path("address.city")`. Use `[...]` for keys with dots."""
        return self._inside(_split(dotted, self._path.label))

    def __getitem__(self, step: Step) -> Expr[Any]:
        return self._inside((_step(step, self._path.label),))

    def __bool__(self) -> NoReturn:
        raise QueryTypeError(
            f"{self._path.label} is a field, not a value, and has no truth value in Python",
            hint="Compare it, or use is_true(); combine conditions with & | ~ instead of and/or/not; "
            "use .in_([...]) for `in`.",
        )

    def _not_joined(self, _other: object) -> NoReturn:
        raise QueryTypeError(
            f"{self._path.label} is a field, and & and | join conditions",
            hint="Put parentheses around each comparison: (A.x == 1) & (A.y == 2).",
        )

    __and__ = __or__ = __rand__ = __ror__ = _not_joined

    # Without this, `in` and `for` would try __getitem__ with 0, 1, 2 ... and never end.
    __iter__ = None

    def any_path(self, dotted: str) -> Expr[Any]:
        """True when at least one object in this list has a value at `dotted` that fits."""
        self._need_json("any_path")
        if self._path.each is not None:
            raise QueryError(
                f"{self._path.label}: any_path looks into one list, not into lists in it"
            )
        path = self._path._replace(kind="json", each=_split(dotted, self._path.label))
        return Expr(path, ANY)

    def __repr__(self) -> str:
        return self._path.label

    def _inside(self, steps: tuple[Step, ...]) -> Expr[Any]:
        self._need_json("a path inside it")
        if self._path.each is not None:
            return Expr(self._path._replace(each=self._path.each + steps), ANY)
        every = self._path.steps + steps
        if len(every) > MAX_STEPS:
            raise QueryError(f"{self._path.label}: a path has at most {MAX_STEPS} steps")
        return Expr(self._path._replace(kind="json", steps=every), ANY)

    def _need_json(self, what: str) -> None:
        if self._path.kind != "json" or self._path.column != "fields":
            raise QueryTypeError(
                f"{self._path.label} is a single value of kind {self._path.kind}; "
                f"{what} needs an object or a list"
            )

    def _compare(self, op: CompareOp, value: Any) -> Condition:
        return Compare(self._path, op, self._literal(value))

    def _ordered(self, op: CompareOp, value: Any) -> Condition:
        if value is None:
            raise QueryTypeError(
                f"{self._path.label} {op} None has no answer; Use .is_null() instead"
            )
        if self._path.kind == "bool" or isinstance(value, bool):
            raise QueryTypeError(
                f"{self._path.label}: truth values have no order; use == or is_true()"
            )
        return self._compare(op, value)

    def _literal(self, value: Any) -> Any:
        if isinstance(value, Expr):
            raise QueryTypeError(f"{self._path.label} can be compared with values, not with fields")
        if value is None:
            raise QueryTypeError(f"{self._path.label}: None in in_(); Use .is_null() instead")
        return self._type.literal(value, self)

    def _match(self, op: MatchOp, text: str) -> Condition:
        return Match(self._path, op, self._text(op, text))

    def _like(self, pattern: str, *, fold: bool) -> Condition:
        text = self._text("ilike" if fold else "like", pattern)
        return Like(self._path, check_pattern(text, self._path.label), fold)

    def _text(self, op: str, text: str) -> str:
        if str not in self._type.accepts:
            raise QueryTypeError(f"{self._path.label} is not text; {op}() cannot look into it")
        if not isinstance(text, str):
            raise QueryTypeError(f"{self._path.label}.{op}() takes text, got {text!r}")
        return str(ANY.literal(text, self._path.label))

    def _is_bool(self, expected: bool) -> Condition:
        if self._path.kind not in ("bool", "json"):
            raise QueryTypeError(f"{self._path.label} is not a truth value")
        return IsBool(self._path, expected)


path_of: Callable[[Expr[Any]], Path] = attrgetter("_path")
"""Where the value of an expression is found."""
field_type_of: Callable[[Expr[Any]], FieldType] = attrgetter("_type")
"""The type of the value of an expression."""


def _parts(node: type[And | Or], condition: Condition) -> tuple[Condition, ...]:
    return condition.parts if isinstance(condition, node) else (condition,)


def _condition(value: object) -> Condition:
    if not isinstance(value, Condition):
        raise QueryTypeError(
            f"expected a condition, got {value!r}",
            hint="Put parentheses around each comparison: (A.x == 1) & (A.y == 2).",
        )
    return value


def _split(dotted: str, label: str) -> tuple[Step, ...]:
    if not isinstance(dotted, str) or not dotted:
        raise (QueryError if isinstance(dotted, str) else QueryTypeError)(
            f"{label}: a path is text like 'a.b', got {dotted!r}"
        )
    steps = tuple(_step(part, label) for part in dotted.split("."))
    if len(steps) > MAX_STEPS:
        raise QueryError(f"{label}: a path has at most {MAX_STEPS} steps")
    return steps


def _step(step: object, label: str) -> Step:
    if isinstance(step, bool) or not isinstance(step, str | int):
        raise QueryTypeError(f"{label}: a step is text or a number, got {shown(step)}")
    if isinstance(step, int):
        if not 0 <= step < 2**31:
            raise QueryError(f"{label}: a list position counts from 0, got {shown(step)}")
        return step
    if not step:
        raise QueryError(f"{label}: a path has an empty step", hint="Write 'a.b', not 'a..b'.")
    return str(ANY.literal(step, label))
