"""Questions as SELECT statements in SQLite's words."""

from __future__ import annotations

from ontologia import codec
from ontologia.query.aggregates import Aggregate, GroupCondition
from ontologia.query.question import Question
from ontologia.schema.expression import And, Path
from ontologia.schema.shape import Shape
from ontologia.store.questions.conditions import OPERATORS, Doc, literal
from ontologia.store.questions.statement import KEYS, Statement
from ontologia.store.sqlite.filters import Compiler


class Select(Statement[Compiler]):
    """A statement in the making."""

    no_limit = -1

    def _compiler(self, docs: dict[tuple[str, str], Doc]) -> Compiler:
        return Compiler(docs)

    def literal(self, text: str) -> str:
        return literal(text)

    # -- tables -------------------------------------------------------------------------------

    def _type(self, shape: Shape) -> str:
        # The + hides the type from the indexes of fields, which are of one type each. SQLite would
        # walk one of them to find all objects of the type, and look up the row for each entry.
        name = literal(shape.name)
        return f"+{name}" if _asks_past_indexes(self.question) else name

    def _table(self, name: str) -> str:
        return name

    def _doc(
        self, shape: Shape, alias: str, columns: dict[str, str], present: str | None, *, past: bool
    ) -> Doc:
        return Doc(f"{alias}.fields_json" if past else f"{alias}.fields", columns, present)

    def _fields(self, alias: str, *, past: bool) -> str:
        return f"{alias}.fields_json" if past else f"json({alias}.fields)"

    def _state_at(self, shape: Shape) -> str:
        """One row a key, its last: SQLite takes the other columns from the row that has the MAX."""
        keys = ", ".join(KEYS[shape.kind])
        return (
            f"SELECT {keys}, fields_json, schema_version_id, commit_id, MAX(id) "
            f"FROM {shape.kind}_history WHERE {shape.kind}_type = {literal(shape.name)} "
            f"AND commit_id <= {self.compiler.bind(self.question.as_of)} GROUP BY {keys}"
        )

    def _at_keys(self, shape: Shape, alias: str, keys: list[str]) -> str:
        listed = self.compiler.bind(codec.encode(keys))
        return (
            f"json_each({listed}) AS {alias}k CROSS JOIN entity_history AS {alias} "
            f"ON {alias}.id = ({self._version_at(shape, f'{alias}k.value')})"
        )

    def _past_end(self, shape: Shape, alias: str, key: str) -> str:
        return (
            f"LEFT JOIN entity_history AS {alias} ON {alias}.id = ({self._version_at(shape, key)}) "
            f"AND {alias}.fields_json <> 'null'"
        )

    def _flag(self, test: str) -> str:
        return test

    # -- order --------------------------------------------------------------------------------

    def _own_keys(self, keys: list[str]) -> list[str]:
        # The + keeps the planner from walking the table in the order of the keys where an index
        # finds the few rows that are asked for.
        return [f"+{key}" for key in keys] if _uses_index(self.question) else keys

    def _way(self, term: str, *, descending: bool) -> str:
        return f"{term} DESC" if descending else term

    def sort_values(self, path: Path) -> list[str]:
        value = self.compiler.value(path)
        if path.kind == "decimal":
            return [f"{value} COLLATE decimal"]
        if path.kind == "json":
            return [_rank(self.compiler.json_type(path)), value]
        return [value]

    # -- groups -------------------------------------------------------------------------------

    def _group_value(self, path: Path) -> str:
        if path.kind == "json":
            # As JSON, so that true comes back as true; 1 and 1.0 are one group, and 1 stands for it.
            doc, place = self.compiler.place(path).rsplit(", ", 1)
            return f"MIN(NULLIF({doc} -> {place}, 'null'))"
        if path.kind == "decimal":
            return f"MIN({self.compiler.value(path)})"
        return self.compiler.value(path)

    def _aggregate_of(self, aggregate: Aggregate, path: Path) -> str:
        compiler = self.compiler
        if aggregate.function == "avg_len":
            place = compiler.place(path)
            return f"AVG(json_array_length({place})) FILTER (WHERE json_type({place}) = 'array')"
        value = compiler.value(path)
        if aggregate.function in ("sum", "avg"):
            call = f"{aggregate.function.upper()}(CAST({value} AS REAL))"
            only = "'integer', 'real'"
        else:
            collate = " COLLATE decimal" if path.kind == "decimal" else ""
            call = f"{aggregate.function.upper()}({value}{collate})"
            only = "'integer', 'real', 'text'"
        if path.kind != "json":
            return call
        return f"{call} FILTER (WHERE {compiler.json_type(path)} IN ({only}))"

    def _aggregate_terms(self, aggregate: Aggregate) -> list[str]:
        return [self._aggregate(aggregate)]

    def _group_compare(self, condition: GroupCondition) -> str:
        aggregate = condition.aggregate
        path = aggregate.path
        exact = aggregate.function in ("min", "max") and path and path.kind == "decimal"
        collate = " COLLATE decimal" if exact else ""
        left = self._aggregate(aggregate)
        if path and path.kind == "json" and isinstance(condition.value, bool):
            # What is found is a number or text, and comes after both truth values: 1 is not true.
            return f"CASE WHEN {left} IS NOT NULL THEN {int(condition.op in ('!=', '>', '>='))} END"
        value = self.compiler.bind(condition.value)
        return f"{left} {OPERATORS[condition.op]} {value}{collate}"


def _rank(json_type: str) -> str:
    return (
        f"CASE {json_type} WHEN 'false' THEN 1 WHEN 'true' THEN 1 WHEN 'integer' THEN 2 "
        f"WHEN 'real' THEN 2 WHEN 'text' THEN 3 WHEN 'array' THEN 4 WHEN 'object' THEN 4 "
        f"ELSE 0 END"
    )


def _uses_index(question: Question) -> bool:
    """Whether a condition that must hold speaks of a field with an index."""
    where = question.where
    for part in where.parts if isinstance(where, And) else (where,):
        path = getattr(part, "path", None)
        if isinstance(path, Path) and path.owner == question.shape.name:
            own = path.side == "own"
            if _has_index(question.shape if own else question.shape.end(path.side), path):
                return True
    return False


def _asks_past_indexes(question: Question) -> bool:
    """Whether it speaks of fields, and of none that has an index, though the type has some.

    A walk may speak of its start by another name; it starts from a key as a rule, and is let be.
    """
    shape = question.shape
    if question.hops or not any(field.index for field in shape.fields.values()):
        return False
    paths = question.paths
    return bool(paths) and not any(path.side == "own" and _has_index(shape, path) for path in paths)


def _has_index(shape: Shape, path: Path) -> bool:
    return not path.steps and path.field in shape.fields and shape.fields[path.field].index
