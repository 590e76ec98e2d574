"""Commits, the newest first, and one of them: who made it, what it changed and emitted."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ontologia.errors import InvalidValueError, NotFoundError
from ontologia.runtime.views import commits
from ontologia.runtime.views.commits import Maker, differing
from ontologia.store.rows import CommitRow
from ontologia.web.console.rendering import HIDDEN, PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

HELP = "handler:NAME operator:NAME event:ID session:ID"
_MOST_CONDITIONS = 20
_SHORT = {
    "handler": "handler_id",
    "event": "event_id",
    "session": "session_id",
    "extension": "extension_id",
}
"""What may be typed for names in the metadata."""


def routes(console: Console) -> list[Route]:
    """`/commits`, `/commit?id=` and the time of one as text, for the slider."""
    return [
        console.page("/commits", _list, name="commits"),
        console.page("/commit", _show, name="commit"),
        console.page("/commit/time", _time, name="commit_time"),
    ]


def parse(text: str) -> dict[str, str]:
    """Read `handler:ship operator:ada`; InvalidValueError if it cannot be read.

    Any name in the metadata of commits can be used; a value with spaces stands in quotes.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidValueError(f"{text[:100]!r} cannot be read: {error}", hint=HELP) from error
    found: dict[str, str] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or not name or not value:
            raise InvalidValueError(f"{word[:100]!r} is no condition", hint=HELP)
        found[_SHORT.get(name, name)] = value
    if len(found) > _MOST_CONDITIONS:
        raise InvalidValueError(f"a filter has at most {_MOST_CONDITIONS} conditions")
    return found


def _list(request: PageRequest) -> Response:
    text = request.query("filter") or ""
    found, wrong = None, None
    try:
        wanted = parse(text)
        for name in wanted:
            if request.console.rendering.hides(name):
                raise InvalidValueError(f"{name} is hidden here")
        found = commits.commits(
            request.session,
            as_of=request.as_of,
            before=request.query("before"),
            metadata=wanted,
        )
    except InvalidValueError as error:
        wrong = error
    return page(
        request,
        "commits.html",
        title="Commits",
        status=200 if wrong is None else 400,
        past=True,
        text=text,
        help=HELP,
        wrong=wrong,
        found=found,
        rows=[without_hidden(request, each) for each in found.rows] if found else [],
    )


def without_hidden(request: PageRequest, made: Maker | None) -> Maker | None:
    """Who made a commit, without what `redact` names in its metadata."""
    if made is None:
        return None
    metadata = request.console.rendering.redacted(made.metadata)
    return commits.maker(CommitRow(made.commit_id, made.created_at, metadata))


def hidden_changes(
    request: PageRequest, changes: dict[str, tuple[Any, Any]]
) -> dict[str, tuple[Any, Any]]:
    """Before and after of fields, of JSON of the parts that differ, without what `redact` names."""
    found: dict[str, tuple[Any, Any]] = {}
    rendering = request.console.rendering
    waiting = [(name, name, each) for name, each in reversed(changes.items())]
    while waiting:
        path, key, (before, after) = waiting.pop()
        if rendering.hides_key(key):
            found[path] = HIDDEN, HIDDEN
        elif isinstance(before, dict) and isinstance(after, dict):
            parts: dict[str, tuple[Any, Any]] = differing(before, after)
            waiting += ((f"{path}.{name}", name, each) for name, each in reversed(parts.items()))
        else:
            found[path] = rendering.redacted(before), rendering.redacted(after)
    return found


def _number(request: PageRequest) -> int:
    text = request.query("id") or ""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise NotFoundError(f"there is no commit {text[:100]}", hint="Commits are numbered from 1.")
    return int(text)


def _show(request: PageRequest) -> Response:
    number = _number(request)
    found = commits.commit(request.session, number, after=request.query("after"))
    return page(
        request,
        "commit.html",
        title=f"Commit {number:,}",
        past=True,
        commit=found,
        made=without_hidden(request, found.made),
        changes=[(each, hidden_changes(request, each.fields)) for each in found.changes.rows],
        later=request.as_of is not None and number > request.as_of,
    )


def _time(request: PageRequest) -> Response:
    commit = request.session.get_commit(_number(request))
    if commit is None:
        raise NotFoundError("there is no such commit")
    return PlainTextResponse(f"{commit['created_at']:%Y-%m-%d %H:%M:%S} UTC")
