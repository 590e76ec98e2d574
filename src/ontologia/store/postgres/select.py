"""Questions as SELECT statements in PostgreSQL's words."""

from __future__ import annotations

import operator
from decimal import Decimal
from typing import Any

from ontologia import codec
from ontologia.query.aggregates import Aggregate, GroupCondition
from ontologia.query.question import Question
from ontologia.schema.expression import Order, Path, path_of
from ontologia.schema.shape import Shape
from ontologia.store.postgres.filters import (
    Compiler,
    as_number,
    decimal_operand,
    indexed,
    literal,
    operand,
)
from ontologia.store.questions.conditions import OPERATORS, Doc
from ontologia.store.questions.statement import KEYS, Statement

_VERSION = "h.entity_key, h.fields_json, h.commit_id, h.schema_version_id"
_COMPARED: dict[str, Any] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Select(Statement[Compiler]):
    """A statement in the making, for tables in `schema`."""

    no_limit = None

    def __init__(self, question: Question, schema: str, *, ends: bool) -> None:
        self._schema = schema
        super().__init__(question, ends=ends)

    def _compiler(self, docs: dict[tuple[str, str], Doc]) -> Compiler:
        return Compiler(docs)

    def literal(self, text: str) -> str:
        return literal(text)

    # -- tables -------------------------------------------------------------------------------

    def _table(self, name: str) -> str:
        return f'"{self._schema}".{name}'

    def _doc(
        self, shape: Shape, alias: str, columns: dict[str, str], present: str | None, *, past: bool
    ) -> Doc:
        text = f"{alias}.fields_json"
        if past:
            return Doc(f"{text}::jsonb", columns, present, text)
        with_index = frozenset(name for name, field in shape.fields.items() if field.index)
        return Doc(f"{alias}.fields", columns, present, text, with_index)

    def _fields(self, alias: str, *, past: bool) -> str:
        return f"{alias}.fields_json"

    def _state_at(self, shape: Shape) -> str:
        keys = ", ".join(KEYS[shape.kind])
        return (
            f"SELECT DISTINCT ON ({keys}) {keys}, fields_json, schema_version_id, commit_id "
            f"FROM {self._table(f'{shape.kind}_history')} "
            f"WHERE {shape.kind}_type = {literal(shape.name)} "
            f"AND commit_id <= {self.compiler.bind(self.question.as_of)} "
            f"ORDER BY {keys}, commit_id DESC, id DESC"
        )

    def _at_keys(self, shape: Shape, alias: str, keys: list[str]) -> str:
        listed = self.compiler.bind(keys, "text[]")
        version = self._version_at(shape, f"{alias}k.value", _VERSION)
        return f"unnest({listed}) AS {alias}k(value) CROSS JOIN LATERAL ({version}) AS {alias}"

    def _past_end(self, shape: Shape, alias: str, key: str) -> str:
        version = self._version_at(shape, key, _VERSION)
        return f"LEFT JOIN LATERAL ({version}) AS {alias} ON {alias}.fields_json <> 'null'"

    def _flag(self, test: str) -> str:
        return f"({test})::int"

    # -- order --------------------------------------------------------------------------------

    def _own_keys(self, keys: list[str]) -> list[str]:
        return keys

    def _way(self, term: str, *, descending: bool) -> str:
        return f"{term} DESC NULLS LAST" if descending else f"{term} NULLS FIRST"

    def sort_values(self, path: Path) -> list[str]:
        if path.kind != "json":
            return [self.compiler.value(path)]
        kind = self.compiler.json_type(path)
        rank = (
            f"CASE {kind} WHEN 'boolean' THEN 1 WHEN 'number' THEN 2 WHEN 'string' THEN 3 "
            f"WHEN 'array' THEN 4 WHEN 'object' THEN 4 ELSE 0 END"
        )
        # Numbers as numbers, the rest as text: that of a list or an object is the canonical one.
        text = (
            f"CASE WHEN {kind} IN ('boolean', 'string') THEN {self.compiler.json_text(path)} "
            f"WHEN {kind} IN ('array', 'object') THEN {self.compiler.source(path)}::text "
            f'END COLLATE "C"'
        )
        return [rank, self.compiler.json_number(path), text]

    def _order(self, order: Order) -> list[str]:
        terms, path = super()._order(order), order.path
        doc = self.compiler.doc(path)
        if path.kind == "text" and path.field in doc.indexed and not self.question.group_by:
            # What is indexed goes before the whole text: the index brings it in this order.
            start = indexed(doc, path.field, path.kind)
            terms.insert(0, self._way(start, descending=order.descending))
        return terms

    # -- groups -------------------------------------------------------------------------------

    def _group_value(self, path: Path) -> str:
        if path.kind == "json":
            # As JSON, so that true comes back as true; 1 and 1.0 are one group, and 1 stands for it.
            # The type is asked, because a path into text takes the name "0" for a position, too.
            there = f"{self.compiler.json_type(path)} <> 'null'"
            found = f"CASE WHEN {there} THEN {self.compiler.source(path)}::text END"
            return f'MIN(({found}) COLLATE "C")'
        if path.kind == "decimal":
            return f'MIN(({self.compiler.doc(path).fields} ->> {literal(path.field)}) COLLATE "C")'
        return self.compiler.value(path)

    def _aggregate_of(self, aggregate: Aggregate, path: Path) -> str:
        compiler, function = self.compiler, aggregate.function.upper()
        if aggregate.function == "avg_len":
            found = compiler.json(path)
            listed = f"CASE WHEN jsonb_typeof({found}) = 'array' THEN {found} END"
            return f"AVG(jsonb_array_length({listed}))"
        if path.kind != "json":
            return f"{function}({compiler.value(path)})"
        if aggregate.function in ("sum", "avg"):
            return f"{function}({compiler.json_number(path)})"
        first, second = self._both(aggregate, path)
        return f"COALESCE(to_json({first})::text, to_json({second})::text)"

    def _both(self, aggregate: Aggregate, path: Path) -> tuple[str, str]:
        """The least (or greatest) number and text among mixed values; the one that counts first.

        Numbers come before text.
        """
        function = aggregate.function.upper()
        text = (
            f"CASE WHEN {self.compiler.json_type(path)} = 'string' "
            f"THEN {self.compiler.json_text(path)} END"
        )
        found = f"{function}({self.compiler.json_number(path)})", f"{function}({text})"
        return found if aggregate.function == "min" else (found[1], found[0])

    def _aggregate_terms(self, aggregate: Aggregate) -> list[str]:
        path = aggregate.path
        if path is None or path.kind != "json" or aggregate.function not in ("min", "max"):
            return [self._aggregate(aggregate)]
        first, second = self._both(aggregate, path)
        ranks = (2, 3) if aggregate.function == "min" else (3, 2)
        rank = (
            f"CASE WHEN {first} IS NOT NULL THEN {ranks[0]} "
            f"WHEN {second} IS NOT NULL THEN {ranks[1]} ELSE 0 END"
        )
        return [rank, first, f"CASE WHEN {first} IS NULL THEN {second} END"]

    def _group_compare(self, condition: GroupCondition) -> str:
        aggregate, op, value = condition.aggregate, condition.op, condition.value
        path = aggregate.path
        kind = path.kind if path is not None and aggregate.function in ("min", "max") else "number"
        if path is not None and kind == "json":
            return self._json_compare(condition, path)
        bound = decimal_operand(value) if kind == "decimal" else operand(kind, value)
        return f"{self._aggregate(aggregate)} {OPERATORS[op]} {self.compiler.bind(bound)}"

    def _json_compare(self, condition: GroupCondition, path: Path) -> str:
        """Values of different types are compared by the rank of their types."""
        op, value = condition.op, condition.value
        mine = 1 if isinstance(value, bool) else 3 if isinstance(value, str) else 2
        ranks = (2, 3) if condition.aggregate.function == "min" else (3, 2)
        tests: list[str] = []
        for rank, found in zip(ranks, self._both(condition.aggregate, path), strict=True):
            test = str(_COMPARED[op](rank, mine)).upper()
            if rank == mine:
                bound = self.compiler.bind(value if rank == 3 else operand("number", value))
                test = f"{found} {OPERATORS[op]} {bound}"
            tests.append(f"WHEN {found} IS NOT NULL THEN {test}")
        return f"CASE {' '.join(tests)} END"


def group_rows(question: Question, rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows of groups with the values that were stored, and sums and means as floats."""
    readers = [_number if path_of(e).kind == "number" else _same for e in question.group_by]
    readers += [_reader(aggregate) for _, aggregate in question.aggregates]
    return [tuple(read(value) for read, value in zip(readers, row, strict=True)) for row in rows]


def _reader(aggregate: Aggregate) -> Any:
    if aggregate.function in ("sum", "avg", "avg_len"):
        return _float
    if aggregate.path is None or aggregate.condition is not None:
        return _same
    kinds = {"number": _number, "decimal": _text, "json": _json}
    return kinds.get(aggregate.path.kind, _same)


def _same(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    return as_number(value)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _json(value: str | None) -> Any:
    if value is None or value.startswith('"'):
        return None if value is None else codec.decode_stored(value)
    return as_number(Decimal(value))
