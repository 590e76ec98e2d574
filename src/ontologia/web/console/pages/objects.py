"""Types, their objects, and why one object is as it is; now, or as of a commit."""

from __future__ import annotations

import keyword
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from ontologia import codec
from ontologia.errors import (
    InvalidValueError,
    MissingUpgraderError,
    NotFoundError,
    OntologiaError,
    QueryError,
)
from ontologia.query.words import Words, filter_words
from ontologia.runtime.explain import StoredKey, Why
from ontologia.runtime.stored import StoredTypes
from ontologia.runtime.views import objects
from ontologia.runtime.views.commits import maker
from ontologia.runtime.views.objects import Comparison, ObjectDetail, RelationsOf, TypeRow
from ontologia.runtime.views.why import why_by_name
from ontologia.schema.expression import field_type_of
from ontologia.schema.shape import Shape
from ontologia.store.rows import CommitRow
from ontologia.web.console.actions import command_line
from ontologia.web.console.pages.commits import hidden_changes, without_hidden
from ontologia.web.console.rendering import PageRequest, page
from ontologia.web.console.sparkline import Changes, sparkline

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_COLUMNS = 6  # fields of an object that are shown in a list
_VERSIONS = 20
_MOST_FILTERS = 20
_RELATIONS_SECONDS = 0.4  # of the past, they may cost all versions of their type


def routes(console: Console) -> list[Route]:
    """`/types`, `/objects?kind=&type=` and `/object?kind=&type=&key=`."""
    return [
        console.page("/types", _types, name="types"),
        console.page("/objects", _objects, name="objects"),
        console.page("/object", _object, name="object"),
    ]


def _types(request: PageRequest) -> Response:
    return page(
        request, "types.html", title="Types and objects", types=objects.types(request.session)
    )


# -- the objects of a type ------------------------------------------------------------------------


def _objects(request: PageRequest) -> Response:
    params = request.request.query_params
    kind, name = _type_of(request)
    row, history = objects.type_(request.session, kind, name)
    texts = list(dict.fromkeys(each for each in params.getlist("filter") if each.strip()))
    if len(texts) > _MOST_FILTERS:  # the page has links with all but one of them
        raise InvalidValueError(f"a list has at most {_MOST_FILTERS} filters, got {len(texts):,}")
    order = request.query("order")
    found, wrong, code = None, None, None
    try:
        filters = [filter_words(each) for each in texts]
        for path in (*(each[0] for each in filters), _path_of(order or "")):
            if request.console.rendering.hides(path):
                raise QueryError(f"{path} is hidden here")
        _check_order(request, row, order)
        found = objects.objects(
            request.session,
            kind,
            name,
            filters=filters,
            order=order,
            as_of=request.as_of,
            before=request.query("before"),
        )
        code = _code_of_list(request, row, filters, order)
    except (QueryError, InvalidValueError, MissingUpgraderError) as error:
        wrong = error
    columns = [each for each in row.others if not request.console.rendering.hides_key(each)][
        :_COLUMNS
    ]
    redacted = request.console.rendering.redacted
    return page(
        request,
        "objects.html",
        title=name,
        status=200 if wrong is None else 400,
        past=True,
        type=row,
        history=history,
        filters=texts,
        order=order,
        wrong=wrong,
        help=_help(row, columns),
        columns=columns,
        found=found,
        rows=[(each, redacted(each.fields)) for each in found.rows] if found else [],
        code=code,
        command=_command(request, row, texts, order),
    )


def _type_of(request: PageRequest) -> tuple[str, str]:
    params = request.request.query_params
    kind, name = params.get("kind", "entity"), params.get("type", "")
    if kind not in ("entity", "relation"):
        raise InvalidValueError(f"{kind!r:.100} is neither entity nor relation")
    return kind, name


def _help(row: TypeRow, columns: list[str]) -> str:
    """A filter that the type could have."""
    return f"{columns[0]} eq VALUE" if columns else f"{row.key or 'left_key'} startswith a"


def _path_of(order: str) -> str:
    """`price` of `price:desc`."""
    return order.rpartition(":")[0] or order


def _check_order(request: PageRequest, row: TypeRow, order: str | None) -> None:
    """QueryError for an order by JSON, which sorts objects by all of their text, hidden or not.

    Comparisons need no check: they hold for texts, numbers and truth values alone.
    """
    if order is None or not request.console.rendering.redact:
        return
    path = _path_of(order)
    if field_type_of(Words(_shape_of(request, row)).expression(path)).kind == "json":
        raise QueryError(
            f"{path} may hold a value that is hidden here, and is not sorted by",
            hint="Sort by a field that is no JSON.",
        )


def _shape_of(request: PageRequest, row: TypeRow) -> Shape:
    stored = StoredTypes.of(request.session)
    cls = stored.entity(row.name) if row.kind == "entity" else stored.relation(row.name)
    shape: Shape = cls.__shape__
    return shape


def _is_name(text: str) -> bool:
    """Whether it can be the name of a class or field in Python."""
    return text.isidentifier() and not keyword.iskeyword(text)


def _code_of_list(
    request: PageRequest, row: TypeRow, filters: list[list[str]], order: str | None
) -> str | None:
    """The list as Python; None where its names are none of Python's."""
    words = Words(_shape_of(request, row))
    what = "entities" if row.kind == "entity" else "relations"
    lines = [f"session.query().{what}({row.name})"]
    lines += (f".where({words.code(*each)})" for each in filters)
    if order is not None:
        path = words.expression(_path_of(order))
        lines.append(f".order_by({path!r}{'.desc()' if order.endswith(':desc') else ''})")
    if request.as_of is not None:
        lines.append(f".as_of({request.as_of})")
    names = [row.name, *(step for each in filters for step in _fields_of(each[0]))]
    if not all(map(_is_name, names)):
        return None
    lines.append(".collect()")
    return lines[0] + "".join(lines[1:]) if len(lines) < 4 else "\n    ".join(["(", *lines]) + "\n)"


def _fields_of(path: str) -> list[str]:
    """What of a path is a name in Python: of the rest each step is a text."""
    steps = [each for each in path.split(".") if each != "$"]
    return steps[: 2 if steps[0] in ("left", "right") else 1]


def _command(request: PageRequest, row: TypeRow, filters: list[str], order: str | None) -> str:
    """The list as a command."""
    what = "entities" if row.kind == "entity" else "relations"
    as_of = None if request.as_of is None else str(request.as_of)
    options = [("--filter", each) for each in filters]
    options += [("--order-by", order)] if order is not None else []
    options += [("--as-of", as_of)] if as_of is not None else []
    return command_line(("query", what), [row.name], options)


# -- one object -----------------------------------------------------------------------------------


def _key_of(request: PageRequest, kind: str) -> Any:
    """The parts of a key as they are stored; of a relation also one text with colons."""
    parts = request.request.query_params.getlist("key")
    if len(parts) == (1 if kind == "entity" else 3):
        return StoredKey(parts)
    if kind == "relation" and len(parts) == 1:
        return parts[0]
    raise InvalidValueError(
        f"the key of {'an entity is one text' if kind == 'entity' else 'a relation has three parts'}"
    )


def _object(request: PageRequest) -> Response:
    kind, name = _type_of(request)
    key, as_of, session = _key_of(request, kind), request.as_of, request.session
    row, _ = objects.type_(session, kind, name)
    try:
        found = objects.object_(session, kind, name, key, as_of=as_of, seconds=_RELATIONS_SECONDS)
    except NotFoundError:
        if as_of is None:
            raise
        # It may have come later: a page that says so keeps the slider at hand.
        objects.object_(session, kind, name, key, relations=0)
        return page(request, "absent.html", title=_label(key), past=True, type=row, key=_label(key))
    exact = StoredKey(found.key)
    last = request.head if as_of is None else as_of
    asked = request.request.query_params.get("why") or None
    listed = objects.versions(
        *(session, kind, name, exact),
        as_of=as_of,
        before=request.query("before"),
        limit=_VERSIONS,
    )
    why = _why(request, found, asked)
    compared = _compared(request, kind, name, exact)
    declared = sorted(found.fields, key=lambda each: each.name != row.key)
    hides_key, redacted = request.console.rendering.hides_key, request.console.rendering.redacted
    return page(
        request,
        "object.html",
        title=f"{name} {found.label}",
        past=True,
        type=row,
        object=found,
        key=list(found.key),
        written_by=without_hidden(request, found.written_by),
        fields=[
            (
                each,
                redacted({each.name: each.value})[each.name],
                without_hidden(request, each.set_by),
                sparkline(
                    _numbers(each.changes, row.fields.get(each.name)),
                    found.first_drawn,
                    last,
                    hidden=hides_key(each.name) or isinstance(each.value, dict | list),
                ),
            )
            for each in declared
        ],
        related=[
            (each, [(one, redacted(one.fields)) for one in each.rows], _end_filter(each, found))
            for each in found.relations
        ],
        asked=asked,
        why=why,
        why_made=without_hidden(
            request, maker(CommitRow(why.commit_id, why.created_at, why.metadata))
        )
        if isinstance(why, Why)
        else None,
        why_value=redacted({asked: why.value})[asked] if isinstance(why, Why) and asked else None,
        compared=compared and _without_hidden(request, compared),
        versions=listed,
        rows=[
            (each, without_hidden(request, each.made), hidden_changes(request, each.changes))
            for each in listed.rows
        ],
        code=_code_of_object(request, found, row),
        command=_why_command(found, asked),
    )


def _label(key: Any) -> str:
    return key if isinstance(key, str) else ":".join(part for part in key if part)


def _numbers(changes: Changes, described: Any) -> Changes:
    """With decimals, which are stored as text, as numbers."""
    if not str(described).lower().startswith("decimal"):
        return changes
    with suppress(ArithmeticError, TypeError):
        return [(number, Decimal(value)) for number, value in changes]
    return changes


def _end_filter(related: RelationsOf, found: ObjectDetail) -> str:
    """The filter that means the relations of an entity at this end."""
    key, path = found.key[0], f"{related.end}_key"
    if key == key.strip() and not key.startswith('"'):
        return f"{path} eq {key}"
    return codec.encode([path, "eq", codec.encode(key)])


def _why(request: PageRequest, found: ObjectDetail, field: str | None) -> Why | OntologiaError:
    """Why the object, or one field, is as it is; what was raised if that cannot be told."""
    try:
        return why_by_name(
            *(request.session, found.type_name, StoredKey(found.key), field),
            kind=found.kind,
            as_of=request.as_of,
        )
    except (NotFoundError, MissingUpgraderError) as error:
        return error


def _compared(request: PageRequest, kind: str, name: str, key: StoredKey) -> Comparison | None:
    a, b = request.query("a"), request.query("b")
    if a is None or b is None:
        return None
    numbers = [int(each) for each in (a, b) if each.isdecimal() and len(each) < 19]
    if len(numbers) < 2:
        raise InvalidValueError("a and b are the numbers of commits", hint="Write ?a=3&b=7.")
    left, right = sorted(numbers)
    return objects.compared(request.session, kind, name, key, left, right)


def _without_hidden(request: PageRequest, compared: Comparison) -> Comparison:
    redacted = request.console.rendering.redacted
    return replace(
        compared,
        left=replace(compared.left, made=without_hidden(request, compared.left.made)),
        right=replace(compared.right, made=without_hidden(request, compared.right.made)),
        fields=tuple(
            (name, redacted({name: left})[name], redacted({name: right})[name], differs)
            for name, left, right, differs in compared.fields
        ),
    )


def _code_of_object(request: PageRequest, found: ObjectDetail, row: TypeRow) -> str | None:
    """How Python reads the object; None where its names are none of Python's."""
    if not _is_name(row.name) or not _is_name(row.key or "key"):
        return None
    stored = StoredTypes.of(request.session)
    as_of = "" if request.as_of is None else f".as_of({request.as_of})"
    if found.kind == "entity":
        shape = stored.entity(row.name).__shape__
        value = shape.key_value(found.key[0])
        if not as_of:
            return f"session.get({row.name}, {value!r})"
        where = f"{row.name}.{shape.key} == {value!r}"
        return f"session.query().entities({row.name}).where({where}){as_of}.first()"
    shape = stored.relation(row.name).__shape__
    parts = [
        f"{row.name}.left_key == {found.key[0]!r}",
        f"{row.name}.right_key == {found.key[1]!r}",
    ]
    if shape.instance_key is not None:
        parts.append(f"{row.name}.{shape.instance_key} == {shape.key_value(found.key[2])!r}")
    return f"session.query().relations({row.name}).where(\n    {', '.join(parts)}\n){as_of}.first()"


def _why_command(found: ObjectDetail, field: str | None) -> str:
    options = [("--field", field)] if field else []
    return command_line(("why",), [found.type_name, found.label], options)
