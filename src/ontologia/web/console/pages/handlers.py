"""Handlers: what waits for each, and who runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.errors import NotFoundError
from ontologia.runtime.views.handlers import handlers
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """`/handlers`, all of them, or one: `?handler=`."""
    return [console.page("/handlers", _list, name="handlers")]


def _list(request: PageRequest) -> Response:
    rows = handlers(request.session)
    name = request.query("handler")
    if name is None:
        return page(request, "handlers.html", title="Handlers", rows=rows)
    one = next((each for each in rows if each.name == name), None)
    if one is None:
        raise NotFoundError(
            f"there is no handler {name} in namespace {request.namespace!r}",
            hint="It may have been forgotten, or have another name.",
        )
    return page(request, "handler.html", title=name, row=one)
