"""Questions as SELECT statements: where the rows come from, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ontologia import codec
from ontologia.query.aggregates import Aggregate, GroupCondition, GroupOrder
from ontologia.query.question import Question
from ontologia.schema.expression import And, Compare, Condition, In, Not, Or, Order, Path
from ontologia.schema.shape import Shape
from ontologia.store.sqlite.filters import OPERATORS, Compiler, Doc, key_text, literal

END = {"left": "le", "right": "re"}
"""The aliases of the entities at a relation's ends."""
_KEYS = {"entity": ("entity_key",), "relation": ("left_key", "right_key", "instance_key")}


@dataclass
class Select:
    """A statement in the making."""

    question: Question
    compiler: Compiler
    tables: list[str] = field(default_factory=list[str])
    where: list[str] = field(default_factory=list[str])

    @property
    def bindings(self) -> dict[str, Any]:
        return self.compiler.bindings

    def sql(self, columns: list[str], *, order: list[str], tail: str = "") -> str:
        """The finished text."""
        where = " AND ".join(self.where)
        text = f"SELECT {', '.join(columns)} FROM {' '.join(self.tables)} WHERE {where}{tail}"
        if order:
            text += f" ORDER BY {', '.join(order)}"
        limit, offset = self.question.limit, self.question.offset
        if limit is not None or offset:
            # OFFSET needs a LIMIT before it; -1 is none.
            bound = self.compiler.bind(-1 if limit is None else limit)
            text += f" LIMIT {bound} OFFSET {self.compiler.bind(offset)}"
        return text


def select(question: Question, *, ends: bool) -> Select:
    """FROM and WHERE of a question. `ends` joins the entities at a relation's ends in any case."""
    docs: dict[tuple[str, str], Doc] = {}
    made = Select(question, Compiler(docs))
    docs[question.shape.name, "own"] = _source(made, question.shape, "e", _point_keys(question))
    if question.shape.kind == "relation":
        asked = {path.side for path in question.paths}
        for side, alias in END.items():
            end = question.shape.ends[side]
            if end is not None and (ends or side in asked):
                docs[question.shape.name, side] = _join_end(made, end, alias, f"e.{side}_key")
    _join_hops(made, docs)
    if question.where is not None:
        made.where.append(made.compiler.condition(question.where))
    return made


def _source(made: Select, shape: Shape, alias: str, keys: list[str] | None) -> Doc:
    """The table, or the rows of the past, where objects of this type are found."""
    question, kind = made.question, shape.kind
    columns = {name: f"{alias}.{name}" for name in _KEYS[kind]}
    columns["key"] = columns.get("entity_key", "")
    if not question.historical:
        made.tables.append(f"{kind}_latest AS {alias}")
        made.where.append(f"{alias}.{kind}_type = {literal(shape.name)}")
        return Doc(f"{alias}.fields", columns)
    if question.history:
        made.tables.append(f"({_versions(made, shape)}) AS {alias}")
    elif keys is not None:
        listed = made.compiler.bind(codec.encode(keys))
        made.tables.append(
            f"json_each({listed}) AS {alias}k CROSS JOIN entity_history AS {alias} "
            f"ON {alias}.id = ({_version_at(made, shape, f'{alias}k.value')})"
        )
    else:
        made.tables.append(f"({_state_at(made, shape)}) AS {alias}")
    made.where.append(f"{alias}.fields_json <> 'null'")
    return Doc(f"{alias}.fields_json", columns)


def _state_at(made: Select, shape: Shape) -> str:
    """One row a key, its last: SQLite takes the other columns from the row that has the MAX."""
    keys = ", ".join(_KEYS[shape.kind])
    return (
        f"SELECT {keys}, fields_json, schema_version_id, commit_id, MAX(id) "
        f"FROM {shape.kind}_history WHERE {shape.kind}_type = {literal(shape.name)} "
        f"AND commit_id <= {made.compiler.bind(made.question.as_of)} GROUP BY {keys}"
    )


def _version_at(made: Select, shape: Shape, key: str) -> str:
    """The id of an entity's version at a commit: one seek in the lookup index."""
    return (
        f"SELECT h.id FROM entity_history AS h WHERE h.entity_type = {literal(shape.name)} "
        f"AND h.entity_key = {key} AND h.commit_id <= {made.compiler.bind(made.question.as_of)} "
        f"ORDER BY h.commit_id DESC, h.id DESC LIMIT 1"
    )


def _versions(made: Select, shape: Shape) -> str:
    """Every version; one that says "deleted" with the fields it had before."""
    kind, question = shape.kind, made.question
    same = " AND ".join(f"p.{key} = h.{key}" for key in _KEYS[kind])
    bounds = ""
    if question.since is not None:
        bounds += f" AND h.commit_id > {made.compiler.bind(question.since)}"
    if question.as_of is not None:
        bounds += f" AND h.commit_id <= {made.compiler.bind(question.as_of)}"
    before = (
        f"SELECT p.fields_json FROM {kind}_history AS p WHERE p.{kind}_type = h.{kind}_type "
        f"AND {same} AND p.commit_id < h.commit_id ORDER BY p.commit_id DESC LIMIT 1"
    )
    keys = ", ".join(f"h.{key}" for key in _KEYS[kind])
    return (
        f"SELECT {keys}, h.commit_id, h.schema_version_id, h.fields_json = 'null' AS deleted, "
        f"CASE WHEN h.fields_json = 'null' THEN ({before}) ELSE h.fields_json END AS fields_json "
        f"FROM {kind}_history AS h WHERE h.{kind}_type = {literal(shape.name)}{bounds}"
    )


def _join_end(made: Select, shape: Shape, alias: str, key: str) -> Doc:
    """The entity with this key in the same state, or NULLs if it is not there."""
    columns = {"key": f"{alias}.entity_key"}
    if made.question.as_of is None:
        made.tables.append(
            f"LEFT JOIN entity_latest AS {alias} ON {alias}.entity_type = {literal(shape.name)} "
            f"AND {alias}.entity_key = {key}"
        )
        return Doc(f"{alias}.fields", columns, present=columns["key"])
    made.tables.append(
        f"LEFT JOIN entity_history AS {alias} ON {alias}.id = ({_version_at(made, shape, key)}) "
        f"AND {alias}.fields_json <> 'null'"
    )
    return Doc(f"{alias}.fields_json", columns, present=columns["key"])


def _join_hops(made: Select, docs: dict[tuple[str, str], Doc]) -> None:
    question = made.question
    here, key = docs[question.shape.name, "own"], "e.entity_key"
    for number, hop in enumerate(question.hops):
        relation, end = f"r{number}", f"x{number}"
        made.tables.append("JOIN")
        docs[hop.relation.name, "own"] = _source(made, hop.relation, relation, None)
        made.tables.append(f"ON {relation}.{hop.near}_key = {key}")
        key = f"{relation}.{hop.far}_key"
        far = _join_end(made, hop.relation.end(hop.far), end, key)
        docs[hop.relation.name, hop.near] = here
        docs[hop.relation.name, hop.far] = far
        here = far


# -- columns ------------------------------------------------------------------------------------


def version_columns(question: Question, shape: Shape, alias: str) -> list[str]:
    """The columns of a `Version`: keys, fields, commit, schema version, deleted."""
    keys = [f"{alias}.{key}" for key in _KEYS[shape.kind]]
    deleted = f"{alias}.deleted" if question.history else "0"
    fields = f"json({alias}.fields)" if not question.historical else f"{alias}.fields_json"
    return [*keys, fields, f"{alias}.commit_id", f"{alias}.schema_version_id", deleted]


def end_columns(question: Question, alias: str) -> list[str]:
    """The columns of an `EndRow`."""
    fields = f"json({alias}.fields)" if question.as_of is None else f"{alias}.fields_json"
    return [fields, f"{alias}.commit_id", f"{alias}.schema_version_id"]


# -- order --------------------------------------------------------------------------------------


def order_terms(made: Select) -> list[str]:
    """ORDER BY: what was asked for, then the keys, so that the order is never left to chance."""
    question = made.question
    terms: list[str] = []
    for order in question.order:
        if isinstance(order, Order):
            terms += _order(made.compiler, order)
    if question.history:
        terms.append("e.commit_id")
    # The + keeps the planner from walking the table in the order of the keys where an index
    # finds the few rows that are asked for.
    plus = "+" if _uses_index(question) else ""
    terms += [f"{plus}e.{key}" for key in _KEYS[question.shape.kind]]
    for number in range(len(question.hops)):
        terms += [f"r{number}.{key}" for key in _KEYS["relation"]]
    return terms


def _order(compiler: Compiler, order: Order) -> list[str]:
    way = " DESC" if order.descending else ""
    return [f"{term}{way}" for term in sort_values(compiler, order.path)]


def sort_values(compiler: Compiler, path: Path) -> list[str]:
    """What to sort or group by: mixed JSON goes by the rank of its type first."""
    value = compiler.value(path)
    if path.kind == "decimal":
        return [f"{value} COLLATE decimal"]
    if path.kind == "json":
        return [_rank(compiler.json_type(path)), value]
    return [value]


def _rank(json_type: str) -> str:
    return (
        f"CASE {json_type} WHEN 'false' THEN 1 WHEN 'true' THEN 1 WHEN 'integer' THEN 2 "
        f"WHEN 'real' THEN 2 WHEN 'text' THEN 3 WHEN 'array' THEN 4 WHEN 'object' THEN 4 "
        f"ELSE 0 END"
    )


# -- groups -------------------------------------------------------------------------------------


def group_statement(question: Question) -> tuple[str, dict[str, Any]]:
    """The statement for `groups`: values grouped by, then aggregates."""
    made = select(question, ends=False)
    compiler = made.compiler
    columns: list[str] = []
    by: list[str] = []
    for expr in question.group_by:
        path = expr._path
        by += sort_values(compiler, path)
        columns.append(_group_value(compiler, path))
    columns += [_aggregate(compiler, aggregate) for _, aggregate in question.aggregates]
    tail = f" GROUP BY {', '.join(by)}" if by else ""
    if question.having is not None:
        tail += f" HAVING {_having(compiler, question.having)}"
    order: list[str] = []
    for term in question.order:
        if isinstance(term, GroupOrder):
            order.append(_aggregate(compiler, term.aggregate) + (" DESC" * term.descending))
        elif question.group_by:  # without groups there is one row, and nothing to order
            order += _order(compiler, term)
    return made.sql(columns, order=[*order, *by], tail=tail), made.bindings


def _group_value(compiler: Compiler, path: Path) -> str:
    if path.kind == "json":
        # As JSON, so that true comes back as true; 1 and 1.0 are one group, and 1 stands for it.
        doc, place = compiler.place(path).rsplit(", ", 1)
        return f"MIN(NULLIF({doc} -> {place}, 'null'))"
    if path.kind == "decimal":
        return f"MIN({compiler.value(path)})"
    return compiler.value(path)


def _aggregate(compiler: Compiler, aggregate: Aggregate) -> str:
    if aggregate.function == "count":
        return "COUNT(*)"
    if aggregate.condition is not None:
        return f"COUNT(*) FILTER (WHERE {compiler.condition(aggregate.condition)})"
    path = aggregate.path
    assert path is not None  # noqa: S101 - every other function has one
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


def _having(compiler: Compiler, condition: Condition) -> str:
    match condition:
        case And(parts):
            return "(" + " AND ".join(_having(compiler, part) for part in parts) + ")"
        case Or(parts):
            return "(" + " OR ".join(_having(compiler, part) for part in parts) + ")"
        case Not(part):
            return f"NOT ({_having(compiler, part)})"
        case GroupCondition(aggregate, op, value):
            path = aggregate.path
            exact = aggregate.function in ("min", "max") and path and path.kind == "decimal"
            collate = " COLLATE decimal" if exact else ""
            left = _aggregate(compiler, aggregate)
            return f"{left} {OPERATORS[op]} {compiler.bind(value)}{collate}"
        case _:
            raise TypeError(f"not a condition on groups: {condition!r}")


# -- what a question says about keys --------------------------------------------------------------


def _uses_index(question: Question) -> bool:
    """Whether a condition that must hold speaks of a field with an index."""
    where = question.where
    for part in where.parts if isinstance(where, And) else (where,):
        path = getattr(part, "path", None)
        if isinstance(path, Path) and path.owner == question.shape.name and not path.steps:
            own = path.side == "own"
            shape = question.shape if own else question.shape.end(path.side)
            if path.field in shape.fields and shape.fields[path.field].index:
                return True
    return False


def _point_keys(question: Question) -> list[str] | None:
    """The keys a question for entities is limited to, if its conditions say so outright."""
    where = question.where
    parts = where.parts if isinstance(where, And) else (where,)
    for part in parts:
        match part:
            case Compare(Path(side="own", column="key", owner=question.shape.name), "==", value):
                return [key_text(value)]
            case In(Path(side="own", column="key", owner=question.shape.name), values):
                return sorted({key_text(value) for value in values})
            case _:
                pass
    return None
