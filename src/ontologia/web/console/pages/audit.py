"""Audit: what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.runtime.views.audit import operators_commits
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """`/audit`."""
    return [console.page("/audit", _list, name="audit")]


def _list(request: PageRequest) -> Response:
    operator = request.query("operator")
    found = operators_commits(
        request.session, before=request.query("before"), operator=operator, seconds=0.6
    )
    return page(request, "audit.html", title="Audit", operator=operator, found=found)
