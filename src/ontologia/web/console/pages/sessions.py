"""Sessions: the processes that use the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.runtime.views.sessions import sessions
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """`/sessions`."""
    return [console.page("/sessions", _list, name="sessions")]


def _list(request: PageRequest) -> Response:
    found = sessions(request.session, before=request.query("before"))
    return page(request, "sessions.html", title="Sessions", found=found)
