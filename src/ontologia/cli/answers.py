"""What a query found: rows of a table, or objects a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ontologia.cli.call import Call
from ontologia.cli.drawing import value
from ontologia.cli.output import show_json, show_rows

if TYPE_CHECKING:
    from ontologia.query.question import Question


def show_answer(call: Call, question: Question, found: Iterable[Any]) -> None:
    """Objects, or ways, as they come."""
    if call.json:
        for each in found:
            show_json(_path_json(each) if question.hops else _json(each))
        return
    columns = _path_columns(question) if question.hops else _columns(question)
    cells = _path_cells if question.hops else _cells
    # By number: a field may be called as a column is.
    names = [str(number) for number in range(len(columns))]
    rows = (dict(zip(names, cells(question, each), strict=True)) for each in found)
    show_rows(call, columns, rows, names=names, nothing="nothing fits")


def _json(obj: Any) -> dict[str, Any]:
    from ontologia.schema.stored import plain

    meta, shape = obj.meta(), type(obj).__shape__
    keys = {"key": meta.key}
    if shape.kind == "relation":
        keys = {
            "left": meta.left_key,
            "right": meta.right_key,
            "instance": meta.instance_key or None,
        }
    shown = {"kind": shape.kind, "type": shape.name, **keys, "commit_id": meta.commit_id}
    deleted = {"deleted": True} if meta.deleted else {}
    return {**shown, **deleted, "fields": plain(shape, obj.__dict__)}


def _path_json(path: Any) -> dict[str, Any]:
    return {"source": _json(path.source), "relations": [_json(each) for each in path.relations]}


def _columns(question: Question) -> list[str]:
    shape = question.shape
    first = ["commit", "deleted"] if question.history else []
    others = ["(others)"] if shape.open else []
    if shape.kind == "relation":
        return [*first, "left", "right", *shape.fields, *others]
    named = (name for name in shape.fields if name != shape.key)
    return [*first, shape.key or "", *named, *others]


def _cells(question: Question, obj: Any) -> Iterator[str]:
    from ontologia.schema.stored import plain

    meta, shape = obj.meta(), question.shape
    if question.history:
        yield str(meta.commit_id)
        yield "yes" if meta.deleted else "-"
    fields = plain(shape, obj.__dict__)
    if shape.kind == "relation":
        yield from (meta.left_key, meta.right_key)
    else:
        yield meta.key
        del fields[shape.key or ""]
    others = {name: fields.pop(name) for name in [*fields] if name not in shape.fields}
    yield from map(_cell, fields.values())
    if shape.open:
        yield _cell(others or None)


def _path_columns(question: Question) -> list[str]:
    names = [question.shape.name]
    for hop in question.hops:
        names += [hop.relation.name, hop.relation.end(hop.far).name]
    return names


def _path_cells(question: Question, path: Any) -> Iterator[str]:
    from ontologia.schema.stored import plain

    yield path.source.meta().key
    for hop, relation in zip(question.hops, path.relations, strict=True):
        fields = plain(hop.relation, relation.__dict__)
        yield " ".join(f"{name}={_cell(each)}" for name, each in fields.items())
        yield getattr(relation, f"{hop.far}_key")


def _cell(stored: Any) -> str:
    if stored is None:
        return "-"
    return stored if isinstance(stored, str) else value(stored)
