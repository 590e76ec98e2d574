"""Audit: what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.errors import InvalidValueError
from ontologia.runtime.views.audit import AuditRow, operators_commits
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """`/audit`."""
    return [console.page("/audit", _list, name="audit")]


def _list(request: PageRequest) -> Response:
    operator = request.query("operator")
    rendering = request.console.rendering
    if operator is not None and rendering.hides_key("operator"):
        raise InvalidValueError("operator is hidden here, and not searched for")
    found = operators_commits(
        request.session, before=request.query("before"), operator=operator, seconds=0.6
    )
    # What a row says is what its metadata says, where keys are hidden.
    rows = [
        AuditRow.of(each.commit_id, each.created_at, rendering.redacted(each.metadata))
        for each in found.rows
    ]
    return page(request, "audit.html", title="Audit", operator=operator, found=found, rows=rows)
