"""Conditions in PostgreSQL's words.

A statement may cast a value of any type's rows before it looks at the type, and a cast that fails
fails the statement. So every cast here asks first, in a CASE, what the value is.

Text is compared by code point (COLLATE "C"), as everywhere. Numbers are `numeric`, and so are what
they are compared with, which is exact: a float stands for its shortest decimal, which keeps the
order of floats. Only from 2^53 to 2^63 there are whole numbers between the floats, and there a
float stands for the whole number it is. jsonb does not know whether a number was a float, so the
canonical text is asked, for such large numbers alone. A numeric made from a float has digits after
the point, or is too large for 64 bits; that is how a result becomes a float again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from ontologia.schema.expression import CompareOp, Path
from ontologia.store.questions import conditions
from ontologia.store.questions.conditions import OPERATORS, Conditions, Doc, json_path

INDEXED_TEXT = 500
"""Characters of a text that are indexed: an entry has at most 2,704 bytes."""
_EXACT = 2**53
_INT_END = 2**63
_CASTS = {str: "text", int: "bigint", Decimal: "numeric", type(None): "bigint"}
_FAR_EXPONENT = re.compile(r"E([+-])\d{5,}$")


class Compiler(Conditions):
    """Turns conditions and paths into SQL for one statement, and gathers what it binds."""

    nothing = "FALSE"

    def __init__(self, docs: dict[tuple[str, str], Doc]) -> None:
        super().__init__(docs)
        self._bound: dict[tuple[str, Any], str] = {}

    def bind(self, value: Any, cast: str | None = None) -> str:
        """A placeholder for `value`, the same for the same.

        An expression in GROUP BY is only known again by its parameters.
        """
        cast = cast or _CASTS[type(value)]
        what = (cast, tuple(value) if isinstance(value, list) else (type(value), value))
        if what not in self._bound:
            name = f"p{len(self.bindings)}"
            self.bindings[name] = value
            self._bound[what] = f"%({name})s::{cast}"
        return self._bound[what]

    # -- values -----------------------------------------------------------------------------

    @staticmethod
    def filled(doc: Doc, name: str, fill: str) -> Doc:
        there, instead = f"{doc.fields} ? {literal(name)}", literal(fill)
        return replace(
            doc,
            fields=f"(CASE WHEN {there} THEN {doc.fields} ELSE {instead}::jsonb END)",
            text=f"(CASE WHEN {there} THEN {doc.text} ELSE {instead} END)",
        )

    def value(self, path: Path) -> str:
        """Text, numeric, 0 or 1; not for free JSON, which has no one type."""
        doc = self.doc(path)
        if path.column != "fields" and path.kind == "text":
            return doc.columns[path.column]
        if path.column == "instance_key":  # not in the document; the column holds its text
            column = doc.columns[path.column]
            return f"CASE WHEN {column} ~ '^-?[0-9]+$' THEN {column}::numeric END"
        return typed(doc, path.field, path.kind)

    def json(self, path: Path) -> str:
        """The jsonb value at `path`; NULL where it is missing."""
        start = self.doc(path).fields
        if path.field:
            start = f"{start} -> {literal(path.field)}"
        if any(isinstance(step, int) for step in path.steps):
            # A position in a list only: -> also has an element 0 of what is no list.
            inside = self.bind(f"strict {json_path('', *path.steps)}", "jsonpath")
            return f"jsonb_path_query_first({start}, {inside}, '{{}}', true)"
        steps = "".join(f" -> {self.bind(step)}" for step in path.steps)
        return f"({start}{steps})"

    def source(self, path: Path) -> str:
        """The canonical text of that value, as the type json."""
        steps = [str(step) for step in (path.field, *path.steps) if step != ""]
        return f"({self.doc(path).text}::json #> {self.bind(steps, 'text[]')})"

    def json_type(self, path: Path) -> str:
        return f"jsonb_typeof({self.json(path)})"

    def json_text(self, path: Path) -> str:
        """The text at `path`, if it is one."""
        return f"({self.json(path)} #>> '{{}}') COLLATE \"C\""

    def json_number(self, path: Path) -> str:
        """The number at `path`; NULL where there is something else."""
        return number(self.json(path), f"({self.source(path)} #>> '{{}}')")

    # -- conditions ---------------------------------------------------------------------------

    def _is_null(self, path: Path, test: str) -> str:
        if path.kind == "json":
            return f"({self.json(path)} #>> '{{}}') {test}"
        return f"({self.value(path)}) {test}"

    def _is_bool(self, path: Path, expected: bool) -> str:
        return f"{self.json(path)} IS NOT DISTINCT FROM {_json_bool(expected)}"

    def _element(self, path: Path, name: str) -> Doc:
        return Doc(f"{name}.value", {}, text=f"({self.source(path)} -> ({name}.n - 1)::int)")

    def _some(self, path: Path, name: str, test: Callable[[], str]) -> str:
        listed = f"CASE WHEN {self.json_type(path)} = 'array' THEN {self.json(path)} END"
        return (
            f"EXISTS (SELECT 1 FROM jsonb_array_elements({listed}) WITH ORDINALITY "
            f"AS {name}(value, n) WHERE jsonb_typeof({name}.value) = 'object' AND {test()})"
        )

    def _compare_plain(self, path: Path, op: CompareOp, value: Any) -> str:
        bound = self.bind(operand(path.kind, value))
        return f"{self._found(path, [value])} {OPERATORS[op]} {bound}"

    def _compare_decimal(self, path: Path, op: CompareOp, value: str) -> str:
        return f"{self.value(path)} {OPERATORS[op]} {self.bind(decimal_operand(value))}"

    def _compare_json(self, path: Path, op: CompareOp, value: Any) -> str:
        kind = self.json_type(path)
        if isinstance(value, bool):
            same = f"{self.json(path)} {OPERATORS[op]} {_json_bool(value)}"
            return f"CASE WHEN {kind} <> 'null' THEN {same} END"
        if isinstance(value, str):
            wanted, found, bound = "string", self.json_text(path), self.bind(value)
        else:
            wanted, found = "number", self.json_number(path)
            bound = self.bind(operand("number", value))
        test = f"CASE WHEN {kind} = '{wanted}' THEN {found} {OPERATORS[op]} {bound}"
        if op in ("==", "!="):
            return f"{test} WHEN {kind} <> 'null' THEN {'TRUE' if op == '!=' else 'FALSE'} END"
        return f"{test} END"

    def _in_plain(self, path: Path, values: tuple[Any, ...]) -> str:
        cast = {"text": "text[]", "bool": "bigint[]"}.get(path.kind, "numeric[]")
        listed = self.bind([operand(path.kind, value) for value in values], cast)
        return f"{self._found(path, values)} = ANY({listed})"

    def _in_column(self, column: str, texts: list[str]) -> str:
        return f"{column} = ANY({self.bind(texts, 'text[]')})"

    def _in_decimal(self, path: Path, values: tuple[str, ...]) -> str:
        listed = self.bind([decimal_operand(value) for value in values], "numeric[]")
        return f"{self.value(path)} = ANY({listed})"

    def _in_json(self, path: Path, values: tuple[Any, ...]) -> str:
        kind = self.json_type(path)
        texts = self.bind([v for v in values if isinstance(v, str)], "text[]")
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        listed = self.bind([operand("number", v) for v in numbers], "numeric[]")
        # Not `True in values`: to Python that is true of 1 as well.
        truths = [str(v).lower() for v in (True, False) if any(v is each for each in values)]
        bools = self.bind(truths, "text[]")
        return (
            f"CASE WHEN {kind} = 'string' THEN {self.json_text(path)} = ANY({texts}) "
            f"WHEN {kind} = 'number' THEN {self.json_number(path)} = ANY({listed}) "
            f"WHEN {kind} = 'boolean' THEN {self.json_text(path)} = ANY({bools}) "
            f"WHEN {kind} <> 'null' THEN FALSE END"
        )

    def _match_value(self, path: Path, text: str) -> tuple[str, str]:
        value = self.json_text(path) if path.kind == "json" else self.value(path)
        return value, value if path.kind == "json" else self._found(path, [text])

    def _ends_with(self, value: str, text: str) -> str:
        return f"right({value}, {len(text)}) = {self.bind(text)}"

    def _contains(self, value: str, text: str) -> str:
        return f"strpos({value}, {self.bind(text)}) > 0"

    def _fits(self, value: str, pattern: str, fold: bool) -> str:
        # The backslash is the escape anyway. Of the collation "C", ILIKE folds ASCII letters alone.
        return f"{value} {'ILIKE' if fold else 'LIKE'} {self.bind(pattern)}"

    def _if_text(self, path: Path, test: str) -> str:
        return f"CASE WHEN {self.json_type(path)} = 'string' THEN {test} END"

    def _found(self, path: Path, values: Sequence[Any]) -> str:
        """The value as it is compared with these: as it is indexed, where that comes to the same.

        Of two texts, a shorter one than is indexed decides as it would against the whole.
        """
        if path.kind == "text" and path.column == "fields":
            doc = self.doc(path)
            if path.field in doc.indexed and all(len(value) < INDEXED_TEXT for value in values):
                return indexed(doc, path.field, path.kind)
        return self.value(path)


# -- values ---------------------------------------------------------------------------------------


def typed(doc: Doc, field: str, kind: str) -> str:
    """The value of a field whose type is known; never an error, whatever is there."""
    name = literal(field)
    text = f"({doc.fields} ->> {name})"
    match kind:
        case "text":
            return f'{text} COLLATE "C"'
        case "bool":
            return f"CASE {text} WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"
        case "decimal":
            return _decimal(text)
        case _:
            return number(f"({doc.fields} -> {name})", f"({doc.text}::json ->> {name})")


def indexed(doc: Doc, field: str, kind: str) -> str:
    """What the index of a field holds: the value, but of long text only the beginning."""
    if kind == "text":
        return f'left({doc.fields} ->> {literal(field)}, {INDEXED_TEXT}) COLLATE "C"'
    return typed(doc, field, kind)


def number(value: str, text: str) -> str:
    """A jsonb number as an exact numeric; `text` is its text as it was written."""
    found, written = f"{value}::numeric", f"{text}::float8"
    return (
        f"CASE WHEN jsonb_typeof({value}) = 'number' THEN CASE "
        f"WHEN {found} BETWEEN {1 - _EXACT} AND {_EXACT - 1} OR {text} !~ '[.eE]' THEN {found} "
        f"WHEN {written} >= {-_INT_END} AND {written} < {_INT_END} "
        f"THEN round({written}::bigint, 1) ELSE {found} END END"
    )


def _decimal(text: str) -> str:
    """A decimal's text as a number; one past what `numeric` holds is infinite, or nothing."""
    return (
        f"CASE WHEN {text} ~ '^-?[0-9]+([.][0-9]+)?(E[+-]?[0-9]{{1,4}})?$' THEN {text}::numeric "
        f"WHEN {text} ~ '^-?[0-9.]*[1-9][0-9.]*E[+]?[0-9]+$' "
        f"THEN (CASE WHEN {text} ~ '^-' THEN '-Infinity' ELSE 'Infinity' END)::numeric "
        f"WHEN {text} ~ '^-?[0-9.]+E[+-]?[0-9]+$' THEN 0 END"
    )


def decimal_operand(text: str) -> Decimal:
    """What a decimal is compared with."""
    value = Decimal(text)
    far = _FAR_EXPONENT.search(text)
    if far is None or not value:
        return value if value else Decimal(0)
    return Decimal("Infinity").copy_sign(value) if far[1] == "+" else Decimal(0)


def operand(kind: str, value: Any) -> Any:
    """What a value of this kind is compared with, as it is bound."""
    if kind == "number":
        whole = isinstance(value, int) or (abs(value) >= _EXACT and -_INT_END <= value < _INT_END)
        return Decimal(int(value)) if whole else Decimal(repr(value))
    return int(value) if kind == "bool" else value


def as_number(value: Decimal | None) -> int | float | None:
    """A number from the database, as the one that was stored."""
    if value is None:
        return None
    whole = value.as_tuple().exponent == 0 and -_INT_END <= value < _INT_END
    return int(value) if whole else float(value)


def literal(text: str) -> str:
    """Text as an SQL literal; the driver wants a % twice."""
    return conditions.literal(text).replace("%", "%%")


def _json_bool(value: bool) -> str:
    return f"'{'true' if value else 'false'}'::jsonb"
