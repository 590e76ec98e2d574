"""Graph: what came of an event, and what that came from: events, handlers, attempts, commits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.errors import InvalidValueError
from ontologia.runtime.views.graph import Node, graph
from ontologia.web.console.graph_svg import draw
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """`/graph?id=`."""
    return [console.page("/graph", _show, name="graph")]


def _show(request: PageRequest) -> Response:
    event_id = request.query("id")
    if event_id is None:
        raise InvalidValueError("the address names no event", hint="It needs an id.")
    found = graph(request.session, event_id)
    nodes = list(found)
    counts = {
        kind: sum(each.kind == kind for each in nodes) for kind in ("event", "handler", "commit")
    }
    counts["failed attempt"] = sum(each.kind == "attempt" for each in nodes)
    return page(
        request,
        "graph.html",
        title="Graph",
        graph=found,
        event_id=event_id,
        counts=counts,
        drawing=draw(found, partial(url_of, request)),
    )


def url_of(request: PageRequest, node: Node) -> str | None:
    """The page of a node; None if there is no such page."""
    route: str = node.kind
    query = {"id": node.id}
    if node.kind == "handler":
        route, query = "handlers", {"handler": node.id}
    elif node.kind == "attempt":
        query = {"id": node.event_id or "", "handler": node.handler or "", "number": node.id}
    return request.link(route, **query) if request.has(route) else None
