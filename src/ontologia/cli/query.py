"""`ontologia query …`: ask for entities, relations and ways along them, by the names of types."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ontologia.cli.call import Call, Commands
from ontologia.cli.models import Upgraders, load_upgraders
from ontologia.cli.output import harmless, say, show_json
from ontologia.cli.times import FORMS, METAVAR, commit_or_time
from ontologia.runtime.views.times import CommitOrTime

if TYPE_CHECKING:
    from ontologia.query.words import Words
    from ontologia.runtime.session import Session

app = Commands(help="Ask for entities, relations, and ways along them.", no_args_is_help=True)
_UNARY = ("is_null", "is_not_null")
_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "in", "startswith", "endswith", "contains"),
    *("like", "ilike"),
    *_UNARY,
)
_FILTER = (
    "Only what fits; may be repeated, and then all must hold. OP is eq, ne, lt, le, gt, ge, in, "
    "startswith, endswith, contains, like, ilike, is_null or is_not_null (the last two without "
    "VALUE). For like and ilike VALUE is an SQL pattern with % and _. PATH is "
    "dotted: tier, address.city; of a relation also left.name and right.name; '$.tier' and "
    "'left.$.name' are the same. VALUE is JSON if it "
    'is JSON of the field\'s kind (true, 5, "5"), and text otherwise; for in, a JSON list or a,b,c.'
)
Filter = Annotated[
    list[str] | None, typer.Option("--filter", metavar="PATH OP VALUE", help=_FILTER)
]
AsOf = Annotated[
    CommitOrTime | None,
    typer.Option(
        "--as-of",
        parser=commit_or_time,
        metavar=METAVAR,
        help=f"The state after this commit, or at this time. {FORMS}",
    ),
]
History = Annotated[
    bool, typer.Option("--with-history", help="Every version, oldest first, deletions included.")
]
Since = Annotated[
    CommitOrTime | None,
    typer.Option(
        "--history-since",
        parser=commit_or_time,
        metavar=METAVAR,
        help="Every version after this commit, or this time.",
    ),
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


@dataclass(frozen=True)
class _Asked:
    """What all three are told."""

    filters: list[str] | None
    order_by: list[str] | None
    as_of: int | None
    limit: int | None
    offset: int
    count: bool


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
    upgraders: Upgraders = None,
) -> None:
    """Show entities of a type, one line each.

    With --json, each line has kind, type, key, commit_id and fields, and with a history deleted.

    Example: ontologia query entities Customer --filter tier eq gold --order-by name --limit 10
    """
    from ontologia.query.words import Words
    from ontologia.runtime.stored import StoredTypes

    load_upgraders(upgraders)
    with call.reading() as session:
        cls = StoredTypes.of(session).entity(type_name)
        since = history_since and history_since.commit(session)
        query = _with_history(session.query().entities(cls), with_history, since)
        then = as_of and as_of.commit(session)
        asked = _Asked(filter, order_by, then, limit, offset, count)
        _answer(call, session, query, Words(cls.__shape__), asked)


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
    upgraders: Upgraders = None,
) -> None:
    """Show relations of a type, one line each.

    With --json, each line has kind, type, left, right, instance, commit_id and fields.

    Example: ontologia query relations Subscription --filter left.tier eq gold --filter seats gt 5
    """
    from ontologia.query.words import Words
    from ontologia.runtime.stored import StoredTypes

    load_upgraders(upgraders)
    with call.reading() as session:
        cls = StoredTypes.of(session).relation(type_name)
        since = history_since and history_since.commit(session)
        query = _with_history(session.query().relations(cls), with_history, since)
        then = as_of and as_of.commit(session)
        asked = _Asked(filter, order_by, then, limit, offset, count)
        _answer(call, session, query, Words(cls.__shape__), asked)


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
    upgraders: Upgraders = None,
) -> None:
    """Walk from entities along relations, in either direction; one line a way.

    A PATH speaks of the entity at the start, or begins with the name of a relation that is walked:
    Subscription.seats, Subscription.right.price.

    Example: ontologia query traverse Customer --via Subscription --filter Subscription.seats gt 5
    """
    from ontologia.query.words import Words
    from ontologia.runtime.stored import StoredTypes

    load_upgraders(upgraders)
    with call.reading() as session:
        types = StoredTypes.of(session)
        cls, walked = types.entity(type_name), [types.relation(name) for name in via]
        query: Any = session.query().entities(cls)
        with _usage():
            for relation in walked:
                query = query.via(relation)
        words = Words(cls.__shape__, [relation.__shape__ for relation in walked])
        then = as_of and as_of.commit(session)
        asked = _Asked(filter, order_by, then, limit, offset, count)
        _answer(call, session, query, words, asked)


# -- the question ---------------------------------------------------------------------------------


@contextmanager
def _usage() -> Generator[None]:
    """A question that makes no sense is a command that was not understood."""
    from ontologia.errors import QueryError

    try:
        yield
    except QueryError as error:
        hint = f" {error.hint}" if error.hint else ""
        raise typer.BadParameter(harmless(f"{error.args[0]}.{hint}")) from error


def _narrowed(query: Any, words: Words, asked: _Asked, head: int) -> Any:
    from ontologia.errors import NotFoundError
    from ontologia.query.words import filter_words

    as_of = asked.as_of
    if as_of is not None and as_of > head:
        raise NotFoundError(f"there is no commit {as_of}", hint=f"The last one is {head}.")
    with _usage():
        query = query.where(*(words.condition(*filter_words(each)) for each in asked.filters or ()))
        query = query.order_by(*(words.order(each) for each in asked.order_by or ()))
        query = query.offset(asked.offset)
        if asked.limit is not None:
            query = query.limit(asked.limit)
        return query if as_of is None else query.as_of(as_of)


def _with_history(query: Any, every: bool, since: int | None) -> Any:
    if since is not None:
        return query.history_since(since)
    return query.with_history() if every else query


def _answer(call: Call, session: Session, query: Any, words: Words, asked: _Asked) -> None:
    from ontologia.cli.answers import show_answer
    from ontologia.query.builder import question_of
    from ontologia.query.paging import stream

    head = session.head
    query = _narrowed(query, words, asked, head)
    if not asked.count:
        show_answer(call, question_of(query), stream(query, head))
        return
    if asked.limit is not None or asked.offset:
        raise typer.BadParameter("--count is of all that fit; leave out --limit and --offset")
    with _usage():
        hops = question_of(query).hops
        number = sum(1 for _ in stream(query, head)) if hops else query.count()
    show_json({"count": number}) if call.json else say(str(number))
