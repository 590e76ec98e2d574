"""Graph: what came of an event, and what that came from: events, handlers, attempts, commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from ontologia.errors import InvalidValueError
from ontologia.runtime.views.graph import Graph, Node, graph
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

MOST = 500
"""Nodes that are listed."""


class Row(NamedTuple):
    """One node of the list."""

    node: Node
    url: str | None
    opens: bool
    """It is the first below the row before."""
    closes: int
    """How many lists end after it."""


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
        rows=list(_rows(request, found)),
        left=max(0, len(nodes) - MOST),
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


def _rows(request: PageRequest, found: Graph) -> Iterator[Row]:
    """The nodes in order, each with where its list begins and ends; a chain may be long."""
    listed: list[tuple[Node, int]] = []
    waiting = [(node, 0) for node in reversed(found.roots)]
    while waiting and len(listed) < MOST:
        node, depth = waiting.pop()
        listed.append((node, depth))
        waiting += ((child, depth + 1) for child in reversed(node.children))
    depths = [depth for _, depth in listed] + [-1]
    for at, (node, depth) in enumerate(listed):
        opens = at == 0 or depth > depths[at - 1]
        yield Row(node, url_of(request, node), opens, max(0, depth - depths[at + 1]))
