"""Conditions as SQL, as far as every dialect says them alike.

Every value is bound, and so is every path into JSON. Only a field's own name stands in the text,
as a literal, because an index is found by its text; it is a Python identifier and quoted all the
same. Comparisons of typed fields are plain, so that they can use an index. A value inside free
JSON may be of any type, so there the type is part of the comparison: true is not 1, "5" is not 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ontologia import codec
from ontologia.schema.expression import (
    And,
    Compare,
    CompareOp,
    Condition,
    In,
    IsBool,
    IsNull,
    Like,
    Match,
    Not,
    Or,
    Path,
    Step,
)
from ontologia.schema.pattern import fixed_start

OPERATORS: dict[CompareOp, str] = {
    "==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="
}  # fmt: skip
_LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Doc:
    """Where an object's values are found in the statement being built."""

    fields: str
    """The JSON document."""
    columns: dict[str, str]
    """Key columns by name."""
    present: str | None = None
    """For an object that may not be there: a column that is NULL then."""
    text: str = ""
    """The document's canonical text, where `fields` is not as exact."""
    indexed: frozenset[str] = frozenset()
    """Fields with an index, where that makes a difference to the text of a condition."""
    fills: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is put where a field is missing, by its name: a JSON object with that field."""


class Conditions(ABC):
    """Turns conditions and paths into SQL for one statement, and gathers what it binds."""

    nothing: str
    """A condition that is false."""

    def __init__(self, docs: dict[tuple[str, str], Doc]) -> None:
        self._docs = docs
        self.bindings: dict[str, Any] = {}

    @abstractmethod
    def bind(self, value: Any) -> str:
        """A placeholder for `value`."""

    def doc(self, path: Path) -> Doc:
        """The document that `path` starts from."""
        doc = self._docs[path.owner, path.side]
        fill = doc.fills.get(path.field) if doc.fills else None
        return doc if fill is None else self.filled(doc, path.field, fill)

    # -- what a dialect says in its own way ---------------------------------------------------

    @staticmethod
    @abstractmethod
    def filled(doc: Doc, name: str, fill: str) -> Doc:
        """The document, or `fill` where the field `name` is missing in it."""

    @abstractmethod
    def value(self, path: Path) -> str:
        """The SQL value at `path`, to compare and order by; NULL where it is missing or null."""

    @abstractmethod
    def json_type(self, path: Path) -> str:
        """The type of the JSON value at `path`; NULL where it is missing."""

    @abstractmethod
    def _is_null(self, path: Path, test: str) -> str:
        """`test` (IS NULL, IS NOT NULL) of the value at `path`, whatever it is."""

    @abstractmethod
    def _is_bool(self, path: Path, expected: bool) -> str:
        """Whether the value at `path` is JSON true, or false; never unknown."""

    @abstractmethod
    def _element(self, path: Path, name: str) -> Doc:
        """An element of the list at `path`, by the name that `_some` gives it."""

    @abstractmethod
    def _some(self, path: Path, name: str, test: Callable[[], str]) -> str:
        """True when an object in the list at `path` passes; never unknown."""

    @abstractmethod
    def _compare_plain(self, path: Path, op: CompareOp, value: Any) -> str: ...

    @abstractmethod
    def _compare_decimal(self, path: Path, op: CompareOp, value: str) -> str: ...

    @abstractmethod
    def _compare_json(self, path: Path, op: CompareOp, value: Any) -> str: ...

    @abstractmethod
    def _in_plain(self, path: Path, values: tuple[Any, ...]) -> str: ...

    @abstractmethod
    def _in_decimal(self, path: Path, values: tuple[str, ...]) -> str: ...

    @abstractmethod
    def _in_json(self, path: Path, values: tuple[Any, ...]) -> str:
        """One list for each type a value may have: true is not 1, and "5" is not 5."""

    @abstractmethod
    def _in_column(self, column: str, texts: list[str]) -> str:
        """Whether a key column has one of these texts."""

    @abstractmethod
    def _ends_with(self, value: str, text: str) -> str: ...

    @abstractmethod
    def _contains(self, value: str, text: str) -> str: ...

    @abstractmethod
    def _fits(self, value: str, pattern: str, fold: bool) -> str:
        """Whether a text has this SQL pattern; `fold` lets ASCII letters match in either case."""

    @abstractmethod
    def _match_value(self, path: Path, text: str) -> tuple[str, str]:
        """The text at `path`, and in the form to look for its beginning."""

    @abstractmethod
    def _if_text(self, path: Path, test: str) -> str:
        """`test`, where the value in free JSON is text; unknown elsewhere."""

    # -- conditions ---------------------------------------------------------------------------

    def condition(self, condition: Condition, *, negated: bool = False) -> str:
        """SQL that is true where the condition is, and that NOT turns round where it is `negated`.

        Outside of any NOT, unknown and false come to the same; there a condition on an end says
        outright that the end must exist, so that the planner can start from it.
        """
        match condition:
            case And(parts):
                return _balanced(" AND ", [self.condition(p, negated=negated) for p in parts])
            case Or(parts):
                return _balanced(" OR ", [self.condition(p, negated=negated) for p in parts])
            case Not(part):
                return f"NOT ({self.condition(part, negated=True)})"
            case Compare(path, op, value):
                return self._leaf(path, lambda p: self._compare(p, op, value), negated)
            case In(path, values):
                return self._leaf(path, lambda p: self._in(p, values), negated)
            case Match(path, how, text):
                return self._leaf(path, lambda p: self._match(p, how, text), negated)
            case Like(path, pattern, fold):
                return self._leaf(path, lambda p: self._like(p, pattern, fold), negated)
            case IsNull(path, expected):
                test = "IS NULL" if expected else "IS NOT NULL"
                return self._leaf(path, lambda p: self._is_null(p, test), negated)
            case IsBool(path, expected):
                return self._leaf(path, lambda p: self._is_bool(p, expected), negated)
            case _:
                raise TypeError(f"not a condition: {condition!r}")

    def _leaf(self, path: Path, test: Callable[[Path], str], negated: bool) -> str:
        sql = test(path) if path.each is None else self._any(path, test)
        present = self.doc(path).present
        if present is None:
            return sql
        # What is said of an end that is not there is neither true nor false.
        if negated:
            return f"CASE WHEN {present} IS NOT NULL THEN {sql} END"
        return f"({present} IS NOT NULL AND {sql})"

    def _any(self, path: Path, test: Callable[[Path], str]) -> str:
        whole = path._replace(each=None)
        name = f"any{len(self._docs)}"
        inner = Path(name, "", "json", steps=path.each or ())
        self._docs[name, "own"] = self._element(whole, name)
        return self._some(whole, name, lambda: test(inner))

    def _compare(self, path: Path, op: CompareOp, value: Any) -> str:
        if path.kind == "decimal":
            return self._compare_decimal(path, op, value)
        if path.kind == "json":
            return self._compare_json(path, op, value)
        if path.column != "fields" and path.kind == "number" and op in ("==", "!="):
            # The text of a whole number in a key column: found by the column's index.
            column = self.doc(path).columns[path.column]
            return f"{column} {OPERATORS[op]} {self.bind(key_text(value))}"
        return self._compare_plain(path, op, value)

    def _in(self, path: Path, values: tuple[Any, ...]) -> str:
        if not values:
            return self.nothing
        if path.kind == "json":
            return self._in_json(path, values)
        if path.kind == "decimal":
            return self._in_decimal(path, values)
        if path.column != "fields" and path.kind == "number":
            column = self.doc(path).columns[path.column]
            return self._in_column(column, [key_text(value) for value in values])
        return self._in_plain(path, values)

    def _match(self, path: Path, op: str, text: str) -> str:
        value, start = self._match_value(path, text)
        test = f"{value} = {value}"  # true, or NULL where there is nothing
        if op == "startswith" and text:
            test = self._starts_with(start, text)
        elif op == "endswith" and text:
            test = self._ends_with(value, text)
        elif text:
            test = self._contains(value, text)
        return self._if_text(path, test) if path.kind == "json" else test

    def _like(self, path: Path, pattern: str, fold: bool) -> str:
        beginning = "" if fold else fixed_start(pattern)
        value, start = self._match_value(path, beginning)
        test = self._fits(value, pattern, fold)
        if beginning:  # said apart, because only this is found by an index
            test = f"({self._starts_with(start, beginning)} AND {test})"
        return self._if_text(path, test) if path.kind == "json" else test

    def _starts_with(self, value: str, text: str) -> str:
        test, after = f"{value} >= {self.bind(text)}", next_text(text)
        return test if after is None else f"({test} AND {value} < {self.bind(after)})"


def literal(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def json_path(*steps: Step) -> str:
    """A JSON path with every name quoted: `$."a"."b c"[0]`. An empty first step is the root."""
    parts = [
        f"[{s}]" if isinstance(s, int) else f".{codec.encode_checked(s)}" for s in steps if s != ""
    ]
    return "$" + "".join(parts)


def key_text(value: Any) -> str:
    """A number as the text of a key column; 1.0 is the key 1, and 1.5 is the key of nothing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def next_text(prefix: str) -> str | None:
    """The least text greater than all that begins with `prefix`; None if there is no such text."""
    while prefix:
        code = ord(prefix[-1]) + 1
        if code == 0xD800:
            code = 0xE000  # the surrogates in between are no characters
        if code <= _LAST_CODE_POINT:
            return prefix[:-1] + chr(code)
        prefix = prefix[:-1]
    return None


def _balanced(operator: str, parts: Sequence[str]) -> str:
    """Join with parentheses as a balanced tree: SQLite allows a depth of 1,000, not a length."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return f"({_balanced(operator, parts[:middle])}{operator}{_balanced(operator, parts[middle:])})"
