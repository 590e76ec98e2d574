"""`Field(unique=True)`: no two current objects of a type have the same value.

There is no UNIQUE index: within a commit two objects may swap their values, and a database would
refuse the first of the two writes. Commits are serialised, so it is enough to look, in the commit's
own transaction and after its writes, who holds the values that it gave away. The index of the field
finds them. Values are the same if their canonical JSON is; null is not a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.errors import UniqueViolationError
from ontologia.query.question import Question
from ontologia.schema.expression import In, path_of
from ontologia.schema.shape import Shape
from ontologia.store.protocol import Transaction
from ontologia.store.rows import ObjectKey, RawChange

_CHUNK = 10_000
_EXAMPLES = 3


def check_unique(tx: Transaction, shapes: Iterable[Shape], changes: Sequence[RawChange]) -> None:
    """UniqueViolationError if these changes, just written, gave one value to two objects.

    One statement for each unique field with new values (and 10,000 of them), else none.
    """
    for shape in shapes:
        if shape.unique:
            mine = [c for c in changes if (c.kind, c.type_name) == (shape.kind, shape.name)]
            for name in shape.unique:
                _check(tx, shape, name, mine)


def _check(tx: Transaction, shape: Shape, name: str, changes: Sequence[RawChange]) -> None:
    given: dict[str, ObjectKey] = {}
    for change in changes:
        text = _value(change.after, name)
        if text is None or text == _value(change.before, name):
            continue
        if text in given:
            raise _violation(shape, name, text, change.key, given[text])
        given[text] = change.key
    path = path_of(shape.expression(name))
    for texts in _chunks(given):
        wanted = In(path, tuple(map(codec.decode_stored, texts)))
        for key, fields in tx.find(Question(shape, wanted, settling=tx.settling)):
            held = _value(fields, name)
            if held is not None and given.get(held, key) != key:
                raise _violation(shape, name, held, given[held], key)


def _value(fields: str | None, name: str) -> str | None:
    """The canonical text of a field's value; None if there is none."""
    value = None if fields is None else codec.decode_stored(fields).get(name)
    return None if value is None else codec.encode(value)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _violation(
    shape: Shape, name: str, text: str, key: ObjectKey, holder: ObjectKey
) -> UniqueViolationError:
    return UniqueViolationError(
        shape.name, name, codec.decode_stored(text), _label(key), _label(holder)
    )


def _label(key: ObjectKey) -> str:
    return ":".join(filter(None, key))


class Duplicates(NamedTuple):
    """Values of one field that several objects have."""

    field: str
    values: int
    """Number of such values."""
    examples: list[tuple[Any, list[str]]]
    """Some of them, each with the keys of some of the objects that have it."""

    def __str__(self) -> str:
        value, keys = self.examples[0]
        values = "1 value" if self.values == 1 else f"{self.values} values"
        return (
            f"{self.field}: {values} of more than one object, "
            f"for example {codec.encode(value)} of {', '.join(keys)}"
        )


def find_duplicates(names: Iterable[str], objects: Mapping[ObjectKey, str]) -> list[Duplicates]:
    """What keeps these fields of these objects from being unique; [] if nothing does."""
    found: list[Duplicates] = []
    for name in names:
        holders: dict[str, list[ObjectKey]] = {}
        for key, fields in objects.items():
            text = _value(fields, name)
            if text is not None:
                holders.setdefault(text, []).append(key)
        twice = {text: keys for text, keys in holders.items() if len(keys) > 1}
        if twice:
            examples = [
                (codec.decode_stored(text), [_label(key) for key in keys[:_EXAMPLES]])
                for text, keys in islice(twice.items(), _EXAMPLES)
            ]
            found.append(Duplicates(name, len(twice), examples))
    return found
