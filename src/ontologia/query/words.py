"""Questions in words, as somebody types them: `address.city eq Bern`, `price:desc`.

A path is dotted: a field, and the way into its JSON. On a relation it may begin with `left` or
`right`, in a traversal with the name of a relation that is walked. `$.tier` and `left.$.tier`, as
the documents write them, are `tier` and `left.tier`. A value is JSON if it is JSON of
the field's kind (`true`, `5`, `"5"`), and text otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import orjson

from ontologia import codec
from ontologia.errors import InvalidValueError, QueryError, QueryTypeError
from ontologia.schema.expression import Condition, Expr, Order, field_type_of
from ontologia.schema.fieldtype import Kind, name_of
from ontologia.schema.shape import ENDS, Shape

_TEXTUAL = ("startswith", "endswith", "contains", "like", "ilike")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "in", *_TEXTUAL)
_SIGNS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "in_": "in"}
"""The documents' operators, which shells need quoted."""
_PYTHON = {word: sign for sign, word in _SIGNS.items() if word != "in"}
TESTS = ("is_null", "is_not_null")
"""These take no value."""
_JSON: dict[Kind, tuple[type, ...]] = {
    "text": (str,),
    "decimal": (),  # as text, so that no digit is lost on the way
    "number": (int, float),
    "bool": (bool,),
    "json": (str, int, float, bool),
}


def filter_words(text: str) -> list[str]:
    """The words of a filter: `tier eq gold`, or a JSON list of them for paths with spaces.

    QueryError unless there is a path and an operator.
    """
    wrong = f"a filter is PATH OP VALUE, got {text!r:.200}"
    words: list[Any] = text.split(maxsplit=2)
    if text.lstrip().startswith("["):
        try:
            listed = codec.decode(text)
            words = [each if isinstance(each, str) else codec.encode(each) for each in listed]
        except InvalidValueError as error:
            raise QueryError(f"{wrong}: {error.args[0]}") from error
        if not all(isinstance(each, str) for each in listed[:2]):
            raise QueryError(wrong)
    if not 2 <= len(words) <= 3:
        raise QueryError(wrong)
    return words


class Words:
    """Understands what is said about objects of one type, and about the relations walked from it."""

    def __init__(self, shape: Shape, relations: Sequence[Shape] = ()) -> None:
        self._shape = shape
        self._relations = {relation.name: relation for relation in relations}

    def condition(self, path: str, operator: str, value: str | None = None) -> Condition:
        """The condition that is meant; QueryError if there is none."""
        expr = self.expression(path)
        operator = _SIGNS.get(operator, operator)
        if operator in TESTS:
            if value is not None:
                raise QueryError(f"{operator} takes no value, got {value!r}")
            return expr.is_null() if operator == "is_null" else expr.is_not_null()
        if operator not in COMPARISONS:
            known = ", ".join((*COMPARISONS, *TESTS))
            raise QueryError(f"{operator!r} compares nothing; write one of {known}")
        if value is None:
            raise QueryError(f"{path} {operator} needs a value")
        if operator == "in":
            return expr.in_([_value(expr, each) for each in _list(value)])
        if operator in _TEXTUAL:
            condition: Condition = getattr(expr, operator)(_text(value))
            return condition
        compared: Condition = getattr(expr, f"__{operator}__")(_value(expr, value))
        return compared

    def code(self, path: str, operator: str, value: str | None = None) -> str:
        """The same condition as Python: `Customer.tier == 'gold'`."""
        self.condition(path, operator, value)
        expr = self.expression(path)
        operator = _SIGNS.get(operator, operator)
        if operator in TESTS:
            return f"{expr!r}.{operator}()"
        word = value or ""
        if operator == "in":
            values = ", ".join(_source(_value(expr, each)) for each in _list(word))
            return f"{expr!r}.in_([{values}])"
        if operator in _TEXTUAL:
            return f"{expr!r}.{operator}({_text(word)!r})"
        return f"{expr!r} {_PYTHON[operator]} {_source(_value(expr, word))}"

    def order(self, term: str) -> Order:
        """`name` or `name:desc`; QueryError if it is not understood."""
        path, colon, way = term.rpartition(":")
        if not colon:
            return self.expression(term).asc()
        if way not in ("asc", "desc"):
            raise QueryError(f"{term!r} is no order; write {path}:desc or {path}")
        expr = self.expression(path)
        return expr.desc() if way == "desc" else expr.asc()

    def expression(self, path: str) -> Expr[Any]:
        """The field, or the value inside it, that a path names."""
        first, *rest = _from_root(path.split("."))
        shape = self._shape
        if first in self._relations and rest:
            shape, (first, *rest) = self._relations[first], _from_root(rest)
        if shape.kind == "relation" and first in ENDS and rest:
            end, rest = shape.end(first), _from_root(rest)
            expr = end.expression(rest[0], "left" if first == "left" else "right", shape.name)
            rest = rest[1:]
        else:
            expr = shape.expression(first)
        return expr.path(".".join(rest)) if rest else expr


def _from_root(parts: list[str]) -> list[str]:
    """A path without the `$` that stands for the object itself."""
    return parts[1:] if parts[0] == "$" and len(parts) > 1 else parts


def _value(expr: Expr[Any], word: object) -> Any:
    """What a word means when it is compared with this field."""
    found = field_type_of(expr)
    stored = _stored(found.kind, word)
    if found.decode is None:
        return stored
    try:
        return found.decode(stored)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise QueryTypeError(f"{expr!r} is {name_of(found.annotation)}, got {word!r}") from error


def _source(value: object) -> str:
    """A value as it is written in Python."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def _stored(kind: Kind, word: object) -> Any:
    if not isinstance(word, str):
        return orjson.dumps(word).decode() if kind in ("text", "decimal") else word
    try:
        parsed = codec.decode(word)
    except InvalidValueError:
        return word
    fits = isinstance(parsed, _JSON[kind]) and (kind != "number" or not isinstance(parsed, bool))
    return parsed if fits else word


def _text(word: str) -> str:
    stored: str = _stored("text", word)
    return stored


def _list(word: str) -> list[object]:
    """`["a", "b"]`, or `a,b`."""
    try:
        parsed = codec.decode(word)
    except InvalidValueError:
        parsed = None
    if isinstance(parsed, list):
        return parsed
    return list[object](word.split(","))
