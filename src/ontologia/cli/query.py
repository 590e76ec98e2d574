"""`ontologia query …`: ask for entities, relations and ways along them, by the names of types."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ontologia.cli.call import Call, Commands
from ontologia.cli.drawing import value
from ontologia.cli.output import say, show_json, show_rows

if TYPE_CHECKING:
    from ontologia.query.question import Question
    from ontologia.query.words import Words
    from ontologia.runtime.session import Session

app = Commands(help="Ask for entities, relations, and ways along them.", no_args_is_help=True)
_UNARY = ("is_null", "is_not_null")
_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "in", "startswith", "endswith", "contains"),
    *_UNARY,
)
_FILTER = (
    "Only what fits; may be repeated, and then all must hold. OP is eq, ne, lt, le, gt, ge, in, "
    "startswith, endswith, contains, is_null or is_not_null (the last two without VALUE). PATH is "
    "dotted: tier, address.city; of a relation also left.name and right.name. VALUE is JSON if it "
    'is JSON of the field\'s kind (true, 5, "5"), and text otherwise; for in, a JSON list or a,b,c.'
)
Filter = Annotated[
    list[str] | None, typer.Option("--filter", metavar="PATH OP VALUE", help=_FILTER)
]
AsOf = Annotated[
    int | None, typer.Option("--as-of", min=0, metavar="N", help="The state after this commit.")
]
History = Annotated[
    bool, typer.Option("--with-history", help="Every version, oldest first, deletions included.")
]
Since = Annotated[
    int | None,
    typer.Option("--history-since", min=0, metavar="N", help="Every version after this commit."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=0, metavar="N", help="At most so many.", show_default="all"),
]
Offset = Annotated[int, typer.Option("--offset", min=0, metavar="N", help="Leave out so many.")]
Order = Annotated[
    list[str] | None,
    typer.Option(
        "--order-by", metavar="PATH[:desc]", help="Sort; may be repeated. Otherwise by key."
    ),
]
Count = Annotated[bool, typer.Option("--count", help="Only say how many.")]


class Filtering(TyperCommand):
    """A command whose --filter takes two or three words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _joined(args))


def _joined(args: Sequence[str]) -> list[str]:
    """The same arguments with the words of each --filter as one."""
    import orjson

    joined, rest = list[str](), list(args)
    while rest:
        word = rest.pop(0)
        joined.append(word)
        if word == "--":
            return joined + rest
        if word == "--filter" and len(rest) > 1 and not _is_whole(*rest[:2]):
            size = 2 if rest[1] in _UNARY else 3
            joined.append(orjson.dumps(rest[:size]).decode())
            del rest[:size]
    return joined


def _is_whole(word: str, next_word: str) -> bool:
    """Whether this is all of a filter: `--filter "tier eq gold"`, or an unfinished one."""
    return next_word.startswith("--") or (" " in word and next_word not in _OPERATORS)


@app.command("entities", cls=Filtering)
def entities(
    call: Call,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="Of the entities.")],
    filter: Filter = None,
    as_of: AsOf = None,
    with_history: History = False,
    history_since: Since = None,
    order_by: Order = None,
    limit: Limit = None,
    offset: Offset = 0,
    count: Count = False,
) -> None:
    """Show entities of a type, one line each.

    With --json, each line has kind, type, key, commit_id and fields, and with a history deleted.

    Example: ontologia query entities Customer --filter tier eq gold --order-by name --limit 10
    """
    from ontologia.query.words import Words
    from ontologia.runtime.stored import StoredTypes

    with call.reading() as session:
        cls = StoredTypes.of(session).entity(type_name)
        query = session.query().entities(cls)
        words = Words(cls.__shape__)
        query = _asked(query, words, filter, order_by, as_of, limit, offset)
        query = _with_history(query, with_history, history_since)
        _answer(call, session, query, count=count)


@app.command("relations", cls=Filtering)
def relations(
    call: Call,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="Of the relations.")],
    filter: Filter = None,
    as_of: AsOf = None,
    with_history: History = False,
    history_since: Since = None,
    order_by: Order = None,
    limit: Limit = None,
    offset: Offset = 0,
    count: Count = False,
) -> None:
    """Show relations of a type, one line each.

    With --json, each line has kind, type, left, right, instance, commit_id and fields.

    Example: ontologia query relations Subscription --filter left.tier eq gold --filter seats gt 5
    """
    from ontologia.query.words import Words
    from ontologia.runtime.stored import StoredTypes

    with call.reading() as session:
        cls = StoredTypes.of(session).relation(type_name)
        query = session.query().relations(cls)
        words = Words(cls.__shape__)
        query = _asked(query, words, filter, order_by, as_of, limit, offset)
        query = _with_history(query, with_history, history_since)
        _answer(call, session, query, count=count)


@app.command("traverse", cls=Filtering)
def traverse(
    call: Call,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="Of the entities to start at.")],
    via: Annotated[
        list[str],
        typer.Option("--via", metavar="RELATION", help="Walk along; repeat to go further."),
    ],
    filter: Filter = None,
    as_of: AsOf = None,
    order_by: Order = None,
    limit: Limit = None,
    offset: Offset = 0,
    count: Count = False,
) -> None:
    """Walk from entities along relations, in either direction; one line a way.

    A PATH speaks of the entity at the start, or begins with the name of a relation that is walked:
    Subscription.seats, Subscription.right.price.

    Example: ontologia query traverse Customer --via Subscription --filter Subscription.seats gt 5
    """
    from ontologia.query.words import Words
    from ontologia.runtime.stored import StoredTypes

    with call.reading() as session:
        types = StoredTypes.of(session)
        cls, walked = types.entity(type_name), [types.relation(name) for name in via]
        query: Any = session.query().entities(cls)
        with _usage():
            for relation in walked:
                query = query.via(relation)
        words = Words(cls.__shape__, [relation.__shape__ for relation in walked])
        query = _asked(query, words, filter, order_by, as_of, limit, offset)
        _answer(call, session, query, count=count)


# -- the question ---------------------------------------------------------------------------------


@contextmanager
def _usage() -> Generator[None]:
    """A question that makes no sense is a command that was not understood."""
    from ontologia.errors import QueryError

    try:
        yield
    except QueryError as error:
        hint = f" {error.hint}" if error.hint else ""
        raise typer.BadParameter(f"{error.args[0]}.{hint}") from error


def _asked(
    query: Any,
    words: Words,
    filters: list[str] | None,
    order_by: list[str] | None,
    as_of: int | None,
    limit: int | None,
    offset: int,
) -> Any:
    with _usage():
        query = query.where(*(words.condition(*_words(each)) for each in filters or ()))
        query = query.order_by(*(words.order(each) for each in order_by or ())).offset(offset)
        if limit is not None:
            query = query.limit(limit)
        return query if as_of is None else query.as_of(as_of)


def _words(filter: str) -> list[str]:
    """The words of a --filter: as `Filtering` joined them, or as one argument."""
    import orjson

    try:
        words = orjson.loads(filter)
    except orjson.JSONDecodeError:
        words = filter.split(maxsplit=2)
    if not isinstance(words, list) or len(words) < 2:
        raise typer.BadParameter(f"--filter takes PATH OP VALUE, got {filter!r}")
    return words


def _with_history(query: Any, every: bool, since: int | None) -> Any:
    if since is not None:
        return query.history_since(since)
    return query.with_history() if every else query


# -- the answer -----------------------------------------------------------------------------------


def _answer(call: Call, session: Session, query: Any, *, count: bool) -> None:
    from ontologia.query.paging import stream

    question = query._question
    if count:
        with _usage():
            number = sum(1 for _ in stream(query, session.head)) if question.hops else query.count()
        show_json({"count": number}) if call.json else say(str(number))
        return
    found = stream(query, session.head)
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
    if shape.kind == "relation":
        return [*first, "left", "right", *shape.fields]
    return [*first, shape.key or "", *(name for name in shape.fields if name != shape.key)]


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
    yield from map(_cell, fields.values())


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
