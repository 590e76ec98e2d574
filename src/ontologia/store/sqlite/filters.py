"""Conditions as SQL.

Every value is bound, and so is every path into JSON. Only a field's own name stands in the text,
as a literal, because an index is found by its text; it is a Python identifier and quoted all the
same. Comparisons of typed fields are plain, so that they can use an index. A value inside free
JSON may be of any type, so there the type is part of the comparison: true is not 1, "5" is not 5.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
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
    Match,
    Not,
    Or,
    Path,
    Step,
)

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


class Compiler:
    """Turns conditions and paths into SQL for one statement, and gathers what it binds."""

    def __init__(self, docs: dict[tuple[str, str], Doc]) -> None:
        self._docs = docs
        self.bindings: dict[str, Any] = {}

    def bind(self, value: Any) -> str:
        """A placeholder for `value`."""
        name = f"p{len(self.bindings)}"
        self.bindings[name] = value
        return f":{name}"

    def doc(self, path: Path) -> Doc:
        """The document that `path` starts from."""
        return self._docs[path.owner, path.side]

    # -- values -----------------------------------------------------------------------------

    def value(self, path: Path) -> str:
        """The SQL value at `path`: text, number, 0 or 1; NULL where it is missing or null."""
        doc = self.doc(path)
        if path.column != "fields" and path.kind == "text":
            return doc.columns[path.column]
        if path.column == "instance_key":  # not in the document; the column holds its text
            return f"CAST({doc.columns[path.column]} AS INTEGER)"
        return f"json_extract({self.place(path)})"

    def place(self, path: Path) -> str:
        """Document and JSON path, the arguments of SQLite's JSON functions."""
        doc = self.doc(path)
        if path.steps:
            return f"{doc.fields}, {self.bind(json_path(path.field, *path.steps))}"
        return f"{doc.fields}, {literal(json_path(path.field))}"

    def json_type(self, path: Path) -> str:
        """The type of the JSON value at `path`; NULL where it is missing."""
        return f"json_type({self.place(path)})"

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
            case IsNull(path, expected):
                test = "IS NULL" if expected else "IS NOT NULL"
                return self._leaf(path, lambda p: f"{self.value(p)} {test}", negated)
            case IsBool(path, expected):
                name = "'true'" if expected else "'false'"
                return self._leaf(path, lambda p: f"{self.json_type(p)} IS {name}", negated)
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
        """True when an object in the list at `path` passes; never unknown."""
        whole = path._replace(each=None)
        name = f"any{len(self._docs)}"
        inner = Path(name, "", "json", steps=path.each or ())
        self._docs[name, "own"] = Doc(f"{name}.value", {})
        return (
            f"({self.json_type(whole)} IS 'array' AND EXISTS (SELECT 1 FROM "
            f"json_each({self.place(whole)}) AS {name} "
            f"WHERE {name}.type = 'object' AND {test(inner)}))"
        )

    def _compare(self, path: Path, op: CompareOp, value: Any) -> str:
        if path.kind == "decimal":
            return self._compare_decimal(path, op, value)
        if path.kind == "json":
            return self._compare_json(path, op, value)
        if path.column != "fields" and path.kind == "number" and op in ("==", "!="):
            # The text of a whole number in a key column: found by the column's index.
            column = self.doc(path).columns[path.column]
            return f"{column} {OPERATORS[op]} {self.bind(key_text(value))}"
        return f"{self.value(path)} {OPERATORS[op]} {self.bind(value)}"

    def _compare_decimal(self, path: Path, op: CompareOp, value: str) -> str:
        exact = f"{self.value(path)} {OPERATORS[op]} {self.bind(value)} COLLATE decimal"
        low, high = map(self.bind, _around([value]))
        rounded = decimal_index(self.value(path))
        match op:
            case "!=":
                return exact
            case "==":
                return f"({rounded} BETWEEN {low} AND {high} AND {exact})"
            case "<" | "<=":
                return f"({rounded} <= {high} AND {exact})"
            case _:
                return f"({rounded} >= {low} AND {exact})"

    def _compare_json(self, path: Path, op: CompareOp, value: Any) -> str:
        kind = self.json_type(path)
        if isinstance(value, bool):
            same = f"{kind} {OPERATORS[op]} {literal('true' if value else 'false')}"
            return f"CASE WHEN {kind} <> 'null' THEN {same} END"
        types = "'text'" if isinstance(value, str) else "'integer', 'real'"
        test = f"{self.value(path)} {OPERATORS[op]} {self.bind(value)}"
        if op in ("==", "!="):
            other = 0 if op == "==" else 1
            return (
                f"CASE WHEN {kind} IN ({types}) THEN {test} WHEN {kind} <> 'null' THEN {other} END"
            )
        return f"CASE WHEN {kind} IN ({types}) THEN {test} END"

    def _in(self, path: Path, values: tuple[Any, ...]) -> str:
        if not values:
            return "0"
        if path.kind == "json":
            return self._in_json(path, values)
        if path.kind == "decimal":
            low, high = map(self.bind, _around(values))
            listed = self.bind(codec.encode(list(values)))
            return (
                f"({decimal_index(self.value(path))} BETWEEN {low} AND {high} AND "
                f"{self.value(path)} COLLATE decimal IN (SELECT value FROM json_each({listed})))"
            )
        column = self.value(path)
        if path.column != "fields" and path.kind == "number":
            column = self.doc(path).columns[path.column]
            values = tuple(map(key_text, values))
        return f"{column} IN (SELECT value FROM json_each({self.bind(codec.encode(list(values)))}))"

    def _in_json(self, path: Path, values: tuple[Any, ...]) -> str:
        """One list for each type a value may have: true is not 1, and "5" is not 5."""
        kind, value = self.json_type(path), self.value(path)
        texts = self.bind(codec.encode([v for v in values if isinstance(v, str)]))
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        listed = self.bind(codec.encode(numbers))
        # Not `True in values`: to Python that is true of 1 as well.
        true, false = (int(any(v is wanted for v in values)) for wanted in (True, False))
        return (
            f"CASE WHEN {kind} = 'text' THEN {value} IN (SELECT value FROM json_each({texts})) "
            f"WHEN {kind} IN ('integer', 'real') "
            f"THEN {value} IN (SELECT value FROM json_each({listed})) "
            f"WHEN {kind} = 'true' THEN {true} WHEN {kind} = 'false' THEN {false} "
            f"WHEN {kind} <> 'null' THEN 0 END"
        )

    def _match(self, path: Path, op: str, text: str) -> str:
        value = self.value(path)
        test = f"{value} = {value}"  # true, or NULL where there is nothing
        if op == "startswith" and text:
            test = f"{value} >= {self.bind(text)}"
            after = next_text(text)
            if after is not None:
                test = f"({test} AND {value} < {self.bind(after)})"
        elif op == "endswith" and text:
            test = f"substr({value}, -length({self.bind(text)})) = {self.bind(text)}"
        elif text:
            test = f"instr({value}, {self.bind(text)}) > 0"
        if path.kind == "json":
            return f"CASE WHEN {self.json_type(path)} = 'text' THEN {test} END"
        return test


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


def decimal_index(value: str) -> str:
    """The number a decimal field is indexed by: rounded, so the exact comparison comes after."""
    return f"CAST({value} AS REAL)"


def _around(decimals: Sequence[str]) -> tuple[float, float]:
    """Bounds that the rounded form of each of these lies within, whoever rounds.

    SQLite's own conversion may be some last digits away from the nearest double, so what it finds
    is only roughly right; the exact comparison decides.
    """
    rounded = [float(Decimal(text)) for text in decimals]
    low, high = min(rounded), max(rounded)
    return (
        max(low - abs(low) * 1e-12 - 1e-300, -math.inf) if low < math.inf else sys.float_info.max,
        min(high + abs(high) * 1e-12 + 1e-300, math.inf)
        if high > -math.inf
        else -sys.float_info.max,
    )


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
