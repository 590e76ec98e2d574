"""Overview: what waits and what failed, per handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.runtime.views import overview
from ontologia.web.console.figures import charts_for
from ontologia.web.console.pages.handlers import shown_then
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """`/`."""
    return [console.page("/", _show, name="overview")]


def _show(request: PageRequest) -> Response:
    if request.moment is not None:
        return shown_then(request, request.moment, title="Overview", active="overview")
    return page(
        request,
        "overview.html",
        title="Overview",
        overview=overview.overview(request.session),
        charts=charts_for(request),
    )
