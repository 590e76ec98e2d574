"""Conditions in SQLite's words: JSON functions, and a collation for decimals."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from ontologia import codec
from ontologia.schema.expression import CompareOp, Path
from ontologia.schema.pattern import pieces
from ontologia.store.questions.conditions import OPERATORS, Conditions, Doc, json_path, literal


class Compiler(Conditions):
    """Turns conditions and paths into SQL for one statement, and gathers what it binds."""

    nothing = "0"

    def bind(self, value: Any) -> str:
        name = f"p{len(self.bindings)}"
        self.bindings[name] = value
        return f":{name}"

    # -- values -----------------------------------------------------------------------------

    @staticmethod
    def filled(doc: Doc, name: str, fill: str) -> Doc:
        place = f"{doc.fields}, {literal(json_path(name))}"
        there = f"CASE WHEN json_type({place}) IS NULL THEN {literal(fill)} ELSE {doc.fields} END"
        return replace(doc, fields=there)

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
        return f"json_type({self.place(path)})"

    # -- conditions ---------------------------------------------------------------------------

    def _is_null(self, path: Path, test: str) -> str:
        return f"{self.value(path)} {test}"

    def _is_bool(self, path: Path, expected: bool) -> str:
        return f"{self.json_type(path)} IS {literal('true' if expected else 'false')}"

    def _element(self, path: Path, name: str) -> Doc:
        return Doc(f"{name}.value", {})

    def _some(self, path: Path, name: str, test: Callable[[], str]) -> str:
        return (
            f"({self.json_type(path)} IS 'array' AND EXISTS (SELECT 1 FROM "
            f"json_each({self.place(path)}) AS {name} "
            f"WHERE {name}.type = 'object' AND {test()}))"
        )

    def _compare_plain(self, path: Path, op: CompareOp, value: Any) -> str:
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

    def _in_plain(self, path: Path, values: tuple[Any, ...]) -> str:
        return self._listed(self.value(path), list(values))

    def _in_column(self, column: str, texts: list[str]) -> str:
        return self._listed(column, texts)

    def _in_decimal(self, path: Path, values: tuple[str, ...]) -> str:
        low, high = map(self.bind, _around(values))
        listed = self.bind(codec.encode(list(values)))
        return (
            f"({decimal_index(self.value(path))} BETWEEN {low} AND {high} AND "
            f"{self.value(path)} COLLATE decimal IN (SELECT value FROM json_each({listed})))"
        )

    def _in_json(self, path: Path, values: tuple[Any, ...]) -> str:
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

    def _listed(self, value: str, values: list[Any]) -> str:
        return f"{value} IN (SELECT value FROM json_each({self.bind(codec.encode(values))}))"

    def _match_value(self, path: Path, text: str) -> tuple[str, str]:
        value = self.value(path)
        return value, value

    def _ends_with(self, value: str, text: str) -> str:
        return f"substr({value}, -length({self.bind(text)})) = {self.bind(text)}"

    def _contains(self, value: str, text: str) -> str:
        return f"instr({value}, {self.bind(text)}) > 0"

    def _fits(self, value: str, pattern: str, fold: bool) -> str:
        # LIKE folds ASCII letters, and those alone; GLOB counts case.
        if fold:
            return f"{value} LIKE {self.bind(pattern)} ESCAPE '\\'"
        return f"{value} GLOB {self.bind(glob(pattern))}"

    def _if_text(self, path: Path, test: str) -> str:
        return f"CASE WHEN {self.json_type(path)} = 'text' THEN {test} END"


def glob(pattern: str) -> str:
    """An SQL pattern as one for GLOB, which has no escape but a set of one character."""
    wild = {"%": "*", "_": "?"}
    return "".join(
        wild[character] if is_wild else f"[{character}]" if character in "*?[" else character
        for character, is_wild in pieces(pattern)
    )


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
