"""Questions as SELECT statements: where the rows come from, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ontologia.query.aggregates import Aggregate, GroupCondition, GroupOrder
from ontologia.query.question import Question
from ontologia.schema.expression import And, Compare, Condition, In, Not, Or, Order, Path, path_of
from ontologia.schema.shape import Shape
from ontologia.store.questions.conditions import Conditions, Doc, key_text

C = TypeVar("C", bound=Conditions)

END = {"left": "le", "right": "re"}
"""The aliases of the entities at a relation's ends."""
KEYS = {"entity": ("entity_key",), "relation": ("left_key", "right_key", "instance_key")}


class Statement(ABC, Generic[C]):
    """A statement in the making: FROM and WHERE of a question."""

    no_limit: int | None
    """What stands for no LIMIT; OFFSET needs one before it."""

    def __init__(self, question: Question, *, ends: bool) -> None:
        """`ends` joins the entities at a relation's ends in any case."""
        self.question = question
        self.tables: list[str] = []
        self.where: list[str] = []
        self._docs: dict[tuple[str, str], Doc] = {}
        self.compiler = self._compiler(self._docs)
        shape = question.shape
        self._docs[shape.name, "own"] = self._source(shape, "e", _point_keys(question))
        if shape.kind == "relation":
            asked = {path.side for path in question.paths}
            for side, alias in END.items():
                end = shape.ends[side]
                if end is not None and (ends or side in asked):
                    self._docs[shape.name, side] = self._join_end(end, alias, f"e.{side}_key")
        self._join_hops()
        if question.where is not None:
            self.where.append(self.compiler.condition(question.where))

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
            bound = self.compiler.bind(self.no_limit if limit is None else limit)
            text += f" LIMIT {bound} OFFSET {self.compiler.bind(offset)}"
        return text

    # -- what a dialect says in its own way ---------------------------------------------------

    @abstractmethod
    def _compiler(self, docs: dict[tuple[str, str], Doc]) -> C: ...

    @abstractmethod
    def literal(self, text: str) -> str:
        """Text as an SQL literal."""

    def _type(self, shape: Shape) -> str:
        """The name of a type to look for in a table of what is current."""
        return self.literal(shape.name)

    @abstractmethod
    def _table(self, name: str) -> str: ...

    @abstractmethod
    def _doc(
        self, shape: Shape, alias: str, columns: dict[str, str], present: str | None, *, past: bool
    ) -> Doc:
        """The document of an object in a table of what is current, or of the past."""

    @abstractmethod
    def _fields(self, alias: str, *, past: bool) -> str:
        """The column with the canonical text of that document."""

    @abstractmethod
    def _state_at(self, shape: Shape) -> str:
        """One row a key, its last before the commit that the question is about."""

    @abstractmethod
    def _at_keys(self, shape: Shape, alias: str, keys: list[str]) -> str:
        """The same for entities with these keys, each by a seek: an item of FROM."""

    @abstractmethod
    def _past_end(self, shape: Shape, alias: str, key: str) -> str:
        """LEFT JOIN of the entity with this key as it was then."""

    @abstractmethod
    def _flag(self, test: str) -> str:
        """A condition as 0 or 1."""

    @abstractmethod
    def _own_keys(self, keys: list[str]) -> list[str]:
        """The key columns as the last that is ordered by."""

    @abstractmethod
    def _way(self, term: str, *, descending: bool) -> str:
        """A term of ORDER BY; what is missing comes first when ascending."""

    @abstractmethod
    def sort_values(self, path: Path) -> list[str]:
        """What to sort or group by: mixed JSON goes by the rank of its type first."""

    @abstractmethod
    def _group_value(self, path: Path) -> str:
        """The value a group is shown with."""

    @abstractmethod
    def _aggregate_of(self, aggregate: Aggregate, path: Path) -> str:
        """An aggregate of values; counts are none."""

    @abstractmethod
    def _aggregate_terms(self, aggregate: Aggregate) -> list[str]:
        """What to sort by an aggregate."""

    @abstractmethod
    def _group_compare(self, condition: GroupCondition) -> str: ...

    # -- tables -------------------------------------------------------------------------------

    def _source(self, shape: Shape, alias: str, keys: list[str] | None) -> Doc:
        """The table, or the rows of the past, where objects of this type are found."""
        question, kind = self.question, shape.kind
        columns = {name: f"{alias}.{name}" for name in KEYS[kind]}
        columns["key"] = columns.get("entity_key", "")
        if not question.historical:
            self.tables.append(f"{self._current(shape)} AS {alias}")
            self.where.append(f"{alias}.{kind}_type = {self._type(shape)}")
            return self._found(shape, alias, columns, None, past=False)
        if question.history:
            self.tables.append(f"({self._versions(shape)}) AS {alias}")
        elif keys is not None:
            self.tables.append(self._at_keys(shape, alias, keys))
        else:
            self.tables.append(f"({self._state_at(shape)}) AS {alias}")
        self.where.append(f"{alias}.fields_json <> 'null'")
        return self._found(shape, alias, columns, None, past=True)

    def _current(self, shape: Shape) -> str:
        """Where current objects of this type are.

        The view has them also while a migration moves them to their places, and no index of a field.
        """
        settling = (shape.kind, shape.name) in self.question.settling
        return self._table(f"{shape.kind}_current" if settling else f"{shape.kind}_latest")

    def _versions(self, shape: Shape) -> str:
        """Every version; one that says "deleted" with the fields it had before."""
        kind, question = shape.kind, self.question
        table = self._table(f"{kind}_history")
        same = " AND ".join(f"p.{key} = h.{key}" for key in KEYS[kind])
        bounds = ""
        if question.since is not None:
            bounds += f" AND h.commit_id > {self.compiler.bind(question.since)}"
        if question.as_of is not None:
            bounds += f" AND h.commit_id <= {self.compiler.bind(question.as_of)}"
        before = (
            f"SELECT p.fields_json FROM {table} AS p WHERE p.{kind}_type = h.{kind}_type "
            f"AND {same} AND p.commit_id < h.commit_id ORDER BY p.commit_id DESC LIMIT 1"
        )
        keys = ", ".join(f"h.{key}" for key in KEYS[kind])
        deleted = self._flag("h.fields_json = 'null'")
        return (
            f"SELECT {keys}, h.commit_id, h.schema_version_id, {deleted} AS deleted, "
            f"CASE WHEN h.fields_json = 'null' THEN ({before}) ELSE h.fields_json END "
            f"AS fields_json FROM {table} AS h "
            f"WHERE h.{kind}_type = {self.literal(shape.name)}{bounds}"
        )

    def _version_at(self, shape: Shape, key: str, columns: str = "h.id") -> str:
        """An entity's version at a commit: one seek in the lookup index."""
        return (
            f"SELECT {columns} FROM {self._table('entity_history')} AS h "
            f"WHERE h.entity_type = {self.literal(shape.name)} AND h.entity_key = {key} "
            f"AND h.commit_id <= {self.compiler.bind(self.question.as_of)} "
            f"ORDER BY h.commit_id DESC, h.id DESC LIMIT 1"
        )

    def _join_end(self, shape: Shape, alias: str, key: str) -> Doc:
        """The entity with this key in the same state, or NULLs if it is not there."""
        columns = {"key": f"{alias}.entity_key"}
        past = self.question.as_of is not None
        if past:
            self.tables.append(self._past_end(shape, alias, key))
        else:
            self.tables.append(
                f"LEFT JOIN {self._current(shape)} AS {alias} "
                f"ON {alias}.entity_type = {self.literal(shape.name)} "
                f"AND {alias}.entity_key = {key}"
            )
        return self._found(shape, alias, columns, columns["key"], past=past)

    def _found(
        self, shape: Shape, alias: str, columns: dict[str, str], present: str | None, *, past: bool
    ) -> Doc:
        doc = self._doc(shape, alias, columns, present, past=past)
        fills = self.question.fills.get((shape.kind, shape.name))
        return replace(doc, fills=fills) if fills else doc

    def _join_hops(self) -> None:
        here, key = self._docs[self.question.shape.name, "own"], "e.entity_key"
        for number, hop in enumerate(self.question.hops):
            relation, end = f"r{number}", f"x{number}"
            self.tables.append("JOIN")
            self._docs[hop.relation.name, "own"] = self._source(hop.relation, relation, None)
            self.tables.append(f"ON {relation}.{hop.near}_key = {key}")
            key = f"{relation}.{hop.far}_key"
            far = self._join_end(hop.relation.end(hop.far), end, key)
            self._docs[hop.relation.name, hop.near] = here
            self._docs[hop.relation.name, hop.far] = far
            here = far

    # -- columns ------------------------------------------------------------------------------

    def version_columns(self, shape: Shape, alias: str) -> list[str]:
        """The columns of a `Version`: keys, fields, commit, schema version, deleted."""
        keys = [f"{alias}.{key}" for key in KEYS[shape.kind]]
        deleted = f"{alias}.deleted" if self.question.history else "0"
        fields = self._fields(alias, past=self.question.historical)
        return [*keys, fields, f"{alias}.commit_id", f"{alias}.schema_version_id", deleted]

    def end_columns(self, alias: str) -> list[str]:
        """The columns of an `EndRow`."""
        fields = self._fields(alias, past=self.question.as_of is not None)
        return [fields, f"{alias}.commit_id", f"{alias}.schema_version_id"]

    # -- order --------------------------------------------------------------------------------

    def order_terms(self) -> list[str]:
        """ORDER BY: what was asked for, then the keys, so that the order is never left to chance."""
        question = self.question
        terms: list[str] = []
        for order in question.order:
            if isinstance(order, Order):
                terms += self._order(order)
        if question.history:
            terms.append("e.commit_id")
        terms += self._own_keys([f"e.{key}" for key in KEYS[question.shape.kind]])
        for number in range(len(question.hops)):
            terms += [f"r{number}.{key}" for key in KEYS["relation"]]
        return terms

    def _order(self, order: Order) -> list[str]:
        terms = self.sort_values(order.path)
        return [self._way(term, descending=order.descending) for term in terms]

    # -- groups -------------------------------------------------------------------------------

    def groups(self) -> str:
        """The text for `groups`: values grouped by, then aggregates."""
        question = self.question
        columns: list[str] = []
        by: list[str] = []
        for expr in question.group_by:
            by += self.sort_values(path_of(expr))
            columns.append(self._group_value(path_of(expr)))
        columns += [self._aggregate(aggregate) for _, aggregate in question.aggregates]
        tail = f" GROUP BY {', '.join(by)}" if by else ""
        if question.having is not None:
            tail += f" HAVING {self._having(question.having)}"
        order: list[str] = []
        for term in question.order:
            if isinstance(term, GroupOrder):
                terms = self._aggregate_terms(term.aggregate)
                order += [self._way(each, descending=term.descending) for each in terms]
            elif question.group_by:  # without groups there is one row, and nothing to order
                order += self._order(term)
        order += [self._way(each, descending=False) for each in by]
        return self.sql(columns, order=order, tail=tail)

    def _aggregate(self, aggregate: Aggregate) -> str:
        if aggregate.function == "count":
            return "COUNT(*)"
        if aggregate.condition is not None:
            return f"COUNT(*) FILTER (WHERE {self.compiler.condition(aggregate.condition)})"
        assert aggregate.path is not None  # noqa: S101 - every other function has one
        return self._aggregate_of(aggregate, aggregate.path)

    def _having(self, condition: Condition) -> str:
        match condition:
            case And(parts):
                return "(" + " AND ".join(self._having(part) for part in parts) + ")"
            case Or(parts):
                return "(" + " OR ".join(self._having(part) for part in parts) + ")"
            case Not(part):
                return f"NOT ({self._having(part)})"
            case GroupCondition():
                return self._group_compare(condition)
            case _:
                raise TypeError(f"not a condition on groups: {condition!r}")


# -- what a question says about keys --------------------------------------------------------------


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


def single_key(question: Question) -> str | None:
    """The key, when a question asks for one entity by its key and for nothing else."""
    where = question.where
    if not isinstance(where, Compare) or where.path.column != "key" or where.op != "==":
        return None
    plain = not question.history and question.limit != 0 and not question.offset
    return key_text(where.value) if plain else None
