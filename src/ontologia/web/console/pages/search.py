"""Search: an id of anything leads to its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ontologia.runtime.views.search import Hit, search
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

PLACES = (
    ("Events", "in all namespaces, archived ones left out"),
    ("Deferred events", "by id or number"),
    ("Commits", "by number"),
    ("Sessions", "live or ended, as long as they are on record"),
    ("Handlers", "by whole name"),
    ("Types", "entities and relations"),
    ("Objects", "by key, of every type; a relation's is left:right"),
)
"""Where it looks, and by what."""


def routes(console: Console) -> list[Route]:
    """`/search?q=`."""
    return [console.page("/search", _show, name="search")]


def url_of(request: PageRequest, hit: Hit) -> str | None:
    """The page of something that has an id; None if there is no such page."""
    route: str = hit.kind
    query: dict[str, str] = {"id": hit.id}
    match hit.kind:
        case "entity" | "relation":
            route, query = "object", {"kind": hit.kind, "type": hit.name, "key": hit.id}
        case "type":
            route, query = "objects", {"kind": hit.name, "type": hit.id}
        case "handler":
            route, query = "handlers", {"handler": hit.id}
        case "session":
            route, query = "sessions", {}
        case "deferred":
            route, query = "later", {"number": hit.id}
        case _:
            pass
    return request.link(route, **query) if request.has(route) else None


def _show(request: PageRequest) -> Response:
    text = request.query("q") or ""
    hits = search(request.session, text)
    found = [(each, url_of(request, each)) for each in hits]
    if len(found) == 1 and found[0][1] is not None:
        return RedirectResponse(found[0][1], 303)
    return page(request, "search.html", title="Search", text=text, hits=found, places=PLACES)
