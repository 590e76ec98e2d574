"""Dead letters: grouped by failure, then listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.runtime.views.dead_letters import dead_letters, failure_groups, selection
from ontologia.runtime.views.times import ago
from ontologia.web.console.actions import group_token, letter_token
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_GROUPING = 0.4  # seconds, so that the list has its time, too
_GROUPS = 20


def routes(console: Console) -> list[Route]:
    """`/dead-letters`."""
    return [console.page("/dead-letters", _list, name="dead_letters")]


def _list(request: PageRequest) -> Response:
    given = {name: request.query(name) for name in ("id", "handler", "type", "error", "since")}
    since = given["since"]
    which = selection(
        given["id"],
        given["handler"],
        given["type"],
        given["error"],
        since=None if since is None else ago(request.now, since),
    )
    groups = failure_groups(request.session, which, seconds=_GROUPING)
    found = dead_letters(request.session, which, before=request.query("before"), seconds=_GROUPING)
    return page(
        request,
        "dead_letters.html",
        title="Dead letters",
        given=given,
        filtered=any(given.values()),
        groups=groups,
        shown=[(each, group_token(each)) for each in groups.groups[:_GROUPS]],
        found=found,
        rows=[(each, letter_token(each.handler, each.event_id)) for each in found.rows],
    )
